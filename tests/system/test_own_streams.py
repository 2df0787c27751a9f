"""Connectors and losses of users draw from the streams they are given; runs resume exactly, although they save
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.algorithms import A2CConfig
from runner.experiment.trainer import Trainer
from runner.learners.a2c import A2CLoss
from runner.pipelines import Connector, ConnectorPipeline, EnvToModuleConnector, LearnerConnector, Requirements
from runner.pipelines.connector import Batch
from runner.testing import BrokenContract, check_connector, check_loss
from tests.conftest import QUICK
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly

HERE = "tests.system.test_own_streams"


class Draws(Connector):
    """Keeps the stream, and nothing else."""

    def use_stream(self, stream: np.random.Generator) -> None:
        self._stream = stream


class NoisyObservations(Draws, EnvToModuleConnector):
    requires = Requirements(writes=("obs",))

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        noise = self._stream.normal(scale=0.1, size=batch["obs"].shape).astype(np.float32)
        batch["obs"] = batch["obs"] + noise
        return batch


class NoisyRewards(Draws, LearnerConnector):
    requires = Requirements(writes=("rewards",))

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        noise = self._stream.normal(size=len(batch["rewards"])).astype(np.float32)
        batch["rewards"] = batch["rewards"] + noise
        return batch


class NoisyLoss(A2CLoss):
    """Weighs minibatches at random; `algorithm.loss` names it."""

    def use_stream(self, stream: np.random.Generator) -> None:
        self._stream = stream

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {"weight": torch.tensor(self._stream.random(), device=columns["advantages"].device)}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> Any:
        metrics = super().__call__(module, batch, is_reporting)
        return replace(metrics, total_loss=batch["weight"] * metrics.total_loss)


OWN = [
    "+experiment=a2c_cartpole",
    *QUICK,
    "algorithm.train_batch_size_per_learner=200",
    f"algorithm.loss={HERE}.NoisyLoss",
    "connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, "
    f"connector: {{_target_: {HERE}.NoisyObservations}}}}, {{insert_after: NoisyObservations, "
    "connector: {_target_: runner.pipelines.WriteObservationsToEpisodes}}]",
    "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
    f"connector: {{_target_: {HERE}.NoisyRewards}}}}]",
]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        pytest.param(
            ["learners.compile=true"],
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")],
        ),
        ["engine=inline", "env_runners.num_env_runners=2"],
        pytest.param(["learners.num_learners=2"], marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
    ids=["local", "compiled", "env_runners", "learners"],
)
def test_a_run_resumes_exactly(overrides: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "learners.num_learners=2" in overrides:
        request.getfixturevalue("ray_cluster")
    config = config_from(*OWN, *overrides)
    assert_resumes_exactly(partial(Trainer, config), tmp_path, cuts=[1])


def test_pipelines_in_pipelines_save_the_streams_of_their_connectors() -> None:
    def make() -> tuple[ConnectorPipeline, list[Any]]:
        connectors = [NoisyRewards() for _ in range(4)]
        inner = ConnectorPipeline([connectors[1], ConnectorPipeline([connectors[2]])])
        pipeline = ConnectorPipeline([connectors[0], inner, connectors[3]])
        pipeline.give_streams(lambda name, position: np.random.default_rng(position))
        return pipeline, connectors

    (pipeline, connectors), (other, others) = make(), make()
    drawn = [connector._stream.random(3) for connector in connectors]
    other.set_state(copy.deepcopy(pipeline.get_state()))
    for connector, one, before in zip(connectors, others, drawn, strict=True):
        after = connector._stream.random(3)
        assert after.tolist() == one._stream.random(3).tolist() != before.tolist()


def test_states_that_runners_share_leave_streams_alone() -> None:
    pipeline, other = ConnectorPipeline([NoisyRewards()]), ConnectorPipeline([NoisyRewards()])
    pipeline.give_streams(lambda name, position: np.random.default_rng(0))
    other.give_streams(lambda name, position: np.random.default_rng(1))
    before = copy.deepcopy(other.get_state())
    other.set_state(pipeline.merge_states([pipeline.get_state(), other.get_state()]))
    assert other.get_state() == before != pipeline.get_state()


def test_check_connector_accepts_a_connector_that_does_not_save_its_stream() -> None:
    check_connector(NoisyRewards)


class SpawnsAStream(NoisyRewards):
    def use_stream(self, stream: np.random.Generator) -> None:
        (self._stream,) = stream.spawn(1)


class CountsInSecret(NoisyRewards):
    num_calls = 0

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        self.num_calls += 1
        batch["rewards"] = batch["rewards"] * self.num_calls
        return batch


@pytest.mark.parametrize(("connector", "name"), [(SpawnsAStream, "_stream"), (CountsInSecret, "num_calls")])
def test_check_connector_names_the_attribute_that_is_not_saved(connector: type[Connector], name: str) -> None:
    with pytest.raises(BrokenContract) as caught:
        check_connector(connector)
    (problem,) = caught.value.problems
    assert problem.what == "a connector with the state of another one writes different rewards"
    assert problem.got == f"different self.{name} after set_state"


def test_check_loss_accepts_a_loss_that_does_not_save_its_stream() -> None:
    check_loss(NoisyLoss, A2CConfig(), is_compiled=True)


class SpawnsForLoss(NoisyLoss):
    def use_stream(self, stream: np.random.Generator) -> None:
        (self._stream,) = stream.spawn(1)


class GrowsWithSteps(A2CLoss):
    scale = 1.0

    def after_step(self, module: Any, num_rows: int) -> None:
        self.scale += 1.0

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> Any:
        metrics = super().__call__(module, batch, is_reporting)
        return replace(metrics, total_loss=self.scale * metrics.total_loss)


@pytest.mark.parametrize(
    ("loss", "name", "result"),
    [
        (SpawnsForLoss, "_stream", "draws different weight"),
        (GrowsWithSteps, "scale", "computes a different total_loss"),
    ],
)
def test_check_loss_names_the_attribute_that_is_not_saved(loss: type[A2CLoss], name: str, result: str) -> None:
    with pytest.raises(BrokenContract) as caught:
        check_loss(loss, A2CConfig())
    (problem,) = caught.value.problems
    assert problem.what == f"a loss with the state of another one {result}"
    assert problem.got == f"different self.{name} after set_state"
