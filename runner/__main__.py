"""`python -m runner` and the installed command `runner`."""

import gc
import os
import sys

from runner.cli.main import main


def command() -> int:
    """Run the command line and return the exit code."""
    _look_in_working_folder()
    code = main()
    gc.freeze()  # makes the final garbage collections skip all modules, which saves most of a second
    return code


def _look_in_working_folder() -> None:
    """Add the working directory to the module search path, in first place, as `python -m runner` does."""
    folder = os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)


if __name__ == "__main__":
    sys.exit(command())
