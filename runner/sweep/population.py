"""Population-based training on disk: trials that lag behind go on from the state of the best ones."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.checkpoints import read_manifest
from runner.checkpoints.errors import CheckpointError
from runner.checkpoints.folder import list_checkpoints
from runner.config.documents import parse_json
from runner.config.errors import Problem, UserError
from runner.config.signatures import foreign_reason, signed
from runner.sweep.space import SEED, Combination, SearchSpace
from runner.sweep.trial_settings import TrialSettings, clone_folder
from runner.sweep.trials import SweepFolder, Trial, unfinished
from runner.tracking import write_result

_log = logging.getLogger(__name__)

_MUTATION_FILE, _MUTATION_KIND = "mutation.json", "staged mutation"
Tell = Callable[[Trial, Mapping[str, Any]], None]


class Population:
    """What becomes of the trials of a population: on disk, in the sweep's folder, and for whoever wants to know.

    Args:
        space: what is searched; its `mutable` keys change.
        folder: of the sweep.
        time_attr: the metric that time is counted in.
        tell: called with each trial that has changed and its row of `mutations.jsonl`.
    """

    def __init__(self, space: SearchSpace, folder: SweepFolder, time_attr: str, tell: Tell) -> None:
        self._time_attr = time_attr
        self._space = space
        self.domains = {domain.key: domain for domain in space.mutable}
        self._folder = folder
        self._tell = tell

    def take_over(
        self, settings: TrialSettings, donor: TrialSettings, mutated: Combination, until: float
    ) -> TrialSettings:
        """Return what a trial goes on with: the state of the donor, its values, the `mutated` ones and its own seed.

        Args:
            settings: of the trial.
            donor: the trial that it goes on from; where it has no checkpoint, the trial goes on as it is.
            mutated: values that the donor has not.
            until: the donor's state is its newest one up to here, in `sweep.time_attr`.
        """
        values = {**donor.values, **mutated}
        if SEED in settings.values:
            values[SEED] = settings.values[SEED]
        run_dir = Path(settings.run_dir)
        manifest = self._stage_clone(Path(donor.run_dir), run_dir, until)
        if manifest is None:
            _log.warning("trial %d goes on as it is: trial %d has no checkpoint", settings.number, donor.number)
            return settings
        result = manifest["result"]
        at = {"num_env_steps": result["num_env_steps_sampled_lifetime"], "iteration": result["training_iteration"]}
        mutation = signed({"donor": donor.number, "values": dict(values), "at": at}, _MUTATION_KIND)
        write_result(_staged(run_dir) / _MUTATION_FILE, mutation)
        shutil.rmtree(clone_folder(run_dir), ignore_errors=True)
        _staged(run_dir).rename(clone_folder(run_dir))  # from now on the trial goes on from it, also after a kill
        self._record(self._folder.trial(settings.number))
        return replace(settings, values=values)

    def recover(self) -> None:
        """Record what was taken over right before a kill."""
        for trial in unfinished(self._folder.trials):
            self._record(trial)

    def _record(self, trial: Trial) -> None:
        file = clone_folder(self._folder.run_dir(trial)) / _MUTATION_FILE
        mutation = self._read_mutation(file) if file.exists() else {}
        if mutation and mutation["values"] != trial.values:
            row = self._folder.mutate(trial, mutation["donor"], mutation["values"], mutation["at"])
            self._tell(trial, row)

    def _read_mutation(self, file: Path) -> dict[str, Any]:
        """Return what a process that was killed has written; of somebody else, only values that are searched.

        Raises:
            UserError: it is damaged, or has other values.
        """
        try:
            mutation = parse_json(file.read_bytes())
            is_foreign = not self._folder.is_trusted and foreign_reason(mutation, _MUTATION_KIND) is not None
            odd = [key for key, value in mutation["values"].items() if is_foreign and not self._space.holds(key, value)]
            mutation["donor"], mutation["at"]["num_env_steps"], mutation["at"]["iteration"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(Problem(f"this is no mutation: {error!s:.200}", str(file)).render_alone()) from error
        if odd:
            what = "a mutation of somebody else sets what this sweep does not search"
            raise UserError(Problem(what, str(file), ", ".join(odd), "--trust").render_alone())
        return dict(mutation)

    def _stage_clone(self, donor_dir: Path, run_dir: Path, until: float) -> dict[str, Any] | None:
        """Copy the donor's checkpoint beside the trial's own ones; its manifest."""
        staged = _staged(run_dir)
        for _ in range(3):  # the donor trains on and drops old checkpoints meanwhile
            with suppress(FileNotFoundError, shutil.Error, CheckpointError):
                manifests = {path: read_manifest(path) for path in list_checkpoints(donor_dir / "checkpoints")}
                in_time = [path for path, read in manifests.items() if read["result"].get(self._time_attr, 0) <= until]
                chosen = in_time[-1] if in_time else next(iter(manifests), None)
                if chosen is None:
                    break
                shutil.rmtree(staged, ignore_errors=True)
                shutil.copytree(chosen, staged / chosen.name)
                return manifests[chosen]
        return None


def _staged(run_dir: Path) -> Path:
    return run_dir / ".clone.tmp"
