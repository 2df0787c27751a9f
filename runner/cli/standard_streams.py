"""stdin, stdout and stderr as every verb can use them: open, and able to print any text."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

_PRINTABLE = "runner.printable"
# What stands for characters of our own output where the terminal's encoding does not have them.
_PLAIN = dict.fromkeys("█▉▊▋▌▍▎▏▁▂▃▄▅▆▇", "#") | {
    "─": "-",
    "│": "|",
    "…": "...",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "→": "->",
    "·": ".",
}


def prepare_standard_streams() -> None:
    """Open streams that the shell has closed (`>&-`), and print characters that the encoding lacks as others."""
    codecs.register_error(_PRINTABLE, _replaced)
    _open_descriptors()
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure") and not is_unicode(stream.encoding):
            stream.reconfigure(errors=_PRINTABLE)


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
