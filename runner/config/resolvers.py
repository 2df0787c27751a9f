"""Resolvers, functions that YAML values call as `${name:argument}`, and their values; see `references`.

Stored configurations keep the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.required_trust import MASK, leaves_of, mask_resolvers


def register_value_resolvers() -> None:
    """Register them, before values are resolved."""
    OmegaConf.register_new_resolver("product", _product, replace=True)


def _product(*factors: Any) -> float | None:
    """Multiply numbers; None if one of them is not a number, which is reported elsewhere."""
    is_number = all(isinstance(factor, (int, float)) for factor in factors)
    return math.prod(factors) if is_number else None


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
