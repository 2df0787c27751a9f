"""Evaluation on held-out recorded data of several agents: each agent alone, with the others as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.config.errors import ConfigError, Problem
from runner.config.offline_evaluation import EVAL_LOSS, PREFIX
from runner.offline.evaluation.held_out import HeldOutEvaluation, Metrics
from runner.offline.evaluation.policy_evaluation import RATIO_METHODS

if TYPE_CHECKING:
    from runner.offline.reading.recorded_source import RecordedSource

_COUNTS = ("num_episodes", "num_env_steps")


class HeldOutAgents:
    """Evaluates each agent by itself; metrics are named `evaluation/offline/AGENT/...`, counts also summed over agents.

    Args:
        agents: agent -> the evaluation of its module on its episodes.
    """

    def __init__(self, agents: Mapping[str, HeldOutEvaluation]) -> None:
        self._agents = dict(agents)

    @property
    def source(self) -> RecordedSource:
        """The source of the first agent's held-out data."""
        return next(iter(self._agents.values())).source

    def evaluate(
        self, learners_state: Mapping[str, Any], shared_state: Mapping[str, Any], num_env_steps: int
    ) -> Metrics:
        """See `HeldOutEvaluation`."""
        metrics: Metrics = {}
        for agent, evaluation in self._agents.items():
            for name, value in evaluation.evaluate(learners_state, shared_state, num_env_steps).items():
                metrics[f"{PREFIX}{agent}/{name.removeprefix(PREFIX)}"] = value
        for count in _COUNTS:
            metrics[f"{PREFIX}{count}"] = sum(int(metrics[f"{PREFIX}{agent}/{count}"] or 0) for agent in self._agents)
        return metrics


def check_methods_of_agents(methods: Sequence[str]) -> None:
    """Refuse estimates that mean nothing of one agent among several; raises `ConfigError`.

    Ratios hold whatever an agent has observed. Action values are fitted to its own observations, which do not tell
    what the others do.
    """
    with_model = [name for name in methods if name not in RATIO_METHODS]
    if with_model:
        what = "action values of one agent are not told by its own observations: what the others do is not in them"
        allowed = f"{', '.join(RATIO_METHODS)}, {EVAL_LOSS}"
        raise ConfigError([Problem(what, "evaluation.offline_evaluation_type", ", ".join(with_model), allowed)])
