"""Experiences from arrays: the rows that a learner pipeline makes of them, and errors."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import Trainer
from runner.plans import Experiences
from tests.conftest import ROOT, run_process

STEPS: dict[str, Any] = {
    "obs": np.arange(6, dtype=np.float32).reshape(3, 2),
    "new_obs": np.arange(10, 16, dtype=np.float32).reshape(3, 2),
    "actions": np.array([0, 1, 1]),
    "rewards": np.array([1.0, 2.0, 3.0], np.float32),
}
ROLLOUTS = {name: STEPS[name] for name in ("actions", "rewards")} | {"obs": np.arange(5, dtype=np.float32)[:, None]}


def test_single_steps() -> None:
    item = Experiences.from_columns(STEPS, np.array([False, True, False]), module_id="left")
    assert item.num_env_steps == 3
    [(module_id, block)] = item.rollout.blocks.items()
    assert (module_id, block.module_id) == ("left", "left")
    episodes = list(block)
    assert [len(episode) for episode in episodes] == [1, 1, 1]
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(episode.get_observations(), [STEPS["obs"][row], STEPS["new_obs"][row]])
        assert episode.get_actions(0) == STEPS["actions"][row]
    assert [(episode.is_terminated, episode.is_truncated) for episode in episodes] == [
        (False, True),
        (True, False),
        (False, True),
    ]


def test_rollouts_of_several_steps() -> None:
    item = Experiences.from_columns(ROLLOUTS, np.array([True, False]), np.array([2, 1]))
    first, second = item.rollout.blocks["default_policy"]
    assert first.get_observations().tolist() == [[0.0], [1.0], [2.0]]
    assert second.get_observations().tolist() == [[3.0], [4.0]]
    assert first.get_rewards().tolist() == [1.0, 2.0]
    assert (first.is_terminated, second.is_truncated) == (True, True)


def test_columns_are_replaced_in_a_copy() -> None:
    item = Experiences.from_columns(ROLLOUTS, np.array([True, False]), np.array([2, 1]))
    block = item.rollout.blocks["default_policy"]
    new_obs = block.columns["obs"][block.obs_rows + 1]
    assert new_obs.tolist() == [[1.0], [2.0], [4.0]]
    bonus = {"rewards": block.columns["rewards"] + new_obs[:, 0], "bonus": new_obs[:, 0]}
    changed = item.with_columns({"default_policy": bonus}).rollout.blocks["default_policy"]
    assert changed.columns["rewards"].tolist() == [2.0, 4.0, 7.0]
    assert changed.columns["bonus"].tolist() == [1.0, 2.0, 4.0]
    assert block.columns["rewards"].tolist() == [1.0, 2.0, 3.0]
    assert item.with_columns({"default_policy": {"obs": 2 * block.columns["obs"]}}).num_env_steps == 3


@pytest.mark.parametrize(
    ("module_id", "columns", "message"),
    [
        ("other", {}, "there are no steps of module other; the item has default_policy"),
        (
            "default_policy",
            {"rewards": np.zeros(4)},
            r"rewards of module default_policy has shape \(4,\) instead of 3 rows",
        ),
        (
            "default_policy",
            {"obs": np.zeros((3, 1))},
            r"obs of module default_policy has shape \(3, 1\) instead of 5 rows",
        ),
        ("default_policy", {"rewards": 1.0}, r"rewards of module default_policy has shape \(\) instead of 3 rows"),
        (
            "default_policy",
            {"latent": {"h": np.zeros(3), "c": np.zeros(2)}},
            r"latent of module default_policy has shape \(2,\) instead of 3 rows",
        ),
    ],
)
def test_columns_that_do_not_fit(module_id: str, columns: dict[str, Any], message: str) -> None:
    item = Experiences.from_columns(ROLLOUTS, np.array([True, False]), np.array([2, 1]))
    with pytest.raises(ValueError, match=message):
        item.with_columns({module_id: columns})


def test_nested_observations() -> None:
    nested = {**STEPS, "obs": {"a": STEPS["obs"]}, "new_obs": {"a": STEPS["new_obs"]}}
    [block] = Experiences.from_columns(nested, np.zeros(3, np.bool_)).rollout.blocks.values()
    np.testing.assert_array_equal(block.columns["obs"]["a"][1::2], STEPS["new_obs"])


@pytest.mark.parametrize(
    ("columns", "terminateds", "lengths", "message"),
    [
        ({"obs": STEPS["obs"]}, [False] * 3, None, "actions, rewards, new_obs are missing.*give lengths"),
        ({**STEPS, "rewards": np.zeros(2)}, [False] * 3, None, "column rewards: got 2 rows, expected 3"),
        ({**STEPS, "new_obs": np.zeros((4, 2))}, [False] * 3, None, "column new_obs: got 4 rows, expected 3"),
        ({**ROLLOUTS, "obs": np.zeros((3, 1))}, [True, False], [2, 1], "column obs: got 3 rows, expected 5"),
        (ROLLOUTS, [True], [2, 1], "one value for each rollout"),
        (ROLLOUTS, [True, False], [3, 0], "each rollout one step or more"),
    ],
)
def test_bad_columns(columns: Any, terminateds: Any, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiences.from_columns(columns, np.array(terminateds), None if lengths is None else np.array(lengths))


def test_learners_train_on_made_steps() -> None:
    stream = np.random.default_rng(0)
    steps = {
        "obs": stream.normal(size=(8, 4)).astype(np.float32),
        "new_obs": stream.normal(size=(8, 4)).astype(np.float32),
        "actions": stream.integers(2, size=8),
        "rewards": stream.normal(size=8),  # float64
    }
    for overrides in ([], ["module.q_distribution=quantile", "module.num_atoms=5"]):
        with Trainer.from_experiment(
            "dqn_cartpole", ["tracking=none", "module.fcnet_hiddens=[8]", *overrides]
        ) as trainer:
            item = Experiences.from_columns(steps, np.zeros(8, np.bool_))
            update = trainer.learners.update(item.rollout, 0)
        assert update.metrics["default_policy"]["num_minibatch_updates"] == 1


def test_rollouts_have_different_ids() -> None:
    items = [Experiences.from_columns(STEPS, np.zeros(3, np.bool_)) for _ in range(2)]
    ids = [id_ for item in items for id_ in item.rollout.blocks["default_policy"].episode_ids]
    assert len(set(ids)) == 6


def test_the_example_mirrors_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "plans")
    operator_class = importlib.import_module("my_plans").MirroredSteps
    steps = {**STEPS, "obs": np.arange(12.0).reshape(3, 4), "new_obs": np.arange(12.0).reshape(3, 4) + 1}
    item = Experiences.from_columns(steps, np.array([True, False, False]))
    original, mirrored = operator_class.transform(None, item)
    assert original is item
    [block] = mirrored.rollout.blocks.values()
    np.testing.assert_array_equal(block.columns["obs"], -item.rollout.blocks["default_policy"].columns["obs"])
    assert block.columns["actions"].tolist() == [1, 0, 0]
    assert block.is_terminated.tolist() == [True, False, False]


def test_the_example_trains_on_mirrored_steps(tmp_path: Path) -> None:
    short = ["stop.num_env_steps_sampled_lifetime=1000", "evaluation=none", "tracking=none"]
    arguments = [
        "+experiment=mirrored_cartpole",
        "--config-dir",
        "my_conf",
        *short,
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    run_process(ROOT / "examples" / "plans", *arguments)
