"""Values of a configuration that resolvers give, found when it is composed; see `references`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.required_trust import MASK, leaves_of, mask_resolvers


def find_references(unresolved: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted key -> text for values that a resolver gives, also by way of other keys."""
    masked, requirements = mask_resolvers(unresolved)
    if not requirements:
        return {}
    try:
        shown = OmegaConf.to_container(OmegaConf.create(masked), resolve=True)
    except OmegaConfBaseException:  # a mistake, which is reported with the key that refers to nothing
        return {requirement.key: requirement.value for requirement in requirements}
    return {
        key: text.replace(MASK, "${") for key, text in leaves_of(shown, "") if isinstance(text, str) and MASK in text
    }
