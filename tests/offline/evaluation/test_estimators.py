"""Off-policy estimates on a small MDP whose values are known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.offline.evaluation import estimators
from runner.offline.evaluation.estimators import Estimator, RecordedSteps, point_estimate
from tests.offline.small_mdp import BEHAVIOUR, CHAIN, GAMMA, TARGET, Episodes

# Action values that know the rewards of single steps and nothing of what follows.
WRONG_Q = (CHAIN.moves * CHAIN.rewards).sum(-1)
TRUE_Q = CHAIN.q_values(TARGET)
TRUE_VALUE = CHAIN.value(TARGET)


def _estimators(episodes: Episodes, target: Any = TARGET, q_values: Any = WRONG_Q) -> dict[str, Estimator]:
    """Every estimator of a target policy's value; those with a model get a wrong one."""
    steps, model = episodes.steps(target), episodes.model(q_values, target)
    return {
        "is": estimators.importance_sampling(steps, GAMMA),
        "wis": estimators.weighted_importance_sampling(steps, GAMMA),
        "pdis": estimators.per_decision_importance_sampling(steps, GAMMA),
        "wpdis": estimators.weighted_per_decision_importance_sampling(steps, GAMMA),
        "dr": estimators.doubly_robust(steps, model, GAMMA),
        "wdr": estimators.weighted_doubly_robust(steps, model, GAMMA),
    }


def _estimates(episodes: Episodes, **options: Any) -> dict[str, float]:
    return {
        name: point_estimate(estimator, len(episodes.lengths))
        for name, estimator in _estimators(episodes, **options).items()
    }


def _standard_errors(episodes: Episodes, stream: np.random.Generator, **options: Any) -> dict[str, float]:
    resampled = estimators.bootstrap_estimates(_estimators(episodes, **options), len(episodes.lengths), 200, stream)
    return {name: float(values.std()) for name, values in resampled.items()}


@pytest.fixture(scope="module")
def many() -> Episodes:
    """20,000 episodes of the behaviour policy."""
    return CHAIN.sample(BEHAVIOUR, 20_000, np.random.default_rng(1))


def test_values_of_the_mdp_are_those_of_its_episodes() -> None:
    episodes = CHAIN.sample(TARGET, 30_000, np.random.default_rng(0))
    returns = episodes.steps(TARGET).discounted_sums(episodes.rewards, GAMMA)
    assert returns.mean() == pytest.approx(TRUE_VALUE, abs=4 * returns.std() / np.sqrt(len(returns)))
    assert abs(TRUE_VALUE - CHAIN.value(BEHAVIOUR)) > 0.25  # there is something to estimate


def test_estimates_converge_to_the_true_value(many: Episodes) -> None:
    estimates, errors = _estimates(many), _standard_errors(many, np.random.default_rng(2))
    for name, estimate in estimates.items():
        assert estimate == pytest.approx(TRUE_VALUE, abs=4 * errors[name]), name
        assert 4 * errors[name] < 0.12, name  # far from the behaviour policy's value


def test_truncated_episodes_count_up_to_there_unless_a_model_goes_on() -> None:
    episodes = CHAIN.sample(BEHAVIOUR, 20_000, np.random.default_rng(3), max_steps=3)
    assert 0.1 < (~episodes.is_terminated).mean() < 0.9
    estimates = _estimates(episodes, q_values=TRUE_Q)
    errors = _standard_errors(episodes, np.random.default_rng(4), q_values=TRUE_Q)
    cut_off = CHAIN.value_within(TARGET, 3)
    assert TRUE_VALUE - cut_off > 8 * max(errors.values())
    for name, estimate in estimates.items():
        truth = TRUE_VALUE if name in ("dr", "wdr") else cut_off
        assert estimate == pytest.approx(truth, abs=4 * errors[name]), name


NUM_SETS = 1500


@pytest.fixture(scope="module")
def small_sets() -> dict[str, Any]:
    """Estimates from each of many data sets of 8 episodes; of `dr_true` with the true model."""
    episodes = CHAIN.sample(BEHAVIOUR, 8 * NUM_SETS, np.random.default_rng(5))
    sets = [_estimates(own) | {"dr_true": _doubly_robust(own, TRUE_Q)} for own in episodes.split(8)]
    return {name: np.array([one[name] for one in sets]) for name in sets[0]}


def _doubly_robust(episodes: Episodes, q_values: Any) -> float:
    model = episodes.model(q_values, TARGET)
    return point_estimate(estimators.doubly_robust(episodes.steps(TARGET), model, GAMMA), len(episodes.lengths))


@pytest.mark.parametrize("name", ["is", "pdis", "dr", "dr_true"])
def test_unbiased(small_sets: dict[str, Any], name: str) -> None:
    values = small_sets[name]
    assert values.mean() == pytest.approx(TRUE_VALUE, abs=4 * values.std() / np.sqrt(len(values)))


def test_weights_that_sum_to_1_make_the_variance_smaller(small_sets: dict[str, Any]) -> None:
    for weighted, plain in (("wis", "is"), ("wpdis", "pdis"), ("wdr", "dr")):
        assert small_sets[weighted].std() < small_sets[plain].std(), weighted


def test_weighted_importance_sampling_of_one_episode_is_its_return() -> None:
    episodes = CHAIN.sample(BEHAVIOUR, 1, np.random.default_rng(6))
    returned = episodes.steps(TARGET).discounted_sums(episodes.rewards, GAMMA)[0]
    assert _estimates(episodes)["wis"] == pytest.approx(returned, rel=1e-12)
    assert _estimates(episodes)["wpdis"] == pytest.approx(returned, rel=1e-12)


def test_a_good_model_makes_the_variance_small(small_sets: dict[str, Any]) -> None:
    assert small_sets["dr_true"].std() < 0.75 * small_sets["pdis"].std()
    assert small_sets["dr_true"].std() < 0.8 * small_sets["is"].std()


def test_a_true_model_of_a_deterministic_mdp_leaves_no_variance() -> None:
    moves = np.zeros((2, 2, 3))
    moves[0, :, 1], moves[1, :, 2] = 1.0, 1.0  # two steps whatever one does
    mdp = replace(CHAIN, start=np.array([1.0, 0.0]), moves=moves, rewards=CHAIN.rewards[:2, :, :3], noise=0.0)
    target, behaviour = TARGET[:2], BEHAVIOUR[:2]
    episodes = mdp.sample(behaviour, 20, np.random.default_rng(8))
    steps, model = episodes.steps(target), episodes.model(mdp.q_values(target), target)
    for method in (estimators.doubly_robust, estimators.weighted_doubly_robust):
        resampled = estimators.bootstrap_estimates(
            {"it": method(steps, model, GAMMA)}, 20, 50, np.random.default_rng(9)
        )["it"]
        assert resampled == pytest.approx(np.full(50, mdp.value(target)), rel=1e-12)


def test_direct_method_is_the_mean_of_the_models_values() -> None:
    episodes = CHAIN.sample(BEHAVIOUR, 4000, np.random.default_rng(10))
    initial = episodes.model(TRUE_Q, TARGET).values[episodes.steps(TARGET).first_rows]
    method = estimators.direct_method(initial)
    assert point_estimate(method, 4000) == pytest.approx(TRUE_VALUE, abs=4 * initial.std() / np.sqrt(4000))
    assert method.effective_sample_size == 4000


class TestOfTheBehaviourPolicyItself:
    """All ratios are 1."""

    episodes = CHAIN.sample(BEHAVIOUR, 300, np.random.default_rng(11))

    def test_estimates_are_the_mean_return(self) -> None:
        returns = self.episodes.steps(BEHAVIOUR).discounted_sums(self.episodes.rewards, GAMMA)
        estimates = _estimates(self.episodes, target=BEHAVIOUR)
        for name in ("is", "wis", "pdis", "wpdis"):
            assert estimates[name] == pytest.approx(returns.mean(), rel=1e-13), name
        assert estimates["dr"] == pytest.approx(estimates["wdr"], rel=1e-12)

    def test_every_episode_counts(self) -> None:
        for name, estimator in _estimators(self.episodes, target=BEHAVIOUR).items():
            assert estimator.effective_sample_size == pytest.approx(300, rel=1e-13), name


def test_effective_sample_size(many: Episodes) -> None:
    sizes = {name: one.effective_sample_size for name, one in _estimators(many).items()}
    weights = np.exp(many.steps(TARGET).episode_log_ratios)
    assert sizes["is"] == sizes["wis"] == pytest.approx(weights.sum() ** 2 / np.square(weights).sum())
    assert sizes["pdis"] == sizes["wpdis"] == sizes["dr"] == sizes["wdr"]
    assert sizes["is"] < sizes["pdis"] < 20_000  # short histories vary less


@pytest.mark.parametrize(
    ("log_weights", "expected"),
    [([0.0, 0.0, 0.0], 3.0), ([0.0, -np.inf, -np.inf], 1.0), ([-np.inf, -np.inf], 0.0), ([2000.0, 2000.0], 2.0)],
)
def test_kish(log_weights: list[float], expected: float) -> None:
    assert float(estimators.kish(np.array(log_weights))) == expected


def test_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    stream = np.random.default_rng(12)
    covered: dict[str, int] = {}
    for episodes in CHAIN.sample(BEHAVIOUR, 200 * 150, stream).split(150):
        resampled = estimators.bootstrap_estimates(_estimators(episodes), 150, 200, stream)
        for name, values in resampled.items():
            low, high = estimators.percentile_interval(values, 0.95)
            covered[name] = covered.get(name, 0) + (low <= TRUE_VALUE <= high)
    assert len(covered) == 6
    for name, count in covered.items():
        assert 0.8 <= count / 200 <= 0.99, (name, count)


def test_a_lower_level_is_a_narrower_interval() -> None:
    values = np.arange(101.0)
    assert estimators.percentile_interval(values, 0.9) == pytest.approx((5.0, 95.0))
    assert estimators.percentile_interval(values, 0.5) == pytest.approx((25.0, 75.0))


def test_one_stream_one_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = _estimators(CHAIN.sample(BEHAVIOUR, 50, np.random.default_rng(13)))
    first = estimators.bootstrap_estimates(methods, 50, 40, np.random.default_rng(14))
    monkeypatch.setattr(estimators, "_MAX_CELLS", 120)  # 2 resamples and 2 time steps at once
    second = estimators.bootstrap_estimates(methods, 50, 40, np.random.default_rng(14))
    for name in methods:
        assert first[name].shape == (40,)
        assert first[name] == pytest.approx(second[name], rel=1e-12), name
        assert point_estimate(methods[name], 50) == pytest.approx(first[name].mean(), abs=first[name].std()), name


# --- large and small ratios ---------------------------------------------------------------------------


def _steps(log_ratios: list[list[float]], rewards: list[list[float]] | None = None) -> RecordedSteps:
    lengths = np.array([len(episode) for episode in log_ratios])
    flat = np.concatenate([np.array(episode) for episode in log_ratios])
    return RecordedSteps(lengths, np.ones(len(flat)) if rewards is None else np.concatenate(rewards), flat)


RATIO_METHODS: dict[str, Callable[[RecordedSteps, float], Estimator]] = {
    "is": estimators.importance_sampling,
    "wis": estimators.weighted_importance_sampling,
    "pdis": estimators.per_decision_importance_sampling,
    "wpdis": estimators.weighted_per_decision_importance_sampling,
}


def _all_at(steps: RecordedSteps, gamma: float = 1.0) -> dict[str, float]:
    return {name: point_estimate(method(steps, gamma), len(steps.lengths)) for name, method in RATIO_METHODS.items()}


def test_weighted_estimates_do_not_depend_on_a_common_factor() -> None:
    rewards = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    plain = _all_at(_steps([[0.0, 0.1], [0.0, 0.3], [0.0, -0.2]], rewards))
    for shift in (-5000.0, 5000.0):
        shifted = _all_at(_steps([[shift, 0.1], [shift, 0.3], [shift, -0.2]], rewards))
        assert shifted["wis"] == pytest.approx(plain["wis"], rel=1e-9)
        assert shifted["wpdis"] == pytest.approx(plain["wpdis"], rel=1e-9)
        assert np.isfinite(list(shifted.values())).all()


def test_a_ratio_beyond_all_numbers_stays_a_number_and_counts_as_one_episode() -> None:
    steps = _steps([[1000.0, 1000.0], [0.0, 0.0], [-3000.0, 2000.0]], [[1.0, -1.0], [2.0, 2.0], [3.0, 3.0]])
    for name, method in RATIO_METHODS.items():
        estimator = method(steps, 0.9)
        resampled = estimators.bootstrap_estimates({name: estimator}, 3, 100, np.random.default_rng(0))[name]
        assert np.isfinite(resampled).all(), name
        assert estimator.effective_sample_size == pytest.approx(1.0), name


def test_a_resample_without_the_dominant_episode_has_the_estimate_of_its_own_episodes() -> None:
    steps = _steps([[3000.0], [0.0], [0.0]], [[7.0], [1.0], [2.0]])
    counts = np.array([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    for name in ("wis", "wpdis"):
        assert RATIO_METHODS[name](steps, 1.0).at(counts) == pytest.approx([5 / 3, 7.0]), name


def test_what_the_target_policy_never_does_has_no_weight_from_there_on() -> None:
    steps = _steps([[-np.inf, 50.0], [0.0, 0.0]], [[9.0, 9.0], [1.0, 2.0]])
    assert _all_at(steps) == pytest.approx({"is": 1.5, "wis": 3.0, "pdis": 1.5, "wpdis": 3.0})
    steps = _steps([[0.0, -np.inf], [0.0, 0.0]], [[9.0, 9.0], [1.0, 2.0]])
    assert _all_at(steps) == pytest.approx({"is": 1.5, "wis": 3.0, "pdis": 6.0, "wpdis": 7.0})


def test_without_any_possible_episode_weighted_estimates_are_not_a_number() -> None:
    steps = _steps([[-np.inf], [-np.inf, 0.0]])
    estimates = _all_at(steps)
    assert estimates["is"] == estimates["pdis"] == 0.0
    assert np.isnan(estimates["wis"])
    assert np.isnan(estimates["wpdis"])
    assert RATIO_METHODS["wpdis"](steps, 1.0).effective_sample_size == 0.0
    assert np.isnan(estimators.percentile_interval(np.full(5, np.nan), 0.95)).all()


def test_gamma_0_is_the_first_reward_only() -> None:
    assert _all_at(_steps([[0.0, 1.0], [0.0]], [[4.0, 100.0], [2.0]]), gamma=0.0)["pdis"] == 3.0


@pytest.mark.parametrize(
    ("lengths", "rewards", "log_ratios", "message"),
    [
        ([], [], [], "at least one step"),
        ([2, 0], [1.0, 1.0], [0.0, 0.0], "at least one step"),
        ([2], [1.0], [0.0, 0.0], "rewards must have shape"),
        ([2], [1.0, np.nan], [0.0, 0.0], "rewards must be finite"),
        ([2], [1.0, 1.0], [0.0, np.nan], "log_ratios must be finite"),
        ([2], [1.0, 1.0], [0.0, np.inf], "log_ratios must be finite"),
    ],
)
def test_impossible_steps_are_refused(lengths: Any, rewards: Any, log_ratios: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecordedSteps(np.array(lengths, np.int64), np.array(rewards), np.array(log_ratios))
