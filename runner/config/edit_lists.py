"""Lists of pipeline edits, which add up: first groups, then the experiment, then the command line.

A list that begins with `discard: earlier_edits` replaces all lists before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

# Dotted keys of the lists.
EDIT_LISTS = (
    "algorithm.learner_pipeline",
    "connectors.env_to_module",
    "connectors.module_to_env",
    "connectors.learner",
)
DISCARD, EARLIER = "discard", "earlier_edits"
_BLOCKS = tuple(dict.fromkeys(key.partition(".")[0] for key in EDIT_LISTS))


def discards_earlier(edits: Sequence[Any]) -> bool:
    """Return whether this list replaces the lists before it."""
    return bool(edits) and edits[0] == {DISCARD: EARLIER}


def added_up(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Add the edits of a later list to an earlier list, unless it discards them."""
    return list(later[1:]) if discards_earlier(later) else [*earlier, *later]


def edit_list_of(key: str) -> str | None:
    """Return the key of the list that a dotted key is or lies in; None for other keys."""
    return next((name for name in EDIT_LISTS if key == name or key.startswith(f"{name}.")), None)


def read_edits(config: DictConfig, key: str) -> list[Any] | None:
    """The list of edits at `key` with its interpolations; None where there is no list."""
    block, _, name = key.partition(".")
    parent = config._get_node(block)
    node = parent._get_node(name) if isinstance(parent, DictConfig) and not parent._is_none() else None
    if not isinstance(node, ListConfig) or node._is_none() or node._is_interpolation():
        return None
    edits = OmegaConf.to_container(node, resolve=False)
    assert isinstance(edits, list)
    return edits


def add_earlier(config: DictConfig, earlier: dict[str, list[Any]]) -> None:
    """Put the edits so far before those of `config`, and make `earlier` (key -> edits) hold the result."""
    for key in EDIT_LISTS:
        edits = read_edits(config, key)
        if edits is not None:
            earlier[key] = added_up(earlier.get(key, ()), edits)
            OmegaConf.update(config, key, earlier[key], merge=False)


def changes_edits(text: str) -> bool:
    """Whether an override changes a list of edits: the list, an item of it, or its whole block as `{...}`."""
    key, _, value = text.partition("=")
    key = key.lstrip("+~")
    return edit_list_of(key) is not None or (key in _BLOCKS and value.lstrip().startswith("{"))


def apply_edits(config: DictConfig, override: Override) -> None:
    """Apply an override that `changes_edits`.

    Raises:
        OmegaConfBaseException: the override does not fit the list, such as an item beyond its end.
        ConfigCompositionException: the override removes a single item.
    """
    key, value = str(override.key_or_group), override.value()
    with open_dict(config):
        if override.is_delete():
            if key not in EDIT_LISTS:
                what = f"{override.input_line} takes an item out of a list of edits"
                raise ConfigCompositionException(f"{what}; write the list with {DISCARD}: {EARLIER} instead")
            OmegaConf.update(config, key, [], merge=False)
        elif isinstance(value, (dict, list)):
            later = OmegaConf.create({})
            OmegaConf.update(later, key, value, force_add=True)
            earlier = {name: edits for name in EDIT_LISTS if (edits := read_edits(config, name)) is not None}
            if edit_list_of(key) in (None, key):
                add_earlier(later, earlier)
            OmegaConf.update(config, key, OmegaConf.select(later, key), merge=isinstance(value, dict), force_add=True)
        else:
            OmegaConf.update(config, key, value, force_add=True)
