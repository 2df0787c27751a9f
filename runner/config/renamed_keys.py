"""Configuration keys that were renamed: an old key is an alias of the new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config.defaults import default_of
from runner.config.errors import Problem
from runner.config.fields import option_of
from runner.config.schemas import ExperimentConfig


@cache
def renamed_keys() -> Mapping[str, str]:
    """Return old dotted key -> new dotted key, from `renamed_from` of the fields."""
    blocks = {block.name: default_of(block) for block in dataclasses.fields(ExperimentConfig)}
    return {
        f"{name}.{option.renamed_from}": f"{name}.{field.name}"
        for name, block in blocks.items()
        if dataclasses.is_dataclass(block)
        for field in dataclasses.fields(block)
        if (option := option_of(field)) is not None and option.renamed_from is not None
    }


def old_key_in(key: str) -> str | None:
    """Return the renamed key that equals or contains a dotted key, or None."""
    return next((old for old in renamed_keys() if key == old or key.startswith(f"{old}.")), None)


def with_new_name(key: str) -> str:
    """Return a dotted key with the new name of a renamed key."""
    old = old_key_in(key)
    return key if old is None else renamed_keys()[old] + key.removeprefix(old)


def rename_keys(config: DictConfig) -> None:
    """Rename the old keys of a configuration; their values replace values of the new keys."""
    for old, new in renamed_keys().items():
        (block, old_name), (_, new_name) = old.split("."), new.split(".")
        node = child_of(config, block)
        if not isinstance(node, DictConfig) or old_name not in node.keys():  # noqa: SIM118 - `in` resolves its value
            continue
        values: Any = OmegaConf.to_container(node, resolve=False)
        value = values.pop(old_name) if new_name in values else values[old_name]
        renamed = {new_name if name == old_name else name: item for name, item in values.items()} | {new_name: value}
        with open_dict(config):
            OmegaConf.update(config, block, renamed, merge=False)


def gives_old_key_in_block(text: str) -> bool:
    """Return whether an override sets a complete block, `block={key: value}`, with an old key in it."""
    block = text.partition("=")[0].lstrip("+")
    if "{" not in text or not any(old.startswith(f"{block}.") for old in renamed_keys()):
        return False
    value = OverridesParser.create().parse_override(text).value()
    return isinstance(value, dict) and any(f"{block}.{name}" in renamed_keys() for name in value)


def renaming_note(old: str, new: str, where: str) -> str:
    """Return the note about the new key."""
    return f"{old} was renamed to {new} ({where})"


def find_double_keys(places: Mapping[str, str], others: Sequence[str]) -> Iterator[Problem]:
    """Find keys that a file or command line contains with both their old and new names.

    Args:
        places: old key -> its source.
        others: dotted keys with their current names.
    """
    for old, where in places.items():
        new = renamed_keys()[old]
        if any(key == new or key.startswith(f"{new}.") for key in others):
            yield Problem(f"{old} was renamed to {new}, but both are set", where, expected=f"{new} only")


def child_of(node: Any, name: str) -> Any:
    """Return the value of a key; None if it is absent, mandatory and unset, or an interpolation."""
    if not isinstance(node, DictConfig) or name not in node.keys():  # noqa: SIM118 - `in` resolves its value
        return None
    return None if OmegaConf.is_interpolation(node, name) or OmegaConf.is_missing(node, name) else node.get(name)
