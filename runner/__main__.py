"""`python -m runner`, and the installed command `runner`."""

import gc
import os
import sys

from runner.cli.main import main


def command() -> int:
    """Run what the command line says; the exit code."""
    _look_in_working_folder()
    code = main()
    gc.freeze()  # the interpreter's last collections would look at all modules once more: most of a second
    return code


def _look_in_working_folder() -> None:
    """Let the installed command find the modules that `python -m runner` finds: those of the working folder first."""
    folder = os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)


if __name__ == "__main__":
    sys.exit(command())
