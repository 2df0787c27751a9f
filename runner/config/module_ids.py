"""The ids of modules, as far as the configuration tells them."""

from __future__ import annotations

from collections.abc import Sequence

from runner.config.schemas import ExperimentConfig

DEFAULT_MODULE_ID = "default_policy"


def declared_module_ids(config: ExperimentConfig) -> list[str]:
    """Return the ids of modules that the configuration alone tells."""
    mapping = config.multi_agent.agent_to_module
    if "_target_" in mapping:
        return []
    return list(dict.fromkeys(str(id_) for id_ in mapping.values() if "{agent}" not in str(id_)))


def is_mapping_complete(config: ExperimentConfig) -> bool:
    """Return whether the configuration alone tells the ids of all modules."""
    mapping = config.multi_agent.agent_to_module
    return "_target_" not in mapping and not any("{agent}" in str(module_id) for module_id in mapping.values())


def trained_modules(config: ExperimentConfig, module_ids: Sequence[str]) -> list[str]:
    """Return the ids of the modules that are updated."""
    trained = config.multi_agent.modules_to_train
    return [module_id for module_id in module_ids if trained is None or module_id in trained]
