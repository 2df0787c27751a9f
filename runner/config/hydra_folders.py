"""The folders of runs and sweeps: `hydra.run.dir`, which may be a URL, and `hydra.sweep.dir`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.errors import Problem
from runner.config.overrides import OverrideLine, describe_idle
from runner.config.paths import find_run_url_problem, is_url, local_copy_of

_RUN_DIR, _SWEEP_DIR, _UPLOAD_TO = "hydra.run.dir", "hydra.sweep.dir", "checkpoint.upload_to"
# The other keys of Hydra take effect in sweeps with Hydra's sweepers only.
_HYDRA_KEYS = (_RUN_DIR, _SWEEP_DIR, "hydra.job.name", "hydra.searchpath")
_CLOCK = "${now:"  # Hydra's resolver of the time


@dataclass(frozen=True)
class HydraFolders:
    """The folders of a configuration, as in `Composed`, and their problems."""

    run_dir: str | None
    run_url: str | None
    is_run_dir_named: bool
    sweep_dir: str | None
    problems: Sequence[Problem]


def read_hydra_folders(config: DictConfig, lines: Sequence[OverrideLine], sources: dict[str, str]) -> HydraFolders:
    """Read the folders of a composed configuration.

    Args:
        config: the configuration. If the run dir is a URL, `checkpoint.upload_to` is set, so that the run is uploaded.
        lines: its overrides.
        sources: dotted key -> source of its value.
    """
    run_dir, sweep_dir, run_url = _value(config, _RUN_DIR), _value(config, _SWEEP_DIR), None
    is_named = _CLOCK not in _unresolved_text(config, _RUN_DIR)
    problems = list(_find_unusable(_RUN_DIR, run_dir, lines))
    if run_dir is not None and is_url(run_dir):
        run_url = run_dir.rstrip("/")
        run_dir, is_named = str(local_copy_of(run_url)), True
        problems += _upload_to(config, run_url, _where(_RUN_DIR, lines), sources)
    problems += _find_unusable(_SWEEP_DIR, sweep_dir, lines)
    if sweep_dir is not None and is_url(sweep_dir):
        what = f"{_SWEEP_DIR} is a URL, but a sweep needs a local folder"
        expected = f"{_SWEEP_DIR}=FOLDER; with {_UPLOAD_TO}={sweep_dir} each trial uploads its run dir"
        problems.append(Problem(what, _where(_SWEEP_DIR, lines), sweep_dir, expected))
    return HydraFolders(run_dir, run_url, is_named, sweep_dir, problems)


def find_idle(line: OverrideLine, lines: Sequence[OverrideLine]) -> Problem | None:
    """Return the problem of an override of a key of Hydra that has an effect in Hydra's sweepers only, or None."""
    is_followed = not line.parsed.is_hydra_override() or line.key in _HYDRA_KEYS or _chooses_sweeper(lines)
    return None if is_followed else describe_idle(line, _HYDRA_KEYS)


def _chooses_sweeper(lines: Sequence[OverrideLine]) -> bool:
    return any(line.key == "hydra/sweeper" for line in lines)


def _find_unusable(key: str, value: str | None, lines: Sequence[OverrideLine]) -> Iterator[Problem]:
    """Find a folder that is empty, or that cannot be resolved, except by Hydra's sweepers."""
    if value == "":
        yield Problem(f"{key} is empty", _where(key, lines), '""', "a folder")
    if value is None and not _chooses_sweeper(lines):
        fix = "${hydra.runtime.cwd} instead of ${hydra:runtime.cwd}, for example"
        yield Problem(f"{key} cannot be resolved", _where(key, lines), expected="a folder", fix=fix)


def _upload_to(config: DictConfig, url: str, where: str, sources: dict[str, str]) -> Iterator[Problem]:
    """Set `checkpoint.upload_to` to the store of the URL of a run; yield the problem of the URL instead."""
    given, store = _value(config, _UPLOAD_TO), url.rpartition("/")[0]
    problem = find_run_url_problem(_RUN_DIR, url, where)
    if problem is not None:
        yield problem
    elif given is not None and given.rstrip("/") not in (url, store):
        what = f"{_RUN_DIR} and {_UPLOAD_TO} are two different URLs for the files of the run"
        places = ", ".join(dict.fromkeys([where, sources.get(_UPLOAD_TO, _UPLOAD_TO)]))
        expected = f"{_RUN_DIR}={url} without {_UPLOAD_TO}; or {_RUN_DIR}=FOLDER"
        yield Problem(what, places, f"{url} and {given}", expected)
    elif isinstance(config.get("checkpoint"), DictConfig):  # otherwise it is reported as a mistake
        OmegaConf.update(config, _UPLOAD_TO, store, force_add=True)
        sources[_UPLOAD_TO] = where


def _where(key: str, lines: Sequence[OverrideLine]) -> str:
    return next((line.where for line in reversed(lines) if line.key == key), key)


def _unresolved_text(config: DictConfig, key: str) -> str:
    block, _, name = key.rpartition(".")
    return str(OmegaConf.to_container(OmegaConf.select(config, block), resolve=False).get(name))  # type: ignore[union-attr]


def _value(config: DictConfig, key: str) -> str | None:
    """Return a value as text; None if it is null or cannot be resolved."""
    try:
        value = OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return None
    return None if value is None else str(value)
