"""Estimates over seeds, and the front of trials that no other one dominates."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runner.cli.conditions import Condition
from runner.cli.trained import TrainedSweep
from runner.report.sweep_record import read_sweep
from runner.sweep.display import SweepDisplay
from runner.sweep.statistics import estimate, estimate_curve, group_by_combination, rank, rank_folder
from runner.sweep.trials import SweepFolder, Trial, pareto_front
from tests.conftest import Run
from tests.support.configs import config_from

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
MAYBE = NUMBERS | st.just(math.nan)


def test_the_mean_of_the_middle_half() -> None:
    """Of eight values the two lowest and the two highest are left out."""
    reached = estimate([1000.0, 1, 2, 3, 4, 5, 6, -500])
    assert reached.iqm == (2 + 3 + 4 + 5) / 4
    assert reached.mean == (1000 + 1 + 2 + 3 + 4 + 5 + 6 - 500) / 8
    assert reached.num == 8
    assert estimate([0.0, 1, 5]).iqm == 2.0  # nothing to leave out


def test_the_interval_of_three_values() -> None:
    """One resample in 27 is 0, 0, 0 and one is 5, 5, 5: more than the 2.5 % that are cut off at each end."""
    reached = estimate([0.0, 1.0, 5.0])
    assert (reached.low, reached.high) == (0.0, 5.0)
    assert reached == estimate([0.0, 1.0, 5.0])  # no chance in it


def test_more_seeds_narrow_it() -> None:
    values = np.random.default_rng(1).normal(size=64)
    widths = [(own := estimate(values[:num])).high - own.low for num in (4, 16, 64)]
    assert widths[0] > widths[1] > widths[2] > 0


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    """Of ten normal seeds, the 95 % interval holds the true mean about nine times in ten."""
    curve = estimate_curve(np.random.default_rng(2).normal(3.0, 2.0, size=(10, 1000)))
    assert 0.84 < np.mean((curve.low <= 3.0) & (curve.high >= 3.0)) < 0.97


@pytest.mark.parametrize("values", [[7.0], [7.0, 9.0]])
def test_too_few_for_an_interval(values: list[float]) -> None:
    reached = estimate(values)
    assert (reached.mean, reached.iqm, reached.num) == (np.mean(values), np.mean(values), len(values))
    assert math.isnan(reached.low)
    assert math.isnan(reached.high)


def test_none_at_all() -> None:
    for reached in (estimate([]), estimate([math.nan, math.inf])):
        assert reached.num == 0
        assert all(map(math.isnan, (reached.mean, reached.iqm, reached.low, reached.high)))


@given(NUMBERS, st.integers(3, 12))
def test_equal_values(value: float, num: int) -> None:
    reached = estimate([value] * num)
    for own in (reached.mean, reached.iqm, reached.low, reached.high):
        assert own == pytest.approx(value, rel=1e-12)


@given(st.lists(NUMBERS, min_size=3, max_size=12))
def test_the_interval_holds_the_estimate(values: list[float]) -> None:
    reached = estimate(values)
    rounding = 1e-9 * max(map(abs, values))
    assert min(values) - rounding <= reached.low <= reached.iqm <= reached.high <= max(values) + rounding


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=MAYBE))
def test_each_point_is_estimated_alone(values: np.ndarray) -> None:
    """Seeds without a value are not there, and points know nothing of each other."""
    curve = estimate_curve(values)
    for point in range(values.shape[1]):
        column = values[:, point]
        alone = estimate(column[np.isfinite(column)])
        mine = [own[point] for own in (curve.mean, curve.iqm, curve.low, curve.high, curve.num)]
        theirs = [alone.mean, alone.iqm, alone.low, alone.high, alone.num]
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-9)


def _trial(number: int, value: float | None, **combination: str | float) -> Trial:
    return Trial(number, combination, result={} if value is None else {"score": value})


def test_groups_leave_out_the_seed_only() -> None:
    trials = [
        _trial(0, 1.0, lr="1e-3", seed="0"),
        _trial(1, 4.0, lr="3e-3", seed="0"),
        _trial(2, None, seed="1", lr="1e-3"),
        _trial(3, 3.0, lr="1e-3", seed="2"),
        _trial(4, None, lr="5e-3", seed="2"),
    ]
    groups = group_by_combination(trials)
    assert [[trial.number for trial in group.trials] for group in groups] == [[0, 2, 3], [1], [4]]
    assert groups[0].overrides == ["lr=1e-3"]
    assert (groups[0].estimate("score").mean, groups[0].estimate("score").num) == (2.0, 2)
    for mode, order in {"max": ["3e-3", "1e-3", "5e-3"], "min": ["1e-3", "3e-3", "5e-3"]}.items():
        assert [group.combination["lr"] for group in rank(trials, {"score": mode}).groups] == order


POINTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 4)), max_size=12)


@given(POINTS)
def test_the_pareto_front(points: list[tuple[int, int, int | None]]) -> None:
    """What is on it is beaten by nothing; what is not, by something that is on it."""
    objectives = {"a": "max", "b": "min", "c": "max"}
    trials = [Trial(number, {}, result=dict(zip("abc", point, strict=True))) for number, point in enumerate(points)]
    front = [trial.number for trial in pareto_front(trials, objectives)]
    known = [number for number, point in enumerate(points) if point[2] is not None]

    def beats(one: int, other: int) -> bool:
        (a, b, c), (d, e, f) = points[one], points[other]
        assert c is not None
        assert f is not None
        return a >= d and b <= e and c >= f and (a, b, c) != (d, e, f)

    assert front == sorted(front)
    assert set(front) <= set(known)
    for number in known:
        assert (number in front) == (not any(beats(other, number) for other in known))
        assert number in front or any(beats(other, number) for other in front)


RETURN, STEPS = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"


def trials_of(reached: Mapping[str, Sequence[tuple[float, int]]]) -> list[Trial]:
    """Make trials from learning rate -> (return, env steps) of each seed."""
    pairs = [(lr, str(seed), own) for lr, seeds in reached.items() for seed, own in enumerate(seeds)]
    return [
        Trial(number, {"algorithm.lr": lr, "seed": seed}, "finished", result={RETURN: value, STEPS: steps})
        for number, (lr, seed, (value, steps)) in enumerate(pairs)
    ]


def test_a_lucky_seed_does_not_make_its_combination_the_best() -> None:
    ranking = rank(
        trials_of({"3e-3": [(500, 9), (10, 9), (20, 9)], "1e-3": [(300, 9), (310, 9), (290, 9)]}), {RETURN: "max"}
    )
    assert [trial.number for trial in ranking.trials] == [4, 3, 5, 0, 2, 1]
    assert ranking.reason == "highest mean return: 300 (inter-quartile mean of 3 seeds)"


def test_trials_that_stop_at_the_target_are_ranked_by_the_env_steps_that_they_needed() -> None:
    trials = trials_of({"1e-3": [(459.0, 90_000)], "3e-3": [(450.5, 20_000)], "1e-2": [(449.0, 100)]})
    ranking = rank(trials, {RETURN: "max"}, target=450.0)
    assert [trial.number for trial in ranking.trials] == [1, 0, 2]
    assert ranking.reason == "reached mean return 450 in the fewest env steps: 20,000"
    without_target = rank(trials, {RETURN: "max"})
    assert [trial.number for trial in without_target.trials] == [0, 1, 2]


def test_one_seed_that_misses_the_target_counts() -> None:
    trials = trials_of({"1e-3": [(450, 90_000), (451, 80_000)], "3e-3": [(480, 10_000), (100, 300_000)]})
    assert rank(trials, {RETURN: "max"}, target=450.0).groups[0].combination == {"algorithm.lr": "1e-3"}


def test_equal_values_are_ranked_by_env_steps() -> None:
    trials = trials_of({"1e-3": [(500, 300)], "3e-3": [(500, 200)]})
    assert [trial.number for trial in rank(trials, {RETURN: "max"}).trials] == [1, 0]


def test_without_values_there_is_no_best_trial() -> None:
    ranking = rank([Trial(0, {"algorithm.lr": "1"})], {RETURN: "max"}, target=450.0)
    assert (ranking.best, ranking.reason, len(ranking.trials)) == (None, "", 1)
    assert rank([], {RETURN: "max"}).best is None


@pytest.mark.parametrize("target", [None, 450.0])
def test_all_views_agree(run_main: Run, tmp_path: Path, target: float | None) -> None:
    searched = {
        "overrides": ["+experiment=ppo_cartpole"],
        "space": {"algorithm.lr": ["1e-3", "3e-3"], "seed": ["0", "1"]},
    }
    folder = SweepFolder.start_in(tmp_path / "s", "ppo_cartpole", {RETURN: "max"}, searched, False, target=target)
    for trial in trials_of({"3e-3": [(470, 20_000), (451, 30_000)], "1e-3": [(465, 90_000), (464, 90_000)]}):
        own = folder.add(trial.combination)
        own.status, own.result = trial.status, trial.result
        folder.write(own)
    folder = SweepFolder.open(tmp_path / "s")
    expected = 2 if target is None else 0
    assert folder.target == target
    assert rank_folder(folder).best is folder.trials[expected]
    stream = io.StringIO()
    SweepDisplay(config_from("+experiment=ppo_cartpole"), {}, stream).finish(folder)
    assert stream.getvalue().splitlines()[2].split()[0] == str(expected)
    assert f"best: trial {expected}, " in stream.getvalue()
    best = read_sweep(folder).best
    assert best is not None
    assert best.number == expected
    assert f"  trial    {expected}, finished" in run_main("sweep", "best", str(tmp_path / "s")).out
    judged = TrainedSweep(folder).value_of(Condition.parse(f"{RETURN} >= 450"))
    assert judged.of == f"the best trial, {expected} of 4"
