"""The trainer as a class that Ray Tune can schedule, checkpoint and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.compose import compose_experiment
from runner.config.errors import show_value
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.experiment.ray_resources import bundles_of, strategy_of
from runner.experiment.trainer import Trainer

_CHECKPOINT = "runner_checkpoint"


def as_trainable(
    experiment: str,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    trainer_class: type[Trainer] = Trainer,
) -> type[tune.Trainable]:
    """Return a `ray.tune.Trainable` whose trials train `experiment`; a trial's config holds further overrides.

    Example:
        `tune.Tuner(as_trainable("ppo_cartpole"), param_space={"algorithm.lr": tune.grid_search([1e-3, 1e-4])})`

    Args:
        experiment: name of the experiment file.
        overrides: overrides of every trial, as on the command line.
        config_dir: folder with custom experiments.
        trainer_class: class that trains a trial.
    """

    def _config_of(config: Mapping[str, Any]) -> ExperimentConfig:
        folder = None if config_dir is None else Path(config_dir)
        of_trial = [f"{key}={show_value(value)}" for key, value in config.items()]
        return build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides, *of_trial], folder))

    class RunnerTrainable(tune.Trainable):
        @classmethod
        def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
            """Return one CPU for the trainer, and one bundle for each remote env runner, learner and pre-learner."""
            experiment_config = _config_of(config)
            return tune.PlacementGroupFactory(bundles_of(experiment_config), strategy_of(experiment_config))

        def setup(self, config: Mapping[str, Any]) -> None:
            self._trainer = trainer_class(_config_of(config))

        def step(self) -> dict[str, float | int]:
            return {name: value for name, value in self._trainer.train().items() if value is not None}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            save_checkpoint(Path(checkpoint_dir) / _CHECKPOINT, self._trainer.get_state(), {})

        def load_checkpoint(self, checkpoint_dir: Any) -> None:
            state, _ = load_checkpoint(Path(checkpoint_dir) / _CHECKPOINT)
            self._trainer.set_state(state)

        def cleanup(self) -> None:
            self._trainer.close()

    RunnerTrainable.__name__ = f"Runner_{experiment}"
    return RunnerTrainable
