"""Functions that values in YAML can call, `${name:argument}`; stored configurations keep the call."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import OmegaConf


def register_value_resolvers() -> None:
    """Register them, before values are resolved."""
    OmegaConf.register_new_resolver("product", _product, replace=True)


def _product(*factors: Any) -> float | None:
    """Multiply numbers; None if one of them is not a number, which is reported where it is given."""
    is_number = all(isinstance(factor, (int, float)) for factor in factors)
    return math.prod(factors) if is_number else None
