"""Callbacks and infos of several agents: against a naive loop over a coded environment, and in runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example

from runner import Trainer
from runner.callbacks import Callback, Callbacks
from runner.config.errors import RunFailure
from runner.config.info_metrics import OF_EPISODE, InfoMetric
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.episode_callbacks import EpisodeCallbacks
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.multi_agent_env import MultiAgentEnv
from tests.env_runners.test_multi_agent_rows import runs, some_runs
from tests.support.coded_agents import (
    ACTIONS,
    FLAT,
    CodedAgentsEnv,
    code_of,
    coded_obs,
    make_coded_run,
    module_of,
    plan_of,
)
from tests.support.resuming import assert_resumes_exactly

OWN = "tests.callbacks.own_callbacks"
MULTI_AGENT = (
    *("algorithm.train_batch_size_per_learner=120", "algorithm.minibatch_size=60", "algorithm.num_epochs=1"),
    *("module.fcnet_hiddens=[8]", "env_runners.num_envs_per_env_runner=2", "tracking=none"),
)


class Witness(Callback):
    """Notes what it hears: hook, sub-environment, and what the episode shows."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, Any]] = []

    def on_episode_created(self, *, env_index: int, custom_data: dict[str, Any], **kwargs: Any) -> None:
        assert custom_data == {}
        self.heard.append(("created", env_index, None))

    def on_episode_start(self, *, env_index: int, episode: Any, **kwargs: Any) -> None:
        self.heard.append(("start", env_index, (_shown(episode), episode.is_done)))

    def on_episode_step(self, *, env_index: int, episode: Any, **kwargs: Any) -> None:
        self.heard.append(("step", env_index, (_shown(episode), episode.is_done)))

    def on_episode_end(self, *, env_index: int, episode: Any, episode_return: float, **kwargs: Any) -> None:
        ends = episode.is_terminated, episode.is_truncated
        self.heard.append(("end", env_index, (episode.id_, ends, episode_return)))


def _shown(episode: Any) -> dict[str, Any]:
    """Agent -> its episode's id, env steps and codes of the observations, and actions, lookback included."""
    shown = {}
    for agent, own in episode.agent_episodes.items():
        rows = range(-own.observations.lookback, len(own) + 1)
        obs = [own.get_observations(row, neg_index_as_lookback=True) for row in rows]
        actions = [own.get_actions(row, neg_index_as_lookback=True) for row in rows[:-1]]
        times = episode._tracks[agent].env_t
        shown[agent] = (own.id_, own.t_started + len(own), list(times), [code_of(one) for one in obs], actions)
    return shown


@runs
@example(
    seed=0, num_envs=2, num_agents=4, fragments=[7, 1], lookback=1, explore=True
)  # one's lookback is after another's chunk
@some_runs
def test_views_show_what_a_naive_loop_collects(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    witness = Witness()

    def listeners(envs: Any, module: Any) -> list[EpisodeListener]:
        return [EpisodeCallbacks(Callbacks([witness]), envs, 0, num_envs, module)]

    coded = make_coded_run(seed, num_envs, num_agents, lookback, make_listeners=listeners)
    for num_steps in fragments:
        coded.runner.sample(num_steps, explore, coded.weights, {})
    for n, episodes in enumerate(coded.naive()):
        heard = iter([(hook, what) for hook, env, what in witness.heard if env == n])
        for k, expected in enumerate(episodes):
            assert next(heard) == ("created", None)
            for env_t in range(expected.length + 1):
                hook, (shown, is_done) = next(heard)
                assert hook == ("step" if env_t else "start")
                assert is_done == (expected.is_over and env_t == expected.length)
                _check_shown(shown, expected, env_t)
            if expected.is_over:
                hook, (id_, ends, episode_return) = next(heard)
                assert (hook, id_) == ("end", f"0-env_runner-0-{n}-{k}")
                assert ends == (expected.is_terminated, not expected.is_terminated)
                assert episode_return == pytest.approx(sum(expected.returns.values()))
        assert next(heard, None) is None


def _check_shown(shown: dict[str, Any], expected: Any, env_t: int) -> None:
    """What a view shows at an env step are the newest rows of each agent; none that goes on is missing."""
    for agent, own in expected.agents.items():
        num_seen = sum(time <= env_t for time in own.env_t)
        ended = own.env_t[-1] if own.terminated or own.truncated else None
        if num_seen and (ended is None or ended >= env_t):
            assert agent in shown
        if agent not in shown:
            continue
        id_, t, times, codes, actions = shown[agent]
        assert (id_, t) == (own.id_, num_seen - 1)
        newest = slice(num_seen - len(times), num_seen)
        assert times == own.env_t[newest]
        assert codes == [code_of(obs) for obs in own.obs[newest]]
        assert len(actions) == len(times) - 1
        assert all(agent in expected.agents for agent in shown)


# -- infos -------------------------------------------------------------------------------------------------------------


class NumberedAgentsEnv(CodedAgentsEnv):
    """Infos have a number: the env step plus the agent's, and a task; only some infos."""

    def _infos(self, planned: Any) -> dict[str, Any]:
        return {f"a{a}": info for a in planned.seen if (info := numbered_info(self.k, self.e, a))}


def numbered_info(k: int, e: int, a: int) -> dict[str, Any]:
    return {"task": "odd" if k % 2 else "even", "x": e + a} if (k + e + a) % 3 else {}


OF_ALL = [InfoMetric(f"env_runners/{at}", ("x",), at) for at in OF_EPISODE]
OF_ONE = InfoMetric("env_runners/agent_x/a0", ("x",), "episode_sum", owner=("agent", "a0"))
OF_MODULE = InfoMetric("env_runners/module_x/m1", ("x",), "episode_max", owner=("module", "m1"))
OF_GROUPS = [InfoMetric(f"env_runners/{at}/odd", ("x",), at, group=(("task",), "odd")) for at in OF_EPISODE]
METRICS = [*OF_ALL, OF_ONE, OF_MODULE, *OF_GROUPS]
PLAIN: dict[str, Any] = {"sum": sum, "mean": np.mean, "min": min, "max": max}


@runs
@some_runs
def test_numbers_out_of_infos_are_those_of_a_plain_loop(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    agents = {f"a{a}": module_of(f"a{a}") for a in range(num_agents)}
    infos = AgentInfos(METRICS, agents, num_envs)
    coded = make_coded_run(
        seed, num_envs, num_agents, lookback, make_env=NumberedAgentsEnv, make_listeners=lambda *_: [infos]
    )
    found: dict[str, list[float]] = {metric.name: [] for metric in METRICS}
    for num_steps in fragments:
        sample = coded.runner.sample(num_steps, explore, coded.weights, {})
        for name, numbers in sample.finished.infos.items():
            found[name] += numbers[~np.isnan(numbers)].tolist()
        state = infos.get_state()
        infos.begin()
        infos.set_state(state)  # as a resumed run does
    expected: dict[str, list[float]] = {metric.name: [] for metric in METRICS}
    for n, episodes in enumerate(coded.naive()):
        for k, episode in enumerate(episodes):
            for agent in agents if episode.is_over else ():
                _expect(plan_of(seed, num_agents, n, k)[1 : episode.length + 1], k, agent, expected)
    for name, numbers in expected.items():
        assert sorted(found[name]) == pytest.approx(sorted(numbers)), name


def _expect(steps: Any, k: int, agent: str, expected: dict[str, list[float]]) -> None:
    """Add the numbers of one agent's episode."""
    a = int(agent[1:])
    infos = [numbered_info(k, e, a) for e, step in enumerate(steps, 1) if a in step.seen]
    known = [float(info["x"]) for info in infos if info]
    for metric in METRICS:
        if not metric.counts(agent, module_of(agent)):
            continue
        if metric.group is not None and not (infos and infos[-1].get("task") == "odd"):
            continue
        kind = metric.at.removeprefix("episode_")
        if kind == "end":
            expected[metric.name] += [infos[-1]["x"]] if infos and infos[-1] else []
        elif known:
            expected[metric.name].append(float(PLAIN[kind](known)))


class LeavesUnseen(MultiAgentEnv):
    """Agent a0 terminates in its third step, without an observation but with an info."""

    possible_agents = ("a0",)
    observation_spaces = dict.fromkeys(possible_agents, FLAT)
    action_spaces = dict.fromkeys(possible_agents, ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._t = 0
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        is_over = self._t == 3
        return {} if is_over else self._obs(), {"a0": 1.0}, {"a0": is_over}, {}, {"a0": {"x": self._t}}

    def _obs(self) -> dict[str, Any]:
        return {"a0": coded_obs((0, 0, self._t, self._t, 0), is_nested=False)}


def test_the_info_of_an_agent_that_ends_without_an_observation_is_its_last_one() -> None:
    infos = AgentInfos(OF_ALL, {"a0": "m0"}, 1)
    coded = make_coded_run(0, 1, 1, 0, make_env=lambda *_: LeavesUnseen(), make_listeners=lambda *_: [infos])
    sample = coded.runner.sample(6, True, coded.weights, {})
    expected = {"episode_end": 3, "episode_sum": 6, "episode_mean": 2, "episode_min": 1, "episode_max": 3}
    for metric in OF_ALL:
        assert sample.finished.infos[metric.name].tolist() == [expected[metric.at]] * 2
    for chunk in sample.rollout.blocks["m0"]:
        assert chunk.get_infos() == [{}, {"x": 1}, {"x": 2}, {"x": 3}]


def test_what_is_no_number_is_told_with_its_agent() -> None:
    class TextsEnv(CodedAgentsEnv):
        def _infos(self, planned: Any) -> dict[str, Any]:
            return {f"a{a}": {"x": "much"} for a in planned.seen}

    infos = AgentInfos(OF_ALL, {"a0": "m0", "a1": "m1"}, 1)
    coded = make_coded_run(3, 1, 2, 0, make_env=TextsEnv, make_listeners=lambda *_: [infos])
    with pytest.raises(RunFailure, match=r"sub-environment 0, agent a\d, info x"):
        coded.runner.sample(20, True, coded.weights, {})


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_runners", [0, 2])
def test_a_run_resumes_exactly(num_runners: int, tmp_path: Path) -> None:
    overrides = [
        *MULTI_AGENT,
        f"callbacks=[{{_target_: {OWN}.AgentReturns}}]",
        "env._target_=tests.callbacks.own_callbacks.CountingCartPoles",
        "metrics={env_runners/steps: {info: step}, env_runners/odd: {info: step, at: episode_sum, by: {kind: [1, 2]}}}",
        *(f"env_runners.num_env_runners={num_runners}", "engine=inline"),
    ]
    make = partial(Trainer.from_experiment, "ppo_multi_agent_cartpole", overrides)
    expected = assert_resumes_exactly(make, tmp_path, cuts=[1], num_after=3)
    last = expected[-1]
    assert last["callbacks/error"] == 0.0
    assert last["env_runners/agent_steps/agent_0"] == last["env_runners/agent_episode_return_mean/agent_0"]
    assert last["env_runners/module_steps/p1"] == last["env_runners/module_episode_return_mean/p1"]
    both = [last[f"env_runners/agent_steps/agent_{a}"] for a in range(2)]
    assert last["env_runners/steps"] == pytest.approx(np.mean(both))
    assert last["env_runners/agent_odd/1/agent_0"] is not None


def test_samples_are_heard_as_episodes_of_several_agents() -> None:
    with Trainer.from_experiment(
        "ppo_multi_agent_cartpole", [*MULTI_AGENT, f"callbacks=[{{_target_: {OWN}.SampledSteps}}]"]
    ) as trainer:
        result = trainer.train()
    num_env_steps = result["num_env_steps_sampled"] or 0
    assert num_env_steps < (result["callbacks/agent_steps"] or 0) < 2 * num_env_steps  # one of two may have ended
    assert result["callbacks/rewards"] == result["callbacks/agent_steps"]  # CartPole pays 1 a step
