"""Metrics of a run that connectors report, as far as the configuration and the source of the connectors tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.config.blocks import DEFAULT_MODULE_ID
from runner.config.declared_metrics import reports_of_edits
from runner.config.list_patches import OF_ALGORITHM, added_up
from runner.config.schemas import ExperimentConfig
from runner.config.source_modules import UnknowableError

CONNECTORS = "connectors"
_ENV_PIPELINES = ("env_to_module", "module_to_env")
_LEARNER = "learner"


def connector_metric(module_id: str, pipeline: str, name: str) -> str:
    """Return the name that a metric of a connector has in the run; the id `default_policy` is left out."""
    owner = [] if module_id == DEFAULT_MODULE_ID else [module_id]
    return "/".join([CONNECTORS, *owner, pipeline, name])


def connector_metrics(config: ExperimentConfig, module_ids: Sequence[str]) -> dict[str, str]:
    """Return metric of the run -> meaning for the connectors that the configuration names.

    Connectors of the default pipelines report nothing, and connectors whose source does not tell are left out.
    """
    trained = config.multi_agent.trained_modules(module_ids)
    names: dict[str, str] = {}
    for module_id in module_ids:
        for pipeline in (*_ENV_PIPELINES, *([_LEARNER] if module_id in trained else [])):
            reports = _reports(config, module_id, pipeline) or {}
            names |= {connector_metric(module_id, pipeline, name): reports[name] for name in reports}
    return names


def may_be_reported(name: str, config: ExperimentConfig) -> bool:
    """Return whether a metric may be one of a connector that cannot be read, or of a module that is not known yet."""
    parts = name.split("/")
    if parts[0] != CONNECTORS or len(parts) not in (3, 4) or parts[-2] not in (*_ENV_PIPELINES, _LEARNER):
        return False
    module_id = parts[1] if len(parts) == 4 else DEFAULT_MODULE_ID
    reports = _reports(config, module_id, parts[-2])
    if reports is None:
        return True
    return len(parts) == 4 and not config.multi_agent.is_mapping_complete and parts[-1] in reports


def is_of_learner(name: str) -> bool:
    """Return whether a metric of connectors is of a learner pipeline, the only one that reports on recorded data."""
    return name.split("/")[-2] == _LEARNER


def _reports(config: ExperimentConfig, module_id: str, pipeline: str) -> dict[str, str] | None:
    """Return metric -> meaning for the connectors of one pipeline; None if the source of one does not tell."""
    try:
        return reports_of_edits(_edits(config, module_id, pipeline))
    except UnknowableError:
        return None


def _edits(config: ExperimentConfig, module_id: str, pipeline: str) -> list[Any]:
    edits = config.connectors.edits_of(module_id, pipeline)
    field = OF_ALGORITHM.get(pipeline)
    if field is None:
        return edits
    of_module = config.multi_agent.algorithm_config_overrides_per_module.get(module_id, {}).get(field, [])
    return [*added_up(getattr(config.algorithm_of(module_id), field), of_module), *edits]
