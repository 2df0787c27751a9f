"""Conditions of `--assert`: a metric compared with a number."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.cli.arguments import UsageError
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.exit_codes import ExitCode
from runner.config.metrics import producible_metrics
from runner.config.rules import find_metric_problems
from runner.config.schemas import ExperimentConfig

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(
    r"\s*(?:iqm\(\s*(?P<over_seeds>[^\s<>=()]+)\s*\)|(?P<metric>[^\s<>=()]+))"
    r"\s*(?P<sign>>=|<=|==|>|<)\s*(?P<number>\S+)\s*"
)


class AssertionNotMet(RunFailure):
    """An `--assert` does not hold."""

    exit_code = ExitCode.ASSERTION


@dataclass(frozen=True)
class Condition:
    """A metric compared with a number, as in `env_runners/episode_return_mean >= 450`.

    Attributes:
        is_over_seeds: `iqm(METRIC) >= 450` compares the inter-quartile mean over the seeds of a combination.
    """

    metric: str
    sign: str
    number: float
    is_over_seeds: bool = False

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `METRIC >= 450` or `iqm(METRIC) >= 450`; a metric may have dots for slashes.

        Raises:
            UsageError: the text is neither.
        """
        match = _CONDITION.fullmatch(text)
        try:
            number = float(match["number"]) if match else math.nan
        except ValueError:
            number = math.nan
        if match is None or math.isnan(number):
            expected = f"'METRIC {'|'.join(_COMPARISONS)} NUMBER', of a sweep also 'iqm(METRIC) >= NUMBER'"
            raise UsageError(Problem("--assert is not a valid condition", None, text, expected))
        metric = match["metric"] or match["over_seeds"]
        return cls(metric.replace(".", "/"), match["sign"], number, is_over_seeds=match["metric"] is None)

    def holds(self, value: float | None) -> bool:
        """Return whether the metric has a value that meets the condition."""
        return value is not None and _COMPARISONS[self.sign](value, self.number)

    def __str__(self) -> str:
        short = f"{self.number:g}"
        metric = f"iqm({self.metric})" if self.is_over_seeds else self.metric
        return f"{metric} {self.sign} {short if float(short) == self.number else self.number}"

    def value_text(self, value: float) -> str:
        """Format the value with six digits, or with all digits if six would hide whether the condition holds."""
        short = f"{value:.6g}"
        return short if self.holds(float(short)) == self.holds(value) else repr(value)


def parse_assertions(assertions: Sequence[str], is_single_run: bool) -> list[Condition]:
    """Parse the conditions of `--assert`; raises `UsageError`, also if a single run has a condition about a sweep."""
    conditions = [Condition.parse(text) for text in assertions]
    over_seeds = next((condition for condition in conditions if condition.is_over_seeds), None)
    if is_single_run and over_seeds is not None:
        what = f"iqm({over_seeds.metric}) needs the seeds of a sweep, and this is a single run"
        fix = f"'{over_seeds.metric} {over_seeds.sign} {over_seeds.number:g}', or runner sweep"
        raise UsageError(Problem(what, "--assert", fix=fix))
    return conditions


def check_assertions(assertions: Sequence[str], config: ExperimentConfig) -> None:
    """Raise `ConfigError` for assertions on metrics that no part of the experiment produces."""
    known, problems = producible_metrics(config), list[Problem]()
    for text in assertions:
        problems += find_metric_problems(Condition.parse(text).metric, known, config, f"--assert '{text}'")
    if problems:
        raise ConfigError(problems)
