"""Images of every layout in whole iterations: recognised, or named in a warning with the key that decides."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config import build_experiment_config, compose_experiment
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.modules.cnn import CNN
from tests.conftest import QUICK


class Images(gym.Env[Any, Any]):
    """Episodes of five random images.

    Args:
        shape, dtype, high: of the Box; high None: it has no bounds.
    """

    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape: list[int], dtype: str = "uint8", high: float | None = 255) -> None:
        low, largest = (-np.inf, np.inf) if high is None else (0, high)
        self.observation_space = gym.spaces.Box(low, largest, tuple(shape), np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._image(), 1.0, self._t == 5, False, {}

    def _image(self) -> Any:
        space = self.observation_space
        assert isinstance(space, gym.spaces.Box)
        return self.np_random.integers(0, 2, space.shape).astype(space.dtype)


# Arguments of the environment -> whether there is a CNN, and the beginning of the warning.
CASES: dict[str, tuple[bool, str | None]] = {
    "shape: [16, 20, 3]": (True, None),
    "shape: [3, 16, 20]": (True, None),
    "shape: [16, 20]": (True, None),
    "shape: [4, 16, 16]": (True, None),
    "shape: [4, 16, 20, 3]": (True, None),
    "shape: [4, 3, 16, 20]": (True, None),
    "shape: [16, 20, 3], dtype: float32": (True, None),
    "shape: [16, 20, 3], dtype: float32, high: 1": (True, None),
    "shape: [7, 7, 3]": (True, "observations: 7 x 7 x 3 uint8 values are read as images"),
    "shape: [16, 20, 3], dtype: float32, high: null": (
        True,
        "observations: 16 x 20 x 3 float32 values are read as images",
    ),
    "shape: [20, 20], dtype: float32, high: 1": (False, "observations: 20 x 20 float32 values are flattened"),
    "shape: [5], dtype: float32, high: 1": (False, None),
}


def overrides(arguments: str) -> list[str]:
    here = f"env._target_={__name__}.Images"
    return [*QUICK, "env.env=null", here, f"env.env_config={{{arguments}}}", "module.fcnet_hiddens=[4]"]


@pytest.mark.parametrize("arguments", CASES)
def test_one_iteration(arguments: str) -> None:
    has_cnn, warning = CASES[arguments]
    composed = compose_experiment(["+experiment=ppo_cartpole", *overrides(arguments)])
    config = build_experiment_config(composed)
    notes: list[str] = []
    with Trainer(config, note=notes.append) as trainer:
        modules = trainer.learners.modules["default_policy"].modules()
        assert any(isinstance(part, CNN) for part in modules) == has_cnn
        assert np.isfinite(trainer.train()["learners/default_policy/total_loss"])
    doubts = [text for text in notes if text.startswith("observations")]
    assert len(doubts) == (warning is not None)
    assert warning is None or doubts[0].startswith(warning)
    assert list(rehearse(config).warnings) == doubts
