"""Callbacks that tests name in configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from runner.callbacks import HOOKS, Callback
from runner.environments import MultiAgentCartPole


class Listener(Callback):
    """Notes all that it hears: hook, and what the event says."""

    heard: ClassVar[list[tuple[str, dict[str, Any]]]] = []  # of all instances of the process


def _noting(hook: str) -> Any:
    def note(self: Listener, **event: Any) -> None:
        episode = event.get("episode")
        if episode is not None:  # a view, whose rows are written over
            event["episode"] = (episode.id_, episode.t_started, len(episode), episode.is_done)
        self.heard.append((hook, event))

    return note


for _hook in HOOKS:
    setattr(Listener, _hook, _noting(_hook))


class Returns(Callback):
    """Follows each episode by itself, and reports it once it has ended."""

    reports: ClassVar = {
        "own_return": ("mean", "undiscounted return, summed up step by step"),
        "episodes": ("sum", "episodes that have ended"),
        "error": ("max", "largest difference from what the run says"),
        "worst": ("min", "smallest return"),
        "median": ("median", "median of the returns"),
        "tail": ("p95", "95th percentile of the returns"),
        "iterations": ("last", "results that the driver has heard"),
    }

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._num_results = 0

    def on_episode_created(self, *, custom_data: dict[str, Any], **kwargs: Any) -> None:
        assert custom_data == {}
        custom_data["rewards"] = np.zeros(0)

    def on_episode_step(self, *, episode: Any, custom_data: dict[str, Any], **kwargs: Any) -> None:
        custom_data["rewards"] = np.append(custom_data["rewards"], episode.get_rewards(-1))

    def on_episode_end(
        self, *, episode: Any, episode_return: float, custom_data: dict[str, Any], metrics: Any, **kwargs: Any
    ) -> None:
        rewards = custom_data["rewards"]
        assert episode.is_done
        assert len(rewards) == episode.t_started + len(episode)
        for name in ("own_return", "worst", "median", "tail"):
            metrics.report(name, self._scale * rewards.sum())
        metrics.report("episodes", 1)
        metrics.report("error", abs(rewards.sum() - episode_return))

    def on_train_result(self, *, result: Mapping[str, Any], metrics: Any, **kwargs: Any) -> None:
        self._num_results += 1
        metrics.report("iterations", self._num_results)

    def get_state(self) -> dict[str, Any]:
        return {"num_results": self._num_results}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._num_results = int(state["num_results"])


class Seen(Callback):
    """Reports how far the newest observation of an episode is from the environment's own state."""

    reports: ClassVar = {"difference": ("max", "largest difference"), "size": ("max", "largest observation")}

    def on_environment_created(self, *, env: Any, **kwargs: Any) -> None:
        self._env = env

    def on_episode_start(self, **kwargs: Any) -> None:
        self._compare(**kwargs)

    def on_episode_step(self, **kwargs: Any) -> None:
        self._compare(**kwargs)

    def _compare(self, *, episode: Any, env_index: int, metrics: Any, **kwargs: Any) -> None:
        seen, state = episode.get_observations(-1), self._env.unwrapped.state[:, env_index]
        metrics.report("difference", np.abs(seen - state).max())
        metrics.report("size", np.abs(seen).max())


class Counts(Callback):
    """Counts steps and ends."""

    reports: ClassVar = {"steps": ("sum", "env steps"), "ends": ("sum", "episodes that have ended")}

    def on_episode_step(self, *, metrics: Any, **kwargs: Any) -> None:
        metrics.report("steps", 1)

    def on_episode_end(self, *, metrics: Any, **kwargs: Any) -> None:
        metrics.report("ends", 1)


class Failing(Callback):
    """Raises an error at an episode's end."""

    def on_episode_end(self, **kwargs: Any) -> None:
        raise KeyError("goal")


class FailingAtTheEnd(Callback):
    """Raises an error when the run has ended."""

    def on_stop(self, **kwargs: Any) -> None:
        raise KeyError("goal")


class FailingTwice(Failing):
    """Raises an error when it hears of one, too."""

    def on_exception(self, **kwargs: Any) -> None:
        raise ValueError("again")


class LastReturn(Callback):
    """Declares a metric of `Returns` differently."""

    reports: ClassVar = {"own_return": ("last", "undiscounted return")}


class Deaf(Callback):
    """A hook without **kwargs."""

    def on_sample_end(self, *, episodes: Any) -> None:  # type: ignore[override]
        """Hear of nothing else."""


class Misspelt(Callback):
    """Has a hook that no event calls."""

    def on_episode_ends(self, **kwargs: Any) -> None:
        raise AssertionError


class Undeclared(Callback):
    """Reports what it does not declare."""

    reports: ClassVar = {"is_success": ("mean", "share of the episodes that reached the goal")}

    def on_episode_end(self, *, metrics: Any, **kwargs: Any) -> None:
        metrics.report("is_succes", 1.0)


class NoReduction(Callback):
    """Declares a reduction that there is not."""

    reports: ClassVar = {"is_success": ("medain", "share of the episodes that reached the goal")}


class AgentReturns(Callback):
    """Sums the rewards of all agents step by step, and compares with what the run says."""

    reports: ClassVar = {"error": ("max", "largest difference from the return"), "ends": ("sum", "episodes")}

    def on_episode_created(self, *, custom_data: dict[str, Any], **kwargs: Any) -> None:
        custom_data["rewards"] = 0.0

    def on_episode_step(self, *, episode: Any, custom_data: dict[str, Any], **kwargs: Any) -> None:
        for agent, own in episode.agent_episodes.items():
            if agent in episode.get_agents_that_stepped():
                custom_data["rewards"] += own.get_rewards(-1)

    def on_episode_end(
        self, *, episode_return: float, custom_data: dict[str, Any], metrics: Any, **kwargs: Any
    ) -> None:
        metrics.report("error", abs(custom_data["rewards"] - episode_return))
        metrics.report("ends", 1)


class SampledSteps(Callback):
    """Counts the steps and rewards of all agents in samples."""

    reports: ClassVar = {"agent_steps": ("sum", "steps of all agents"), "rewards": ("sum", "their rewards")}

    def on_sample_end(self, *, episodes: Any, metrics: Any, **kwargs: Any) -> None:
        for episode in episodes:
            for own in episode.agent_episodes.values():
                metrics.report("agent_steps", len(own))
                metrics.report("rewards", own.get_return())


class CountingCartPoles(MultiAgentCartPole):
    """Infos say how many steps an agent has made, and a kind, 1 or 2."""

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = super().reset(**kwargs)
        self._num_steps = dict.fromkeys(obs, 0)
        return obs, infos

    def step(self, actions: Any) -> Any:
        obs, *rest, _ = super().step(actions)
        for agent in obs:
            self._num_steps[agent] += 1
        return obs, *rest, {agent: {"step": self._num_steps[agent], "kind": 1 + (agent == "agent_1")} for agent in obs}


class Ordinals(Callback):
    """Numbers the episodes that have ended."""

    reports: ClassVar = {"ordinal": ("last", "episodes so far")}

    def __init__(self) -> None:
        self._number = 0

    def on_episode_end(self, *, metrics: Any, **kwargs: Any) -> None:
        self._number += 1
        metrics.report("ordinal", self._number)

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._number = int(state["number"])


class Ends(Callback):
    """Reports what is heard of episodes that simulators send."""

    reports: ClassVar = {
        "ends": ("sum", "episodes that have ended"),
        "returns": ("sum", "their returns"),
        "newest_steps": ("sum", "env steps of them in this sample"),
        "sampled_steps": ("sum", "env steps of samples"),
        "number": ("last", "episodes so far"),
    }

    def __init__(self) -> None:
        self._number = 0

    def on_episode_end(self, *, episode: Any, episode_return: float, metrics: Any, **kwargs: Any) -> None:
        self._number += 1
        assert episode.is_done
        reported = {"ends": 1, "returns": episode_return, "newest_steps": len(episode), "number": self._number}
        for name, value in reported.items():
            metrics.report(name, value)

    def on_sample_end(self, *, episodes: Any, metrics: Any, **kwargs: Any) -> None:
        metrics.report("sampled_steps", sum(len(episode) for episode in episodes))

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._number = int(state["number"])
