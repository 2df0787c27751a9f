"""The checkpoints of a run: names, retention, the choice when a run resumes, and sources of initial weights."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.checkpoints.checkpoint import MANIFEST, load_checkpoint, read_manifest, save_checkpoint
from runner.checkpoints.files import CheckpointError
from runner.config.blocks import CheckpointConfig
from runner.config.errors import ConfigError, Problem, UserError
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.paths import check_folder
from runner.config.schemas import ExperimentConfig
from runner.segments import find_segments

_log = logging.getLogger(__name__)

# A message names runs below a folder; runs of a sweep are in outputs/EXPERIMENT/DATE/TIME/NUMBER.
_MOST_RUNS, _DEEPEST_RUN, _MOST_FOLDERS = 5, 4, 5000


class CheckpointFolder:
    """Manages `<run dir>/checkpoints/iteration_000010` etc.: keeps the newest `keep_last` and the best `keep_best`.

    Args:
        run_dir: folder of the run.
        config: the `checkpoint` block.
        is_held: returns whether a checkpoint is being read, and must not be deleted now.
    """

    def __init__(
        self, run_dir: Path, config: CheckpointConfig, is_held: Callable[[Path], bool] = lambda checkpoint: False
    ) -> None:
        self.path = run_dir / "checkpoints"
        self._config = config
        self._is_held = is_held

    def save(self, state: Mapping[str, Any], manifest: Mapping[str, Any], result: Mapping[str, Any]) -> Path:
        """Write the checkpoint of the iteration that `result` reports; then delete checkpoints that are not kept.

        Checkpoints of later iterations are also deleted: the run has been resumed from an older one.
        """
        folder = self.path / f"iteration_{result['training_iteration']:06d}"
        save_checkpoint(folder, state, {**manifest, "result": dict(result)})
        self.drop_after(iteration_of(folder))
        self.prune()
        return folder

    def prune(self) -> None:
        """Delete checkpoints that are not kept and not being read, and leftovers of processes that were killed."""
        for leftover in self.path.glob(".iteration_*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        folders = list_checkpoints(self.path)  # empty if the run dir was moved meanwhile
        kept = {*folders[-self._config.keep_last :], *self.best(self._config.keep_best)}
        for folder in folders:
            if folder not in kept and not self._is_held(folder):
                _remove(folder)

    def drop_after(self, iteration: int) -> bool:
        """Delete checkpoints of later iterations, and return whether there were any."""
        later = [folder for folder in list_checkpoints(self.path) if iteration_of(folder) > iteration]
        for folder in later:
            _remove(folder)
        return bool(later)

    def best(self, count: int = 1) -> list[Path]:
        """Return the best checkpoints by `checkpoint.metric`, best first; skip checkpoints without the metric."""
        sign = 1 if self._config.mode == "max" else -1
        scored = []
        for folder in list_checkpoints(self.path):
            try:
                value = read_manifest(folder)["result"].get(self._config.metric)
            except CheckpointError as error:  # must not end a healthy run; loading the checkpoint reports it
                _log.warning("%s", error)
                continue
            if value is not None and not math.isnan(value):
                scored.append((sign * value, folder))
        return [folder for _, folder in sorted(scored, reverse=True)[:count]]


def check_intact(checkpoint: Path) -> None:
    """Check all files of a checkpoint; the content of segments is checked when they are read.

    Raises:
        CheckpointError: the checkpoint is truncated or altered; names the newest older intact one.
    """
    with naming_older(checkpoint):
        load_checkpoint(checkpoint)


@contextmanager
def naming_older(checkpoint: Path) -> Iterator[None]:
    """Add the newest older intact checkpoint, as the fix, to a `CheckpointError` about a checkpoint."""
    try:
        yield
    except CheckpointError as error:
        older = [
            folder for folder in list_checkpoints(checkpoint.parent) if iteration_of(folder) < iteration_of(checkpoint)
        ]
        intact = next((folder for folder in reversed(older) if _is_intact(folder)), None)
        fix = "start a new run: none of its older checkpoints is intact"
        if intact is not None:
            fix = f"use this older checkpoint:\n{intact}"
        raise CheckpointError(replace(error.problem, fix=error.problem.fix or fix)) from error


def _is_intact(checkpoint: Path) -> bool:
    try:
        state, _ = load_checkpoint(checkpoint)
        for segment in find_segments(state):
            segment.values()
    except CheckpointError:
        return False
    return True


def list_checkpoints(path: Path) -> list[Path]:
    """List the complete checkpoints in a folder, oldest first."""
    return sorted((manifest.parent for manifest in path.glob(f"iteration_*/{MANIFEST}")), key=iteration_of)


def iteration_of(folder: Path) -> int:
    """Return the number in the name of a checkpoint, or -1."""
    number = folder.name.removeprefix("iteration_")
    return int(number) if number.isdigit() else -1


def _remove(folder: Path) -> None:
    """Delete a checkpoint; a kill in the middle leaves nothing that looks complete."""
    hidden = folder.with_name(f".{folder.name}.removed.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def newest_checkpoint(path: Path) -> Path:
    """Find the checkpoint for a command-line argument: a checkpoint, or a run, whose newest checkpoint is used.

    Raises:
        UserError: there is no checkpoint, or it may not be read.
    """
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        raise UserError(Problem("no permission to read this folder", str(path)))
    if is_checkpoint_path(path):
        return path
    check_folder(path, "the run dir of a run, or one of its checkpoints")
    folders = list_checkpoints(path / "checkpoints")
    if not folders:
        expected = "a run that has written one; it does so every checkpoint.every_iterations and at its end"
        problem = Problem("the folder does not contain a checkpoint", str(path), expected=expected)
        raise UserError(replace(problem, fix=_other_runs(path)))
    return folders[-1]


def _other_runs(path: Path) -> str | None:
    """Name runs to use instead of a folder without a checkpoint: runs below it, or the newest one of `outputs`."""
    if below := _runs_below(path):
        return "\n".join(["use one of these runs (newest first):", *map(str, below)])
    outputs = next((parent for parent in path.parents if parent.name == "outputs"), None)
    others = [] if outputs is None else _runs_below(outputs)
    return f"use the newest run with a checkpoint:\n{others[0]}" if others else None


def _runs_below(path: Path) -> list[Path]:
    """Return the newest runs with a checkpoint below a folder, newest first; a large tree is searched incompletely."""
    newest: dict[Path, float] = {}
    folders = deque([(path, 0)])
    for _ in range(_MOST_FOLDERS):
        if not folders:
            break
        folder, depth = folders.popleft()
        checkpoints = list_checkpoints(folder / "checkpoints")
        if checkpoints:
            newest[folder] = (checkpoints[-1] / MANIFEST).stat().st_mtime
        elif depth < _DEEPEST_RUN:
            folders += [(below, depth + 1) for below in _visible_folders(folder)]
    return sorted(newest, key=lambda run: newest[run], reverse=True)[:_MOST_RUNS]


def _visible_folders(path: Path) -> list[Path]:
    try:
        return [Path(entry) for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:  # it was deleted, or may not be read
        return []


def is_checkpoint_path(path: Path) -> bool:
    """Return whether a command-line argument is the path of a checkpoint, not of a run."""
    return os.path.exists(path / MANIFEST) or path.name.startswith("iteration_")


_FIELD = "load_state_path"


@dataclass(frozen=True)
class ModuleSource:
    """A checkpoint, and the digest of its manifest (64 hexadecimal digits), which covers all files."""

    checkpoint: Path
    digest: str


def module_sources(
    config: ExperimentConfig, where: Callable[[str], str | None] = lambda key: key
) -> dict[str, ModuleSource]:
    """Find the checkpoint for each `load_state_path` of the module blocks.

    Args:
        config: configuration of a new run; a resumed run already has its parameters.
        where: returns the source of the value of a dotted key, for messages.

    Returns:
        Path in the configuration -> its checkpoint.

    Raises:
        ConfigError: folders do not contain a checkpoint; names all of them.
        CheckpointError: a manifest is truncated or altered.
    """
    sources: dict[str, ModuleSource] = {}
    problems: list[Problem] = []
    for key, path in _paths(config):
        try:
            sources[path] = _open_source(path)
        except UserError as error:
            problem = error.problem
            problems.append(replace(problem, what=f"{key}: {problem.what}", where=where(key) or key, got=path))
    if problems:
        raise ConfigError(problems)
    return sources


def _paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    if config.module.load_state_path is not None:
        yield f"module.{_FIELD}", config.module.load_state_path
    for module_id, fields in config.multi_agent.modules.items():
        if fields.get(_FIELD) is not None:
            yield f"multi_agent.modules.{module_id}.{_FIELD}", str(fields[_FIELD])


def _open_source(path: str) -> ModuleSource:
    checkpoint = newest_checkpoint(Path(path).expanduser().absolute())
    return ModuleSource(checkpoint, read_manifest(checkpoint)["digest"])


def shared_state_in(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return module id -> merged state of connectors that env runners share.

    Raises:
        KeyError: the state has neither env runners nor recorded data.
    """
    source = ENV_RUNNERS if ENV_RUNNERS in state else RECORDED_DATA
    shared: Mapping[str, Any] = state[source]["shared"]
    return shared
