"""What Tune's schedulers keep about their trials; a failure here means that Tune has changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from runner.compat.libraries import LibraryChangedError
from runner.compat.ray_tune import ChosenTakeovers, rename_in_rungs


def test_a_trial_takes_the_place_of_another_in_the_rungs() -> None:
    def scheduler() -> AsyncHyperBandScheduler:
        made = AsyncHyperBandScheduler("t", "score", "max", max_t=9, grace_period=1, reduction_factor=3)
        for name, score in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
            trial: Any = SimpleNamespace(trial_id=name)
            made.on_trial_add(None, trial)  # type: ignore[arg-type]
            made.on_trial_result(None, trial, {"t": 1, "score": score})  # type: ignore[arg-type]
        return made

    def decision(made: AsyncHyperBandScheduler, name: str) -> str:
        trial: Any = SimpleNamespace(trial_id=name)
        made.on_trial_add(None, trial)  # type: ignore[arg-type]
        return made.on_trial_result(None, trial, {"t": 1, "score": 0.0})  # type: ignore[arg-type]

    assert decision(scheduler(), "first again") == TrialScheduler.STOP  # a new trial, and the worst
    renamed = scheduler()
    rename_in_rungs(renamed, "first", "first again")
    assert decision(renamed, "first again") == TrialScheduler.CONTINUE  # it has passed this rung
    with pytest.raises(LibraryChangedError, match="_brackets"):
        rename_in_rungs(SimpleNamespace(), "first", "first again")  # type: ignore[arg-type]


class _Doubled(ChosenTakeovers):
    def take_over(self, trial: Any, donor: Any, proposed: Mapping[str, Any], until: float) -> dict[str, Any]:
        return {"lr": 2 * donor.config["lr"], "until": until}


class _PBT(_Doubled, PopulationBasedTraining):
    pass


class _PB2(_Doubled, PB2):
    pass


@pytest.mark.parametrize(
    ("kind", "space"),
    [(_PBT, {"hyperparam_mutations": {"lr": [1.0, 2.0, 4.0]}}), (_PB2, {"hyperparam_bounds": {"lr": [0.5, 8.0]}})],
    ids=["pbt", "pb2"],
)
@pytest.mark.filterwarnings("ignore")  # of the Gaussian process of PB2
def test_the_values_of_a_takeover_are_chosen(kind: Any, space: dict[str, Any]) -> None:
    made = kind(time_attr="t", metric="score", mode="max", perturbation_interval=2, log_config=False, **space)
    trial, donor = (Trial("trained", config={"lr": lr}, stub=True) for lr in (1.0, 4.0))
    for one in (trial, donor):
        made.on_trial_add(SimpleNamespace(search_alg=object()), one)  # with a searcher, which Tune itself rejects
    made.restore_reports(donor, [{"t": t, "score": float(t), "training_iteration": t} for t in (1, 2, 3, 4)], "t")
    assert made._get_new_config(trial, donor)[0] == {"lr": 8.0, "until": 4}
    assert made._next_perturbation_sync == 6
