"""`validate --build`: every experiment is made and steps once; what cannot be created or stepped is in one report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.config.paths import conf_dir, list_options
from runner.episodes.spaces import space_to_dict
from runner.experiment.rehearsal import Rehearsed, rehearse
from runner.modules import ActorCriticModule
from runner.offline.writing.writer import EpisodeWriter
from runner.pipelines import Connector
from tests.chaos.runs import NOT_KILLED
from tests.conftest import Run
from tests.learners.toy_mdps import record
from tests.support.configs import config_from

HERE = "tests.experiment.test_rehearsal"
CARTPOLE = "+experiment=ppo_cartpole"
# Experiments on recorded data -> the environment whose episodes they need.
RECORDED = {
    "bc_cartpole": "CartPole-v1",
    "marwil_cartpole": "CartPole-v1",
    "cql_discrete_cartpole": "CartPole-v1",
    "cql_pendulum": "Pendulum-v1",
    "sac_rlpd_pendulum": "Pendulum-v1",
    "iql_pendulum": "Pendulum-v1",
}
SPACE = {"space": "box", "low": -1, "high": 1, "shape": [3], "dtype": "float32"}


class TextEnv(gym.Env[str, Any]):
    observation_space = gym.spaces.Text(4)
    action_space = gym.spaces.Discrete(2)


class FailingStep(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        raise OSError("the arm is not connected")


class UnbuildableModule(ActorCriticModule):
    def __init__(self, *arguments: Any) -> None:
        raise RuntimeError("no weights to begin with")


class WrongForward(ActorCriticModule):
    def forward_train(self, batch: Any) -> Any:
        return {name: tensor[:1] @ torch.zeros(77, 1) for name, tensor in super().forward_train(batch).items()}


class FailingConnector(Connector):
    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        return {**batch, "obs": batch["osb"]}


def make_cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", disable_env_checker=True)


def rehearsed(*overrides: str) -> Rehearsed:
    return rehearse(config_from(*overrides))


def report_of(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        rehearsed(*overrides)
    return str(caught.value)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        env = gym.make(name, max_episode_steps=40)
        env.action_space.seed(0)
        folder = tmp_path_factory.mktemp("data") / name
        block = record(env, lambda obs, stream: 0.4 * env.action_space.sample() if name != "CartPole-v1" else 1, 3)
        with EpisodeWriter(OfflineConfig(output=str(folder)), env_name=name) as writer:
            writer.add(block)
        return folder

    return write


@pytest.mark.parametrize("name", [name for name in list_options([conf_dir()], "experiment") if name not in NOT_KILLED])
def test_every_experiment(name: str, recorded: Callable[[str], Path]) -> None:
    data = [f"offline.input_={recorded(RECORDED[name])}"] if name in RECORDED else []
    eager = ["learners.compile=false"] if name.endswith("_compiled") else []  # torch's own warnings are errors here
    done = rehearsed(f"+experiment={name}", *data, *eager)
    assert any(text.startswith("one update on ") for text in done.made)
    assert ("the first recorded steps" in done.made) == (name in RECORDED)
    is_cooperative = name.startswith(("ippo_", "mappo_")) and name != "mappo_simple_spread"
    samples_only = is_cooperative or "external" in name
    assert ("one step of evaluation" in done.made) == (not samples_only)
    assert any("server at port" in text for text in done.not_made) == ("external" in name)


def test_recordings_of_another_policy_are_not_compared_with_the_module(run_main: Run) -> None:
    two_episodes = ["algorithm.train_batch_size_per_learner=400", "env_runners.num_envs_per_env_runner=1"]
    short = ["stop.training_iteration=1", "evaluation.evaluation_interval=null", "tracking=none"]
    assert run_main("experiment=ppo_pendulum", *two_episodes, *short, "offline.output=data").code == 0
    done = rehearsed("+experiment=iql_pendulum", "offline.input_=data")
    assert any(text.startswith("one update on ") for text in done.made)


CONFIGS, LOSSES = "runner.config.algorithms", "runner.learners"


@pytest.mark.parametrize(
    ("module", "schema", "loss", "env"),
    [
        ("double_q", "DQNConfig", "dqn.DQNLoss", "CartPole-v1"),
        ("rainbow", "DQNConfig", "dqn.DQNLoss", "CartPole-v1"),
        ("sac_discrete", "DiscreteSACConfig", "sac_discrete.DiscreteSACLoss", "CartPole-v1"),
        ("sac", "SACConfig", "sac.SACLoss", "Pendulum-v1"),
        ("tqc", "TQCConfig", "tqc.TQCLoss", "Pendulum-v1"),
        ("td3", "TD3Config", "td3.TD3Loss", "Pendulum-v1"),
    ],
)
def test_off_policy_losses_learn_from_recorded_steps(
    module: str, schema: str, loss: str, env: str, recorded: Callable[[str], Path]
) -> None:
    """Recorded steps have neither `n_step` nor `weights`: they are single steps that count equally."""
    targets = "algorithm.target_network_update_freq=" + ("500" if schema == "DQNConfig" else "null")
    done = rehearsed(
        *("algorithm=cql", f"module={module}", f"algorithm.schema={CONFIGS}.{schema}", targets),
        *(f"algorithm.loss={LOSSES}.{loss}", f"env.env={env}", "offline=episodes", f"offline.input_={recorded(env)}"),
        *("evaluation=periodic", "stop.training_iteration=1", "checkpoint.metric=training_iteration"),
    )
    assert "the first recorded steps" in done.made
    assert any(text.startswith("one update on ") for text in done.made)


@pytest.mark.parametrize(
    "env",
    [
        f"{{observation_space: {SPACE}, action_space: {{space: discrete, n: 3}}}}",
        f"{{agents: {{a: {{observation_space: {SPACE}, action_space: {SPACE}}}}}}}",
    ],
    ids=["one agent", "agents"],
)
def test_simulators_of_which_only_the_spaces_are_known(env: str) -> None:
    done = rehearsed("env=external", f"env={env}".replace("'", ""), "stop.training_iteration=1")
    assert "external" in done.made
    assert any(text.startswith("one update on ") for text in done.made)


def test_an_action_mask_of_simulators() -> None:
    space = gym.spaces.Dict(mask=gym.spaces.Box(0, 1, (3,), np.int8), seen=gym.spaces.Box(-1, 1, (2,)))
    text = str(space_to_dict(space)).replace("'", "")
    env = f"env={{observation_space: {text}, action_space: {{space: discrete, n: 3}}}}"
    done = rehearsed("env=external", env, "module.action_mask_key=mask", "stop.training_iteration=1")
    assert any(text.startswith("one update on ") for text in done.made)


def test_a_function_wrappers_and_a_pipeline_in_a_pipeline() -> None:
    pipeline = (
        "{_target_: runner.pipelines.ConnectorPipeline, connectors: [{_target_: runner.pipelines.MeanStdFilter}]}"
    )
    done = rehearsed(
        CARTPOLE,
        "env.env=null",
        f"env._target_={HERE}.make_cartpole",
        "env.wrappers=[{_target_: gymnasium.wrappers.NormalizeReward, gamma: 0.9}]",
        f"connectors.env_to_module=[{{insert_after: AddObservationsFromEpisodesToBatch, connector: {pipeline}}}]",
    )
    assert f"{HERE}.make_cartpole" in done.made


def test_what_a_run_makes_elsewhere() -> None:
    done = rehearsed(
        CARTPOLE, "env_runners.num_env_runners=2", "learners.num_learners=1", "tracking=none", "learners.device=cuda"
    )
    assert done.not_made == ("Ray actors (2 env runners, 1 learner)",)
    own = "algorithm.plan=[ParallelRollouts, {_target_: tests.support.own_plans.EverySecond}, TrainOneStep]"
    assert rehearsed(CARTPOLE, own, "tracking=none").not_made == ("calls of tests.support.own_plans.EverySecond",)


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["env.env=null", f"env._target_={HERE}.TextEnv"], ["observation", "Text"]),
        (
            ["env.env=null", f"env._target_={HERE}.FailingStep"],
            ["OSError in step: the arm is not connected", "one step"],
        ),
        (
            [f"module._target_={HERE}.UnbuildableModule"],
            ["RuntimeError: no weights to begin with", "test_rehearsal.py:"],
        ),
        ([f"module._target_={HERE}.WrongForward"], ["RuntimeError: ", "one update", "test_rehearsal.py:"]),
        (
            [f"connectors.env_to_module=[{{prepend: {{_target_: {HERE}.FailingConnector}}}}]"],
            ["KeyError: 'osb'", "one step", "test_rehearsal.py:"],
        ),
        (["connectors.learner=[{remove: Nothing}]"], ["the learner pipeline does not contain a connector Nothing"]),
        (["env.env_config.max_episode_steps=many"], ["TypeError"]),
    ],
    ids=["text space", "step", "module", "update", "connector", "anchor", "argument"],
)
def test_what_cannot_be_made_or_stepped(overrides: list[str], messages: list[str]) -> None:
    report = report_of(CARTPOLE, *overrides)
    for message in messages:
        assert message in report


def test_all_modules_are_in_one_report() -> None:
    report = report_of(
        "+experiment=ppo_multi_agent_cartpole",
        f"multi_agent.modules={{p0: {{_target_: {HERE}.UnbuildableModule}}, p1: {{fcnet_kernel_initializer: orth}}}}",
    )
    assert report.startswith("2 problems")
    assert "module p0, " in report
    assert "orth" in report


def test_the_verb(run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run_main("validate", "--build", CARTPOLE)
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith("ppo_cartpole: no problems\n  checked      CartPole-v1\n")
    module = f"module._target_={HERE}.UnbuildableModule"
    plain = run_main("validate", CARTPOLE, module)
    assert plain.code == 0
    assert plain.out.splitlines()[-1].startswith("  not checked  environments, pipelines, modules (use --build")
    bad = run_main("validate", "--build", CARTPOLE, module)
    assert (bad.code, bad.out) == (2, "")
    assert bad.err.startswith("1 problem in the configuration")
    assert "Traceback" not in bad.err
    assert "no weights to begin with" in run_main("validate", "--build", CARTPOLE, module, "--format=github").out
    several = run_main(
        "validate", "--build", CARTPOLE, "-m", f"module._target_={HERE}.UnbuildableModule,{HERE}.WrongForward"
    )
    assert several.code == 2
    assert several.err.startswith("2 problems in the configuration")
