"""Interpolations in YAML values: references to keys, `${key}`, and calls of resolvers, `${name:argument}`.

Stored configurations keep the calls; see `references`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.config.composed import leaf_values
from runner.config.documents import check_expansion
from runner.config.errors import Problem, nearest_match
from runner.config.required_trust import MASK, leaves_of, mask_resolvers

_MISSING_KEY = re.compile(r"Interpolation key '(.+)' not found")


def register_value_resolvers() -> None:
    """Register the resolvers of values, before values are resolved."""
    OmegaConf.register_new_resolver("product", _product, replace=True)


def _product(*factors: Any) -> float | None:
    """Multiply numbers; None if one of them is not a number, which is reported elsewhere."""
    is_number = all(isinstance(factor, (int, float)) for factor in factors)
    return math.prod(factors) if is_number else None


def unresolved_values(config: DictConfig) -> dict[str, Any]:
    """Return the values of a configuration with their interpolations."""
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def resolve_values(config: DictConfig, sources: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values of a configuration, and the problem of each invalid interpolation, which is removed from it.

    Args:
        config: the configuration.
        sources: dotted key -> source of its value.

    Raises:
        TooLargeError: the values would be too large.
    """
    check_expansion(unresolved_values(config))
    problems: list[Problem] = []
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:
        problems += _remove_unresolvable(config, "", config, sources)
        values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}, problems


def _remove_unresolvable(
    node: DictConfig | ListConfig, prefix: str, root: DictConfig, sources: Mapping[str, str]
) -> Iterator[Problem]:
    for key in list(node) if isinstance(node, DictConfig) else range(len(node)):
        name = f"{prefix}{key}"
        if OmegaConf.is_interpolation(node, key):
            yield from _remove_if_invalid(node, key, name, root, sources.get(name))
        elif not OmegaConf.is_missing(node, key) and OmegaConf.is_config(child := node[key]):
            yield from _remove_unresolvable(child, f"{name}.", root, sources)


def _remove_if_invalid(
    node: DictConfig | ListConfig, key: Any, name: str, root: DictConfig, where: str | None
) -> Iterator[Problem]:
    text = str(OmegaConf.to_container(node, resolve=False)[key])  # type: ignore[index]
    try:
        value = node[key]
        if OmegaConf.is_config(value):
            OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        missing = _MISSING_KEY.search(reason)
        nearest = nearest_match(missing[1], leaf_values(unresolved_values(root))) if missing else None
        what = f"{name} {'refers to a key that does not exist' if missing else 'cannot be resolved'}: {reason}"
        yield Problem(what, where, text, nearest=nearest)
        with open_dict(node):
            node[key] = None
            if isinstance(node, DictConfig):
                del node[key]


def find_references(unresolved: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted key -> text for values of resolvers, including references to them."""
    masked, requirements = mask_resolvers(unresolved)
    if not requirements:
        return {}
    try:
        shown = OmegaConf.to_container(OmegaConf.create(masked), resolve=True)
    except OmegaConfBaseException:  # reported with the key of the invalid reference
        return {requirement.key: requirement.value for requirement in requirements}
    return {
        key: text.replace(MASK, "${") for key, text in leaves_of(shown, "") if isinstance(text, str) and MASK in text
    }
