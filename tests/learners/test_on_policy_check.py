"""The check of a run's first train batch: what the module acted on is what it learns on, and who is named if not."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError, RunFailure
from runner.experiment.trainer import Trainer
from runner.learners.on_policy_check import OnPolicyConsistencyCheck
from runner.modules import ActorCriticModule
from runner.modules.action_distribution import MASKED_LOGIT
from runner.pipelines import ObservationConnector
from runner.pipelines.connector import Batch, Connector
from tests.conftest import QUICK, without_times

HERE = "tests.learners.test_on_policy_check"
TINY = (*QUICK, "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=32", "algorithm.lr=0")


class Times100(ObservationConnector):
    """Changes observations, and says so by its base class."""

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Any:
        return obs * 100


class Secretly(Connector):
    """Multiplies a column by a factor without saying so."""

    def __init__(self, column: str = "obs", factor: float = 1.5) -> None:
        self._column = column
        self._factor = factor

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        columns = batch.get("default_policy", batch)
        columns[self._column] = columns[self._column] * self._factor
        return batch


class RewritesEpisodes(Connector):
    """Changes observations in the episodes to learn from."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for episode in episodes:
            episode.set_observations(new_data=episode.get_observations() * 2)
        return batch


class SecondChoice(Connector):
    """Says that the other action had been taken."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        batch["actions"] = 1 - batch["actions"]
        return batch


class TwoMinds(ActorCriticModule):
    """Acts otherwise than it learns."""

    def forward_exploration(self, batch: Any) -> dict[str, Any]:
        outputs = super().forward_exploration(batch)
        return {**outputs, "action_dist_inputs": outputs["action_dist_inputs"] + torch.tensor([0.3, 0.0])}


class Noisy(ActorCriticModule):
    """Has a buffer that its forward passes change, and draws from torch's global stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("calls", torch.zeros(1))

    def forward_train(self, batch: Any) -> dict[str, Any]:
        self.calls += torch.rand(1)
        return super().forward_train(batch)


def connector(pipeline: str, name: str, **arguments: Any) -> str:
    """The override that puts a connector of this file behind the observations."""
    given = "".join(f", {key}: {value}" for key, value in arguments.items())
    block = f"{{insert_after: AddObservationsFromEpisodesToBatch, connector: {{_target_: {HERE}.{name}{given}}}}}"
    return f"connectors.{pipeline}=[{block}]"


def failure_of(*overrides: str, experiment: str = "ppo_cartpole") -> str:
    with Trainer.from_experiment(experiment, [*TINY, *overrides]) as trainer, pytest.raises(RunFailure) as caught:
        trainer.train()
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([connector("env_to_module", "Times100")], "Times100 changes the observations that the module acts on"),
        ([connector("learner", "Times100")], "Times100 changes the observations that the module learns from"),
        (
            [
                "connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, "
                f"connector: {{_target_: {HERE}.Times100}}}}, "
                "{insert_after: Times100, connector: {_target_: runner.pipelines.WriteObservationsToEpisodes}}]",
                connector("learner", "Times100"),
            ],
            "Times100 changes the observations that the module learns from",
        ),
    ],
)
def test_a_connector_that_says_what_it_changes_is_refused_at_the_start(overrides: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Trainer.from_experiment("ppo_cartpole", [*TINY, *overrides])


def test_the_same_connector_in_both_pipelines_learns_on_what_it_acts_on() -> None:
    with Trainer.from_experiment(
        "ppo_cartpole", [*TINY, connector("env_to_module", "Times100"), connector("learner", "Times100")]
    ) as trainer:
        assert trainer.train()["learners/default_policy/mean_kl_loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([connector("env_to_module", "Secretly")], "Secretly changes the observations in env_to_module only"),
        ([connector("learner", "Secretly")], "Secretly changes the observations in the learner pipeline only"),
        (
            [connector("env_to_module", "Secretly"), connector("learner", "Secretly", factor=2)],
            "Secretly changes observations differently in the two pipelines",
        ),
        ([connector("learner", "RewritesEpisodes")], "changes the observations in the learner pipeline only"),
        (
            ["connectors.learner=[{append: {_target_: tests.learners.test_on_policy_check.Secretly}}]"],
            "Secretly changes the observations in the learner pipeline only",
        ),
        (
            [
                "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
                f"connector: {{_target_: {HERE}.SecondChoice}}}}]"
            ],
            "SecondChoice changes the actions or their log-probabilities",
        ),
        (
            [f"module._target_={HERE}.TwoMinds"],
            "TwoMinds.forward_train returns different outputs than TwoMinds.forward",
        ),
        (
            [connector("env_to_module", "Secretly"), "module.use_lstm=true"],
            "Secretly changes the observations in env_to",
        ),
    ],
)
def test_a_first_update_on_something_else_names_whose_fault_it_is(overrides: list[str], named: str) -> None:
    message = failure_of(*overrides)
    assert named in " ".join(message.split()), message
    assert "learners.check_on_policy_outputs=false" in " ".join(message.split())


def test_the_module_of_several_is_named_by_its_connector() -> None:
    edit = f"connectors.env_to_module=[{{insert_before: NumpyToTensor, connector: {{_target_: {HERE}.Secretly}}}}]"
    message = failure_of(edit, experiment="ppo_multi_agent_cartpole")
    assert "Secretly changes the observations in env_to_module only" in " ".join(message.split())


def test_the_check_can_be_left_out() -> None:
    with Trainer.from_experiment(
        "ppo_cartpole", [*TINY, connector("env_to_module", "Secretly"), "learners.check_on_policy_outputs=false"]
    ) as trainer:
        assert trainer.train()["training_iteration"] == 1


def test_the_time_of_learner_connectors_is_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnPolicyConsistencyCheck, "check", lambda *_: time.sleep(2.0))
    with Trainer.from_experiment("ppo_cartpole", TINY) as trainer:
        result = trainer.train()
    assert result["timers/learner_connector"] < 2.0 < result["timers/learner_update"]


@pytest.mark.parametrize(
    "overrides",
    [
        [f"module._target_={HERE}.Noisy"],
        ["module.use_lstm=true", "module.max_seq_len=7"],
        ["+connectors=mean_std_filter"],
    ],
)
def test_a_run_with_the_check_has_the_numbers_of_one_without(overrides: list[str]) -> None:
    results = []
    for is_checked in ("true", "false"):
        torch.manual_seed(3)
        with Trainer.from_experiment(
            "ppo_cartpole", [*QUICK, *overrides, f"learners.check_on_policy_outputs={is_checked}"]
        ) as trainer:
            trainer.train()
            results.append(without_times(trainer.train()))
    assert results[0] == results[1]


@pytest.mark.parametrize("masked", [MASKED_LOGIT, float(np.finfo(np.float32).min), -np.inf])
def test_masked_logits_do_not_hide_a_difference(masked: float) -> None:
    from runner.learners.on_policy_check import _largest_difference

    before = torch.tensor([[0.1, masked], [0.2, masked]])
    assert _largest_difference(before, before.clone(), 1e-3) is None
    assert _largest_difference(before, before + torch.tensor([0.01, 0.0]), 1e-3) is not None
