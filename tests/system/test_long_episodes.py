"""Episodes that are too long to be stepped again after a resume: memory, checkpoints, and the resumed run."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.replayed_actions import ReplayedActions
from runner.env_runners.vector_envs import SyncEnvironments
from tests.conftest import Run, checkpoints_of, progress_of
from tests.support.endless import Endless, EndlessAgents

START = (
    "algorithm.train_batch_size_per_learner=64",
    "algorithm.minibatch_size=32",
    "algorithm.num_epochs=1",
    "env_runners.num_envs_per_env_runner=2",
    "tracking=mlflow",
    "tracking.mlflow=false",
    "tracking.display=plain",
    "checkpoint.every_iterations=1",
    "env.max_replayed_steps=20",
    "hydra.run.dir=run",
)


@pytest.mark.parametrize("limit", [0, 1, 1023, 1024, 1025, 3000])
def test_actions_are_kept_up_to_the_limit(limit: int) -> None:
    actions = ReplayedActions(limit)
    for number in range(limit):
        actions.append(np.int64(number))
    kept = actions.stacked()
    assert (kept is None) == (limit == 0)
    assert kept is None or kept.tolist() == list(range(limit))
    assert not actions.is_forgotten
    actions.append(np.int64(limit))
    assert actions.is_forgotten
    assert actions.stacked() is None
    actions.clear()
    actions.append(np.int64(7))
    assert actions.is_forgotten == (limit == 0)


def test_kept_actions_take_a_few_bytes_each() -> None:
    actions = ReplayedActions(10**6)
    tracemalloc.start()
    for _ in range(20_000):
        actions.append(np.zeros(8, np.int64)[0:1])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 20_000 < 40, "a view alone keeps its array, 290 bytes"


@pytest.mark.parametrize("kind", ["single", "several"])
def test_memory_and_state_of_an_endless_episode_are_bounded(kind: str) -> None:
    if kind == "single":
        envs: Any = SyncEnvironments(Endless, 1, 0, max_replayed_steps=100)
        actions: Any = np.zeros(1, np.int64)
    else:
        envs = MultiAgentEnvironments(EndlessAgents, 1, 0, max_replayed_steps=100)
        actions = [{"left": 0}]
    envs.reset(("test", 0, 0))
    sizes = []
    for _ in range(2):
        for _ in range(300):
            envs.step(actions)
        sizes.append(len(pickle.dumps(envs.get_state())))
    assert sizes[0] == sizes[1] < 1000


@pytest.mark.parametrize(
    "options",
    [
        ("env._target_=tests.support.endless.Endless",),
        ("env._target_=tests.support.endless.Endless", "env_runners.gym_env_vectorize_mode=async"),
        ("env._target_=tests.support.endless.Endless", "env_runners.restart_failed_sub_environments=true"),
        ("env._target_=tests.support.endless.EndlessAgents",),
        pytest.param(
            ("env._target_=tests.support.endless.Endless", "env_runners.num_env_runners=2"),
            marks=[pytest.mark.slow, pytest.mark.ray],
        ),
    ],
)
def test_a_resumed_run_begins_new_episodes_and_says_so_in_one_line(
    options: tuple[str, ...], run_main: Run, tmp_path: Path
) -> None:
    begun = run_main(*START, *options, "stop.training_iteration=2")
    assert begun.code == 0, begun.err
    resumed = run_main("resume", "run", "stop.training_iteration=4")
    assert resumed.code == 0, resumed.err
    lines = [line for line in resumed.out.splitlines() if "env.max_replayed_steps" in line]
    assert len(lines) == 1, resumed.out
    num = 4 if "env_runners.num_env_runners=2" in options else 2
    assert f"{num} sub-environments begin new episodes" in lines[0]
    assert "give the environment `get_state` and `set_state`" in lines[0]
    assert [line["training_iteration"] for line in progress_of(tmp_path / "run")] == [1, 2, 3, 4]
    again = run_main("resume", "run", "stop.training_iteration=5")
    assert again.code == 0, again.err


def test_a_short_episode_is_stepped_again_without_a_line(run_main: Run, tmp_path: Path) -> None:
    options = ("env._target_=tests.support.endless.Endless", "env.max_replayed_steps=1000")
    start = [text for text in START if not text.startswith("env.max_replayed")]
    assert run_main(*start, *options, "stop.training_iteration=2").code == 0
    resumed = run_main("resume", "run", "stop.training_iteration=3", "env.max_replayed_steps=10")
    assert resumed.code == 0, resumed.err
    assert "begin" not in resumed.out.split("iteration")[0]
    assert checkpoints_of(tmp_path / "run")[-1] == "iteration_000003"


def test_the_new_episode_is_another_one_and_rows_of_the_old_one_end_open() -> None:
    envs = SyncEnvironments(Endless, 2, 0, max_replayed_steps=3)
    envs.reset(("test", 0, 0))
    for _ in range(5):
        envs.step(np.ones(2, np.int64))
    state = envs.get_state()
    restored = SyncEnvironments(Endless, 2, 0, max_replayed_steps=3)
    restored.set_state(state)
    np.testing.assert_equal(restored.get_state(), state)
    obs, rewards, terminateds, truncateds, _ = restored.step(np.ones(2, np.int64))
    assert list(restored.recreated) == [0, 1]
    assert (obs.any(), rewards.any(), terminateds.any(), truncateds.any()) == (False, False, False, False)
    assert restored.get_state()["episode_numbers"] == [1, 1]
    restored.step(np.ones(2, np.int64))
    assert not restored.recreated
