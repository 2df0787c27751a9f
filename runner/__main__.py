"""`python -m runner`, and the installed command `runner`."""

import gc
import os
import sys

from runner.cli.main import main


def command() -> int:
    """Run the command line and return the exit code."""
    _look_in_working_folder()
    code = main()
    gc.freeze()  # spares the interpreter's last collections a look at all modules, most of a second
    return code


def _look_in_working_folder() -> None:
    """Let the installed command find the modules that `python -m runner` finds, the working folder's first."""
    folder = os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)


if __name__ == "__main__":
    sys.exit(command())
