"""Arrays that environments, connectors and callbacks may write into without changing what is learned or recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner import Trainer
from runner.callbacks import Callback
from runner.config.errors import RunFailure
from runner.config.schemas import EnvConfig
from runner.curriculum.restorable_env import RestorableEnv
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.vector_envs import BatchedEnvironments, SyncEnvironments
from runner.episodes import nested
from runner.modules import ActorCriticModule
from runner.pipelines.observation_connector import ObservationConnector
from runner.rows.agent_rows import AgentRows
from runner.testing import inspect_environment
from runner.testing.rules import through_checkpoint
from tests.modules.test_actor_critic_module import SMALL
from tests.support.coded_runs import make_runner
from tests.support.configs import config_from

SPACES = {
    "multi_discrete": gym.spaces.MultiDiscrete([3, 3]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "integers": gym.spaces.Box(0, 9, (2,), np.int64),
    "floats": gym.spaces.Box(0.0, 9.0, (2,), np.float32),
    "nested": gym.spaces.Dict({"a": gym.spaces.MultiDiscrete([3]), "b": gym.spaces.Tuple([gym.spaces.Discrete(3)])}),
}


def total(action: Any) -> float:
    return float(sum(np.sum(leaf) for leaf in nested.leaves(action)))


def spoil(action: Any) -> None:
    for leaf in nested.leaves(action):
        if isinstance(leaf, np.ndarray):
            leaf[...] = 0
    if isinstance(action, dict):
        action.popitem()


class Spoils(gym.Env[Any, Any]):
    """Shows the sum of all actions since the reset, and writes into each action, its observation and its info."""

    observation_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]
        self.obs = np.zeros(1, np.float32)
        self.info: dict[str, Any] = {"sums": np.zeros(1), "parts": [0.0]}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.obs[:] = 0.0
        return self.obs, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = total(action)
        self.obs += reward
        spoil(action)
        return self.obs, reward, False, False, self._info()

    def _info(self) -> dict[str, Any]:
        self.info["sum"] = float(self.obs[0])
        self.info["sums"][:] = self.obs
        self.info["parts"][0] = float(self.obs[0])
        return self.info


class VectorSpoils(gym.vector.VectorEnv[Any, Any, Any]):
    """The same for two sub-environments stepped together."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, kind: str, num_envs: int = 2) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Spoils.observation_space, SPACES[kind]
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.obs, self.rewards = np.zeros((num_envs, 1), np.float32), np.zeros(num_envs)
        self.is_end = np.zeros(num_envs, np.bool_)
        self.info = {"sum": np.zeros(num_envs)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.obs[:] = 0.0
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        self.rewards[:] = [total(nested.take(actions, n)) for n in range(self.num_envs)]
        self.obs += self.rewards[:, None].astype(np.float32)
        self.info["sum"][:] = self.obs[:, 0]
        spoil(actions)
        return self.obs, self.rewards, self.is_end, self.is_end, self.info


class AgentsSpoil(MultiAgentEnv):
    """The same for two agents."""

    possible_agents = ("a", "b")

    def __init__(self, kind: str) -> None:
        self.envs = {agent: Spoils(kind) for agent in self.possible_agents}
        self.observation_spaces = {agent: env.observation_space for agent, env in self.envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self.envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answers = {agent: env.reset() for agent, env in self.envs.items()}
        return {agent: obs for agent, (obs, _) in answers.items()}, {
            agent: info for agent, (_, info) in answers.items()
        }

    def step(self, actions: Any) -> Any:
        answers = {agent: self.envs[agent].step(action) for agent, action in actions.items()}
        actions.clear()
        obs, rewards, _, _, infos = ({agent: answer[i] for agent, answer in answers.items()} for i in range(5))
        return obs, rewards, {"__all__": False}, {"__all__": False}, infos


def actions_of(space: gym.Space[Any], num_steps: int) -> list[Any]:
    batched = gym.vector.utils.batch_space(space, 2)
    batched.seed(0)
    return [batched.sample() for _ in range(num_steps)]


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("make", [lambda kind: SyncEnvironments(lambda: Spoils(kind), 2, 0), VectorSpoils])
def test_actions_stay_as_they_were_taken(make: Any, kind: str) -> None:
    made = make(kind)
    envs = BatchedEnvironments(made, 0) if isinstance(made, gym.vector.VectorEnv) else made
    envs.reset(("check", 0, 0))
    for actions in actions_of(SPACES[kind], 3):
        before = nested.map_leaves(np.copy, actions)
        envs.step(actions)
        assert nested.equal(actions, before)


@pytest.mark.parametrize("kind", SPACES)
def test_a_replay_repeats_the_actions_that_were_taken(kind: str) -> None:
    envs, others = (SyncEnvironments(lambda: Spoils(kind), 2, 0) for _ in range(2))
    envs.reset(("check", 0, 0))
    *taken, last = actions_of(SPACES[kind], 4)
    reused = nested.map_leaves(np.copy, taken[0])
    for actions in taken:  # of a connector that returns the same arrays each time
        nested.map_leaves(np.copyto, reused, actions)
        envs.step(reused)
    others.set_state(through_checkpoint(envs.get_state(), "env"))
    again = SyncEnvironments(lambda: Spoils(kind), 2, 0)
    again.set_state(through_checkpoint(others.get_state(), "env"))
    expected = envs.step(last)[0]
    np.testing.assert_array_equal(others.step(last)[0], expected)
    np.testing.assert_array_equal(again.step(last)[0], expected)


@pytest.mark.parametrize("kind", SPACES)
def test_a_replay_of_several_agents(kind: str) -> None:
    envs, others, again = (MultiAgentEnvironments(lambda: AgentsSpoil(kind), 1, 0) for _ in range(3))
    envs.reset(("check", 0, 0))
    *taken, last = [dict(zip("ab", nested.unstack(both), strict=True)) for both in actions_of(SPACES[kind], 4)]
    for actions in taken:
        before = {agent: nested.map_leaves(np.copy, action) for agent, action in actions.items()}
        envs.step([actions])
        assert nested.equal(actions, before)
    others.set_state(through_checkpoint(envs.get_state(), "env"))
    again.set_state(through_checkpoint(others.get_state(), "env"))
    [expected], [got], [got_again] = (made.step([last]) for made in (envs, others, again))
    assert nested.equal(got.obs, expected.obs)
    assert nested.equal(got_again.obs, expected.obs)


@pytest.mark.parametrize("kind", SPACES)
def test_a_replay_within_a_curriculum(kind: str) -> None:
    env, other, again = (RestorableEnv(Spoils(kind)) for _ in range(3))
    env.reset(0, {})
    *taken, last = [nested.take(both, 0) for both in actions_of(SPACES[kind], 4)]
    for action in taken:
        env.step(nested.map_leaves(np.copy, action))
    other.set_state(through_checkpoint(env.get_state(True), "env"), lambda: other.reset(0, {}))
    again.set_state(through_checkpoint(other.get_state(True), "env"), lambda: again.reset(0, {}))
    expected = env.step(nested.map_leaves(np.copy, last))[0]
    for restored in (other, again):
        np.testing.assert_array_equal(restored.step(nested.map_leaves(np.copy, last))[0], expected)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("make", [lambda kind: lambda: Spoils(kind), lambda kind: lambda: AgentsSpoil(kind)])
def test_check_env_reports_it(make: Any, kind: str) -> None:
    assert has_changed_its_action(make(kind))


@pytest.mark.parametrize("kind", SPACES)
def test_check_env_reports_it_of_several_together(kind: str) -> None:
    def make_vector(num_envs: int) -> VectorSpoils:
        return VectorSpoils(kind, num_envs)

    assert has_changed_its_action(make_vector)


def has_changed_its_action(make: Callable[..., Any]) -> bool:
    found = inspect_environment(make, 20)
    assert not found.faults
    return any(problem.what.startswith("the environment changed its action in place") for problem in found.warnings)


@pytest.mark.parametrize("make", [lambda: SyncEnvironments(lambda: Spoils("floats"), 2, 0), VectorSpoils])
def test_infos_and_observations_that_are_reused(make: Any) -> None:
    made = make("floats") if make is VectorSpoils else make()
    envs = BatchedEnvironments(made, 0) if make is VectorSpoils else made
    runner = make_runner(envs, ActorCriticModule(envs.single_observation_space, SPACES["floats"], SMALL))
    block = runner.sample(8).rollout.blocks["default_policy"]
    for episode in block:
        sums = np.cumsum([0.0, *episode.get_rewards().tolist()])
        np.testing.assert_allclose(episode.get_observations()[:, 0], sums, rtol=1e-5)
        infos = episode.get_infos()[1:]
        np.testing.assert_allclose([info["sum"] for info in infos], sums[1:], rtol=1e-5)
        if make is not VectorSpoils:
            np.testing.assert_allclose([info["sums"][0] for info in infos], sums[1:], rtol=1e-5)
            np.testing.assert_allclose([info["parts"][0] for info in infos], sums[1:], rtol=1e-5)
        assert any(rewards > 0 for rewards in episode.get_rewards())


def test_infos_of_agents_that_are_reused() -> None:
    rows = AgentRows("m", ["a"], 1, np.zeros(1, np.float32), np.zeros((), np.int64), "x", 0)
    slot, obs = np.array([0]), np.zeros((1, 1), np.float32)
    info = {"sums": np.zeros(1)}
    rows.begin(slot, obs, np.array([0]), np.array([0]))
    rows.add_info(0, info)
    info["sums"][:] = 9.0
    assert rows.running_episode(0).get_infos(-1) == {"sums": np.zeros(1)}


class HalvesInPlace(ActorCriticModule):
    """Writes into the batch that it is given, as its connectors do."""

    def forward_train(self, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            batch["obs"].div_(2.0)
        return super().forward_train(batch)


class DoublesInPlace(ObservationConnector):
    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        obs *= 2.0
        return obs


def test_connectors_and_modules_may_write_into_the_batch() -> None:
    envs = SyncEnvironments(lambda: Spoils("floats"), 2, 0)
    module = HalvesInPlace(envs.single_observation_space, SPACES["floats"], SMALL)
    connector = {"_target_": f"{__name__}.DoublesInPlace"}
    edits = [{"insert_after": "AddObservationsFromEpisodesToBatch", "connector": connector}]
    block = make_runner(envs, module, env_to_module_edits=edits).sample(8).rollout.blocks["default_policy"]
    for episode in block:
        sums = np.cumsum([0.0, *episode.get_rewards().tolist()])
        np.testing.assert_allclose(episode.get_observations()[:, 0], sums, rtol=1e-5)


class WritesIntoEpisodes(Callback):
    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        episode.get_rewards()[-1] = 100.0


def test_a_callback_that_writes_into_an_episode() -> None:
    overrides = [
        "+experiment=ppo_cartpole",
        f"callbacks=[{{_target_: {__name__}.WritesIntoEpisodes}}]",
        "tracking=none",
    ]
    with Trainer(config_from(*overrides)) as trainer, pytest.raises(RunFailure, match="read-only"):
        trainer.train()


@pytest.mark.parametrize("name", ["env_config", "wrappers"])
def test_arguments_that_an_environment_writes_into(name: str) -> None:
    arguments = {"layout": [[1, 2]]}
    wrapper = {"_target_": f"{__name__}.TakesLayout", **arguments}
    used: dict[str, Any] = {"env_config": arguments} if name == "env_config" else {"wrappers": [wrapper]}
    config = EnvConfig(_target_=f"{__name__}.Plain", **used)
    make_vector_env(config, 3, "sync", 0).close()
    assert arguments == {"layout": [[1, 2]]}


class Plain(Spoils):
    def __init__(self, layout: list[list[int]] | None = None) -> None:
        super().__init__("floats")
        if layout is not None:
            assert layout.pop().pop() == 2


class TakesLayout(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], layout: list[list[int]]) -> None:
        super().__init__(env)
        assert layout.pop().pop() == 2
