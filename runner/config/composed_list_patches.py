"""The lists of pipeline edits in what Hydra composes: read, added up, and changed by overrides."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from runner.config.list_patches import DISCARD, EARLIER, OF_ALGORITHM, OF_MODULES, PIPELINES, added_up, edit_list_of
from runner.config.module_algorithm import module_algorithm_key

_OF_ALL = (*(f"algorithm.{field}" for field in OF_ALGORITHM.values()), *(f"connectors.{name}" for name in PIPELINES))
_AROUND_LISTS = re.compile(
    r"algorithm|multi_agent(\.modules(\.[^.]+(\.algorithm)?)?)?|connectors(\.modules(\.[^.]+)?)?"
)


def edit_lists_in(config: DictConfig) -> list[str]:
    """Return the keys of the lists that a configuration may have: of all modules, and of each module it names."""
    of_modules = [f"{OF_MODULES}.{id_}.{name}" for id_ in _keys_at(config, OF_MODULES) for name in PIPELINES]
    of_own = [f"{block}.{field}" for block in module_algorithm_keys(config) for field in OF_ALGORITHM.values()]
    return [*_OF_ALL, *of_modules, *of_own]


def module_algorithm_keys(config: DictConfig) -> list[str]:
    """Return the keys of the algorithms that modules of a configuration have of their own."""
    return [module_algorithm_key(module_id) for module_id in _keys_at(config, "multi_agent.modules")]


def _keys_at(config: DictConfig, key: str) -> list[Any]:
    block = _node_at(config, key)
    return list(block) if isinstance(block, DictConfig) else []


def _node_at(config: DictConfig, key: str) -> Any:
    return reduce(child_of, key.split("."), config)


def child_of(node: Any, name: str) -> Any:
    """Return the value of a key; None if it is absent, has no value yet, or is an interpolation."""
    if not isinstance(node, DictConfig) or OmegaConf.is_interpolation(node, name) or OmegaConf.is_missing(node, name):
        return None
    return node.get(name)


def read_edits(config: DictConfig, key: str) -> list[Any] | None:
    """The list of edits at `key` with its interpolations; None where there is no list."""
    node = _node_at(config, key)
    if not isinstance(node, ListConfig):
        return None
    edits = OmegaConf.to_container(node, resolve=False)
    assert isinstance(edits, list)
    return edits


def edits_in(config: DictConfig) -> dict[str, list[Any]]:
    """Return the key of each list of edits in a configuration -> its edits, with their interpolations."""
    return {key: edits for key in edit_lists_in(config) if (edits := read_edits(config, key)) is not None}


def add_earlier(config: DictConfig, earlier: dict[str, list[Any]]) -> None:
    """Put the edits so far before the ones of `config`; `earlier` (key -> edits) holds the result from then on."""
    for key, edits in edits_in(config).items():
        earlier[key] = added_up(earlier.get(key, ()), edits)
        OmegaConf.update(config, key, earlier[key], merge=False)


def changes_edits(text: str) -> bool:
    """Whether an override changes a list of edits: the list, an item of it, or a block around it as `{...}`."""
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
    key, value = str(override.key_or_group), override.value()
    with open_dict(config):
        if override.is_delete():
            if edit_list_of(key) != key:
                what = f"{override.input_line} takes an item out of a list of edits"
                raise ConfigCompositionException(f"{what}; write the list with {DISCARD}: {EARLIER} instead")
            OmegaConf.update(config, key, [], merge=False)
        elif isinstance(value, (dict, list)):
            later = OmegaConf.create({})
            OmegaConf.update(later, key, value, force_add=True)
            earlier = edits_in(config)
            if edit_list_of(key) in (None, key):
                add_earlier(later, earlier)
            OmegaConf.update(config, key, OmegaConf.select(later, key), merge=isinstance(value, dict), force_add=True)
        else:
            OmegaConf.update(config, key, value, force_add=True)
