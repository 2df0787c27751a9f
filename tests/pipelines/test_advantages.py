"""GAE: numbers worked out by hand, and a loop over chunks in float64 as the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runner.config.schemas import ModuleConfig
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import block_from_episodes
from runner.module_building import make_connector
from runner.modules.rl_module import RLModule
from runner.pipelines.advantages import GeneralAdvantageEstimation, compute_gae, gae_of_rows, standardised, suffix_sums
from runner.pipelines.defaults import learner_pipeline
from tests.pipelines.connector_contract import WITH_MASK
from tests.support.environments import CodedEnv


def gae(rewards: list[float], values: list[float], terminated: bool, gamma: float, lambda_: float) -> list[float]:
    """Of one chunk; `values` has one more, that of the last observation."""
    steps = len(rewards)
    terminateds = [False] * (steps - 1) + [terminated, False]
    return compute_gae(
        torch.tensor([*rewards, 0.0]),
        torch.tensor(values),
        torch.tensor(terminateds),
        torch.tensor([True] * steps + [False]),
        gamma,
        lambda_,
        steps,
    ).tolist()


# r = 1, 2, 3; V = 0.5, 1, 2 and 4 for the last observation; gamma = 0.5, lambda = 0.5, so gamma * lambda = 0.25.
# delta = 1 + 0.5 * 1 - 0.5 = 1, 2 + 0.5 * 2 - 1 = 2, and at the end 3 - 2 = 1, or with the bootstrap 3 + 2 - 2 = 3.
# A = 1 + 0.25 * (2 + 0.25 * 1) = 1.5625, 2 + 0.25 * 1 = 2.25, 1; or 1 + 0.25 * 2.75 = 1.6875, 2 + 0.25 * 3 = 2.75, 3.
REWARDS, VALUES = [1.0, 2.0, 3.0], [0.5, 1.0, 2.0, 4.0]
TERMINATED, TRUNCATED = [1.5625, 2.25, 1.0, 0.0], [1.6875, 2.75, 3.0, 0.0]


def test_terminated_chunk() -> None:
    assert gae(REWARDS, VALUES, True, 0.5, 0.5) == TERMINATED


def test_truncated_or_cut_chunk_bootstraps() -> None:
    assert gae(REWARDS, VALUES, False, 0.5, 0.5) == TRUNCATED


def test_value_after_the_end_counts_only_without_termination() -> None:
    other = [*VALUES[:3], 400.0]
    assert gae(REWARDS, other, True, 0.5, 0.5) == TERMINATED
    assert gae(REWARDS, other, False, 0.5, 0.5)[2] == 3.0 + 0.5 * 400 - 2.0


def test_lambda_1_is_the_discounted_return_less_the_value() -> None:
    # returns with gamma 0.5: 3, 2 + 1.5, 1 + 1.75
    assert gae(REWARDS, VALUES, True, 0.5, 1.0) == [2.75 - 0.5, 3.5 - 1.0, 3.0 - 2.0, 0.0]


def test_lambda_0_is_the_td_error() -> None:
    assert gae(REWARDS, VALUES, False, 0.5, 0.0) == [1.0, 2.0, 3.0, 0.0]


def test_no_advantage_leaks_from_chunk_to_chunk() -> None:
    one = torch.tensor([*REWARDS, 0.0]), torch.tensor(VALUES), torch.tensor([False, False, True, False])
    two = torch.tensor([*REWARDS, 0.0]), torch.tensor(VALUES), torch.tensor([False] * 4)
    is_step = torch.tensor([True, True, True, False] * 3)
    columns = [torch.cat(parts) for parts in zip(two, one, two, strict=True)]
    got = compute_gae(*columns, is_step, 0.5, 0.5, 3)  # type: ignore[arg-type]
    assert got.tolist() == TRUNCATED + TERMINATED + TRUNCATED


def naive_gae(
    rewards: np.ndarray[Any, Any], values: np.ndarray[Any, Any], is_terminated: bool, gamma: float, lambda_: float
) -> np.ndarray[Any, Any]:
    advantages = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        next_value = 0.0 if is_terminated and t == len(rewards) - 1 else values[t + 1]
        following = rewards[t] + gamma * next_value - values[t] + gamma * lambda_ * following
        advantages[t] = following
    return advantages


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_ragged_chunks_against_a_loop(lengths: list[int], gamma: float, lambda_: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rewards, values, terminateds, is_step, expected = [], [], [], [], []
    for length in lengths:
        r, v, is_terminated = random.normal(size=length), random.normal(size=length + 1), bool(random.integers(2))
        rewards += [*r, random.normal()]  # whatever stands in the bootstrap row
        values += [*v]
        terminateds += [False] * (length - 1) + [is_terminated, False]
        is_step += [True] * length + [False]
        expected += [*naive_gae(r, v, is_terminated, gamma, lambda_), 0.0]
    got = compute_gae(
        torch.tensor(rewards).float(),
        torch.tensor(values).float(),
        torch.tensor(terminateds),
        torch.tensor(is_step),
        gamma,
        lambda_,
        max(lengths),
    )
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-5, atol=5e-5)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_numpy_and_torch_give_the_same_estimates_bit_for_bit(
    lengths: list[int], gamma: float, lambda_: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    num_rows = sum(lengths) + len(lengths)
    is_step = torch.ones(num_rows, dtype=torch.bool)
    is_step[np.cumsum(np.array(lengths) + 1) - 1] = False
    rewards, values = torch.randn(num_rows, generator=random) * is_step, 50 * torch.randn(num_rows, generator=random)
    columns = rewards, values, (torch.rand(num_rows, generator=random) < 0.1) & is_step, is_step
    on_device = gae_of_rows(torch, *columns, gamma, lambda_, max(lengths))
    assert torch.equal(compute_gae(*columns, gamma, lambda_, max(lengths)), on_device)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    gamma=st.floats(0, 1),
    use_baseline=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_returns_against_a_loop(lengths: list[int], gamma: float, use_baseline: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    episodes, expected = [], []
    for number, length in enumerate(lengths):
        rewards, obs = random.normal(size=length), random.normal(size=(length + 1, 3)).astype(np.float32)
        is_terminated = bool(random.integers(2))
        following = float(obs[-1, 0]) if use_baseline and not is_terminated else 0.0
        returns = []
        for reward in reversed(rewards):
            following = reward + gamma * following
            returns.append(following)
        expected += [*reversed(returns), 0.0]
        episodes.append(
            SingleAgentEpisode(
                str(number),
                observations=list(obs),
                actions=[0] * length,
                rewards=list(rewards),
                terminated=is_terminated,
                truncated=not is_terminated,
                len_lookback_buffer=0,
            )
        )
    batch, _ = batch_after("MonteCarloReturns", episodes, gamma=gamma, use_baseline=use_baseline)
    assert batch["returns"].dtype == torch.float32
    np.testing.assert_allclose(batch["returns"].numpy(), expected, rtol=2e-5, atol=5e-5)


@given(
    terms=st.lists(st.floats(-10, 10), min_size=1, max_size=70),
    seed=st.integers(0, 2**31),
    zeros=st.floats(0, 1),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_suffix_sums_against_a_loop(terms: list[float], seed: int, zeros: float) -> None:
    random = np.random.default_rng(seed)
    factors = random.uniform(-1, 1, len(terms)) * (random.uniform(size=len(terms)) >= zeros)
    expected, following = np.zeros(len(terms)), 0.0
    for i in reversed(range(len(terms))):
        following = expected[i] = terms[i] + factors[i] * following
    longest = run = 0
    for factor in factors:
        run = run + 1 if factor else 0
        longest = max(longest, run)
    got = suffix_sums(torch.tensor(terms, dtype=torch.float64), torch.tensor(factors), longest)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_suffix_sums_leave_their_arguments_alone() -> None:
    terms, factors = torch.ones(9), torch.full((9,), 0.5)
    suffix_sums(terms, factors, 9)
    assert terms.tolist() == [1.0] * 9
    assert factors.tolist() == [0.5] * 9


def test_standardised_ignores_masked_rows() -> None:
    values = torch.tensor([1.0, 2.0, 1e6, 3.0, -1e6, 6.0])
    mask = torch.tensor([True, True, False, True, False, True])
    got = standardised(values, mask)
    valid = np.array([1.0, 2.0, 3.0, 6.0])
    np.testing.assert_allclose(got[mask].numpy(), (valid - valid.mean()) / valid.std(), rtol=1e-6)


def test_standardised_equal_values_are_zero() -> None:
    got = standardised(torch.full((4,), 7.0), torch.tensor([True, True, True, False]))
    assert got.tolist() == [0.0] * 4


class FirstNumber(RLModule):
    """The value of an observation is its first number; remembers how many rows it was asked for at once."""

    rows_per_pass: list[int]

    def compute_values(self, batch: Any) -> Tensor:
        self.rows_per_pass.append(len(batch["obs"]))
        values: Tensor = batch["obs"][:, 0]
        return values


def hand_made(id_: str, terminated: bool, truncated: bool) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        id_,
        observations=[np.array([value, 0, 0], np.float32) for value in VALUES],
        actions=[0, 1, 2],
        rewards=REWARDS,
        terminated=terminated,
        truncated=truncated,
        len_lookback_buffer=0,
    )


def batch_after(connector: str, episodes: Any, **arguments: Any) -> tuple[Any, FirstNumber]:
    """The train batch after a connector of `runner.pipelines`, and the module."""
    edits = [*WITH_MASK, {"append": {"_target_": f"runner.pipelines.{connector}", **arguments}}]
    spaces = CodedEnv.observation_space, CodedEnv.action_space
    pipeline = learner_pipeline(*spaces, torch.device("cpu"), edits, make_connector)
    module = FirstNumber(*spaces, ModuleConfig())
    module.rows_per_pass = []
    return pipeline(rl_module={"default_policy": module}, batch={}, episodes=episodes)["default_policy"], module


@pytest.mark.parametrize("max_rows", [65536, 5])
def test_the_connector_in_its_pipeline(max_rows: int) -> None:
    # Terminated, truncated, cut, and both at once, which is a terminal state.
    episodes = [
        hand_made("a", True, False),
        hand_made("b", False, True),
        hand_made("c", False, False),
        hand_made("d", True, True),
    ]
    arguments = {"gamma": 0.5, "lambda_": 0.5, "max_rows_per_pass": max_rows}
    batch, module = batch_after("GeneralAdvantageEstimation", episodes, **arguments)
    assert module.rows_per_pass == ([16] if max_rows > 16 else [5, 5, 5, 1])
    raw = np.array(TERMINATED + TRUNCATED + TRUNCATED + TERMINATED)
    values = np.array(VALUES * 4)
    assert batch["vf_preds"].tolist() == values.tolist()
    assert batch["value_targets"].tolist() == (raw + values).tolist()
    mask = batch["loss_mask"].numpy()
    assert mask.tolist() == [True, True, True, False] * 4
    expected = (raw[mask] - raw[mask].mean()) / raw[mask].std()
    np.testing.assert_allclose(batch["advantages"].numpy()[mask], expected, rtol=1e-5)


# r = 1, 2, 3 and gamma = 0.5: G = 1 + 0.5 * 3.5, 2 + 0.5 * 3, 3; after truncation V = 4: G = 3 + 2, 2 + 2.5, 1 + 2.25.
@pytest.mark.parametrize("use_baseline", [False, True])
def test_returns_bootstrap_from_a_baseline_after_truncation_alone(use_baseline: bool) -> None:
    episodes = [hand_made("a", True, False), hand_made("b", False, True), hand_made("c", True, True)]
    batch, module = batch_after("MonteCarloReturns", episodes, gamma=0.5, use_baseline=use_baseline)
    terminated, truncated = [2.75, 3.5, 3.0, 0.0], [3.25, 4.5, 5.0, 0.0]
    assert batch["returns"].tolist() == terminated + (truncated if use_baseline else terminated) + terminated
    assert module.rows_per_pass == ([12] if use_baseline else [])  # without a baseline nobody asks for values


@pytest.mark.parametrize(
    ("connector", "arguments"),
    [
        ("GeneralAdvantageEstimation", {"gamma": 0.5, "lambda_": 0.5}),
        ("MonteCarloReturns", {"gamma": 0.5, "use_baseline": True}),
    ],
)
def test_sequences_without_bootstrap_rows_are_refused(connector: str, arguments: dict[str, Any]) -> None:
    """Their mask only excludes the padding, so a chunk would bootstrap from the next chunk."""
    spaces = CodedEnv.observation_space, CodedEnv.action_space
    edits = [{"append": {"_target_": f"runner.pipelines.{connector}", **arguments}}]
    pipeline = learner_pipeline(*spaces, torch.device("cpu"), edits, make_connector, max_seq_len=2)
    module = FirstNumber(*spaces, ModuleConfig())
    with pytest.raises(RuntimeError, match=f"{connector}: .* prepend AddOneTsToEpisodesAndTruncate"):
        pipeline(rl_module={"default_policy": module}, batch={}, episodes=[hand_made("a", True, False)])


@pytest.mark.parametrize("standardize", [True, False])
def test_advantages_are_standardised_on_request(standardize: bool) -> None:
    connector = GeneralAdvantageEstimation(0.5, 0.5, standardize=standardize)
    columns = {
        "obs": torch.tensor(VALUES)[:, None],
        "rewards": torch.tensor([*REWARDS, 0.0]),
        "terminateds": torch.tensor([False, False, True, False]),
        "loss_mask": torch.tensor([True, True, True, False]),
    }
    module = FirstNumber(CodedEnv.observation_space, CodedEnv.action_space, ModuleConfig())
    module.rows_per_pass = []
    block = block_from_episodes([hand_made("a", True, False)])
    batch = connector(rl_module={"default_policy": module}, batch={"default_policy": columns}, episodes=block)
    got = batch["default_policy"]["advantages"][:3]
    raw = torch.tensor(TERMINATED[:3])
    expected = (raw - raw.mean()) / raw.std(correction=0) if standardize else raw
    torch.testing.assert_close(got, expected)
