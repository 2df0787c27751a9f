"""Hydra's loader with additions: values of each file can be changed before merging, and the merged values before the
overrides; the caller can apply some overrides, and the merged files are recorded.

`hydra.compose` would replace it if it returned the defaults list (`compute_defaults_list` takes another 30 ms), and
called a hook for each file with the package it is merged into. Launchers use the loader in other processes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner.compat.hydra_repository import HYDRA, Repository, check_files

with HYDRA.expected():
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import IConfigRepository
    from hydra._internal.utils import create_config_search_path

# Methods that the loader overrides: if Hydra stopped calling one of them, lists of edits would be merged incorrectly.
HYDRA.require(
    ConfigLoaderImpl,
    "_parse_overrides_and_create_caching_repo",
    "_process_config_searchpath",
    "_compose_config_from_defaults_list",
    "_load_single_config",
    "_load_configuration_impl",
)

# Name under which Hydra logs the overrides of each run of a sweep.
LAUNCHER_LOGGER = "hydra._internal.core_plugins.basic_launcher"
_MAIN = "hydra._internal.hydra"


@dataclass(frozen=True)
class CompositionRules:
    """Additions to Hydra's composition. Launchers pickle them, so all functions must be defined in modules.

    Attributes:
        start: called before each composition; returns a function that changes the config of one file in place before it
            is merged. The second argument of this function is the package that the file is merged into.
        complete: changes the config of all files in place, before the overrides in the second argument are applied.
        takes_override: whether an override is hidden from Hydra.
        apply_override: applies such an override to the composed config.
        check_file: called with each file before it is parsed; may raise an error.
        file_version: file -> a value that changes when the file does.
        make_config: path of a config without a file -> its content, or None.
    """

    start: Callable[[], Callable[[DictConfig, str], None]]
    complete: Callable[[DictConfig, Sequence[str]], None]
    takes_override: Callable[[str], bool]
    apply_override: Callable[[DictConfig, str], None]
    check_file: Callable[[Path], object]
    file_version: Callable[[Path], Hashable]
    make_config: Callable[[str], dict[str, Any] | None]


class Loader(ConfigLoaderImpl):
    """Hydra's loader with additional rules.

    Attributes:
        merged_files: files of the newest composition, in order.
    """

    merged_files: Sequence[ResultDefault] = ()
    _overrides: Sequence[str] = ()

    def __init__(self, config_search_path: Any, rules: CompositionRules) -> None:
        super().__init__(config_search_path)
        self._rules = rules

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], Repository]:
        parsed = OverridesParser.create().parse_overrides(overrides=overrides)
        repository = Repository(self.repository, self._rules.file_version, self._rules.make_config)
        self._process_config_searchpath(config_name, parsed, repository)
        return parsed, repository

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.merged_files = defaults
        self._change_file = self._rules.start()
        config = super()._compose_config_from_defaults_list(defaults, repo)
        self._rules.complete(config, self._overrides)
        return config

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        result = super()._load_single_config(default, repo)
        if isinstance(result.config, DictConfig):
            self._change_file(result.config, default.package or "")
        return result

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        self._overrides = overrides
        taken = [text for text in overrides if self._rules.takes_override(text)]
        others = [text for text in overrides if text not in taken]
        config = super()._load_configuration_impl(config_name, others, run_mode, from_shell, validate_sweep_overrides)
        for text in taken:
            self._rules.apply_override(config, text)
        if taken:  # at their places among the others, for `.hydra/overrides.yaml` and the runs of a sweep
            tasks: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
            config.hydra.overrides.task = [text for text in overrides if text in (*tasks, *taken)]
        return config


def make_loader(config_dir: Path, user_dir: Path | None, rules: CompositionRules) -> Loader:
    """Return the loader of the files in the user's folder and in `config_dir`, in this order of precedence."""
    search_path = create_config_search_path(f"file://{config_dir}")
    if user_dir is not None:
        search_path.prepend("command-line", f"file://{user_dir.resolve()}", anchor="schema")
    loader = Loader(search_path, rules)
    check_files(loader.repository, rules.check_file)
    return loader


@contextmanager
def hydra_main_with(rules: CompositionRules) -> Iterator[None]:
    """Make `hydra.main` compose with these rules, so that Hydra's sweepers see the configurations of runs."""
    main: Any = importlib.import_module(_MAIN)
    HYDRA.require(main, "ConfigLoaderImpl")
    before, main.ConfigLoaderImpl = main.ConfigLoaderImpl, partial(Loader, rules=rules)
    try:
        yield
    finally:
        main.ConfigLoaderImpl = before
