"""Frames of RLlink: a length in digits and a body, without sockets (specification, section 1).

Imports only the standard library, so clients can use it without the rest of the package.
"""

from __future__ import annotations

import gzip
import os
import zlib
from contextlib import suppress

# Shorter messages are just as fast through the socket.
_SHORTEST = 4096
_FOLDER = "/dev/shm"


class SharedWriter:
    """Writes bodies into the shared memory from which the server reads them.

    Args:
        name, size: name and size in bytes of the POSIX shared memory object, as sent by the server.

    Raises:
        OSError: the memory is not on this machine.
    """

    def __init__(self, name: str, size: int) -> None:
        # Before Python 3.13, the class of multiprocessing removes shared memory of other processes.
        path = os.path.join(_FOLDER, os.path.basename(name))
        self._file = os.open(path, os.O_RDWR)
        self._size = size

    def write(self, body: bytes) -> bool:
        """Write a body; return false if it is too short to pay off, or does not fit."""
        if not _SHORTEST <= len(body) <= self._size:
            return False
        with suppress(OSError):  # the machine is out of memory
            # Writing through a mapping would crash the process if the machine is out of memory.
            return os.pwrite(self._file, body, 0) == len(body)
        return False

    def close(self) -> None:
        """Close the memory."""
        os.close(self._file)


HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16
_LARGE = ord("+")
_SHARED = ord("@")
_MOST_IN_HEADER = 99_999_999
_GZIP_MAGIC = b"\x1f\x8b"
_SMALLEST_COMPRESSED = 1024

# Default of `max_body_bytes`: the largest number of eight digits.
DEFAULT_MAX_BODY_BYTES = _MOST_IN_HEADER


class FrameError(ValueError):
    """Bytes that are not a valid frame.

    Attributes:
        code: error code of the protocol.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def frame(body: bytes, large: bool = False) -> bytes:
    """Put the header before a body.

    Args:
        body: JSON, or another format that an extension allows.
        large: whether the extension `large_frames` is granted.

    Raises:
        FrameError: the body is too long for a header.
    """
    if len(body) <= _MOST_IN_HEADER:
        return b"%08d%b" % (len(body), body)
    if large:
        return b"+%015d%b" % (len(body), body)
    raise FrameError("too_large", f"a body of {len(body)} bytes needs the extension large_frames")


def shared_frame(num_bytes: int) -> bytes:
    """Make the frame for a body of `num_bytes` in shared memory (extension `shared_memory`)."""
    digits = b"%d" % num_bytes
    return b"@%07d%b" % (len(digits), digits)


class FrameReader:
    """Splits a stream of bytes into bodies.

    Args:
        max_body_bytes: longer bodies are rejected before they are read.

    Attributes:
        is_large_granted: whether 16-byte headers are allowed.
        is_shared_granted: whether headers may begin with `@`; the body then contains the length of the body in shared
            memory.
    """

    def __init__(self, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> None:
        self.max_body_bytes = max_body_bytes
        self.is_large_granted = False
        self.is_shared_granted = False
        self._buffer = bytearray()
        self._start = 0
        self._end_of_body: int | None = None
        self._start_of_body = 0
        self._is_shared = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes."""
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._move(-self._start)
        self._buffer += data

    def clear(self) -> None:
        """Drop all bytes."""
        self._buffer = bytearray()
        self._start, self._end_of_body = 0, None

    def _move(self, by: int) -> None:
        self._start += by
        self._start_of_body += by
        if self._end_of_body is not None:
            self._end_of_body += by

    @property
    def is_within_frame(self) -> bool:
        """Return whether a frame has begun but is incomplete."""
        return len(self._buffer) > self._start

    @property
    def num_bytes(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._buffer) - self._start

    @property
    def num_frame_bytes(self) -> int:
        """Return the length of the frame that has begun, including its header; 0 before its header is complete."""
        return 0 if self._end_of_body is None else self._end_of_body - self._start

    def next_body(self) -> bytes | None:
        """Return the next complete body, or None while it is incomplete.

        Raises:
            FrameError: `bad_header` or `too_large`; nothing more can be read.
        """
        return self.next_frame()[0]

    def next_frame(self) -> tuple[bytes | None, bool]:
        """Return the next complete body or None, and whether it only contains the length of the body in shared memory.

        Raises:
            FrameError: `bad_header` or `too_large`; nothing more can be read.
        """
        if self._end_of_body is None and not self._read_header():
            return None, False
        end = self._end_of_body
        if end is None or len(self._buffer) < end:
            return None, False
        body = bytes(memoryview(self._buffer)[self._start_of_body : end])
        self._start, self._end_of_body = end, None
        if self._start > len(self._buffer) // 2:
            del self._buffer[: self._start]
            self._move(-self._start)
        return body, self._is_shared

    def _read_header(self) -> bool:
        """Find the bounds of the next body; return false while its header is incomplete."""
        buffer, start = self._buffer, self._start
        if len(buffer) == start:
            return False
        kind = buffer[start]
        is_large = kind == _LARGE and self.is_large_granted
        is_shared = kind == _SHARED and self.is_shared_granted
        size = _LARGE_HEADER_BYTES if is_large else HEADER_BYTES
        header = bytes(buffer[start : start + size])
        digits = header[1:] if is_large or is_shared else header
        if digits and not (digits.isdigit() and digits.isascii()):
            raise FrameError("bad_header", f"a header must be {HEADER_BYTES} ASCII digits, got {header!r}")
        if len(header) < size:
            return False
        length = int(digits)
        if length > self.max_body_bytes:
            raise FrameError("too_large", f"a body of {length} bytes exceeds the limit of {self.max_body_bytes}")
        self._start_of_body, self._end_of_body, self._is_shared = start + size, start + size + length, is_shared
        return True


def compressed(body: bytes) -> bytes:
    """Compress a body with gzip if it is long enough to pay off."""
    return gzip.compress(body, 1, mtime=0) if len(body) > _SMALLEST_COMPRESSED else body


def is_compressed(body: bytes) -> bool:
    """Return whether a body is a gzip stream; neither JSON nor MessagePack maps begin like one."""
    return body[:2] == _GZIP_MAGIC


def decompressed(body: bytes, max_body_bytes: int) -> bytes:
    """Decompress a gzip stream.

    Raises:
        FrameError: the body is not a gzip stream, or decompresses to more than `max_body_bytes`.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(body, max_body_bytes + 1)
    except zlib.error as error:
        raise FrameError("bad_body", f"the body is not a gzip stream: {error}") from None
    if len(content) > max_body_bytes:
        raise FrameError("bad_body", f"the gzip stream decompresses to more than the limit of {max_body_bytes} bytes")
    if not stream.eof or stream.unused_data:
        raise FrameError("bad_body", "the gzip stream is truncated, or followed by other bytes")
    return content
