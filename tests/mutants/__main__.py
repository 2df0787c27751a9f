"""`python -m tests.mutants [NUMBER ...]`: make each mutation of the table in a copy of the tree and run its tests.

Exit code 1: a mutation survives, does not apply any more, or ends its tests in another way than by a failure; or the
tests fail without a mutation, so that their failures say nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.copies import TreeCopy, Verdict
from tests.mutants.table import Mutant, TableError, markdown, read_mutants

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str]) -> int:
    """Judge the mutations of these numbers, or all; the exit code."""
    table = read_mutants()
    options = _parse(arguments, len(table))
    mutants = [table[number - 1] for number in options.numbers] or table
    if options.markdown:
        print(markdown(mutants))
        return 0
    return judge_all(ROOT, mutants, options.processes)


def judge_all(root: Path, mutants: Sequence[Mutant], num_processes: int) -> int:
    """Judge mutations of a tree, `num_processes` at a time, and print what becomes of each; the exit code."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(num_processes) as pool:
        free: SimpleQueue[TreeCopy] = SimpleQueue()
        for number in range(num_processes):
            free.put(TreeCopy(root, Path(folder) / str(number)))

        def in_a_copy(use: Callable[[TreeCopy], Verdict]) -> Verdict:
            copy = free.get()
            try:
                return use(copy)
            except TableError as error:
                return Verdict("broken", str(error))
            finally:
                free.put(copy)

        tests = sorted({test for mutant in mutants for test in mutant.killed_by})
        unchanged = pool.submit(in_a_copy, lambda copy: copy.run(tests))
        judged = pool.map(lambda mutant: in_a_copy(lambda copy: copy.judge(mutant)), mutants)
        num_killed = 0
        for mutant, verdict in zip(mutants, judged, strict=True):
            num_killed += verdict.outcome == "killed"
            print(f"{mutant.number:3} {verdict.outcome:8} {mutant.path}: {mutant.says}\n    {verdict.text}", flush=True)
    is_sound = unchanged.result().outcome == "survived"
    if not is_sound:
        print(f"the tests fail without a mutation:\n{unchanged.result().text}")
    print(f"{num_killed} of {len(mutants)} mutations killed in {time.monotonic() - started:.0f} s")
    return 0 if is_sound and num_killed == len(mutants) else 1


def _parse(arguments: Sequence[str], num_mutants: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("numbers", metavar="NUMBER", type=int, nargs="*", help="mutations of the table; none: all")
    parser.add_argument("--processes", type=int, default=2, help="copies of the tree that are tested at a time")
    parser.add_argument("--markdown", action="store_true", help="print the table of tests/README.md and end")
    options = parser.parse_args(arguments)
    if unknown := [number for number in options.numbers if not 1 <= number <= num_mutants]:
        parser.error(f"there is no mutation {unknown[0]}; expected: 1 to {num_mutants}")
    if options.processes < 1:
        parser.error(f"--processes {options.processes}; expected: 1 and more")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
