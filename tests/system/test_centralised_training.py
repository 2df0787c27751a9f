"""Whole runs of agents that learn with a critic for all: states, teams, checkpoints, Ray, and what is exported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from runner.module_building import build_modules
from tests.conftest import Outcome
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray, train

SHORT = (
    "tracking=none",
    "algorithm.train_batch_size_per_learner=200",
    "algorithm.num_epochs=2",
    "env_runners.num_envs_per_env_runner=4",
    "module.fcnet_hiddens=[8]",
)
STATE = (
    "multi_agent.multi_rl_module.reads=state",
    "connectors.learner=[{replace: AddObservationsOfAllAgentsToTrainBatch, "
    "connector: {_target_: runner.pipelines.AddStatesFromInfosToTrainBatch}}]",
)
MEMORY = ("module.use_gru=true", "module.lstm_cell_size=4", "module.max_seq_len=8")
GAME, LISTENER = "mappo_investment_game", "mappo_speaker_listener"
RUNS = {
    "observations": (GAME, ()),
    "state": (GAME, STATE),
    "state of PettingZoo": (LISTENER, ("env.env_config.state=true", *STATE)),
    "teams": (GAME, ("multi_agent.teams={a: [agent_0], b: [agent_1]}",)),
    "agents that end": ("ppo_multi_agent_cartpole_shared", ("algorithm=mappo",)),
    "agents that end, with memory": ("ppo_multi_agent_cartpole_shared", ("algorithm=mappo", *MEMORY)),
}
Run = tuple[str, tuple[str, ...]]


def trainer_of(run: Run, *overrides: str) -> Trainer:
    experiment, others = run
    return Trainer.from_experiment(experiment, [*SHORT, *others, *overrides])


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_run_resumes_exactly(run: Run, tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, run), tmp_path, cuts=[1])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["state", "teams", "agents that end, with memory"])
def test_two_ray_actors_make_the_numbers_of_two_inline_runners(ray_cluster: None, name: str) -> None:
    assert_same_on_ray(partial(trainer_of, RUNS[name], "env_runners.num_env_runners=2"), 2)


def test_a_team_shares_its_return() -> None:
    team = (GAME, ("multi_agent.teams={all: ['*']}", "env._target_=tests.system.test_centralised_training.Unequal"))
    with trainer_of(team) as trainer:
        (result,) = train(trainer, 1)
    agents = [result[f"env_runners/agent_episode_return_mean/agent_{number}"] for number in (0, 1)]
    assert agents == [3.0, 3.0], "each has the mean of 0 and 6"
    assert result["env_runners/episode_return_mean"] == 6.0


def test_a_policy_is_exported_without_the_critic(run_main: Callable[..., Outcome], tmp_path: Path) -> None:
    arguments = (f"+experiment={GAME}", *SHORT, "stop.training_iteration=1", "hydra.run.dir=run")
    assert run_main(*arguments).code == 0
    outcome = run_main("export", "run", "policy.onnx", "--module", "p0")
    assert outcome.code == 0, outcome.err
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [one.name for one in session.get_inputs() if "agents" in one.name or "state" in one.name] == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("multi_agent.teams={a: [agent_7]}",), "team a contains an unknown agent"),
        (("multi_agent.multi_rl_module.reads=stat",), "did you mean  state"),
        (STATE[:1], "reads state, which no connector of the learner pipeline writes"),
        (
            ("env._target_=runner.environments.MultiAgentCartPole", "env.env_config={}", *STATE),
            "the environment does not define `state_space`",
        ),
    ],
)
def test_mistakes_show_when_parts_are_built(overrides: tuple[str, ...], message: str) -> None:
    config = config_from(f"+experiment={GAME}", *overrides)
    with pytest.raises(ConfigError, match=message):
        build_modules(config)


def Unequal(**config: Any) -> Any:  # noqa: N802 - as a class
    """The investment game, in which one agent alone is paid."""
    from runner.environments import InvestmentGame

    class _Unequal(InvestmentGame):
        def step(self, actions: Any) -> Any:
            obs, _, terminateds, truncateds, infos = super().step(actions)
            paid = 6.0 if terminateds["__all__"] else 0.0
            return obs, {"agent_0": 0.0, "agent_1": paid}, terminateds, truncateds, infos

    return _Unequal(**config)
