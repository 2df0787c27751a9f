"""What Optuna proposes, and how successive halving goes on after a restart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.config.paths import search_dirs
from runner.config.sweep import SweepConfig
from runner.sweep.proposals import Proposals, make_proposals
from runner.sweep.space import SearchSpace, read_search_space

TPE = SweepConfig(search="tpe", num_samples=30)


def space_of(*texts: str) -> SearchSpace:
    return read_search_space(texts, search_dirs(None), np.random.default_rng(0))


def test_tpe_finds_the_best_of_every_kind_of_domain() -> None:
    space = space_of("x=tag(log,interval(1e-4,1))", "n=int(interval(1,8))", "c=a,b", "r=range(0,50,5)")
    proposals = make_proposals(space, TPE, "min", 0)
    told = []
    while (proposed := proposals.propose()) is not None:
        value = abs(np.log10(float(proposed["x"])) + 2) + abs(int(proposed["n"]) - 5) + (proposed["c"] == "a")
        value += abs(int(proposed["r"]) - 20) / 5
        proposals.tell(proposed, float(value))
        told.append(value)
    assert len(told) == 30
    assert np.mean(told[15:]) < 0.7 * np.mean(told[:10])


def test_what_an_earlier_start_reached_is_known() -> None:
    space = space_of("x=interval(0,1)")
    earlier = [{"x": float(x)} for x in np.linspace(0, 1, 20)]

    def proposed_after(proposals: Proposals) -> list[float]:
        for one in earlier:
            proposals.tell(one, -abs(one["x"] - 0.9))
        drawn = []
        while (proposed := proposals.propose()) is not None:
            drawn.append(float(proposed["x"]))
        return drawn

    drawn = proposed_after(make_proposals(space, TPE, "max", len(earlier)))
    assert len(drawn) == 10
    assert np.mean(np.abs(np.array(drawn) - 0.9)) < 0.2


@pytest.mark.parametrize("mode", ["max", "min"])
def test_successive_halving_goes_on_where_it_was(mode: str) -> None:
    """Trials that begin later are stopped as if nothing had happened in between."""
    from runner.sweep.schedulers import ResumableASHA
    from runner.sweep.trial_run import OBJECTIVE, RUN, TIME

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
