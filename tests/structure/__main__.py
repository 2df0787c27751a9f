"""Print the measures of the tree: `python -m tests.structure`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.structure.measures import calls_from_the_loop_to_the_loss, files_that_mention, measures

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print a table, the calls from the training loop to the loss, and the files that mention the curriculum."""
    with tempfile.TemporaryDirectory() as folder:
        calls = calls_from_the_loop_to_the_loss(Path(folder) / "run")
    print("\n| measure | value |\n| --- | --- |")
    for name, value in measures(ROOT):
        print(f"| {name} | {value} |")
    print(f"| calls from the training loop to the loss of PPO | {len(calls) - 1} |")
    print("\nCalls from the training loop to the loss:", *calls, sep="\n  ")
    print("\nFiles that mention the curriculum:", *files_that_mention(ROOT, "curriculum"), sep="\n  ")


if __name__ == "__main__":
    main()
