"""Standard streams in a state that every verb can use: open, able to print any text, and safe on a full disk."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from typing import Any

_PRINTABLE = "runner.printable"
# Replacements for characters of our output that are missing in the encoding of the terminal.
_PLAIN = dict.fromkeys("█▉▊▋▌▍▎▏▁▂▃▄▅▆▇", "#") | {
    "─": "-",
    "│": "|",
    "…": "...",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "→": "->",
    "·": ".",
}


class _StandardOutput(io.TextIOWrapper):
    """stdout or stderr of the process, whose failures (a full disk) are reported once and never raised.

    BrokenPipeError is still raised: it ends `runner list | head`.
    """

    def __init__(self, stream: io.TextIOWrapper, name: str) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._name = name
        self.has_failed = False

    def write(self, text: str, /) -> int:
        """Write `text`; it may be lost."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._report(error)
            return len(text)

    def flush(self) -> None:
        """Write the buffer; it may be lost."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self.has_failed:
            self.has_failed = True  # first, because stderr may fail as well
            print(f"cannot write to {self._name}: {error.strerror}", file=sys.stderr, flush=True)


def prepare_standard_streams() -> None:
    """Open streams that the shell has closed (`>&-`), and replace characters that the encoding lacks."""
    codecs.register_error(_PRINTABLE, _replaced)
    _open_descriptors()
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            stream = _StandardOutput(stream, name)
            setattr(sys, name, stream)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure") and not is_unicode(stream.encoding):
            stream.reconfigure(errors=_PRINTABLE)


def is_output_lost() -> bool:
    """Return whether stdout could not be written; if so, later text and Python's last flush are discarded."""
    is_lost = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _StandardOutput):
            with suppress(BrokenPipeError):
                stream.flush()
            if stream.has_failed:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                is_lost |= stream is sys.stdout
    return is_lost


def is_unicode(encoding: str | None) -> bool:
    """Return whether an encoding has all characters."""
    return (encoding or "").lower().replace("_", "-").startswith("utf")


def _open_descriptors() -> None:
    """Open descriptors 0 to 2 if they are closed, else the next file would get their number and others' output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    texts = (_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in characters)
    return "".join(texts), error.end
