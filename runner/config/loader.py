"""Hydra's loader with one difference: lists of pipeline edits add up, where Hydra keeps the last one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.algorithms import AlgorithmConfig
from runner.config.composed_list_patches import add_earlier, apply_edits, changes_edits
from runner.config.list_patches import edit_list_of
from runner.config.module_algorithm import MODULE_ALGORITHM
from runner.config.paths import conf_dir
from runner.config.repository import Repository, bound_files


class Loader(ConfigLoaderImpl):
    """A loader that remembers which files it merged, in order (`compute_defaults_list` would take another 60 ms)."""

    merged_files: Sequence[ResultDefault] = ()

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], Repository]:
        parsed, repository = OverridesParser.create().parse_overrides(overrides=overrides), Repository(self.repository)
        self._process_config_searchpath(config_name, parsed, repository)
        return parsed, repository

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.merged_files = defaults
        self._edits: dict[str, list[Any]] = {}
        return super()._compose_config_from_defaults_list(defaults, repo)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        result = super()._load_single_config(default, repo)
        if isinstance(result.config, DictConfig):
            _fit_to_module(result.config, default.package or "")
            add_earlier(result.config, self._edits)
            _put_plan_in_list(result.config)
        return result

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        edits = [text for text in overrides if changes_edits(text)]
        others = [text for text in overrides if text not in edits]
        config = super()._load_configuration_impl(config_name, others, run_mode, from_shell, validate_sweep_overrides)
        for text in edits:
            _apply(config, text)
        if edits:  # in their places among the others, for `.hydra/overrides.yaml` and a sweep's runs
            tasks: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
            config.hydra.overrides.task = [text for text in overrides if text in (*tasks, *edits)]
        return config


def _fit_to_module(config: DictConfig, package: str) -> None:
    """Make the file of an algorithm that is put into a module's block one for it: what all modules share is left out,
    and `${algorithm.lr}` is its own lr.
    """
    if not MODULE_ALGORITHM.fullmatch(package):
        return
    block: Any = OmegaConf.to_container(OmegaConf.select(config, package), resolve=False)
    own = {name: value for name, value in block.items() if name not in AlgorithmConfig.of_run}
    OmegaConf.update(config, package, _with_text(own, "${algorithm.", f"${{{package}."), merge=False)


def _with_text(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {name: _with_text(item, old, new) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_text(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def _put_plan_in_list(config: DictConfig) -> None:
    """Put a function that makes the plan into a list: plans are lists, which replace each other."""
    algorithm = config._get_node("algorithm")
    plan = algorithm._get_node("plan") if isinstance(algorithm, DictConfig) and not algorithm._is_none() else None
    if isinstance(plan, DictConfig) and not plan._is_none():
        OmegaConf.update(config, "algorithm.plan", [plan], merge=False)


def _apply(config: DictConfig, text: str) -> None:
    override = OverridesParser.create().parse_override(text)
    if override.is_sweep_override():
        return  # each run of the sweep has one value
    try:
        apply_edits(config, override)
    except OmegaConfBaseException as error:
        if isinstance(override.value(), dict) and edit_list_of(str(override.key_or_group)) is not None:
            what = f"{text.lstrip('+')} cannot be applied: it is a list of edits, [{{append: ...}}, ...]"
            raise ConfigCompositionException(what) from error
        what = f"{text.lstrip('+')} cannot be applied: {error}"
        raise ConfigCompositionException(what) from error


def make_loader(config_dir: Path | None) -> Loader:
    """Make the loader of `conf/` and of the user's folder."""
    search_path = create_config_search_path(f"file://{conf_dir()}")
    if config_dir is not None:
        search_path.prepend("command-line", f"file://{config_dir.resolve()}", anchor="schema")
    loader = Loader(config_search_path=search_path)
    bound_files(loader.repository)
    return loader


class _LoaderOfMain(Loader):
    """The loader of `hydra.main`, which asks twice for a single run, first for `hydra.mode`; composed is it once.

    What only the second composition would refuse has been refused: a single run is checked before Hydra starts.
    """

    _latest: tuple[list[str], DictConfig] | None = None

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        if self._latest is not None and overrides == [*self._latest[0], "hydra.mode=RUN"]:
            config = self._latest[1]
            config.hydra.mode = RunMode.RUN
            config.hydra.overrides.hydra.append("hydra.mode=RUN")
            return config
        config = super()._load_configuration_impl(
            config_name, overrides, run_mode, from_shell, validate_sweep_overrides
        )
        self._latest = [*overrides], config  # a copy of the list, which Hydra extends
        return config


@contextmanager
def hydra_with_this_loader() -> Iterator[None]:
    """Let `hydra.main` compose with this loader, so that `.hydra/config.yaml` says what a run does."""
    main: Any = importlib.import_module("hydra._internal.hydra")
    before, main.ConfigLoaderImpl = main.ConfigLoaderImpl, _LoaderOfMain
    try:
        yield
    finally:
        main.ConfigLoaderImpl = before
