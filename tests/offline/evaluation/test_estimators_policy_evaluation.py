"""From column blocks and a module to estimates with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.modules import ActorCriticModule, RLModule
from runner.offline.evaluation import policy_evaluation, recorded_actions
from runner.offline.evaluation.fitted_q import FittedQConfig, fit_q
from runner.offline.evaluation.policy_evaluation import METHODS, RATIO_METHODS, evaluate_policy
from tests.offline.blocks import part_of
from tests.offline.small_mdp import BEHAVIOUR, CHAIN, GAMMA, TARGET

ONE_HOT = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
FITTED_Q = FittedQConfig(lr=0.05, num_updates=400, network=ModuleConfig(fcnet_hiddens=[]))
# For tests that compare two results, whatever they are.
UNFITTED_Q = replace(FITTED_Q, num_updates=20)
TRUE_VALUE = CHAIN.value(TARGET)


class TablePolicy(RLModule):
    """Acts with the probabilities (X, A) of a table on one-hot observations."""

    def __init__(self, table: Any, action_space: gym.Space[Any] | None = None) -> None:
        super().__init__(ONE_HOT, action_space or gym.spaces.Discrete(table.shape[1]), ModuleConfig())
        self.logits = torch.nn.Parameter(torch.from_numpy(np.log(table).astype(np.float32)))

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"action_dist_inputs": batch["obs"] @ self.logits, "vf_preds": batch["obs"].sum(-1)}


def _evaluate(blocks: Any, module: RLModule, **options: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"methods": tuple(RATIO_METHODS), "level": 0.95, "num_resamples": 200}
    arguments |= {"fitted_q": FITTED_Q, "make_inputs": lambda own: {"obs": own.columns["obs"]}} | options
    return evaluate_policy(blocks, module, GAMMA, np.random.default_rng(0), **arguments)


@pytest.fixture(scope="module")
def block() -> ColumnBlock:
    """3,000 episodes of the behaviour policy."""
    return CHAIN.sample(BEHAVIOUR, 3000, np.random.default_rng(1)).block(3)


def test_every_method_finds_the_true_value(block: ColumnBlock) -> None:
    estimates = _evaluate([block], TablePolicy(TARGET), methods=METHODS)
    assert tuple(estimates) == METHODS
    for name, one in estimates.items():
        assert one.low < one.estimate < one.high
        # Half a 95 % interval is 2 standard errors; that of dm knows nothing of the model's error.
        tolerance = 0.05 if name == "dm" else one.high - one.low
        assert one.estimate == pytest.approx(TRUE_VALUE, abs=tolerance), name
        assert tolerance < 0.2, name
    sizes = {name: one.effective_sample_size for name, one in estimates.items()}
    assert sizes["is"] == sizes["wis"] < sizes["pdis"] == sizes["dr"] < sizes["dm"] == 3000
    widths = {name: one.high - one.low for name, one in estimates.items()}
    assert widths["dr"] < 0.85 * widths["is"]


def test_the_recording_policy_itself_has_the_mean_return(block: ColumnBlock) -> None:
    rewards, starts = block.columns["rewards"].astype(np.float64), block.offsets[:-1]
    times = np.arange(len(rewards)) - np.repeat(starts, block.lengths)
    returns = np.add.reduceat(GAMMA**times * rewards, starts)
    for name, one in _evaluate([block], TablePolicy(BEHAVIOUR)).items():
        assert one.estimate == pytest.approx(returns.mean(), rel=1e-5), name
        assert one.effective_sample_size == pytest.approx(3000, rel=1e-5), name


def test_many_blocks_are_one(block: ColumnBlock) -> None:
    parts = [part_of(block, first, first + 20) for first in (0, 20, 40)]
    small = concat_blocks(parts)
    options = {"methods": METHODS, "fitted_q": UNFITTED_Q}
    assert _evaluate([small], TablePolicy(TARGET), **options) == _evaluate(iter(parts), TablePolicy(TARGET), **options)


def test_one_stream_one_result_and_level_and_resamples_count(block: ColumnBlock) -> None:
    small, module = part_of(block, 0, 40), TablePolicy(TARGET)
    first, second = (_evaluate([small], module, methods=("dr", "wis"), fitted_q=UNFITTED_Q) for _ in range(2))
    assert first == second
    narrow = _evaluate([small], module, methods=("wis",), level=0.5)["wis"]
    assert first["wis"].low < narrow.low < narrow.high < first["wis"].high
    single = _evaluate([small], module, methods=("wis",), num_resamples=1)["wis"]
    assert single.low == single.high


@pytest.mark.parametrize(
    ("num_folds", "learned_from"), [(1, ["abcd"]), (2, ["bd", "ac"]), (9, ["bcd", "acd", "abd", "abc"])]
)
def test_values_of_an_episode_come_from_a_fit_to_others(
    block: ColumnBlock, monkeypatch: pytest.MonkeyPatch, num_folds: int, learned_from: list[str]
) -> None:
    small = part_of(block, 0, 4)
    episode_of_row = np.repeat(list("abcd"), small.lengths)
    fits = []

    def remembering_fit(*arguments: Any) -> Any:
        fits.append("".join(dict.fromkeys(episode_of_row[arguments[-1]])))
        return fit_q(*arguments)

    monkeypatch.setattr(policy_evaluation, "fit_q", remembering_fit)
    fitted_q = replace(FITTED_Q, num_updates=10, num_folds=num_folds)
    _evaluate([small], TablePolicy(TARGET), methods=("dm",), fitted_q=fitted_q)
    assert fits == learned_from


def test_inputs_are_what_a_pipeline_makes_of_the_observations(block: ColumnBlock) -> None:
    shifted = replace(block, columns=dict(block.columns) | {"obs": block.columns["obs"] * 2 + 1})
    options = {"methods": METHODS, "fitted_q": UNFITTED_Q}
    made = _evaluate(
        [shifted],
        TablePolicy(TARGET),
        **options,
        make_inputs=lambda own: {"obs": torch.from_numpy((own.columns["obs"] - 1) / 2)},
    )
    assert made == _evaluate([block], TablePolicy(TARGET), **options)
    with pytest.raises(
        ValueError, match=f"must return {block.num_rows + len(block)} rows of obs, got {block.num_rows}"
    ):
        _evaluate([block], TablePolicy(TARGET), make_inputs=lambda own: {"obs": own.columns["obs"][: own.num_rows]})


def test_arrays_that_must_not_be_written_and_small_integers_can_be_read(block: ColumnBlock) -> None:
    columns = dict(block.columns) | {"actions": block.columns["actions"].astype(np.int8)}
    for column in columns.values():
        column.flags.writeable = False
    try:
        assert _evaluate([replace(block, columns=columns)], TablePolicy(TARGET)) == _evaluate(
            [block], TablePolicy(TARGET)
        )
    finally:
        for column in block.columns.values():
            column.flags.writeable = True


def test_forbidden_actions_have_no_weight() -> None:
    """A policy that never takes action 0 in state 0, by a mask: episodes with it do not count."""
    episodes = CHAIN.sample(BEHAVIOUR, 500, np.random.default_rng(2))
    table = np.array([[1e-30, 1.0], [0.3, 0.7], [0.3, 0.7]])
    module = TablePolicy(table)
    with torch.no_grad():
        module.logits[0, 0] = -1e9  # as masks do
    estimate = _evaluate([episodes.block(3)], module)
    is_forbidden = (episodes.states[episodes.obs_rows] == 0) & (episodes.actions == 0)
    has_forbidden = np.add.reduceat(is_forbidden, np.cumsum(episodes.lengths) - episodes.lengths)
    assert 0 < estimate["is"].effective_sample_size < (has_forbidden == 0).sum()
    assert estimate["wis"].estimate == pytest.approx(CHAIN.value(table), abs=0.6)


class TestContinuousActions:
    """Gaussian policies of one step each: reward -(a - s)^2, so V(s) = -(m(s) - s)^2 - std^2."""

    space = gym.spaces.Box(-9.0, 9.0, (1,), np.float32)

    class Gaussian(RLModule):
        def __init__(self, space: gym.Space[Any], gain: float, std: float) -> None:
            super().__init__(space, space, ModuleConfig())
            self.gain, self.std = gain, std

        def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
            obs: Tensor = batch["obs"]
            log_std = torch.full_like(obs, np.log(self.std))
            return {"action_dist_inputs": torch.cat((self.gain * obs, log_std), -1), "vf_preds": obs[..., 0]}

    def test_every_method(self) -> None:
        stream = np.random.default_rng(3)
        s = stream.uniform(-1, 1, size=(2000, 1)).astype(np.float32)
        a = (0.6 * s + 0.5 * stream.normal(size=s.shape)).astype(np.float32)
        logp = -0.5 * ((a - 0.6 * s) / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
        block = ColumnBlock(
            columns={
                "obs": np.stack((s, np.zeros_like(s)), 1).reshape(-1, 1),
                "actions": a,
                "rewards": -((a - s)[:, 0] ** 2),
                "action_logp": logp[:, 0],
            },
            lengths=np.ones(2000, np.int64),
            is_terminated=np.ones(2000, np.bool_),
            is_truncated=np.zeros(2000, np.bool_),
            t_started=np.zeros(2000, np.int64),
            episode_ids=[str(number) for number in range(2000)],
        )
        network = ModuleConfig(fcnet_hiddens=[32], fcnet_activation="relu")
        fitted_q = FittedQConfig(lr=5e-3, num_updates=400, num_action_samples=8, network=network)
        truth = -(0.1**2) / 3 - 0.3**2
        estimates = _evaluate([block], self.Gaussian(self.space, 0.9, 0.3), methods=METHODS, fitted_q=fitted_q)
        for name, one in estimates.items():
            tolerance = 0.03 if name == "dm" else one.high - one.low
            assert one.estimate == pytest.approx(truth, abs=tolerance), name
        assert estimates["is"].estimate == pytest.approx(estimates["pdis"].estimate)


class TestModuleWithMemory:
    """Every episode is a sequence from the module's own initial state, whatever state was recorded."""

    @pytest.fixture
    def module(self) -> RLModule:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = ModuleConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=3)
            return ActorCriticModule(ONE_HOT, gym.spaces.Discrete(2), config)

    def test_log_probs_are_those_of_acting_step_by_step(
        self, module: RLModule, block: ColumnBlock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = part_of(block, 0, 12)
        log_probs = []
        with torch.no_grad():
            for episode in small:
                state = {name: value[None] for name, value in module.get_initial_state().items()}
                for obs, action in zip(episode.get_observations()[:-1], episode.get_actions(), strict=True):
                    out = module.forward_exploration({"obs": torch.from_numpy(obs)[None, None], "state_in": state})
                    state = out["state_out"]
                    log_probs.append(out["action_dist_inputs"][0, 0].log_softmax(-1)[int(action)].item())
        recorded = replace(small, columns=dict(small.columns) | {"action_logp": np.array(log_probs)})
        monkeypatch.setattr(recorded_actions, "MAX_ROWS_PER_PASS", 40)  # a few episodes at a time
        for name, one in _evaluate([recorded], module).items():
            assert one.effective_sample_size == pytest.approx(12, rel=1e-5), name

    def test_models_of_single_observations_are_refused(self, module: RLModule, block: ColumnBlock) -> None:
        with pytest.raises(ConfigError, match="do not support recurrent modules") as caught:
            _evaluate([block], module, methods=("is", "dm", "dr"))
        assert caught.value.problems[0].got == "dm, dr"


# --- what is refused ----------------------------------------------------------------------------------


def test_without_action_logp_the_message_says_what_to_do(block: ColumnBlock) -> None:
    columns = {"action_log_p" if name == "action_logp" else name: column for name, column in block.columns.items()}
    with pytest.raises(ConfigError) as caught:
        _evaluate([replace(block, columns=columns)], TablePolicy(TARGET))
    (problem,) = caught.value.problems
    assert "lack action_logp" in problem.what
    assert problem.got == "columns action_log_p, actions, obs, rewards"
    assert problem.nearest == "action_log_p"
    for advice in ("record episodes with action_logp", "only dm"):
        assert advice in str(problem.fix)


def test_episodes_without_their_start_are_refused(block: ColumnBlock) -> None:
    t_started = np.zeros(len(block), np.int64)
    t_started[[7, 9]] = 5, 2
    with pytest.raises(ConfigError, match="complete episodes") as caught:
        _evaluate([replace(block, t_started=t_started)], TablePolicy(TARGET))
    assert caught.value.problems[0].got == ("2 of 3,000 chunks start later, the first of them episode-7 at time step 5")


@pytest.mark.parametrize(("name", "value"), [("rewards", np.nan), ("action_logp", -np.inf)])
def test_numbers_that_are_not_finite_are_refused(block: ColumnBlock, name: str, value: float) -> None:
    column = block.columns[name].copy()
    column[int(block.offsets[3]) + 1] = value
    with pytest.raises(ConfigError, match=f"{name} must be finite") as caught:
        _evaluate([replace(block, columns=dict(block.columns) | {name: column})], TablePolicy(TARGET))
    assert caught.value.problems[0].where == "offline.input_, episode episode-3, time step 1"


def test_no_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="no recorded episodes"):
        _evaluate([], TablePolicy(TARGET))
