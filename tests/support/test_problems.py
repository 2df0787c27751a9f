"""Messages are read back into the problems that they were rendered from."""

from __future__ import annotations

from runner.config.errors import Problem, render_problems
from tests.support.problems import problems_in

_LONG = " ".join(f"word{k}" for k in range(60))
_PROBLEMS = [Problem("what"), Problem(_LONG, _LONG, "got", _LONG, "nearest"), Problem("what: where", allowed="3. x")]


def test_a_report_is_read_back() -> None:
    assert problems_in(render_problems(_PROBLEMS)) == _PROBLEMS


def test_a_problem_without_a_number_is_read_back() -> None:
    for problem in _PROBLEMS:
        assert problems_in(problem.render_alone()) == [problem]
