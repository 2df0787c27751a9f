"""The trainer as a class that Ray Tune can schedule, checkpoint and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.compose import compose_experiment
from runner.config.errors import show_value
from runner.config.metrics import learns_offline
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.offline.workers import resources_asked_for
from runner.trainer import Trainer

_CHECKPOINT = "runner_checkpoint"


def make_trainable(
    experiment: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> type[tune.Trainable]:
    """A `ray.tune.Trainable` whose trials train `experiment`; a trial's config holds further overrides.

    Args:
        experiment: name of the experiment file.
        overrides: of every trial, as on the command line.
        config_dir: folder with experiments of your own.

    Example:
        `tune.Tuner(make_trainable("ppo_cartpole"), param_space={"algorithm.lr": tune.loguniform(1e-4, 1e-2)})`
    """

    def _overrides_of(config: Mapping[str, Any]) -> list[str]:
        return [*overrides, *(f"{key}={show_value(value)}" for key, value in config.items())]

    def _config_of(config: Mapping[str, Any]) -> ExperimentConfig:
        folder = None if config_dir is None else Path(config_dir)
        return build_experiment_config(
            compose_experiment([f"+experiment={experiment}", *_overrides_of(config)], folder)
        )

    class RunnerTrainable(tune.Trainable):
        @classmethod
        def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
            """A CPU for the trainer, and a bundle for each remote env runner, learner and pre-learner."""
            settings = _config_of(config)
            runners = settings.env_runners
            num_remote = runners.num_env_runners + settings.evaluation.evaluation_num_env_runners
            remote = {"CPU": runners.num_cpus_per_env_runner, "GPU": runners.num_gpus_per_env_runner}
            bundles = [{"CPU": 1.0}, *([remote] * (0 if settings.engine == "inline" else num_remote))]
            learners = settings.learners
            learner = {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}
            bundles += [learner] * learners.num_learners
            if learns_offline(settings):
                for_data = resources_asked_for(settings.offline)
                bundles.append({"CPU": for_data.num_cpus, "GPU": for_data.num_gpus})
            return tune.PlacementGroupFactory(bundles)

        def setup(self, config: Mapping[str, Any]) -> None:
            self._trainer = Trainer(_config_of(config))

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
