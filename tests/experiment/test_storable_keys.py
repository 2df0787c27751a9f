"""Keys of any plain type in what a checkpoint stores, and values that none can hold, found before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from runner.callbacks import Callback
from runner.checkpoints import load_checkpoint, read_manifest
from runner.checkpoints.checkpoint import config_of
from runner.config.errors import ConfigError
from runner.experiment.rehearsal import rehearse
from runner.pipelines.connector import Connector
from tests.conftest import Run, progress_of
from tests.support.configs import config_from
from tests.support.resuming import assert_command_resumes_exactly

HERE = "tests.experiment.test_storable_keys"
ODD: dict[Any, Any] = {0: 1, -2: 1.5, True: 7, None: 2, (1, "a"): {3: [4]}, "$x": 5, 2.5: np.arange(2), "$array": "obs"}
ENV = (f"env._target_={HERE}.OddEnv", "env.env_config={names: {0: left, 2.5: {$a: [1]}, true: x}}")
QUICK = (
    "algorithm=ppo",
    "algorithm.train_batch_size_per_learner=32",
    "algorithm.minibatch_size=32",
    "algorithm.num_epochs=1",
    "env_runners.num_envs_per_env_runner=2",
    "tracking=none",
)


class OddEnv(gym.Env[Any, int]):
    """Six steps; its observations, infos, state and arguments have keys that are not texts, or begin with `$`."""

    observation_space = spaces.Dict({0: spaces.Box(-1, 1, (2,)), 1: spaces.Discrete(3)})  # type: ignore[dict-item]
    action_space = spaces.Discrete(2)

    def __init__(self, names: Any = None) -> None:
        assert names is None or names == {0: "left", 2.5: {"$a": [1]}, True: "x"}, names
        self._t = 0

    def _observation(self) -> Any:
        return {0: np.full(2, self._t / 6, np.float32), 1: self._t % 3}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[Any, Any]]:  # type: ignore[override]
        super().reset(seed=seed)
        self._t = 0
        return self._observation(), {**ODD, "t": 0}

    def step(self, action: int) -> Any:
        self._t += 1
        return self._observation(), float(action), False, self._t == 6, {**ODD, "t": self._t}

    def get_state(self) -> dict[Any, Any]:
        return {0: self._t, "rest": ODD}

    def set_state(self, state: dict[Any, Any]) -> None:
        assert list(state["rest"]) == list(ODD)
        assert state["rest"][1, "a"] == {3: [4]}
        self._t = state[0]


class OddCallback(Callback):
    def __init__(self, rest: Any = None) -> None:
        self.counts: dict[Any, int] = {}

    def on_train_result(self, **kwargs: Any) -> None:
        self.counts[0] = self.counts.get(0, 0) + 1

    def get_state(self) -> dict[str, Any]:
        return {"counts": {**self.counts, "$n": 1}}

    def set_state(self, state: Any) -> None:
        assert not self.counts
        assert state["counts"].pop("$n") == 1
        self.counts = state["counts"]


class OddConnector(Connector):
    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {3: 0}

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self.seen[3] += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def set_state(self, state: Any) -> None:
        self.seen = dict(state["seen"])


class SetCallback(OddCallback):
    def get_state(self) -> dict[str, Any]:
        return {"seen": {1, 2}, "by": {frozenset({1}): 0}}


class SetEnv(OddEnv):
    def get_state(self) -> dict[Any, Any]:
        return {"goals": {1, 2}}


class OnceEnv(OddEnv):
    """Cannot continue from what it stores."""

    def set_state(self, state: dict[Any, Any]) -> None:
        raise KeyError("door")


PARTS = (
    f"callbacks=[{{_target_: {HERE}.OddCallback, rest: {{7: a}}}}]",
    f"connectors.learner=[{{append: {{_target_: {HERE}.OddConnector}}}}]",
)


def test_a_run_with_odd_keys_everywhere_resumes_exactly(run_main: Run, tmp_path: Path) -> None:
    assert_command_resumes_exactly(run_main, tmp_path, *ENV, *QUICK, *PARTS, iterations=(2, 3))
    checkpoint = tmp_path / "run" / "checkpoints" / "iteration_000003"
    names = config_of(read_manifest(checkpoint))["env"]["env_config"]["names"]
    assert names == {0: "left", 2.5: {"$a": [1]}, True: "x"}
    assert load_checkpoint(checkpoint)[0]["callbacks"][0]["state"] == {"counts": {0: 3, "$n": 1}}
    for verb in ("show", "evaluate", "report"):
        outcome = run_main(verb, "run") if verb != "show" else run_main(verb, *ENV, *QUICK, "stop.training_iteration=1")
        assert outcome.code == 0, outcome.err


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        rehearse(config_from(*QUICK, "stop.training_iteration=1", *overrides))
    return [problem.what for problem in caught.value.problems]


def test_build_writes_and_reads_a_checkpoint() -> None:
    config = config_from(*ENV, *QUICK, *PARTS, "stop.training_iteration=1")
    assert "one checkpoint, which was read back" in rehearse(config).made


def test_build_names_all_that_no_checkpoint_holds() -> None:
    found = problems_of(f"env._target_={HERE}.SetEnv", f"callbacks=[{{_target_: {HERE}.SetCallback}}]")
    assert found[:2] == [
        "callbacks/0/state/seen: set cannot be part of a checkpoint",
        "key frozenset({1}) of callbacks/0/state/by: frozenset cannot be part of a checkpoint",
    ]
    assert any(text.endswith("/goals: set cannot be part of a checkpoint") for text in found[2:]), found


def test_build_finds_a_state_that_its_part_cannot_continue_from() -> None:
    assert problems_of(f"env._target_={HERE}.OnceEnv") == ["KeyError: 'door'"]


@pytest.mark.parametrize(
    ("overrides", "text", "iterations"),
    [
        ([*ENV, f"callbacks=[{{_target_: {HERE}.SetCallback}}]"], "callbacks/0/state/seen: set", 0),
        ([f"env._target_={HERE}.SetEnv"], "goals: set", 1),
    ],
    ids=["before training", "after one iteration"],
)
def test_a_run_finds_it_early(overrides: list[str], text: str, iterations: int, run_main: Run, tmp_path: Path) -> None:
    every = "checkpoint.every_iterations=null"
    outcome = run_main(*overrides, *QUICK, every, "stop.training_iteration=9", "hydra.run.dir=run")
    assert outcome.code == 2
    assert f"{text} cannot be part of a checkpoint" in " ".join(outcome.err.split())
    progress = tmp_path / "run" / "progress.jsonl"
    assert (len(progress_of(tmp_path / "run")) if progress.exists() else 0) == iterations
