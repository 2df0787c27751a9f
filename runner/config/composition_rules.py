"""Additions to Hydra's composition: defaults of algorithms, lists of pipeline edits that add up, and old keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.compat.hydra_loader import CompositionRules
from runner.config.algorithms import AlgorithmConfig
from runner.config.composed import leaf_values
from runner.config.defaults import SchemaError, default_values, load_schema
from runner.config.env_ids import option_at
from runner.config.list_patches import DISCARD, EARLIER, MODULE_ALGORITHM, added_up, edit_list_of
from runner.config.overrides import OverrideLine, with_key
from runner.config.renamed_edits import rename_in_edits, with_new_names
from runner.config.renamed_keys import child_of, gives_old_key_in_block, rename_keys
from runner.config.resolvers import unresolved_values
from runner.config.yaml_files import file_version, read_bounded

_AROUND_LISTS = re.compile(
    r"algorithm|multi_agent(\.modules(\.[^.]+(\.algorithm)?)?)?|connectors(\.modules(\.[^.]+)?)?"
)
_SCHEMA = re.compile(r"(multi_agent\.modules\.[^.]+\.)?algorithm\.schema")


def add_defaults(config: DictConfig) -> None:
    """Complete the blocks of algorithms with the defaults of their `schema`; validation reports an invalid one."""
    modules = child_of(child_of(config, "multi_agent"), "modules")
    ids = [str(module_id) for module_id in modules] if isinstance(modules, DictConfig) else []
    for owner in (config, *(child_of(modules, module_id) for module_id in ids)):
        algorithm = child_of(owner, "algorithm")
        try:
            schema = load_schema(str(algorithm.get("schema"))) if isinstance(algorithm, DictConfig) else None
        except (SchemaError, OmegaConfBaseException):
            continue
        if schema is not None:
            shared = () if owner is config else AlgorithmConfig.of_run
            defaults = {name: value for name, value in default_values(schema).items() if name not in shared}
            with open_dict(owner):
                owner["algorithm"] = _completed(unresolved_values(algorithm), defaults)


def _completed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return nested values, completed by defaults."""
    made = dict(defaults)
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = _completed(value, made[name])
        elif value != "???" or name not in made:
            made[name] = value
    return made


def _complete_files(config: DictConfig, overrides: Sequence[str]) -> None:
    """Add defaults, which overrides may change, remove or refer to, also if an override chooses the dataclass."""
    parsed = OverridesParser.create().parse_overrides([text for text in overrides if "schema" in text])
    for override in (one for one in parsed if not one.is_delete()):
        for key, value in leaf_values({str(override.key_or_group): override.value()}).items():
            if _SCHEMA.fullmatch(key) and isinstance(value, str):
                OmegaConf.update(config, key, value, force_add=True)
    add_defaults(config)


def _lists_in(config: DictConfig) -> list[tuple[str, list[Any]]]:
    """Return all lists of a configuration with their keys, and with their interpolations."""
    return [(key, value) for key, value in leaf_values(unresolved_values(config)).items() if isinstance(value, list)]


def rename_all(config: DictConfig) -> None:
    """Rename the old keys of a configuration, including keys in its lists of edits."""
    rename_keys(config)
    with open_dict(config):
        for key, value in _lists_in(config):
            renamed = rename_in_edits(value, tuple(key.split(".")))
            if renamed != value:
                OmegaConf.update(config, key, renamed, merge=False)


def rename_in_line(config: DictConfig, line: OverrideLine) -> OverrideLine:
    """Return an override whose key contains the new names of renamed keys of edits."""
    key = _with_new_names(config, line.key)
    return line if key == line.key else with_key(line, key)


def _with_new_names(config: DictConfig, key: str) -> str:
    return ".".join(with_new_names(lambda: OmegaConf.to_container(config, resolve=False), tuple(key.split("."))))


def edits_in(config: DictConfig) -> dict[str, list[Any]]:
    """Return the key of each list of edits in a configuration -> its edits, with their interpolations."""
    return {key: value for key, value in _lists_in(config) if edit_list_of(key) == key}


def add_earlier(config: DictConfig, earlier: dict[str, list[Any]]) -> None:
    """Insert the earlier edits before the edits of `config`, and store the result in `earlier` (key -> edits)."""
    for key, edits in edits_in(config).items():
        earlier[key] = added_up(earlier.get(key, ()), edits)
        OmegaConf.update(config, key, earlier[key], merge=False)


def changes_edits(text: str) -> bool:
    """Return whether an override changes a list of edits, one of its items, or a block around it as `{...}`."""
    key, _, value = text.partition("=")
    key = key.lstrip("+~")
    return edit_list_of(key) is not None or (
        _AROUND_LISTS.fullmatch(key) is not None and value.lstrip().startswith("{")
    )


def apply_edits(config: DictConfig, override: Override) -> None:
    """Apply an override that `changes_edits`.

    Raises:
        OmegaConfBaseException: the override does not fit the list, such as an item beyond its end.
        ConfigCompositionException: the override removes a single item.
    """
    key = _with_new_names(config, str(override.key_or_group))
    value = rename_in_edits(override.value(), tuple(key.split(".")))
    with open_dict(config):
        if override.is_delete():
            if edit_list_of(key) != key:
                what = f"{override.input_line} would remove an item of a list of edits"
                raise ConfigCompositionException(f"{what}; write the list with {DISCARD}: {EARLIER} instead")
            OmegaConf.update(config, key, [], merge=False)
        elif isinstance(value, (dict, list)):
            later = OmegaConf.create({})
            OmegaConf.update(later, key, value, force_add=True)
            rename_all(later)
            earlier = edits_in(config)
            if edit_list_of(key) in (None, key):
                add_earlier(later, earlier)
            OmegaConf.update(config, key, OmegaConf.select(later, key), merge=isinstance(value, dict), force_add=True)
        else:
            OmegaConf.update(config, key, value, force_add=True)


def _start_composition() -> Callable[[DictConfig, str], None]:
    return partial(_change_file, {})


def _change_file(earlier_edits: dict[str, list[Any]], config: DictConfig, package: str) -> None:
    """Change the values of a file before they are merged into earlier files."""
    _fit_to_module(config, package)
    rename_all(config)
    add_earlier(config, earlier_edits)
    _put_plan_in_list(config)


def _fit_to_module(config: DictConfig, package: str) -> None:
    """Adapt an algorithm's file to a module's block: remove shared keys; `${algorithm.lr}` refers to its own lr."""
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
    """Put a function that makes the plan into a list, because plans are lists, which replace each other."""
    plan = child_of(child_of(config, "algorithm"), "plan")
    if isinstance(plan, DictConfig):
        OmegaConf.update(config, "algorithm.plan", [plan], merge=False)


def _takes_override(text: str) -> bool:
    return changes_edits(text) or gives_old_key_in_block(text)


def _apply(config: DictConfig, text: str) -> None:
    override = OverridesParser.create().parse_override(text)
    if override.is_sweep_override():
        return  # each run of the sweep has a single value
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


# Hydra keeps the last of several lists, but lists of pipeline edits are concatenated. Old keys get their new names.
COMPOSITION_RULES = CompositionRules(
    start=_start_composition,
    complete=_complete_files,
    takes_override=_takes_override,
    apply_override=_apply,
    check_file=read_bounded,
    file_version=file_version,
    make_config=option_at,
)
