"""Nested observations, nested actions and action masks in whole iterations of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.experiment.trainer import Trainer
from runner.modules import distribution_for
from tests.conftest import QUICK
from tests.modules.random_spaces import ACTION_SPACES, OBS_SPACES
from tests.modules.test_action_masks import CASES, is_allowed
from tests.modules.test_distributions import theirs

TINY = (
    *QUICK,
    "env.env=null",
    "env._target_=tests.modules.random_spaces.RandomSpaces",
    "module.fcnet_hiddens=[8]",
    "module.lstm_cell_size=4",
    "module.max_seq_len=4",
    "algorithm.train_batch_size_per_learner=64",
    "algorithm.minibatch_size=32",
)
LSTM, GRU = "module.use_lstm=true", "module.use_gru=true"
MASKED = "module.action_mask_key=mask"


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_cartpole", [*TINY, *overrides])


def sampled(trainer: Trainer, num_env_steps: int) -> ColumnBlock:
    return trainer.env_runners.sample(num_env_steps, True)[0].rollout.blocks["default_policy"]


def assert_finite(result: dict[str, Any], module_id: str = "default_policy") -> None:
    metrics = {name: value for name, value in result.items() if name.startswith(f"learners/{module_id}/")}
    assert metrics
    assert np.isfinite(list(metrics.values())).all(), metrics


def combinations() -> Iterator[Any]:
    """A fifth of all pairs, each space more than once; every other one with memory."""
    for i, obs in enumerate(OBS_SPACES):
        for j, actions in enumerate(ACTION_SPACES):
            if (i + 2 * j) % 5 == 0:
                yield pytest.param(obs, actions, ((), (LSTM,), (), (GRU,))[(i + j) % 4], id=f"{obs}-{actions}")


@pytest.mark.parametrize(("obs", "actions", "memory"), list(combinations()))
def test_any_spaces_are_trained_on(obs: str, actions: str, memory: tuple[str, ...]) -> None:
    with trainer_of(f"env.env_config={{obs: {obs}, actions: {actions}}}", *memory) as trainer:
        before = trainer.learners.get_weights()["default_policy"]
        assert_finite(trainer.train())  # the environment complains of actions outside of its space
        assert not np.array_equal(trainer.learners.get_weights()["default_policy"], before)
        block = sampled(trainer, 60)
    space, columns = ACTION_SPACES[actions], block.columns
    dist_inputs = torch.from_numpy(columns["action_dist_inputs"])
    chosen = nested.map_leaves(torch.from_numpy, columns["actions"])
    expected = sum(dist.log_prob(get(chosen).float()) for get, dist in theirs(space, dist_inputs))
    torch.testing.assert_close(torch.from_numpy(columns["action_logp"]), expected, rtol=1e-3, atol=1e-4)
    assert nested.row_count(columns["obs"]) == block.num_rows + len(block)
    if actions not in ("dict", "tuple", "reals", "unbounded", "nested"):  # with a Box they are scaled on the way
        assert block.infos is not None
        for chunk, first in enumerate(block.offsets[:-1].tolist()):
            infos = block.infos.rows_of(chunk, int(block.lengths[chunk]) + 1)
            assert infos is not None
            for t, info in enumerate(infos[1:]):
                assert nested.equal(nested.take(columns["actions"], first + t), info["action"])


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("actions", "mask", "memory"), [(*case, [LSTM] * (i % 2)) for i, case in enumerate(CASES)])
def test_no_forbidden_action_is_ever_taken(actions: str, mask: int, memory: list[str]) -> None:
    config = f"env.env_config={{obs: dict, actions: {actions}, mask: {mask}}}"
    with trainer_of(config, MASKED, *memory) as trainer:
        for _ in range(2):
            assert_finite(trainer.train())  # the environment complains of forbidden actions
        block = sampled(trainer, 400)
    rows = np.delete(np.arange(block.num_rows + len(block)), block.first_obs_rows + block.lengths)
    masks = nested.take(block.columns["obs"]["mask"], rows)
    assert is_allowed(ACTION_SPACES[actions], masks, block.columns["actions"]).all()
    assert distribution_for(ACTION_SPACES[actions]).first_fully_forbidden(masks) is None


@pytest.mark.parametrize("memory", [(), (LSTM,)], ids=["", "lstm"])
def test_masks_of_several_agents(memory: tuple[str, ...]) -> None:
    agents = (
        "env._target_=tests.modules.random_spaces.MaskedAgents",
        "multi_agent.agent_to_module={a: p, b: q}",
    )
    with trainer_of(*agents, "env.env_config={actions: {a: multi, b: dict}}", MASKED, *memory) as trainer:
        for _ in range(2):
            result = trainer.train()
            assert_finite(result, "p")
            assert_finite(result, "q")
    with trainer_of(*agents[:1], "env.env_config={actions: {a: bits, b: bits}}", MASKED, *memory) as trainer:
        assert_finite(trainer.train())


ALL_FORBIDDEN = Problem(
    "the action mask 'mask' forbids every action",
    where="env runner 0, sub-environment 1",
    got="[0, 0, 0, 0]",
    expected="at least one entry that is not 0",
)


@pytest.mark.parametrize("memory", [(), (LSTM,)], ids=["", "lstm"])
@pytest.mark.parametrize(
    ("actions", "mask", "got"),
    [
        ("discrete", 0, "[0, 0, 0, 0]"),
        ("multi", 1, "([0, 0], [0, 0, 0, 0], [0, 0, 0])"),
        ("dict", 1, "{'m': [0, 0, 0, 0, 0, 0, 0, 0, 0]}"),
    ],
)
def test_a_mask_that_forbids_everything(actions: str, mask: int, got: str, memory: tuple[str, ...]) -> None:
    config = f"env.env_config={{actions: {actions}, mask: {mask}, forbid_all_in: 4}}"
    with trainer_of(config, MASKED, *memory) as trainer, pytest.raises(RunFailure) as caught:
        trainer.train()
    assert caught.value.problem == replace(ALL_FORBIDDEN, got=got)


def test_a_mask_that_forbids_everything_of_one_agent() -> None:
    config = "env.env_config={actions: {a: multi, b: discrete}, forbid_all_in: 4}"
    agents = ("env._target_=tests.modules.random_spaces.MaskedAgents", "multi_agent.agent_to_module={a: p, b: q}")
    with trainer_of(*agents, config, MASKED) as trainer, pytest.raises(RunFailure) as caught:
        trainer.train()
    assert caught.value.problem == replace(ALL_FORBIDDEN, where="env runner 0, sub-environment 1, agent b")
