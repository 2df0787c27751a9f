"""The table of mutations fits the tree and the documentation; a run of it tells the killed from the survivors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import judge_all, main
from tests.mutants.copies import TreeCopy, Verdict
from tests.mutants.table import Mutant, TableError, markdown, read_mutants

ROOT = Path(__file__).parents[2]
SIZE = "def size(values):\n    if not values:\n        return 0\n    return len(values)\n"
TESTS = """
import pytest
from size import size

def test_size():
    assert size([1, 2]) == 2

def test_nothing():
    assert size([]) == 0
"""
KILLED_BY = ("test_size.py::test_size",)
MUTANT = Mutant(1, "one too many", "size.py", "return len(values)", "return len(values) + 1", KILLED_BY)


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: f"{mutant.number}")
def test_every_mutation_applies_and_its_tests_are_there(mutant: Mutant) -> None:
    before, after = (ROOT / mutant.path).read_text().splitlines(), mutant.apply(ROOT).splitlines()
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    compile("\n".join(after), mutant.path, "exec")
    for test in mutant.killed_by:
        path, _, name = test.partition("::")
        assert re.search(rf"^ *def {re.escape(name)}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_the_documentation_has_the_table() -> None:
    """`python -m tests.mutants --markdown` prints it."""
    assert markdown(read_mutants()) in (ROOT / "tests/README.md").read_text()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of one function with two tests, which need no plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "size.py").write_text(SIZE)
    (folder / "test_size.py").write_text(TESTS)
    return folder


@pytest.mark.parametrize(
    ("old", "told"),
    [("return size(values)", "0 times"), ("return len(values)", "2 times"), ("return len", "0 times")],
)
def test_an_old_line_that_is_not_found_once(tree: Path, old: str, told: str) -> None:
    (tree / "size.py").write_text(f"{SIZE}\n\ndef other(values):\n  return len(values)\n")
    with pytest.raises(TableError, match=rf"mutant 1: size.py has this line {told}: "):
        replace(MUTANT, old=old).apply(tree)


def test_killed_and_survived(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survivor = replace(MUTANT, number=2, says="of nothing", old="return 0", new="return None")
    lost = replace(MUTANT, number=3, says="is gone", path="sizes.py")
    before = {path.name: path.read_bytes() for path in tree.iterdir()}
    assert judge_all(tree, [MUTANT, survivor, lost], num_processes=2) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  1 killed   size.py: one too many"
    assert lines[1].strip() == "test_size.py::test_size"
    assert lines[2] == "  2 survived size.py: of nothing"
    assert lines[4:6] == ["  3 broken   sizes.py: is gone", "    mutant 3: there is no sizes.py"]
    assert lines[-1].startswith("1 of 3 mutations killed in ")
    assert {path.name: path.read_bytes() for path in tree.iterdir()} == before  # the tree itself is never changed
    killed = replace(survivor, killed_by=("test_size.py::test_nothing",))
    assert judge_all(tree, [MUTANT, killed], num_processes=1) == 0


def test_a_failure_says_nothing_where_the_tests_fail_anyway(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "test_size.py").write_text(TESTS.replace("== 2", "== 3"))
    assert judge_all(tree, [replace(MUTANT, new="return -1")], num_processes=1) == 1
    assert "the tests fail without a mutation:\ntest_size.py::test_size\n" in capsys.readouterr().out


def test_a_copy_is_as_before_after_each_mutation(tree: Path, tmp_path: Path) -> None:
    copy = TreeCopy(tree, tmp_path / "copy")
    assert copy.judge(MUTANT) == Verdict("killed", "test_size.py::test_size")
    assert (tmp_path / "copy" / "size.py").read_text() == SIZE
    assert copy.run(MUTANT.killed_by) == Verdict("survived")
    broken = copy.judge(replace(MUTANT, killed_by=("test_size.py::test_gone",)))
    assert broken.outcome == "broken"
    assert "exit code 4" in broken.text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["0"], "there is no mutation 0; expected: 1 to "),
        (["1", "999"], "no mutation 999"),
        (["--processes=0"], "1 and"),
    ],
)
def test_mistakes(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--markdown", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 1 | `runner/learners/ppo.py`: ")
