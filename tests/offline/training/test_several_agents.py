"""Each module learns from the rows of its agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.experiment.trainer import Trainer
from runner.learners.train_batch import TrainBatch
from runner.offline.training.data_of_modules import ReaderOfModules
from runner.offline.writing.conversion import convert
from tests.conftest import ROOT, Run, without_times
from tests.offline.problems import config_error, data_error, does_not_fit, mixed_episodes, of_a_single_agent
from tests.support.problems import assert_error

RECORDED = ROOT / "tests" / "data" / "env_episodes"  # 68 episodes of two agents, 1,591 env steps
SINGLE = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
REPLAYED = "algorithm.replay_buffers.replay.recorded=true"
FUNCTION = "{_target_: tests.offline.own_sources.numbers, count: 3}"
SMALL = (
    "module.fcnet_hiddens=[16]",
    "algorithm.train_batch_size_per_learner=256",
    "offline.dataset_num_iters_per_learner=3",
    "evaluation.evaluation_interval=null",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)
SWAPPED = "multi_agent.agent_to_module={agent_0: p1, agent_1: p0}"


class Pendulums(MultiAgentEnv):
    """Two agents with Pendulum's spaces."""

    def __init__(self, **options: Any) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-8, 8, (3,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-2, 2, (1,), np.float32))


quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


def trainer_of(*overrides: str, input_: Path = RECORDED) -> Trainer:
    return Trainer.from_experiment("bc_multi_agent_cartpole", [f"offline.input_={input_}", *SMALL, *overrides])


def recorded_rows(agent: str, column: str) -> set[Any]:
    episodes = pq.read_table(RECORDED)[f"agents/{agent}/{column}"].to_pylist()
    return {tuple(row) if isinstance(row, list) else row for episode in episodes for row in episode}


@pytest.mark.slow
@pytest.mark.ray
@quiet
@pytest.mark.parametrize(("mapping", "agents"), [((), {"p0": 0, "p1": 1}), ((SWAPPED,), {"p0": 1, "p1": 0})])
def test_batches_have_the_rows_of_a_modules_agents(
    ray_cluster: None, mapping: tuple[str, ...], agents: dict[str, int]
) -> None:
    with trainer_of(*mapping) as trainer:
        assert_rows_of_agents(trainer, agents)


def assert_rows_of_agents(trainer: Trainer, agents: dict[str, int]) -> None:
    """Each module has rows of its agent, and none of the other one."""
    [reader] = trainer.context.recorded_data.readers(0)
    stream = reader.batches(torch.device("cpu"))
    batch = next(stream)
    stream.close()
    assert batch.columns.keys() == agents.keys()
    for module_id, agent in agents.items():
        rows = {tuple(row) for row in batch.columns[module_id]["obs"].tolist()}
        assert rows <= recorded_rows(f"agent_{agent}", "obs")
        assert not rows & recorded_rows(f"agent_{1 - agent}", "obs")
    assert batch.num_env_steps == 256


@pytest.mark.slow
@pytest.mark.ray
@quiet
def test_modules_learn_from_rllibs_episodes_as_from_the_recording(ray_cluster: None, tmp_path: Path) -> None:
    convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path), output_episode_format="rllib"))
    with trainer_of() as original:
        expected = without_times(original.train())
    with trainer_of(input_=tmp_path) as trainer:
        assert without_times(trainer.train()) == expected


@pytest.mark.slow
@pytest.mark.ray
@quiet
def test_modules_learn_from_tables_of_steps(ray_cluster: None, tmp_path: Path) -> None:
    """Episodes come in blocks of other sizes than from the recording, so that batches are drawn otherwise."""
    convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path), output_write_episodes=False))
    with trainer_of(input_=tmp_path) as trainer:
        assert_rows_of_agents(trainer, {"p0": 0, "p1": 1})
        assert modules_in(trainer.train()) == {"p0", "p1"}


def modules_in(result: dict[str, Any]) -> set[str]:
    return {name.split("/")[1] for name in result if name.startswith("learners/")}


@pytest.mark.slow
@pytest.mark.ray
@quiet
def test_a_run_goes_on_as_if_it_had_not_been_interrupted(ray_cluster: None) -> None:
    with trainer_of() as straight:
        straight.train()
        state = straight.get_state()
        following = without_times(straight.train())
    assert modules_in(following) == {"p0", "p1"}
    with trainer_of() as resumed:
        resumed.set_state(state)
        assert without_times(resumed.train()) == following


@pytest.mark.slow
@pytest.mark.ray
@quiet
@pytest.mark.parametrize(
    ("overrides", "modules"),
    [
        (["multi_agent.agent_to_module={agent_0: both, agent_1: both}"], {"both"}),
        (["algorithm=marwil", "module.vf_share_layers=false", "offline.materialize_mapped_data=false"], {"p0", "p1"}),
        (["algorithm=iql", "module=iql", "~algorithm.lr"], {"p0", "p1"}),
    ],
    ids=["one_module", "marwil", "iql"],
)
def test_every_algorithm_trains_each_module(ray_cluster: None, overrides: list[str], modules: set[str]) -> None:
    with trainer_of(*overrides) as trainer:
        result = trainer.train()
    assert modules_in(result) == modules
    assert all(np.isfinite(result[f"learners/{module_id}/policy_loss"]) for module_id in modules)


@pytest.mark.slow
@pytest.mark.ray
@quiet
def test_only_modules_that_are_trained_need_rows(ray_cluster: None) -> None:
    overrides = ["env.env_config.num_agents=3", "multi_agent.agent_to_module={agent_2: p2}"]
    with pytest.raises(ConfigError, match="no rows for module p2: the data do not contain steps of agent_2"):
        trainer_of(*overrides)
    with trainer_of(*overrides, "multi_agent.modules_to_train=[p0,p1]") as trainer:
        result = trainer.train()
    assert modules_in(result) == {"p0", "p1"}


class Counted:
    """Batches with one row a number; each `length`-th ends a pass."""

    def __init__(self, module_id: str, length: int) -> None:
        self.module_id, self.length = module_id, length

    def batches(self, device: torch.device) -> Iterator[TrainBatch]:
        for number in range(1000):
            columns = {self.module_id: {"obs": torch.full((self.length,), number)}}
            yield TrainBatch(columns, self.length, number % self.length == self.length - 1)


def test_a_pass_is_over_when_each_modules_is() -> None:
    reader = ReaderOfModules({"short": Counted("short", 2), "long": Counted("long", 5)})  # type: ignore[dict-item]
    stream = reader.batches(torch.device("cpu"))
    batches = [next(stream) for _ in range(11)]
    assert np.flatnonzero([batch.ends_pass for batch in batches]).tolist() == [4, 9]
    assert all(batch.num_env_steps == 5 for batch in batches)
    assert [int(batch.columns["short"]["obs"][0]) for batch in batches] == list(range(11))


FILE = "REPOSITORY/tests/data/env_episodes/episodes-env_runner-0-0-000000.parquet"


@pytest.mark.parametrize(
    ("experiment", "input_", "overrides", "expected"),
    [
        pytest.param(
            "bc_multi_agent_cartpole",
            RECORDED,
            ["env.env_config.num_agents=1", "multi_agent.agent_to_module={agent_0: p0}"],
            data_error(
                Problem(
                    "agent agent_1 of the data does not exist in the experiment",
                    FILE,
                    "agent_1",
                    "agent_0, the agents of the environment and of multi_agent.agent_to_module",
                    "agent_0",
                )
            ),
            id="unknown_agent",
        ),
        pytest.param(
            "bc_multi_agent_cartpole",
            RECORDED,
            ["env.env_config.num_agents=3", "multi_agent.agent_to_module={agent_0: p0, agent_1: p1, agent_2: p2}"],
            data_error(
                Problem(
                    "no rows for module p2: the data do not contain steps of agent_2",
                    FILE,
                    "agent_0, agent_1",
                    fix="map an agent of the data to it in multi_agent.agent_to_module, or remove it from "
                    "multi_agent.modules_to_train",
                )
            ),
            id="module_without_rows",
        ),
        pytest.param(
            "bc_multi_agent_cartpole",
            RECORDED,
            [f"env._target_={__name__}.Pendulums"],
            data_error(
                does_not_fit("obs", f"{FILE}, agent_0", "float32[4]", "Box(-8, 8, [3], float32)"),
                does_not_fit("actions", f"{FILE}, agent_0", "int64", "Box(-2, 2, [1], float32)"),
            ),
            id="agents_of_another_space",
        ),
        pytest.param(
            "bc_cartpole",
            RECORDED,
            [],
            data_error(
                Problem(
                    "these data come from several agents, but the experiment has one",
                    FILE,
                    "agent_0, agent_1",
                    fix="use an experiment with several agents (env._target_ is a MultiAgentEnv)",
                )
            ),
            id="agents_for_a_single_agent",
        ),
        pytest.param(
            "dqn_cartpole",
            RECORDED,
            ["env=multi_agent_cartpole", REPLAYED],
            config_error(
                Problem(
                    "replay buffers with several agents do not support recorded steps yet",
                    "algorithm.replay_buffers.replay.recorded",
                    "REPOSITORY/tests/data/env_episodes",
                    "a single-agent environment",
                )
            ),
            id="agents_for_replay",
        ),
        pytest.param(
            "bc_multi_agent_cartpole",
            SINGLE,
            [],
            data_error(of_a_single_agent("REPOSITORY/tests/data/rllib_cartpole_episodes/part-00000.parquet")),
            id="single_agent_for_several",
        ),
        pytest.param(
            "bc_multi_agent_cartpole",
            [RECORDED, ROOT / "tests" / "data" / "rllib_cartpole_table"],
            [],
            data_error(
                mixed_episodes(
                    "multi-agent episodes", FILE, "REPOSITORY/tests/data/rllib_cartpole_table/part-00000.parquet"
                )
            ),
            id="mixed_agents",
        ),
        pytest.param(
            "bc_multi_agent_cartpole",
            FUNCTION,
            ["offline.materialize_mapped_data=false"],
            config_error(
                Problem(
                    "this option only reads single-agent episodes, but the experiment has several agents",
                    "offline.input_",
                    "{'_target_': 'tests.offline.own_sources.numbers', 'count': 3}",
                    fix="use multi-agent files, which runner reads itself",
                )
            ),
            id="function_for_several",
        ),
    ],
)
def test_data_that_cannot_be_learned_from(
    run_main: Run,
    tmp_path: Path,
    experiment: str,
    input_: Any,
    overrides: list[str],
    expected: ConfigError,
) -> None:
    if isinstance(input_, list):
        input_ = f"[{','.join(map(str, input_))}]"
    given = [f"+experiment={experiment}", "tracking=none", "hydra.run.dir=run", f"offline.input_={input_}"]
    outcome = run_main(*given, *overrides)
    assert outcome.code == 2
    assert_error(outcome.err, expected, tmp_path)
