"""A data class with its own `sample`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from runner.offline import OfflineData
from runner.streams import random_stream
from tests.offline.training.test_training import SMALL
from tests.support.resuming import train

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")]

HERE = "tests.offline.training.test_own_sample"


class Doubled(OfflineData):
    """Each row of a batch twice, in another order each time."""

    num_sampled = 0

    def sample(self, num_samples: int) -> Mapping[str, Any]:
        rows = super().sample(num_samples)
        self.num_sampled += 1
        num_rows = len(rows["obs"])  # fewer at the end of a pass
        order = random_stream(self.config.seed, "doubled", self.num_sampled).permutation(2 * num_rows) % num_rows
        return {name: np.asarray(column)[order] for name, column in rows.items()}


class Unrepeatable(OfflineData):
    """Other rows in each process."""

    def sample(self, num_samples: int) -> Mapping[str, Any]:
        start = secrets.randbelow(1_000_000)
        return {
            "obs": np.full((num_samples, 4), start, np.float32),
            "actions": np.zeros(num_samples, np.int64),
        }


class Ragged(OfflineData):
    """Columns of unequal length."""

    def sample(self, num_samples: int) -> Mapping[str, Any]:
        return {"obs": np.zeros((num_samples, 4), np.float32), "actions": np.zeros(3, np.int64)}


def overrides(name: str, *more: str) -> list[str]:
    return [*SMALL, f"offline.offline_data_class={HERE}.{name}", "offline.dataset_num_iters_per_learner=3", *more]


@pytest.mark.slow
def test_sampled_rows_are_learned_from_and_an_interrupted_run_goes_on(ray_cluster: None) -> None:
    with Trainer.from_experiment("bc_cartpole", overrides("Doubled")) as first:
        (line,) = train(first, 1)
        state = first.get_state()
        following = train(first, 2)
    assert line["num_env_steps_sampled"] == 2 * 3 * 512
    with Trainer.from_experiment("bc_cartpole", overrides("Doubled")) as second:
        second.set_state(state)
        assert train(second, 2) == following


@pytest.mark.slow
def test_rows_that_are_others_than_before_are_refused(ray_cluster: None) -> None:
    with Trainer.from_experiment("bc_cartpole", overrides("Unrepeatable")) as first:
        train(first, 1)
        state = first.get_state()
    with Trainer.from_experiment("bc_cartpole", overrides("Unrepeatable")) as second:
        second.set_state(state)
        with pytest.raises(ConfigError, match="sample of Unrepeatable does not return the same rows as before"):
            second.train()


@pytest.mark.slow
def test_what_is_no_train_batch_is_refused(ray_cluster: None) -> None:
    with (
        Trainer.from_experiment("bc_cartpole", overrides("Ragged")) as trainer,
        pytest.raises(ConfigError, match="sample of Ragged does not return a train batch"),
    ):
        trainer.train()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["learners.num_learners=1"], "Doubled overrides sample, which only works with a single learner"),
        (["offline.dataset_num_iters_per_learner=null"], "Doubled overrides sample, which does not end a pass"),
    ],
)
def test_what_does_not_go_with_a_sample(ray_cluster: None, more: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("bc_cartpole", overrides("Doubled", *more))
    assert what in caught.value.problems[0].what
