"""The conformance checker: tests any RLlink server from outside against each rule of docs/reference/rllink.md.

`check_server` yields one result per rule, and `runner rllink check` prints them. The rules are in
`base_rules.py` and `extension_rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from runner.rllink.check import base_rules, extension_rules
from runner.rllink.check.checker import CannotCheck as CannotCheck
from runner.rllink.check.checker import Checker, Rule, Skip
from runner.rllink.check.wire import Failure, Target

Outcome = Literal["pass", "fail", "skip"]
PASS: Final = "pass"
FAIL: Final = "fail"
SKIP: Final = "skip"


@dataclass(frozen=True)
class Result:
    """The result of one rule.

    Attributes:
        rule: the rule.
        outcome: `pass`, `fail` or `skip`.
        why: the reason if it was skipped.
        sent, expected, got: the last message, the expected answer and the actual answer if it failed.
    """

    rule: Rule
    outcome: Outcome
    why: str = ""
    sent: str = ""
    expected: str = ""
    got: str = ""


def check_server(target: Target, read_only: bool = False) -> Iterator[Result]:
    """Check a server rule by rule.

    Args:
        target: the server.
        read_only: skip rules that send episodes from which the server would learn.

    Raises:
        CannotCheck: the server cannot be checked.
    """
    checker = Checker(target)
    checker.meet()
    for one in (*base_rules.RULES, *extension_rules.RULES):
        yield _result(checker, one, read_only)


def _result(checker: Checker, one: Rule, read_only: bool) -> Result:
    if one.extension is not None and one.extension not in checker.granted:
        return Result(one, SKIP, "not granted")
    if one.needs_episodes and read_only:
        return Result(one, SKIP, "sends episodes from which the server would learn (--read-only)")
    if one.needs_episodes and not checker.config:
        return Result(one, SKIP, "the server sent no SET_CONFIG, so the spaces are unknown")
    try:
        one.check(checker)
    except Skip as skip:
        return Result(one, SKIP, str(skip))
    except Failure as failure:
        return Result(one, FAIL, "", checker.close_all(), failure.expected, failure.got)
    except OSError as error:
        return Result(one, FAIL, "", checker.close_all(), "a connection", str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        got = f"an answer in another format: {type(error).__name__}: {error}"
        return Result(one, FAIL, "", checker.close_all(), "an answer in the format of the specification", got)
    finally:
        checker.close_all()
    return Result(one, PASS)
