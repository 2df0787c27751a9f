"""Sequences that contain parts of several episodes, for modules that read `is_first`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runner import Trainer
from runner.config.errors import ConfigError, RunFailure
from runner.config.schemas import ModuleConfig
from runner.modules import DoubleQModule, RLModule
from runner.pipelines.memory_connectors import Sequences
from runner.testing import BrokenContract, check_module
from tests.support.resuming import assert_resumes_exactly

WIDTH = 8
SPACES = Box(-1.0, 1.0, (3,)), Discrete(2)


class PackedGRU(RLModule):
    """A GRU that begins again at each step of `is_first`."""

    is_stateful = True
    inputs = ("obs", "state_in")
    train_inputs = ("is_first",)
    outputs = ("action_dist_inputs", "state_out")

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.cell = nn.GRUCell(observation_space.shape[0], WIDTH)
        self.initial = nn.Parameter(torch.full((WIDTH,), 0.5), requires_grad=False)
        self.pi, self.vf = nn.Linear(WIDTH, self.action_dist.num_inputs), nn.Linear(WIDTH, 1)

    def get_initial_state(self) -> dict[str, Any]:
        return {"h": self.initial.clone()}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        features, _ = self.unrolled(batch)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features).squeeze(-1)}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        features, h = self.unrolled(batch)
        return {"action_dist_inputs": self.pi(features), "state_out": {"h": h}}

    def unrolled(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        h, features = batch["state_in"]["h"], []
        for t in range(batch["obs"].shape[1]):
            if "is_first" in batch:
                h = torch.where(batch["is_first"][:, t, None], self.initial, h)
            h = self.cell(batch["obs"][:, t], h)
            features.append(h)
        return torch.stack(features, 1), h


class Heedless(PackedGRU):
    """Does not begin again."""

    def unrolled(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        return super().unrolled({name: column for name, column in batch.items() if name != "is_first"})


class PackedQ(DoubleQModule):
    """A recurrent Q function that asks for packed sequences."""

    train_inputs = ("is_first",)


class PackedModel(PackedGRU):
    """An auxiliary module: its experiences do not have states."""

    train_outputs = ("predictions",)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"predictions": super().forward_train(batch)["vf_preds"]}


def target(kind: type) -> str:
    return f"{__name__}.{kind.__name__}"


COMMON = ("tracking=none", "evaluation=none", "module.max_seq_len=32")
PPO = (
    *COMMON,
    f"module._target_={target(PackedGRU)}",
    "env_runners.num_envs_per_env_runner=4",
    "algorithm.train_batch_size_per_learner=400",
    "algorithm.minibatch_size=100",
    "algorithm.num_epochs=2",
)
MODEL = (
    f"+multi_agent.modules.model={{trains_on: default_policy, _target_: {target(PackedModel)}, "
    "algorithm: {schema: tests.plans.test_auxiliary_modules.RewardModelConfig, "
    "loss: tests.plans.test_auxiliary_modules.RewardModelLoss}}"
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The batches with gradients of all modules of this file."""
    batches: list[dict[str, Any]] = []
    unrolled = PackedGRU.unrolled

    def recorded(self: PackedGRU, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        if torch.is_grad_enabled():
            batches.append(dict(batch))
        return unrolled(self, batch)

    monkeypatch.setattr(PackedGRU, "unrolled", recorded)
    return batches


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_rows_are_cut_in_order(chunks: list[tuple[int, bool]], max_seq_len: int) -> None:
    """Each chunk that does not follow the previous one begins a sequence, and only a run's last one is shorter."""
    rows = [number for number, _ in chunks]
    follows = [False, *(follows for _, follows in chunks[1:])]
    sequences = Sequences.of_chunks(np.array(rows), max_seq_len, np.array(follows))
    places = [(chunk, start) for chunk, number in enumerate(rows) for start in range(number)]
    expected: list[list[tuple[int, int]]] = []
    for place in places:
        begins = place[1] == 0 and not follows[place[0]]
        if begins or len(expected[-1]) == max_seq_len:
            expected.append([])
        expected[-1].append(place)
    assert list(zip(sequences.chunk.tolist(), sequences.start.tolist(), strict=True)) == [one[0] for one in expected]
    assert sequences.lengths.tolist() == [len(one) for one in expected]
    firsts = [0, *accumulate(len(one) for one in expected)]
    padded = sequences.padded(np.arange(1, len(places) + 1))
    for row, (first, one) in enumerate(zip(firsts, expected, strict=False)):
        assert padded[row].tolist() == [*range(first + 1, first + 1 + len(one)), *[0] * (max_seq_len - len(one))]


def test_the_contract_of_a_packed_module() -> None:
    check_module(lambda: PackedGRU(*SPACES, ModuleConfig()))
    with pytest.raises(BrokenContract, match="depends on the steps before `is_first`"):
        check_module(lambda: Heedless(*SPACES, ModuleConfig()))


def test_ppo_learns_from_what_it_acted_on(seen: list[dict[str, Any]], tmp_path: Path) -> None:
    """The first update compares all outputs with the outputs while acting (`learners.check_on_policy_outputs`)."""
    assert_resumes_exactly(lambda: Trainer.from_experiment("ppo_cartpole", PPO), tmp_path)
    is_first = torch.cat([batch["is_first"] for batch in seen])
    assert is_first[:, 1:].any(), "episodes of random actions are shorter than a sequence"
    assert not is_first.all()


def test_the_check_finds_a_module_that_does_not_begin_again() -> None:
    overrides = [one.replace("PackedGRU", "Heedless") for one in PPO]
    with (
        pytest.raises(RunFailure, match=r"Heedless\.forward_train returns different"),
        Trainer.from_experiment("ppo_cartpole", overrides) as trainer,
    ):
        trainer.train()


def test_replayed_chunks_without_states_fill_sequences(seen: list[dict[str, Any]]) -> None:
    """One sequence of a batch is padded, although chunks are shorter than a sequence."""
    overrides = [*COMMON, MODEL, "algorithm.n_step=1", "algorithm.replay_buffers.replay.batch_length_T=16"]
    overrides += ["algorithm.min_sample_timesteps_per_iteration=400"]
    with Trainer.from_experiment("dqn_cartpole", overrides) as trainer:
        while not seen:
            trainer.train()
    lengths = seen[-1]["loss_mask"].sum(1)
    assert len(lengths) > 2
    assert (lengths < 20).sum() <= 1
    assert seen[-1]["is_first"].sum() > len(lengths)


def test_next_observations_are_not_packed() -> None:
    overrides = [*COMMON, f"module._target_={target(PackedQ)}", "module.use_lstm=true", "algorithm.n_step=1"]
    with pytest.raises(ConfigError, match="needs sequences of single episodes, but PackedQ reads is_first"):
        Trainer.from_experiment("dqn_cartpole", overrides)
