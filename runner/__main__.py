"""`python -m runner`, and the installed command `runner`."""

import gc
import sys

from runner.cli.main import main


def command() -> int:
    """Run what the command line says; the exit code."""
    code = main()
    gc.freeze()  # the interpreter's last collections would look at all modules once more: most of a second
    return code


if __name__ == "__main__":
    sys.exit(command())
