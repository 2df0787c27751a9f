"""Numbers from the infos of finished episodes of several agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from runner.config.info_metrics import InfoMetric
from runner.env_runners.episode_infos import JOINED, is_of_group, number_in
from runner.env_runners.listeners import EpisodeListener, IntArray, VectorStep
from runner.rows.finished_episodes import FinishedEpisodes

# Intermediate value of an agent's episode: the number, the number of steps it covers, and whether the newest info
# belongs to the metric's group.
_SoFar = tuple[float, int, bool]
_NOTHING: _SoFar = (np.nan, 0, False)


class AgentInfos(EpisodeListener):
    """Computes numbers from the infos of each agent's episode: from the last info, or over all steps.

    Args:
        metrics: metrics to compute; a metric of one agent or module only covers its episodes.
        module_of: agent id -> the id of its module.
        num_envs: N.
    """

    name: ClassVar[str] = "infos"

    def __init__(self, metrics: Sequence[InfoMetric], module_of: Mapping[str, str], num_envs: int) -> None:
        self._metrics, self._module_of, self._num_envs = metrics, module_of, num_envs
        self.begin()

    def begin(self) -> None:
        """Forget all episodes."""
        # By sub-environment: agent id -> metric -> intermediate value.
        self._so_far: list[dict[str, dict[str, _SoFar]]] = [{} for _ in range(self._num_envs)]
        # By ended env episode: agent id -> metric -> number.
        self._ended: list[dict[str, dict[str, float]]] = []

    def on_step(self, step: VectorStep) -> None:
        """Read the numbers of one vector step.

        Raises:
            RunFailure: an info contains a value that is not a number.
        """
        for env, result in enumerate(step.results):
            if result.is_reset:
                self._so_far[env] = {}
                continue
            for agent in result.obs:
                self._add(env, agent, result.infos.get(agent) or {})
        for env, agent in step.ended_unseen:
            if info := step.results[env].infos.get(agent):
                self._add(env, agent, info)
        self._ended += [self._numbers_in(episode.env) for episode in step.ended]

    def _add(self, env: int, agent: str, info: Mapping[str, Any]) -> None:
        so_far = self._so_far[env].setdefault(agent, {})
        place = f"sub-environment {env}, agent {agent}"
        for metric in self._metrics:
            if metric.counts(agent, self._module_of[agent]):
                so_far[metric.name] = _joined(metric, so_far.get(metric.name, _NOTHING), info, place)

    def _numbers_in(self, env: int) -> dict[str, dict[str, float]]:
        is_mean = {metric.name: metric.at == "episode_mean" for metric in self._metrics}
        return {
            agent: {name: _number_of(so_far, is_mean[name]) for name, so_far in own.items()}
            for agent, own in self._so_far[env].items()
        }

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Add the numbers of all agents' episodes, or NaN if there is none."""
        ended, self._ended = self._ended, []
        numbers: dict[str, list[float]] = {metric.name: [] for metric in self._metrics}
        for of_agents in ended if counted is None else [ended[place] for place in counted]:
            for own in of_agents.values():
                for name, number in own.items():
                    numbers[name].append(number)
        return replace(finished, infos={name: np.array(values, np.float64) for name, values in numbers.items()})

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> list[dict[str, dict[str, list[float]]]]:
        """Return the intermediate values of running episodes as plain values."""
        return [
            {agent: {name: list(so_far) for name, so_far in own.items()} for agent, own in episodes.items()}
            for episodes in self._so_far
        ]

    def set_state(self, state: Sequence[Mapping[str, Mapping[str, Sequence[float]]]]) -> None:
        """Restore a state of `get_state`; other metrics begin with the next step."""
        known = {metric.name for metric in self._metrics}
        self._so_far = [
            {
                agent: {
                    name: (float(so_far[0]), int(so_far[1]), bool(so_far[2]))
                    for name, so_far in own.items()
                    if name in known
                }
                for agent, own in episodes.items()
            }
            for episodes in state
        ]


def _joined(metric: InfoMetric, so_far: _SoFar, info: Mapping[str, Any], place: str) -> _SoFar:
    """Return the intermediate value of an episode after one more step."""
    number, (before, count, _) = number_in(info, metric, place), so_far
    join, is_covered = JOINED.get(metric.at), is_of_group(info, metric)
    if join is None:
        return number, 1, is_covered
    if np.isnan(number):
        return before, count, is_covered
    return (number if np.isnan(before) else float(join(before, number))), count + 1, is_covered


def _number_of(so_far: _SoFar, is_mean: bool) -> float:
    """Return the number of an agent's episode that has ended, NaN if the metric does not cover it."""
    number, count, is_covered = so_far
    if not is_covered:
        return np.nan
    return number / max(count, 1) if is_mean else number
