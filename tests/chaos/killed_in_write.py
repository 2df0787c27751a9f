"""`python -m tests.chaos.killed_in_write N ARGUMENTS`: runner, with SIGKILL at its N-th file operation on a checkpoint.

Counted are the operations on hidden folders in `checkpoints/`: making them, opening, linking and deleting files in
them, renaming them. So each N is one point of a write, of the exchange of folders or of the removal of an old
checkpoint. A segment that would be opened is left half written.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from runner.checkpoints.checkpoint import SUFFIX

_EVENTS = {"open", "os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
_HIDDEN = f"{os.sep}checkpoints{os.sep}."


def kill_at(number: int) -> None:
    """End this process with SIGKILL right before its operation `number` on an unfinished or removed checkpoint."""
    count = 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in _EVENTS or not any(_HIDDEN in os.fspath(path) for path in arguments[:2] if _is_path(path)):
            return
        count += 1
        if count == number:
            if event == "open" and os.fspath(arguments[0]).endswith(SUFFIX):
                Path(arguments[0]).write_bytes(b"half a segment")
            os.write(2, f"SIGKILL before {event} {arguments[0]}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


if __name__ == "__main__":
    kill_at(int(sys.argv.pop(1)))
    from runner.cli.main import main

    sys.exit(main(sys.argv[1:]))
