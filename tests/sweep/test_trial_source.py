"""What Optuna proposes, which trials follow from it, and how successive halving goes on after a restart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.config.paths import search_dirs
from runner.config.sweep import SweepConfig
from runner.sweep.space import Combination, SearchSpace, combination_key, read_search_space, without_seed
from runner.sweep.trial_source import Proposals, TrialSource, make_proposals
from runner.sweep.trials import SweepFolder, Trial

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray Tune warns about its own future

TPE = SweepConfig(search="tpe", num_samples=30)


def space_of(*texts: str) -> SearchSpace:
    return read_search_space(texts, search_dirs(None), np.random.default_rng(0))


def test_tpe_finds_the_best_of_every_kind_of_domain() -> None:
    space = space_of("x=tag(log,interval(1e-4,1))", "n=int(interval(1,8))", "c=a,b", "r=range(0,50,5)")
    early, late = [], []
    for seed in range(5):
        proposals = make_proposals(space, replace(TPE, seed=seed), "min", 0)
        told = []
        for _ in range(30):
            proposed = proposals.propose()
            assert proposed is not None
            value = abs(np.log10(float(proposed["x"])) + 2) + abs(int(proposed["n"]) - 5) + (proposed["c"] == "a")
            value += abs(int(proposed["r"]) - 20) / 5
            proposals.tell(proposed, float(value))
            told.append(value)
        early += told[:10]
        late += told[15:]
    assert np.mean(late) < 0.7 * np.mean(early)


def test_what_an_earlier_start_reached_is_known() -> None:
    space = space_of("x=interval(0,1)")
    earlier = [{"x": float(x)} for x in np.linspace(0, 1, 20)]

    def proposed_after(proposals: Proposals) -> list[float]:
        for one in earlier:
            proposals.tell(one, -abs(one["x"] - 0.9))
        proposed = (proposals.propose() for _ in range(10))
        return [float(one["x"]) for one in proposed if one is not None]

    drawn = proposed_after(make_proposals(space, TPE, "max", len(earlier)))
    assert len(drawn) == 10
    assert np.mean(np.abs(np.array(drawn) - 0.9)) < 0.2


@pytest.mark.parametrize("mode", ["max", "min"])
def test_successive_halving_goes_on_where_it_was(mode: str) -> None:
    """Trials that begin later are stopped as if nothing had happened in between."""
    from runner.sweep.schedulers import ResumableASHA
    from runner.sweep.trial_settings import OBJECTIVE, RUN, TIME

    sign = 1.0 if mode == "max" else -1.0
    values = {0: 3.0, 1: 2.0, 2: 1.0, 3: 0.0}

    def trial_of(number: int) -> Any:
        return SimpleNamespace(trial_id=str(number), config={RUN: SimpleNamespace(number=number)})

    def decision(scheduler: ResumableASHA, number: int, time: int) -> str:
        return str(scheduler.on_trial_result(None, trial_of(number), {OBJECTIVE: sign * values[number], TIME: time}))

    straight = ResumableASHA({}, mode, 16, 1, 4)
    for number in values:
        straight.on_trial_add(None, trial_of(number))
    decisions = [decision(straight, number, time) for time in (1, 4) for number in values]
    reports = {number: [{OBJECTIVE: sign * values[number], TIME: 1}] for number in (0, 1)}
    resumed = ResumableASHA(reports, mode, 16, 1, 4)
    for number in values:
        resumed.on_trial_add(None, trial_of(number))
    assert [decision(resumed, number, 1) for number in (2, 3)] == decisions[2:4] == ["STOP", "STOP"]
    assert [decision(resumed, number, 4) for number in values] == decisions[4:]
    recorded = [sorted(rung) for _, rung in resumed._brackets[0]._rungs]
    assert recorded == [sorted(rung) for _, rung in straight._brackets[0]._rungs]
    killed = ResumableASHA(reports, mode, 16, 1, 4)
    for number in (0, 1):
        killed.on_trial_add(None, trial_of(number))
    assert decisions[:2] == ["CONTINUE", "STOP"]
    assert [decision(killed, number, 2) for number in (0, 1)] == ["CONTINUE", "STOP"], "the stop was not recorded"


class Source:
    """A trial source in front of a folder, without Tune: each trial reaches the value that the test says."""

    def __init__(self, folder: SweepFolder, space: SearchSpace, config: SweepConfig) -> None:
        num_known = len({combination_key(without_seed(trial.combination)) for trial in folder.trials})
        self.proposals = make_proposals(space, config, "max", num_known)
        self.told: list[tuple[Combination, float]] = []
        tell = self.proposals.tell

        def noted(combination: Combination, value: float) -> None:
            self.told.append((combination, value))
            tell(combination, value)

        self.proposals.tell = noted  # type: ignore[method-assign]
        self.source = TrialSource(space, folder, self.proposals, config.num_samples, "m", lambda _: {})
        self.folder = folder

    def begin(self) -> Trial | None:
        suggested = self.source.suggest(str(len(self.source.by_trial_id)))
        return None if not isinstance(suggested, dict) else list(self.source.by_trial_id.values())[-1]

    def end(self, trial: Trial, value: float) -> None:
        trial.result = {"m": value}
        trial_id = next(name for name, own in self.source.by_trial_id.items() if own is trial)
        self.source.on_trial_complete(trial_id)
        trial.status = "finished"
        self.folder.write(trial)


def start_in(path: Path, space: SearchSpace) -> SweepFolder:
    return SweepFolder.start_in(path, "e", {"m": "max"}, space.to_dict(), may_change=True)


@pytest.mark.parametrize("search", ["tpe", "random"])
def test_a_search_that_was_killed_has_all_its_samples_in_the_end(tmp_path: Path, search: str) -> None:
    space = space_of("x=range(12)", "y=a,b")
    config = SweepConfig(search=search, num_samples=12)
    for num_ended in (4, 12):
        source = Source(start_in(tmp_path, space), space, config)
        while len(source.folder.trials) < num_ended + 2 and (trial := source.begin()) is not None:
            if trial.number < num_ended:
                source.end(trial, float(trial.number))
    trials = SweepFolder.open(tmp_path).trials
    assert [trial.number for trial in trials] == list(range(12))
    assert len({combination_key(trial.combination) for trial in trials}) == 12
    assert {trial.status for trial in trials} == {"finished"}


def test_a_random_search_continues_after_any_number_of_trials(tmp_path: Path) -> None:
    """It draws the combinations of the earlier start again, and then those that would have followed."""
    space = space_of("x=interval(0,1)")
    for num_samples in (60, 62):
        source = Source(start_in(tmp_path, space), space, SweepConfig(search="random", num_samples=num_samples))
        while (trial := source.begin()) is not None:
            source.end(trial, 0.0)
    drawn = itertools.islice(space.samples(np.random.default_rng(0)), 62)
    assert [trial.combination for trial in SweepFolder.open(tmp_path).trials] == list(drawn)


def test_a_combination_is_told_once_when_all_its_seeds_are_over(tmp_path: Path) -> None:
    space = space_of("x=interval(0,1)", "seed=1,2")
    source = Source(start_in(tmp_path, space), space, SweepConfig(search="tpe", num_samples=1))
    first, second = source.begin(), source.begin()
    assert first is not None
    assert second is not None
    assert source.begin() is None
    second.result = {"m": 1.0}  # it is still running
    source.end(first, 10.0)
    assert source.told == []
    source.end(second, 20.0)
    assert [value for _, value in source.told] == [15.0]


def test_a_trial_is_written_down_before_it_runs(tmp_path: Path) -> None:
    space = space_of("x=1,2,3")
    source = Source(start_in(tmp_path, space), space, SweepConfig())
    assert [source.begin().number for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    again = start_in(tmp_path, space)  # after a kill, before any of them had begun
    assert [trial.status for trial in again.trials] == ["waiting"] * 3
    assert again.add({"x": "9"}).number == 3


def test_what_the_search_space_has_lost_is_not_told(tmp_path: Path) -> None:
    before, now = space_of("x=interval(0,1)", "c=a,b"), space_of("x=interval(0,0.5)", "c=a,b", "n=1,2")
    source = Source(start_in(tmp_path, before), before, SweepConfig(search="tpe", num_samples=2))
    for value in (1.0, 2.0):
        trial = source.begin()
        assert trial is not None
        source.end(trial, value)
    extended = Source(start_in(tmp_path, now), now, SweepConfig(search="tpe", num_samples=3))
    trial = extended.begin()
    assert trial is not None
    assert "n" in trial.combination
