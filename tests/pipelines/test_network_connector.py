"""Connectors that own a network: it is trained, and a resumed run continues exactly, as random network distillation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.errors import ConfigError, RunFailure
from runner.experiment.trainer import Trainer
from runner.pipelines import NetworkConnector, Requirements
from runner.testing import BrokenContract, check_connector
from tests.conftest import QUICK, ROOT
from tests.pipelines.connector_contract import WITH_MASK, ConnectorCase
from tests.support.resuming import train

HERE = "tests.pipelines.test_network_connector"
OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def errors(network: Any, obs: Tensor) -> Tensor:
    difference: Tensor = network["predictor"](obs) - network["target"](obs)
    return difference.square().mean(-1)


class RND(NetworkConnector):
    """Only a network and a reward."""

    requires = Requirements(reads=("obs", "rewards", "loss_mask"), writes=("rewards",))

    def make_network(self, observation_space: Any, action_space: Any) -> nn.Module:
        target = nn.Linear(observation_space.shape[0], 8).requires_grad_(False)
        return nn.ModuleDict({"target": target, "predictor": nn.Linear(observation_space.shape[0], 8)})

    def compute_loss(self, network: Any, rows: Any) -> Tensor:
        return errors(network, rows["obs"]).mean()

    def compute_columns(self, network: Any, columns: Any) -> Any:
        bonus = errors(network, columns["obs"]).roll(-1)
        return {"rewards": columns["rewards"] + bonus * columns["loss_mask"]}


class NormalisingRND(RND):
    """Its network has buffers that change in each pass."""

    def make_network(self, observation_space: Any, action_space: Any) -> nn.Module:
        network: Any = super().make_network(observation_space, action_space)
        network["predictor"] = nn.Sequential(nn.BatchNorm1d(observation_space.shape[0]), network["predictor"])
        return network


class MomentumRND(RND):
    """Has another optimiser."""

    def make_optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class ForgetsItsOptimizer(RND):
    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "optimizer": {}}


CLASSES = [RND, NormalisingRND, MomentumRND]
AT = ("learner", "insert_after", "NumpyToTensor", WITH_MASK)


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize("arguments", [{}, {"num_epochs": 3, "minibatch_size": 5}, {"minibatch_size": None}])
def test_contract(connector: type[RND], arguments: dict[str, Any]) -> None:
    check_connector(*ConnectorCase(lambda: connector(**arguments), *AT))


def test_the_contract_finds_a_state_that_is_incomplete() -> None:
    with pytest.raises(BrokenContract, match="a connector with the state of another one"):
        check_connector(*ConnectorCase(ForgetsItsOptimizer, *AT))


def batch_of(num_rows: int = 64) -> dict[str, Any]:
    stream = np.random.default_rng(3)
    obs = torch.from_numpy(stream.uniform(-1, 1, (num_rows, 3)).astype(np.float32))
    mask = torch.ones(num_rows, dtype=torch.bool)
    mask[-1] = False
    return {"default_policy": {"obs": obs, "rewards": torch.zeros(num_rows, dtype=torch.float32), "loss_mask": mask}}


def made(connector: NetworkConnector, seed: int = 0) -> NetworkConnector:
    connector.recompute_output_observation_space(OBS, ACTIONS)
    connector.use_stream(np.random.default_rng(seed))
    return connector


def mean_bonus(connector: NetworkConnector) -> float:
    rewards = connector(batch=batch_of())["default_policy"]["rewards"]
    assert rewards[-1] == 0
    assert (rewards[:-1] > 0).all()
    return float(rewards.mean())


def test_the_bonus_of_what_was_seen_decreases_and_the_target_stays() -> None:
    connector: Any = made(RND(lr=0.01, num_epochs=4, minibatch_size=16))
    target = copy.deepcopy(connector.network["target"].weight)
    first = mean_bonus(connector)
    last = [mean_bonus(connector) for _ in range(50)][-1]
    assert last < 0.1 * first
    assert torch.equal(connector.network["target"].weight, target)


def test_evaluation_does_not_train() -> None:
    connector = made(RND())
    connector.freeze()
    assert mean_bonus(connector) == mean_bonus(connector)


def test_learners_that_forbid_gradients_and_processes_with_other_defaults_change_nothing() -> None:
    expected, connector = made(RND()), made(RND())
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(False), torch.no_grad():
            found = [mean_bonus(connector) for _ in range(3)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == [mean_bonus(expected) for _ in range(3)]


def test_the_network_follows_from_the_stream_and_is_made_again_by_a_reset() -> None:
    first, same, other = made(RND()), made(RND()), made(RND(), seed=1)
    assert mean_bonus(first) == mean_bonus(same) != mean_bonus(other)
    before = torch.get_rng_state()
    first.reset_state()
    assert mean_bonus(first) == mean_bonus(made(RND()))
    assert torch.equal(torch.get_rng_state(), before)


CONNECTOR = f"{{_target_: {HERE}.RND, lr: 0.01, minibatch_size: 50}}"
EDIT = f"connectors.learner=[{{insert_after: NumpyToTensor, connector: {CONNECTOR}}}]"
TINY = (*QUICK, "module.fcnet_hiddens=[8]")


@pytest.mark.parametrize("name", ["RND", "NormalisingRND", "MomentumRND"])
def test_interrupted_is_straight(name: str, tmp_path: Path) -> None:
    overrides = [*TINY, EDIT.replace(".RND", f".{name}")]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        expected = train(trainer, 4)
        state = trainer.learners.get_state()
    losses = [one["connectors/learner/network_loss"] for one in expected]
    assert losses[-1] < 0.5 * losses[0]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        first = train(trainer, 2)
        save_checkpoint(tmp_path / "two", trainer.get_state(), {})
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        trainer.set_state(load_checkpoint(tmp_path / "two")[0])
        assert first + train(trainer, 2) == expected
        resumed = trainer.learners.get_state()
    network, other = (one["pipelines"]["default_policy"][name] for one in (state, resumed))
    for part in ("network", "optimizer"):
        np.testing.assert_equal(network[part], other[part])
    assert "target.weight" in network["network"]


def test_the_example_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "rnd")
    with Trainer.from_experiment("ppo_cartpole", [*TINY, EDIT.replace(HERE, "rnd")]) as trainer:
        losses = [one["connectors/learner/network_loss"] for one in train(trainer, 4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (EDIT.replace("NumpyToTensor", "AddColumnsFromEpisodesToTrainBatch"), "RND reads columns that are not tensors"),
        (EDIT.replace("lr: 0.01", "lr: 0.0"), "cannot be created: lr=0.0"),
        (EDIT.replace("lr: 0.01", "device: abacus"), "device abacus is not available"),
    ],
)
def test_a_mistake_is_reported(edit: str, message: str) -> None:
    with (
        pytest.raises((ConfigError, RunFailure), match=message),
        Trainer.from_experiment("ppo_cartpole", [*TINY, edit]) as trainer,
    ):
        trainer.train()
