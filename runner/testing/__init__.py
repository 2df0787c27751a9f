"""Contract checks of components: connectors, modules, losses, environments, readers, operators and callbacks.

runner tests its own components with the same checks. See docs/reference/components.md.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule, which is imported on demand.
_EXPORTS: dict[str, str] = {
    "BrokenContract": "rules",
    "EnvironmentCheck": "environment_findings",
    "check_callback": "callback_contract",
    "check_connector": "connector_contract",
    "check_environment": "environment_check",
    "check_loss": "loss_contract",
    "check_module": "module_contract",
    "check_operator": "operator_contract",
    "check_reader": "reader_contract",
    "inspect_environment": "environment_check",
    "check_piece": "connector_contract",  # the earlier name of check_connector
}

__all__ = sorted(set(_EXPORTS) - {"check_piece"})


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
