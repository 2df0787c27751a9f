"""Exit codes of the command line; `runner.cli.help` describes them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command. Errors that end a command carry theirs, see `RunnerError.exit_code`."""

    FINISHED = 0
    FAILED = 1
    MISTAKE = 2
    ASSERTION = 3
    BUDGET = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141
