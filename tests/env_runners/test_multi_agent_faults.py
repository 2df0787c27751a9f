"""Mistakes around several agents: each message names the agent, the module or the key, as early as it can be known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.schemas import ExperimentConfig
from runner.env_runners.multi_agent_env import AgentMapping, MultiAgentEnv, PatternMapping, StepDicts, agents_by_module
from runner.module_building import make_module_specs
from tests.support.coded_agents import (
    ACTIONS,
    FLAT,
    NESTED,
    NESTED_ACTIONS,
    CodedAgentsEnv,
    coded_obs,
    make_coded_run,
)
from tests.support.configs import config_from
from tests.support.problems import raised_in, shown_problems

Fault = Callable[[StepDicts], object]


class TwoAgents(MultiAgentEnv):
    """Agents a0 and a1 that both act in every step; `fault` spoils what the third step returns."""

    possible_agents = ("a0", "a1")
    observation_spaces = {"a0": FLAT, "a1": NESTED}  # noqa: RUF012
    action_spaces = {"a0": ACTIONS, "a1": NESTED_ACTIONS}  # noqa: RUF012

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def _obs(self) -> dict[str, Any]:
        return {f"a{a}": coded_obs((0, a, self._t, self._t, 0), is_nested=a == 1) for a in (0, 1) if a in self._alive}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t, self._alive = 0, {0, 1}
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        terminateds = {"a0": False}
        if self._t == 2:  # a1 has ended when the fault happens
            terminateds["a1"] = True
        returned = self._obs(), {"a0": 1.0}, terminateds, {"__all__": False}, {}
        if self._t >= 2:
            self._alive.discard(1)
        if self._t == 3:
            spoilt = self._fault(returned)
            return returned if spoilt is None else spoilt
        return returned


def failure_of(fault: Fault) -> Problem:
    """Return the problem that sampling ends with, in the second of two sub-environments."""
    faults = iter([lambda returned: None, fault])
    coded = make_coded_run(0, 2, 2, 1, make_env=lambda *_: TwoAgents(next(faults)), validate_observations="error")
    with pytest.raises(RunFailure) as caught:
        coded.runner.sample(20, True, coded.weights, {})
    (problem,) = shown_problems(caught.value)
    return problem


PLACE = "sub-environment 1, episode 0, step 3"


def raises(returned: StepDicts) -> None:
    raise ZeroDivisionError("no wheels")


def truncate_unseen(returned: StepDicts) -> None:
    del returned[0]["a0"]
    returned[3]["a0"] = True


@pytest.mark.parametrize(
    ("fault", "what", "details"),
    [
        (
            lambda r: r[0].update(b0=r[0]["a0"]),
            "the environment's observations contain an agent that is not in its possible_agents",
            {"where": PLACE, "got": "b0", "expected": "a0, a1"},
        ),
        (
            lambda r: r[1].update({"A0": 1.0}),
            "the environment's rewards contain an agent that is not in its possible_agents",
            {"where": PLACE, "got": "A0", "expected": "a0, a1", "did you mean": "a0"},
        ),
        (
            lambda r: r[2].update(b0=True),
            "the environment's terminateds contain an agent that is not in its possible_agents",
            {"where": PLACE, "got": "b0"},
        ),
        (
            lambda r: r[3].update(b0=True),
            "the environment's truncateds contain an agent that is not in its possible_agents",
            {"where": PLACE, "got": "b0"},
        ),
        (
            lambda r: r[0].update(a1=coded_obs((0, 1, 3, 3, 0), is_nested=True)),
            "agent a1 is observed after its episode has ended",
            {"where": PLACE},
        ),
        (
            truncate_unseen,
            "agent a0 is truncated without a final observation, so its value cannot be estimated",
            {"where": PLACE},
        ),
        (
            lambda r: r[1].update(a0=None),
            "the environment's reward is not a number",
            {"where": f"{PLACE}, agent a0", "got": "NoneType of shape ()"},
        ),
        (
            lambda r: r[1].update(a0=float("nan")),
            "the environment's reward is not finite",
            {"where": "episode 0-env_runner-0-1-0-a0, time step 2"},
        ),
        (
            lambda r: r[0].update(a0=np.zeros(4, np.float32)),
            "an observation of agent a0 does not fit its space",
            {"where": "sub-environment 1", "got": "shape (4,)", "expected": "shape (5,)"},
        ),
        (
            lambda r: r[0].update(a0={"code": 1.0}),
            "an observation of agent a0 does not fit its space",
            {"where": "sub-environment 1", "got": "a dict", "expected": "shape (5,) and dtype float32"},
        ),
        (
            lambda r: r[0].update(a0=np.full(5, -1, np.float32)),
            "an observation is outside the environment's observation space",
            {"where": "episode 0-env_runner-0-1-0-a0, time step 3", "got": "obs[0] = -1.0"},
        ),
        (
            raises,
            "the environment raised ZeroDivisionError in step: no wheels",
            {"where": f"{PLACE.replace('3', '2')}, {raised_in(raises, 'raise Zero')}"},
        ),
        (
            lambda r: r[:4],
            "the environment's step returned a tuple of dict, dict, dict, dict",
            {"where": PLACE.replace("3", "2"), "expected": "a tuple of 5 dicts by agent id"},
        ),
        (
            lambda r: (r[0], 1.0, *r[2:]),
            "the environment's step returned a tuple of dict, float, dict, dict, dict",
            {"expected": "a tuple of 5 dicts by agent id"},
        ),
    ],
)
def test_what_an_environment_returns(fault: Fault, what: str, details: dict[str, str]) -> None:
    problem = failure_of(fault)
    assert problem.what == what
    assert details.items() <= problem.details().items()


class ShowsMore(CodedAgentsEnv):
    """Its nested observations have a key that their space does not have."""

    def _returned(self, planned: Any) -> Any:
        obs, *others = super()._returned(planned)
        more = {agent: {**seen, "more": 1.0} for agent, seen in obs.items() if isinstance(seen, dict)}
        return obs | more, *others


def test_a_key_of_an_observation_that_its_space_does_not_have() -> None:
    coded = make_coded_run(0, 1, 2, 0, make_env=ShowsMore)
    with pytest.raises(RunFailure) as caught:
        coded.runner.sample(20, True, coded.weights, {})
    assert shown_problems(caught.value) == [
        Problem(
            "an observation of agent a1 does not fit its space",
            where="sub-environment 0",
            got="obs['more']: float of shape ()",
            expected="obs['more']: nothing",
        )
    ]


# -- mappings and spaces -------------------------------------------------------------------------------------------


def problem_of(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value)


def env_with(spaces: dict[str, gym.Space[Any]]) -> MultiAgentEnv:
    env = MultiAgentEnv()
    env.possible_agents, env.observation_spaces = list(spaces), spaces
    env.action_spaces = dict.fromkeys(spaces, ACTIONS)
    return env


class OddMapping(AgentMapping):
    """Does what a mapping should not."""

    def __init__(self, fault: str = "none") -> None:
        if fault == "raises":
            raise OSError("no such table")
        self.fault = fault

    def __call__(self, agent_id: str) -> str:
        if self.fault == "raises_when_called":
            raise KeyError(agent_id)
        return None if self.fault == "none" else "elsewhere"  # type: ignore[return-value]


def test_names_count_before_the_first_pattern_that_matches() -> None:
    mapping = PatternMapping({"walker_?": "walkers", "*": "own_{agent}", "walker_1": "leader"})
    agents = dict.fromkeys(["walker_0", "walker_1", "bird", "walker_2"], FLAT)
    assert agents_by_module(env_with(agents), mapping) == {
        "walkers": ["walker_0", "walker_2"],
        "leader": ["walker_1"],
        "own_bird": ["bird"],
    }


def test_an_agent_without_a_mapping() -> None:
    text = problem_of(lambda: agents_by_module(env_with({"agent_1": FLAT}), PatternMapping({"agent_0": "p0"})))
    assert "no module is mapped to agent agent_1" in text
    assert "where         multi_agent.agent_to_module" in text
    assert "got           agent_0: p0" in text
    assert "did you mean  agent_0" in text


def test_agents_of_one_module_with_different_spaces() -> None:
    text = problem_of(lambda: agents_by_module(env_with({"a": FLAT, "b": ACTIONS}), PatternMapping({"*": "p"})))
    assert "the agents of module p differ in their observation_spaces" in text
    assert f"got           a {FLAT}, b {ACTIONS}" in text
    other = env_with({"a": FLAT, "b": FLAT})
    other.action_spaces = {"a": ACTIONS, "b": NESTED_ACTIONS}
    assert "the agents of module p differ in their action_spaces" in problem_of(
        lambda: agents_by_module(other, PatternMapping({"*": "p"}))
    )


def test_an_environment_that_does_not_declare_its_agents() -> None:
    mapping = PatternMapping({"*": "p"})
    assert "MultiAgentEnv does not define possible_agents" in problem_of(
        lambda: agents_by_module(env_with({}), mapping)
    )
    env = env_with({"a": FLAT})
    env.possible_agents = ["a", "b"]
    text = problem_of(lambda: agents_by_module(env, mapping))
    assert "MultiAgentEnv.observation_spaces does not contain a space for agent b" in text


# -- the multi_agent block -----------------------------------------------------------------------------------------


def config_of(*overrides: str, experiment: str = "ppo_multi_agent_cartpole") -> ExperimentConfig:
    return config_from(f"+experiment={experiment}", *overrides)


OVERRIDES = "multi_agent.algorithm_config_overrides_per_module"


def test_one_report_tells_all_that_the_configuration_alone_shows() -> None:
    mistakes = {
        "multi_agent.modules_to_train=[p7]": "multi_agent.modules_to_train contains p7, but no agent uses this module",
        "multi_agent.modules.px.fcnet_hiddens=[3]": "multi_agent.modules contains px, but no agent uses this module",
        "multi_agent.modules.p0.fcnet_hidens=[3]": "unknown key multi_agent.modules.p0.fcnet_hidens",
        "multi_agent.modules.p0.fcnet_hiddens=[0]": "multi_agent.modules.p0.fcnet_hiddens is out of range",
        "multi_agent.modules.p0._target_=runner.modules.Nix": "multi_agent.modules.p0._target_: runner.modules does",
        f"{OVERRIDES}.p8.lr=1e-3": f"{OVERRIDES} contains p8, but no agent uses this module",
        f"{OVERRIDES}.p0.lrr=1e-3": f"unknown key {OVERRIDES}.p0.lrr",
        f"{OVERRIDES}.p0.lr=fast": f"{OVERRIDES}.p0.lr has the wrong type",
        f"{OVERRIDES}.p0.gamma=1.5": f"{OVERRIDES}.p0.gamma is out of range",
        f"{OVERRIDES}.p0.loss=runner.learners.ppo.Nix": f"{OVERRIDES}.p0.loss: runner.learners.ppo does not define",
        f"{OVERRIDES}.p0.train_batch_size_per_learner=8": f"{OVERRIDES}.p0.train_batch_size_per_learner cannot be set",
    }
    text = " ".join(problem_of(lambda: config_of(*mistakes)).split())
    assert text.startswith(f"{len(mistakes)} problems")
    for override, what in mistakes.items():
        assert f". {what}" in text
        assert f"where override {override}" in text


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("multi_agent.modules_to_train=[]", "multi_agent.modules_to_train is empty"),
        ("multi_agent.modules_to_train=p0", "multi_agent.modules_to_train has the wrong type"),
        (f"{OVERRIDES}.p0=3", f"{OVERRIDES}.p0 has the wrong type"),
        ("multi_agent.agent_to_module={agent_0: 3}", "multi_agent.agent_to_module.agent_0 is not a valid module id"),
        (
            "multi_agent.agent_to_module={_target_: runner.env_runners.multi_agent_env}",
            "multi_agent.agent_to_module._target_: runner.env_runners.multi_agent_env is a module, not a class",
        ),
        (
            "multi_agent.agent_to_module={_target_: runner.env_runners.multi_agent_env.Nix}",
            "multi_agent.agent_to_module._target_: runner.env_runners.multi_agent_env does not define Nix",
        ),
        ("env=cartpole", "multi_agent is set, but CartPole-v1 has a single agent"),
    ],
)
def test_a_mistake_of_the_block(override: str, what: str) -> None:
    text = " ".join(problem_of(lambda: config_of(override)).split())
    assert f"1. {what}" in text
    assert f"where override {override}" in text or override == "env=cartpole"


def test_an_id_that_a_pattern_may_lead_to_is_left_to_the_environment() -> None:
    pattern = "multi_agent.agent_to_module={agent_*: 'p_{agent}'}"
    shared = "ppo_multi_agent_cartpole_shared"
    config = config_of(pattern, "multi_agent.modules_to_train=[p_agent_0]", experiment=shared)
    assert list(make_module_specs(config)) == ["p_agent_0", "p_agent_1"]
    config = config_of(pattern, "multi_agent.modules_to_train=[p_agent_7]", experiment=shared)
    assert "module p_agent_7 is not mapped to any agent" in problem_of(lambda: make_module_specs(config))


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (
            ["multi_agent.agent_to_module={agent_0: p0, x*: p1}"],
            "no module is mapped to agent agent_1",
        ),
        (
            ["multi_agent.agent_to_module={*: p0, x: p1}", "multi_agent.modules.p1.fcnet_hiddens=[3]"],
            "module p1 is not mapped to any agent",
        ),
        (
            [f"multi_agent.agent_to_module={{_target_: {__name__}.OddMapping, fault: raises}}"],
            f"the mapping {__name__}.OddMapping cannot be created: OSError: no such table",
        ),
        (
            [f"multi_agent.agent_to_module={{_target_: {__name__}.OddMapping, fault: raises_when_called}}"],
            "OddMapping raised KeyError for agent agent_0: 'agent_0'",
        ),
        (
            [f"multi_agent.agent_to_module={{_target_: {__name__}.OddMapping}}"],
            "OddMapping does not map agent agent_0 to a module id",
        ),
        (
            [
                f"multi_agent.agent_to_module={{_target_: {__name__}.OddMapping, fault: elsewhere}}",
                "multi_agent.modules_to_train=[p0]",
            ],
            "module p0 is not mapped to any agent",
        ),
    ],
)
def test_what_only_the_environment_and_the_mapping_tell(overrides: list[str], what: str) -> None:
    config = config_of(*overrides, experiment="ppo_multi_agent_cartpole_shared")
    text = problem_of(lambda: make_module_specs(config))
    assert what in " ".join(text.split())
    assert "where         multi_agent." in text


def test_a_multi_agent_block_for_an_environment_class_with_a_single_agent() -> None:
    with pytest.raises(ConfigError, match=r"multi_agent is set, but runner\.environments\.Catch has a single agent"):
        make_module_specs(config_from("+experiment=ppo_catch", "multi_agent.modules_to_train=[default_policy]"))


def test_a_module_that_is_not_trained_produces_no_learner_metrics() -> None:
    overrides = ["multi_agent.modules_to_train=[p0]", "+stop.learners.p1.total_loss=1"]
    with pytest.raises(ConfigError, match="learners/p1/total_loss"):
        config_from("+experiment=ppo_multi_agent_cartpole", *overrides)
