"""An environment and connectors that take a known time."""

from __future__ import annotations

import time
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from runner.callbacks import Callback
from runner.pipelines import EnvToModuleConnector, LearnerConnector, ModuleToEnvConnector

STEP_S = 0.003


def _compute(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


class SleepingCartPole(CartPoleEnv):
    """CartPole that waits in each step, as for a simulator in another process."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        return super().step(action)


class SlowObservations(EnvToModuleConnector):
    """Computes for a while before each action."""

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        _compute(STEP_S)
        return batch


class SlowActions(ModuleToEnvConnector):
    """Computes for a while after each action."""

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        _compute(STEP_S)
        return batch


class SlowBatches(LearnerConnector):
    """Computes for a while for each train batch."""

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        _compute(0.3)
        return batch


class ReplacingRunner(Callback):
    """Loses the first env runner after the second iteration."""

    def on_train_result(self, *, trainer: Any, **_: Any) -> None:
        """Close its actor, which the next call finds gone."""
        if trainer.training_iteration == 2:
            trainer.env_runners.actors.callers[0].close()
