"""Images of every layout in whole iterations: recognised, or named in a warning with the key that decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.checkpoints import load_checkpoint
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.modules.multi_rl_module import parameters_by_module
from runner.modules.observation_encoder import CNN
from tests.conftest import QUICK, MakeRun, Run
from tests.support.configs import config_from
from tests.support.forging import rewrite_manifest
from tests.support.resuming import assert_command_resumes_exactly


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
    config = config_from("+experiment=ppo_cartpole", *overrides(arguments))
    notes: list[str] = []
    with Trainer(config, note=notes.append) as trainer:
        modules = trainer.learners.modules["default_policy"].modules()
        assert any(isinstance(part, CNN) for part in modules) == has_cnn
        assert np.isfinite(trainer.train()["learners/default_policy/total_loss"])
    doubts = [text for text in notes if text.startswith("observations")]
    assert len(doubts) == (warning is not None)
    assert warning is None or doubts[0].startswith(warning)
    assert list(rehearse(config).warnings) == doubts


# -- checkpoints from before a layout was recognised -------------------------------------------------------------------

FIX = "use module.image_layout=flat to continue this checkpoint, whose network flattens images"
CHANNELS_FIRST = (
    *("algorithm=ppo", f"env._target_={__name__}.Images", "env.env_config={shape: [3, 16, 16]}"),
    *("algorithm.train_batch_size_per_learner=20", "algorithm.minibatch_size=20", "algorithm.num_epochs=1"),
    *("module.fcnet_hiddens=[8]", "tracking=none", "evaluation.evaluation_duration=1"),
)


@pytest.fixture
def flat_run(copy_of_run: MakeRun) -> Path:
    """A run of one iteration whose module flattens images, stored without the key `module.image_layout`."""
    run_dir = copy_of_run(*CHANNELS_FIRST, "module.image_layout=flat", "stop.training_iteration=1")
    for path in run_dir.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text())
        del content["config"]["module"]["image_layout"]
        content["overrides"] = [text for text in content["overrides"] if "image_layout" not in text]
        rewrite_manifest(path.parent, content)
    return run_dir


COMMANDS = {
    "evaluate": ["evaluate", "run"],
    "resume": ["resume", "run", "stop.training_iteration=2"],
    "export": ["export", "run", "policy.onnx"],
    "load_state_path": [
        *CHANNELS_FIRST,
        *("module.load_state_path=run", "stop.training_iteration=1", "hydra.run.dir=other"),
    ],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_checkpoint_of_flattened_images(run_main: Run, flat_run: Path, name: str) -> None:
    refused = run_main(*COMMANDS[name])
    assert refused.code == 2
    assert FIX in " ".join(refused.err.split())
    continued = run_main(*COMMANDS[name], "module.image_layout=flat")
    assert continued.code == 0, continued.err


@pytest.mark.parametrize("verb", ["evaluate", "export", "resume"])
def test_flat_does_not_fit_a_checkpoint_with_a_cnn(run_main: Run, copy_of_run: MakeRun, verb: str) -> None:
    copy_of_run(*CHANNELS_FIRST, "stop.training_iteration=1")
    outcome = run_main(*COMMANDS[verb], "module.image_layout=flat")
    assert outcome.code == 2
    assert "the checkpoint's network differs from the network of this configuration" in outcome.err
    assert FIX not in " ".join(outcome.err.split())


def test_an_explicit_layout_of_a_checkpoint_cannot_change(run_main: Run, copy_of_run: MakeRun) -> None:
    copy_of_run(*CHANNELS_FIRST, "module.image_layout=flat", "stop.training_iteration=1")
    outcome = run_main("evaluate", "run", "module.image_layout=auto")
    assert outcome.code == 2
    assert "module.image_layout cannot change" in outcome.err
    assert 'expected      "flat"' in outcome.err


# -- resumed runs ----------------------------------------------------------------------------------------------------


def resumes_exactly(run_main: Run, folder: Path, *overrides: str) -> None:
    """Compare a run of two iterations with a run that is stopped after the first and resumed."""
    assert_command_resumes_exactly(run_main, folder, *CHANNELS_FIRST, *overrides, iterations=(1, 2))
    parameters = [
        load_checkpoint(folder / name / "checkpoints" / "iteration_000002")[0]["learners"]["learners"]
        for name in ("straight", "run")
    ]
    first, second = (parameters_by_module(one)["default_policy"] for one in parameters)
    assert any("leaf_encoders" in name for name in first)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_channels_first_resumes_exactly(run_main: Run, tmp_path: Path) -> None:
    resumes_exactly(run_main, tmp_path)


@pytest.mark.slow
@pytest.mark.ray
def test_channels_first_resumes_exactly_with_a_remote_env_runner(
    run_main: Run, tmp_path: Path, ray_cluster: None
) -> None:
    resumes_exactly(run_main, tmp_path, "env_runners.num_env_runners=1")
