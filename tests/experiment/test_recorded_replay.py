"""Replay buffers that begin with recorded steps: what they hold, batches of both kinds, resume, mistakes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import Trainer
from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.offline.reading.source import open_source
from tests.conftest import ROOT
from tests.support.resuming import assert_resumes_exactly

DATA = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
ID = "default_policy"
QUICK = (
    *("seed=100", "tracking=none", "evaluation=none", f"offline.input_={DATA}", "module.fcnet_hiddens=[8]"),
    *("algorithm.n_step=1", "algorithm.train_batch_size_per_learner=16", "algorithm.training_intensity=4"),
    *("algorithm.num_steps_sampled_before_learning_starts=20", "algorithm.min_sample_timesteps_per_iteration=100"),
)
FILLED = (*QUICK, "+algorithm.replay_buffers.replay.recorded=true", "algorithm.replay_capacity=20000")
MIXED_PLAN = (
    "[{Concurrently: {mode: round_robin, output_indexes: [1], round_robin_weights: auto, plans: "
    "[[ParallelRollouts, StoreToReplayBuffer], [{Replay: {num_env_steps: 8, learning_starts: 20}}, "
    "{MixInReplay: {buffer: recorded, store: false}}, ConcatBatches, TrainOneStep, UpdateTargetNetwork]]}}]"
)
RECORDED = "{_target_: runner.replay.ReplayBuffer, capacity: 20000, recorded: true}"
MIXED = (*QUICK, f"+algorithm.replay_buffers.recorded={RECORDED}", f"algorithm.plan={MIXED_PLAN}")


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("dqn_cartpole", overrides)


def recorded_steps() -> list[Any]:
    return list(open_source(OfflineConfig(input_=str(DATA))).blocks())


def test_a_buffer_begins_with_all_recorded_steps() -> None:
    blocks = recorded_steps()
    with trainer_of(*FILLED) as trainer:
        buffer = trainer.context.replay_buffers["replay"]
        assert len(buffer) == sum(block.num_rows for block in blocks)
        ring = buffer._rings[ID]
        for name in ("obs", "actions", "rewards"):
            held = np.asarray(ring.columns[name])[: len(ring)]
            if name != "obs":
                held = held[ring.has_step(np.arange(len(ring)))]
            expected = np.concatenate([block.columns[name] for block in blocks])
            np.testing.assert_array_equal(held, expected)
        assert ring.columns["rewards"].dtype == np.float32
        before = len(buffer)
        result = trainer.train()
        assert len(buffer) == before + result["num_env_steps_sampled_lifetime"]
        assert result["num_env_steps_trained_lifetime"] > 0


def test_a_batch_is_half_recorded() -> None:
    recorded = {obs.tobytes() for block in recorded_steps() for obs in block.columns["obs"]}
    with trainer_of(*MIXED) as trainer:
        batches: list[Any] = []
        update = trainer.learners.update
        trainer.learners.update = lambda rollout, *rest: batches.append(rollout) or update(rollout, *rest)  # type: ignore[method-assign,func-returns-value]
        num_recorded = len(trainer.context.replay_buffers["recorded"])
        trainer.train()
        assert len(trainer.context.replay_buffers["recorded"]) == num_recorded, "nothing is stored there"
    assert len(batches) > 5
    for rollout in batches:
        obs = rollout.blocks[ID].columns["obs"][::2]  # before each step
        assert [one.tobytes() in recorded for one in obs] == [False] * 8 + [True] * 8


@pytest.mark.parametrize("overrides", [FILLED, MIXED], ids=["filled", "mixed"])
def test_a_run_resumes_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, *overrides), tmp_path)


def test_a_buffer_with_other_settings_starts_with_only_the_recorded_steps() -> None:
    with trainer_of(*FILLED) as trainer:
        trainer.train()
        state = trainer.get_state()
    notes: list[str] = []
    with trainer_of(*FILLED, "algorithm.gamma=0.9") as trainer, trainer.notes.shown_by(notes.append):
        trainer.set_state(state)
        assert len(trainer.context.replay_buffers["replay"]) == sum(block.num_rows for block in recorded_steps())
    what = "replay buffer replay starts with only the recorded steps: its settings differ from the checkpoint's"
    assert [note for note in notes if "replay buffer" in note] == [what]


def test_the_learner_learns_from_them() -> None:
    """A second module of the same process must not take the learner's parameters away."""
    with trainer_of(*FILLED) as trainer:
        before = trainer.learners.get_weights()[ID]
        result = trainer.train()
        assert result[f"learners/{ID}/gradients_default_optimizer_global_norm"] > 0
        assert not np.array_equal(trainer.learners.get_weights()[ID], before)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*FILLED, "offline.input_=null"), r"replay\.recorded needs recorded data, but offline\.input_ is not set"),
        ((*QUICK, "+algorithm.replay_buffers.replay.recorded=sometimes"), r"replay\.recorded has the wrong type"),
        ((*FILLED, "checkpoint.save_replay_buffers=none"), "a resumed run would start without the recorded steps"),
        (
            (*FILLED, "algorithm.replay_capacity=100"),
            r"replay buffer replay has capacity for only \d+ of [\d,]+ recorded env steps",
        ),
        (QUICK, r"so offline\.input_ would have no effect"),
        ((*FILLED, "env=bit_flipping"), "obs"),
        (
            (*MIXED, f"algorithm.plan={MIXED_PLAN.replace('store: false', 'store: 3')}"),
            r"MixInReplay[\s\S]*store",
        ),
    ],
    ids=["no data", "no bool", "not kept", "too small", "not used", "another env", "no option"],
)
def test_mistakes(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(*overrides)
