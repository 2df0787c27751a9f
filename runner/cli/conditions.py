"""What `--assert` and `register --if` take: a metric compared with a number."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.cli.arguments import UsageError
from runner.config.cross_checks import find_metric_problems
from runner.config.errors import ConfigError, Problem
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<number>\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """A metric compared with a number, as in `env_runners/episode_return_mean >= 450`."""

    metric: str
    sign: str
    number: float

    @classmethod
    def parse(cls, text: str, option: str) -> Condition:
        """Of `METRIC >= 450`, the value of an option; a metric may have dots for slashes. Raises `UsageError`."""
        match = _CONDITION.fullmatch(text)
        try:
            number = float(match["number"]) if match else math.nan
        except ValueError:
            number = math.nan
        if match is None or math.isnan(number):
            allowed = f"'METRIC {'|'.join(_COMPARISONS)} NUMBER'"
            raise UsageError(f"no condition: {text}\n   where    {option}\n   allowed  {allowed}")
        return cls(match["metric"].replace(".", "/"), match["sign"], number)

    def holds(self, value: float | None) -> bool:
        """Whether the metric has a value, and such a one."""
        return value is not None and _COMPARISONS[self.sign](value, self.number)

    def __str__(self) -> str:
        short = f"{self.number:g}"
        return f"{self.metric} {self.sign} {short if float(short) == self.number else self.number}"

    def value_text(self, value: float) -> str:
        """The value in six digits, or in as many as show whether the condition holds."""
        short = f"{value:.6g}"
        return short if self.holds(float(short)) == self.holds(value) else repr(value)


def find_assertion_problems(assertions: Sequence[str], config: ExperimentConfig) -> Iterator[Problem]:
    """A problem for each `--assert` on a metric that no part of the experiment produces; raises `UsageError`."""
    known = producible_metrics(config)
    for text in assertions:
        yield from find_metric_problems(Condition.parse(text, "--assert").metric, known, config, f"--assert '{text}'")


def check_assertions(assertions: Sequence[str], config: ExperimentConfig) -> None:
    """Raise `ConfigError` with these problems."""
    problems = list(find_assertion_problems(assertions, config))
    if problems:
        raise ConfigError(problems)
