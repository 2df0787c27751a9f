"""What a composition does in addition to Hydra's: it adds up lists of pipeline edits and renames old keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.compat.hydra_loader import CompositionRules
from runner.config.algorithms import AlgorithmConfig
from runner.config.composed_list_patches import add_earlier, apply_edits, changes_edits, child_of
from runner.config.list_patches import edit_list_of
from runner.config.module_algorithm import MODULE_ALGORITHM
from runner.config.renamed_keys import gives_old_key_in_block, rename_keys
from runner.config.yaml_bounds import file_version, read_bounded


def _start_composition() -> Callable[[DictConfig, str], None]:
    return partial(_change_file, {})


def _change_file(earlier_edits: dict[str, list[Any]], config: DictConfig, package: str) -> None:
    """Change the values of a file before they are merged into those of the files before it."""
    _fit_to_module(config, package)
    rename_keys(config)
    add_earlier(config, earlier_edits)
    _put_plan_in_list(config)


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
    plan = child_of(child_of(config, "algorithm"), "plan")
    if isinstance(plan, DictConfig):
        OmegaConf.update(config, "algorithm.plan", [plan], merge=False)


def _takes_override(text: str) -> bool:
    return changes_edits(text) or gives_old_key_in_block(text)


def _apply(config: DictConfig, text: str) -> None:
    override = OverridesParser.create().parse_override(text)
    if override.is_sweep_override():
        return  # each run of the sweep has one value
    try:
        if gives_old_key_in_block(text):
            OmegaConf.update(config, str(override.key_or_group), override.value(), force_add=True)
            rename_keys(config)
        else:
            apply_edits(config, override)
    except OmegaConfBaseException as error:
        if isinstance(override.value(), dict) and edit_list_of(str(override.key_or_group)) is not None:
            what = f"{text.lstrip('+')} cannot be applied: it is a list of edits, [{{append: ...}}, ...]"
            raise ConfigCompositionException(what) from error
        what = f"{text.lstrip('+')} cannot be applied: {error}"
        raise ConfigCompositionException(what) from error


# Hydra keeps the last of several lists; lists of pipeline edits add up. Old keys are given their new names.
RULES = CompositionRules(_start_composition, _takes_override, _apply, read_bounded, file_version)
