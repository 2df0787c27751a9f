"""The trainer as a class that Ray Tune can schedule, checkpoint and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.errors import show_value
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

    class RunnerTrainable(tune.Trainable):
        def setup(self, config: Mapping[str, Any]) -> None:
            own = [f"{key}={show_value(value)}" for key, value in config.items()]
            self._trainer = Trainer.from_experiment(experiment, [*overrides, *own], config_dir)

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
