"""The order of the trials of a sweep: the one definition of its best combination and of its best trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.sweep.statistics import Estimate, SeedGroup, group_by_combination, interquartile_mean
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.headline import ENV_STEPS, count_text
from runner.tracking.plain_values import finite_number

_Key = tuple[bool, float, float, int]  # smaller is better


@dataclass(frozen=True)
class Ranking:
    """The trials of a sweep, best first.

    Combinations are ranked by the inter-quartile mean of the first objective over their seeds. A combination with one
    trial is ranked by its value. Values at or above the target count as the target, because such trials stopped
    there. Equal combinations are ranked by the env steps that they needed, then by their numbers. Within a
    combination, trials are ranked by the same rule.

    Attributes:
        groups: the trials of each combination, the best combination first; combinations without a value last.
        trials: all trials, in the order of `groups`.
        reason: why the first trial is the best one; "" while no trial has a value.
    """

    groups: list[SeedGroup]
    trials: list[Trial]
    metric: str
    reason: str

    @property
    def best(self) -> Trial | None:
        """The best trial; None while no trial has a value."""
        return self.trials[0] if self.reason else None

    def estimates(self) -> list[tuple[SeedGroup, Estimate]]:
        """Return each combination with the estimate of the first objective over its seeds, best first."""
        return [(group, group.estimate(self.metric)) for group in self.groups]


def rank(trials: Sequence[Trial], objectives: Mapping[str, str], target: float | None = None) -> Ranking:
    """Rank trials by the first of the objectives.

    Args:
        trials: of one sweep.
        objectives: metric -> `max` or `min`.
        target: value of the first objective at which trials stop, if it is a stop criterion.
    """
    metric, mode = next(iter(objectives.items()))
    target = target if mode == "max" else None

    def key(of: Sequence[Trial]) -> _Key:
        values = [value for trial in of if (value := finite_number(trial.result.get(metric))) is not None]
        if not values:
            return True, 0.0, 0.0, of[0].number
        counted = values if target is None else [min(value, target) for value in values]
        steps = [float(trial.result.get(ENV_STEPS) or 0) for trial in of]
        sign = -1.0 if mode == "max" else 1.0
        return False, sign * interquartile_mean(counted), interquartile_mean(steps), of[0].number

    groups = sorted(group_by_combination(trials), key=lambda group: key(group.trials))
    ranked = [trial for group in groups for trial in sorted(group.trials, key=lambda trial: key([trial]))]
    reason = _reason(groups[0], metric, mode, target) if groups and not key(groups[0].trials)[0] else ""
    return Ranking(groups, ranked, metric, reason)


def rank_folder(folder: SweepFolder) -> Ranking:
    """Rank the trials of a sweep's folder."""
    return rank(folder.trials, folder.objectives, folder.target)


def _reason(best: SeedGroup, metric: str, mode: str, target: float | None) -> str:
    """Describe why a combination is the best one, and how its first trial was chosen."""
    values = [value for trial in best.trials if (value := finite_number(trial.result.get(metric))) is not None]
    seeds = f" (inter-quartile mean of {len(values)} seeds)" if len(values) > 1 else ""
    if target is not None and interquartile_mean([min(value, target) for value in values]) >= target:
        steps = interquartile_mean([float(trial.result.get(ENV_STEPS) or 0) for trial in best.trials])
        return f"reached {metric} {target:g} in the fewest env steps: {count_text(steps)}{seeds}"
    best_is = "highest" if mode == "max" else "lowest"
    return f"{best_is} {metric}: {interquartile_mean(values):.6g}{seeds}"
