"""Where Tune gets its trials from: first trials that go on from an earlier start, then new combinations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ray.tune.search import Searcher

from runner.interrupts import reason_to_end
from runner.sweep.proposals import Proposals
from runner.sweep.space import Combination, SearchSpace, combination_key, without_seed
from runner.sweep.trial_settings import OBJECTIVE
from runner.sweep.trials import SweepFolder, Trial, unfinished
from runner.tracking.plain_values import finite_number

_MOST_TRIES = 50  # to come upon a combination that is not known


class TrialSource(Searcher):
    """Suggests trials to Tune.

    Args:
        space: what is searched.
        folder: of the sweep, with its trials so far.
        proposals: combinations to try, and where their results go.
        num_samples: combinations to try, earlier starts included; None: all that are proposed.
        metric: that trials are judged by.
        to_config: a trial's configuration for Tune.

    Attributes:
        by_trial_id: the trials that were suggested, by Tune's id.
        is_exhausted: there are no further ones.
    """

    def __init__(
        self,
        space: SearchSpace,
        folder: SweepFolder,
        proposals: Proposals,
        num_samples: int | None,
        metric: str,
        to_config: Callable[[Trial], dict[str, Any]],
    ) -> None:
        super().__init__(metric=OBJECTIVE, mode="max")  # Tune wants them; `proposals` knows which is better
        self._objective = metric
        self._space = space
        self._folder = folder
        self._proposals = proposals
        self._to_config = to_config
        self._going_on: Iterator[Trial] = iter(unfinished(folder.trials))
        self._known = {combination_key(trial.combination) for trial in folder.trials}
        begun = (without_seed(trial.combination) for trial in folder.trials)
        combinations = {combination_key(combination): combination for combination in begun}.values()
        self._seeds_left = itertools.chain.from_iterable(map(space.with_seeds, combinations))
        self._num_left = None if num_samples is None else max(0, num_samples - len(combinations))
        self.by_trial_id: dict[str, Trial] = {}
        self.is_exhausted = False
        self._ended = {trial.number for trial in folder.trials if trial.is_over}
        for trial in folder.trials:
            if trial.is_over:
                self._tell(trial)

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial; Tune's FINISHED when there is none.

        While others run it is None instead: after FINISHED Tune would give up processes that paused trials need again.
        """
        if reason_to_end() is not None:
            return str(Searcher.FINISHED)
        trial = self._next()
        if trial is None:
            self.is_exhausted = True
            is_over = all(trial.status not in ("waiting", "running") for trial in self.by_trial_id.values())
            return str(Searcher.FINISHED) if is_over else None
        trial.status = "waiting"
        self.by_trial_id[trial_id] = trial
        return self._to_config(trial)

    def _next(self) -> Trial | None:
        trial = next(self._going_on, None)
        while trial is None:
            combination = next(self._seeds_left, None)
            if combination is None:
                proposed = self._propose()
                if proposed is None:
                    return None
                self._seeds_left = itertools.chain(self._space.with_seeds(proposed))
            elif combination_key(combination) not in self._known:
                self._known.add(combination_key(combination))
                trial = self._folder.add(combination)
        return trial

    def _propose(self) -> Combination | None:
        """Return the next combination that is not known."""
        if self._num_left == 0:
            return None
        tries = (self._proposals.propose() for _ in range(_MOST_TRIES))
        rest = self._space.grid() if self._space.num_combinations is not None else ()  # a search may insist on one
        for proposed in itertools.chain(tries, rest):
            if proposed is None:
                return None
            if not any(combination_key(seeded) in self._known for seeded in self._space.with_seeds(proposed)):
                self._num_left = None if self._num_left is None else self._num_left - 1
                return proposed
        return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Judge the combination once all its seeds have run."""
        trial = self.by_trial_id.get(trial_id)
        if trial is not None and not error and reason_to_end() is None:
            self._ended.add(trial.number)
            self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        combination = without_seed(trial.combination)
        seeds = [trial for trial in self._folder.trials if without_seed(trial.combination) == combination]
        values = [finite_number(trial.result.get(self._objective)) for trial in seeds if trial.number in self._ended]
        numbers = [value for value in values if value is not None]
        if len(numbers) == max(1, len(self._space.seeds)):
            self._proposals.tell(combination, sum(numbers) / len(numbers))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing: proposals go by trials that have ended."""

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it is given, for a restore that is never asked for."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Write the file that Tune wants; everything is in the sweep's folder."""
        with open(checkpoint_path, "w"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""
