"""Env runners without a trainer, and env runners of one's own in a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner import make_env_runner
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.sample import Sample
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK

HERE = "tests.env_runners.test_library_use"


class MarkingRunner(SingleAgentEnvRunner):
    """Counts its samples in the metrics of the run."""

    def sample(self, *args: Any, **kwargs: Any) -> Sample:
        sample = super().sample(*args, **kwargs)
        self.num_samples = getattr(self, "num_samples", 0) + 1
        return Sample(**{**vars(sample), "counts": {"marked": self.num_samples}})


def test_a_runner_samples_evaluates_and_takes_weights_by_itself() -> None:
    runner = make_env_runner("ppo_cartpole", ["env_runners.num_envs_per_env_runner=4"])
    try:
        assert isinstance(runner, EnvRunner)
        sample = runner.sample(200)
        assert sample.rollout.num_env_steps == 200
        assert (sample.runner, sample.weights_seq_no) == (0, 0)
        before = runner.evaluate(6)
        assert len(before.returns) == 6
        with Trainer.from_experiment("ppo_cartpole", ["env_runners.num_envs_per_env_runner=4"]) as trainer:
            np.testing.assert_array_equal(
                before.returns, runner.evaluate(6, weights=trainer.learners.get_weights()).returns
            )
            for _ in range(3):
                trainer.train()
            runner.set_weights(trainer.learners.get_weights())
        assert runner.evaluate(6).returns.mean() > before.returns.mean()
    finally:
        runner.close()


def test_runners_of_different_indexes_see_different_episodes() -> None:
    runners = [make_env_runner("ppo_cartpole", index=index) for index in (0, 1)]
    first, second = (runner.sample(16).rollout.blocks["default_policy"].columns["obs"] for runner in runners)
    assert not np.array_equal(first[0], second[0])
    for runner in runners:
        runner.close()


def test_a_class_of_ones_own_samples_in_a_run() -> None:
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, f"env_runners.env_runner_class={HERE}.MarkingRunner"]) as own:
        assert own.train()["marked"] == 1
        assert own.train()["marked"] == 2


@pytest.mark.parametrize("path", [f"{HERE}.MarkingRuner", "runner.experiment.trainer.Trainer"])
def test_a_class_that_is_no_env_runner_is_refused(path: str) -> None:
    overrides = ["+experiment=ppo_cartpole", f"env_runners.env_runner_class={path}"]
    with pytest.raises(ConfigError, match=r"MarkingRuner|Trainer"):
        Trainer(build_experiment_config(compose_experiment(overrides)))
