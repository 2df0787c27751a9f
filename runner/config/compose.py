"""Composition of YAML files and overrides into plain values, their sources, and all problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.default_element import ResultDefault
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.compat.hydra_loader import make_loader
from runner.config.algorithms import AlgorithmConfig
from runner.config.composed import DEFAULT_SOURCE, Composed, leaf_values
from runner.config.composition_rules import COMPOSITION_RULES, add_defaults, rename_all, rename_in_line
from runner.config.defaults import core_groups, module_of, register_defaults
from runner.config.documents import TooLargeError
from runner.config.env_defaults import connectors_of, env_defaults_of
from runner.config.env_ids import option_at
from runner.config.errors import Problem
from runner.config.hydra_errors import Cause, describe_composition_error, find_request
from runner.config.hydra_folders import find_idle, read_hydra_folders
from runner.config.list_patches import MODULE_ALGORITHM
from runner.config.overrides import OverrideLine, describe_sweep, find_unknown_option, parse_overrides, renaming_notes
from runner.config.path_fields import absolute_paths
from runner.config.paths import conf_dir, display_path, find_config, search_dirs
from runner.config.provenance import Provenance
from runner.config.renamed_keys import find_double_keys, old_key_in
from runner.config.resolvers import find_references, register_value_resolvers, resolve_values, unresolved_values
from runner.config.yaml_files import YAMLError, locate_keys

# Digest of the search space in the name of a sweep's folder.
SWEEP_DIGEST: ContextVar[str] = ContextVar("sweep_digest", default="sweep")


def compose_experiment(overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """Compose `conf/`, the user's `config_dir` and the overrides; problems are collected, not raised.

    Raises `UserError` only if `config_dir` is not a folder. Hydra's global state is not used.
    """
    prepare_hydra(config_dir)
    return _Composition(overrides, config_dir).compose()


def prepare_hydra(config_dir: Path | None) -> None:
    """Register the defaults and resolvers that `conf/config.yaml` refers to."""
    dirs = search_dirs(config_dir)
    register_defaults()
    OmegaConf.register_new_resolver("first_given", _first_given, replace=True)
    for chooses in (module_of, env_defaults_of, connectors_of):
        OmegaConf.register_new_resolver(chooses.__name__, partial(chooses, dirs=dirs), replace=True)
    OmegaConf.register_new_resolver("sweep_digest", _sweep_digest, replace=True)
    register_value_resolvers()
    setup_globals()


def write_composed(composed: Composed, folder: Path) -> None:
    """Write the unresolved values and the overrides as `config.yaml` and `overrides.yaml`, as Hydra does."""
    folder.mkdir(exist_ok=True)
    OmegaConf.save(OmegaConf.create(dict(composed.unresolved)), folder / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(composed.overrides)), folder / "overrides.yaml")


def _first_given(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _sweep_digest() -> str:
    """Return the digest. A named function, because launchers of Hydra pickle resolvers."""
    return SWEEP_DIGEST.get()


# `RecursionError`: files whose `defaults` form a loop.
_COMPOSITION_ERRORS = HydraException, OmegaConfBaseException, YAMLError, RecursionError, TypeError, ValueError, OSError


class _Composition:
    """One composition, which is repeated without the cause of each error until it succeeds."""

    def __init__(self, overrides: Sequence[str], config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self.dirs = search_dirs(config_dir)
        self.lines, self.problems = parse_overrides(overrides, self.dirs)
        self.texts = tuple(line.text for line in self.lines)
        self.unread: set[str] = set()
        self.fallbacks: list[str] = []
        self.provenance = Provenance()
        self.problems += _find_shadowed_files(self.dirs)
        self._leave_out_unusable()

    def compose(self) -> Composed:
        config = self._load_until_composed()
        if config is None:
            unread = frozenset({*core_groups(), "experiment"})
            return Composed({}, {}, self.texts, None, tuple(self.problems), unread, self.config_dir)
        experiment = self._chosen_experiment(config)
        add_defaults(config)  # of keys that an override removes, and of modules that it adds
        folders = read_hydra_folders(config, self.lines, self.provenance.sources)
        self.problems += folders.problems
        with open_dict(config):
            del config["hydra"]
        rename_all(config)
        unresolved = absolute_paths(unresolved_values(config))
        values = absolute_paths(self._resolve(config))
        self._check_experiment_header(values)
        stop = values.get("stop")
        if isinstance(stop, dict):
            unresolved["stop"] = values["stop"] = self.provenance.flatten_stop(stop)
        return Composed(
            values,
            dict.fromkeys(leaf_values(values), DEFAULT_SOURCE) | self.provenance.sources,
            self.texts,
            experiment,
            tuple(self.problems),
            frozenset(self.unread),
            self.config_dir,
            unresolved=unresolved,
            run_dir=folders.run_dir,
            run_url=folders.run_url,
            is_run_dir_named=folders.is_run_dir_named,
            references=find_references(unresolved),
            notes=tuple(dict.fromkeys((*renaming_notes(self.lines), *self.provenance.notes))),
            sweep_dir=folders.sweep_dir,
        )

    def _leave_out_unusable(self) -> None:
        for line in list(self.lines):
            problem = describe_sweep(line) if line.parsed.is_sweep_override() else find_unknown_option(line, self.dirs)
            problem = problem or find_idle(line, self.lines)
            if problem is not None:
                self.problems.append(problem)
                self._leave_out(line)
        self._leave_out_doubles()

    def _leave_out_doubles(self) -> None:
        """Report groups that are given twice if Hydra would merge both options, such as `experiment`."""
        known: set[str] = set()
        for line in [line for line in self.lines if line.is_group and line.hydra_text.startswith("+")]:
            key = line.parsed.get_key_element().lstrip("+")
            if key in known:
                what, fix = f"{key} is given twice", "use one override per group"
                self.problems.append(Problem(what, line.where, ", ".join(line.options), fix=fix))
                self._leave_out(line)
            known.add(key)

    def _leave_out(self, line: OverrideLine) -> None:
        self.lines.remove(line)
        if line.is_group:
            self.unread.add(line.key)

    def _leave_out_cause(self, cause: Cause) -> bool:
        """Continue without the cause of an error; return False if it cannot be removed."""
        if isinstance(cause, str):
            return self._replace_option(cause)
        chosen = [cause] if isinstance(cause, OverrideLine) else self._lines_choosing(cause)
        for line in chosen:
            self._leave_out(line)
        return bool(chosen)

    def _lines_choosing(self, path: Path) -> list[OverrideLine]:
        """Return the overrides that choose a file, or the experiment that may."""
        chosen = [line for line in self.lines if line.is_group and path in self._files_of(line)]
        return chosen or [line for line in self.lines if line.key == "experiment"]

    def _replace_option(self, group: str) -> bool:
        """Continue with the option of `conf/config.yaml` instead of the experiment's."""
        fallback = f"{group}={core_groups().get(group)}"
        if group not in core_groups() or fallback in self.fallbacks:
            return False
        self.fallbacks.append(fallback)
        self.unread.add(group)
        return True

    def _files_of(self, line: OverrideLine) -> list[Path | None]:
        return [find_config(self.dirs, f"{line.key}/{option}") for option in line.options]

    def _experiment_files(self) -> list[Path]:
        files = [path for line in self.lines if line.key == "experiment" for path in self._files_of(line)]
        return [path for path in files if path is not None]

    def _load_until_composed(self) -> DictConfig | None:
        loader = make_loader(conf_dir(), self.config_dir, COMPOSITION_RULES)
        while True:
            texts = [line.hydra_text for line in self.lines] + self.fallbacks
            try:
                config = loader.load_configuration("config", texts, RunMode.RUN)
                self._rename_in_lines(config)
                self._record_sources(loader.merged_files)
                return config
            except _COMPOSITION_ERRORS as error:
                problem, causes = describe_composition_error(error, self.lines, self._experiment_files(), self.dirs)
                if problem not in self.problems:
                    self.problems.append(problem)
                if not any(map(self._leave_out_cause, causes)):
                    return None

    def _rename_in_lines(self, config: DictConfig) -> None:
        renamed = {line.text: rename_in_line(config, line) for line in self.lines}
        self.lines = [renamed[line.text] for line in self.lines]
        self.texts = tuple(renamed[text].text if text in renamed else text for text in self.texts)

    def _record_sources(self, defaults: Sequence[ResultDefault]) -> None:
        for default in defaults:
            path = find_config(self.dirs, default.config_path or "")
            if path is not None:
                shared = AlgorithmConfig.of_run if MODULE_ALGORITHM.fullmatch(default.package or "") else ()
                self.problems += _find_double_keys(path, default.package or "")
                self.provenance.record_file(path, default.package or "", leave_out=shared)
            elif (content := option_at(default.config_path or "")) is not None:
                self.provenance.record_values(content, default.package or "", self._where_chosen(default))
        for line in self.lines:
            if not line.is_group and not line.parsed.is_hydra_override():
                self.provenance.record_override(line)

    def _where_chosen(self, option: ResultDefault) -> str:
        """Return the location of the override, or of the entry of an experiment file, that chose an option."""
        group, _, name = (option.config_path or "").partition("/")
        chosen = [line.where for line in self.lines if line.key == group and name in line.options]
        return chosen[-1] if chosen else find_request(self._experiment_files(), f"{group}/{name}")

    @staticmethod
    def _chosen_experiment(config: DictConfig) -> str | None:
        choice = config.hydra.runtime.choices.get("experiment")
        if isinstance(choice, (list, ListConfig)):
            return "+".join(str(name) for name in choice)
        return None if choice is None else str(choice)

    def _check_experiment_header(self, values: dict[str, Any]) -> None:
        """Report a file without `# @package _global_`, whose keys would end up below `experiment`."""
        if values.pop("experiment", None) is None:
            return
        path = next(iter(self._experiment_files()), None)
        what = "this experiment file is not a block of keys, or lacks the first line `# @package _global_`"
        self.problems.append(Problem(what, f"{display_path(path)}:1" if path else None))
        self.unread.add("experiment")

    def _resolve(self, config: DictConfig) -> dict[str, Any]:
        try:
            values, problems = resolve_values(config, self.provenance.sources)
        except TooLargeError as error:
            values, problems = {}, [Problem(f"the configuration cannot be resolved: {error}")]
            self.unread |= {*core_groups(), "experiment"}
        self.problems += problems
        return values


def _find_double_keys(path: Path, package: str) -> Iterator[Problem]:
    """Find keys that a file contains with both their old and new names."""
    prefix = f"{package}." if package else ""
    lines = {prefix + ".".join(keys): line for keys, line, _ in locate_keys(path)}
    places = {key: f"{display_path(path)}:{line}" for key, line in lines.items() if old_key_in(key) == key}
    return find_double_keys(places, list(lines))


def _find_shadowed_files(dirs: Sequence[Path]) -> list[Problem]:
    """Report files of the user's folder that are hidden by built-in files with the same name."""
    ours, *theirs = dirs
    problems = []
    for folder in theirs:
        for path in sorted(folder.rglob("*.yaml")) if folder != ours else ():
            name = path.relative_to(folder)
            if (ours / name).is_file():
                what = f"{name.as_posix()} is hidden by a built-in file with the same name"
                problems.append(Problem(what, display_path(path), fix="rename the file"))
    return problems
