"""Kinds of files, told by how their names end or by what they begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

HEAD_BYTES = 64  # are enough to tell a kind
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
# What files of no kind of ours begin with -> what they are.
_OTHERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}


@dataclass(frozen=True)
class FileKind:
    """One kind of files.

    Attributes:
        name: in `offline.input_read_method` (`read_<name>`) and in messages.
        title: in messages.
        suffixes: of the files' names.
        signature: bytes that files begin with; empty: any.
        is_binary: every file begins with the signature; otherwise a file may begin with anything that no other kind
            begins with.
        recognises_folder: tells by a local path whether a folder is one data set of this kind; None: folders hold
            files.
    """

    name: str
    title: str
    suffixes: tuple[str, ...] = ()
    signature: bytes = b""
    is_binary: bool = False
    recognises_folder: Callable[[str], bool] | None = None


PARQUET = FileKind("parquet", "Parquet", (".parquet", ".pq"), b"PAR1", is_binary=True)
JSON = FileKind("json", "JSON", (".json", ".jsonl", ".ndjson"), b"{")
CSV = FileKind("csv", "CSV", (".csv",))


def kind_of_name(path: str, kinds: Iterable[FileKind]) -> FileKind | None:
    """Return the kind that a file's name tells; packed files are named for what they hold (`part.json.gz`)."""
    name = path.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for kind in kinds if kind.suffixes and name.endswith(kind.suffixes)), None)


def kind_of_head(head: bytes, kinds: Iterable[FileKind]) -> FileKind | str | None:
    """Return the kind that a file's first bytes tell, or the name of a format without recorded data; None: any."""
    head = head.lstrip()
    found = next((kind for kind in kinds if kind.signature and head.startswith(kind.signature)), None)
    return found or next((title for signature, title in _OTHERS.items() if head.startswith(signature)), None)


def all_suffixes(kinds: Sequence[FileKind]) -> str:
    """Return the suffixes of all kinds, for messages."""
    return ", ".join(suffix for kind in kinds for suffix in kind.suffixes)
