"""Messages are read back into the problems that they were rendered from."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.errors import ConfigError, Problem, RunFailure, render_problems
from runner.offline.files.data_error import DataError
from tests.support.problems import Including, assert_error, problems_in, shown_problems

_LONG = " ".join(f"word{k}" for k in range(60))
_PROBLEMS = [Problem("what"), Problem(_LONG, _LONG, "got", _LONG, "nearest"), Problem("what: where", expected="3. x")]


def test_a_report_is_read_back() -> None:
    assert problems_in(render_problems(_PROBLEMS)) == _PROBLEMS


def test_a_problem_without_a_number_is_read_back() -> None:
    for problem in _PROBLEMS:
        assert problems_in(problem.render_alone()) == [problem]


def test_errors_and_their_messages_show_the_same_problems(tmp_path: Path) -> None:
    found = Problem("what", f"{tmp_path}/{_LONG}.parquet", "got")
    expected = Problem("what", f"TMP/{_LONG}.parquet", "got")
    for kind in (ConfigError, DataError):
        for shown in (kind([found]), str(kind([found]))):
            assert shown_problems(shown, tmp_path) == [expected]
            assert_error(shown, kind([expected]), tmp_path)
    assert shown_problems(RunFailure(found), tmp_path) == [expected]


def test_an_error_differs_in_its_kind_or_a_field(tmp_path: Path) -> None:
    for other in (ConfigError([Problem("what")]), DataError([Problem("what", "where")])):
        with pytest.raises(AssertionError):
            assert_error(str(DataError([Problem("what")])), other, tmp_path)


def test_a_text_that_includes_all_parts_is_equal() -> None:
    expected = Problem("what", expected=Including("b, ", " more)"))
    assert Problem("what", expected="a, b, c, ... (3 more)") == expected
    assert Problem("what", expected="a, b, c") != expected
    assert Problem("what") != expected
