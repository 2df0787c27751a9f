"""`python -m runner`."""

import gc
import sys

from runner.cli.main import main

if __name__ == "__main__":
    code = main()
    gc.freeze()  # the interpreter's last collections would look at all modules once more: most of a second
    sys.exit(code)
