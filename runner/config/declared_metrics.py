"""Metrics that connectors, callbacks and operators declare in their class attribute `reports`.

Declarations are read from source files, so that a check of metric names imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from runner.config.blocks import DEFAULT_MODULE_ID
from runner.config.errors import Problem, nearest_match
from runner.config.list_patches import OF_ALGORITHM, added_connectors, added_up
from runner.config.plans.steps import PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.config.source_definitions import Definition, find_ancestors, read_class_attribute, resolve
from runner.config.source_modules import MissingNameError, UnknowableError
from runner.config.targets import CALLBACKS, OPERATOR

# In addition to percentiles.
REDUCTIONS = ("mean", "sum", "min", "max", "median", "last")
REPORTS_FORM = 'reports = {"clipped_fraction": ("mean", "share of clipped values")}'
_CONNECTOR = "runner.pipelines.connector.Connector"
CONNECTORS, PLAN = "connectors", "plan/"
_CALLBACKS, _EVALUATION = "callbacks/", "evaluation/"
_ENV_PIPELINES = ("env_to_module", "module_to_env")
_LEARNER = "learner"
_PERCENTILE = re.compile(r"p[1-9]\d?")

# Metric -> its reduction over the calls, runners and learners of an iteration, and its meaning.
Reports = Mapping[str, tuple[str, str]]
# Prefix of the metrics of each callback or operator, and its reports or None if its source cannot be analysed.
_Declared = Iterator[tuple[str, Reports | None]]


def meaning_of(reports: Reports, name: str) -> str:
    """Return the meaning of a metric, with its reduction."""
    reduction, meaning = reports[name]
    return f"{meaning} ({reduction} over the iteration)"


def find_report_fault(reports: Any) -> Problem | None:
    """Return the problem of an attribute `reports`, or None."""
    if not isinstance(reports, Mapping):
        return Problem("reports is not a dict of name: (reduction, meaning)", None, repr(reports), REPORTS_FORM)
    for name, report in reports.items():
        if not (isinstance(name, str) and name.isidentifier()):
            return Problem("a name in reports is not an identifier", None, repr(name), REPORTS_FORM)
        if not (isinstance(report, tuple) and len(report) == 2 and all(isinstance(part, str) for part in report)):
            what = f"reports[{name!r}] is not a pair of reduction and meaning"
            return Problem(what, None, repr(report), REPORTS_FORM)
        fault = find_reduction_fault(f"reports[{name!r}] has an unknown reduction", report[0], REDUCTIONS)
        if fault is not None:
            return fault
    return None


def reports_of_edits(edits: Sequence[Any]) -> dict[str, str]:
    """Return metric -> meaning for the connectors that a list of edits leaves in a pipeline, read from their source.

    Raises:
        UnknowableError: the source of a connector cannot be analysed.
    """
    placed: list[tuple[str, Mapping[str, Any]]] = []  # class name, block
    for edit in edits:
        if not isinstance(edit, Mapping):
            continue
        removed = edit.get("remove", edit.get("replace"))
        index = next((index for index, (name, _) in enumerate(placed) if name == removed), None)
        if index is not None:
            del placed[index]
        placed += [(str(block["_target_"]).rpartition(".")[2], block) for block in added_connectors(edit)]
    reports: dict[str, str] = {}
    for _, block in placed:
        declared = declared_reports(str(block["_target_"]), _CONNECTOR)
        reports |= {name: meaning_of(declared, name) for name in declared}
    return reports


def declared_reports(path: str, base: str) -> Reports:
    """Return the attribute `reports` of the class at a dotted path; {} for an unknown path.

    Args:
        path: dotted path of a subclass of `base`.
        base: dotted path of the base class that defines the attribute.

    Raises:
        UnknowableError: the source cannot be analysed.
    """
    try:
        found = resolve(path)
    except MissingNameError:
        return {}
    if not isinstance(found, Definition):
        return {}
    reports = read_class_attribute(found, "reports", base)
    if find_report_fault(reports) is not None:
        raise UnknowableError
    return reports  # type: ignore[no-any-return]


def connector_metric(module_id: str, pipeline: str, name: str) -> str:
    """Return the name of a connector's metric in the run, without the id `default_policy`."""
    owner = [] if module_id == DEFAULT_MODULE_ID else [module_id]
    return "/".join([CONNECTORS, *owner, pipeline, name])


def connector_metrics(config: ExperimentConfig, module_ids: Sequence[str]) -> dict[str, str]:
    """Return metric of the run -> meaning for the connectors that the configuration names.

    Connectors of the default pipelines report nothing. Connectors whose source cannot be analysed are skipped.
    """
    trained = config.multi_agent.trained_modules(module_ids)
    names: dict[str, str] = {}
    for module_id in module_ids:
        acts = module_id not in config.multi_agent.auxiliary_modules
        for pipeline in (*(_ENV_PIPELINES if acts else ()), *([_LEARNER] if module_id in trained else [])):
            reports = _reports_of_pipeline(config, module_id, pipeline) or {}
            names |= {connector_metric(module_id, pipeline, name): reports[name] for name in reports}
    return names


def may_be_reported(name: str, config: ExperimentConfig) -> bool:
    """Return whether a metric may belong to a connector that cannot be read, or to a module that is unknown yet."""
    parts = name.split("/")
    if parts[0] != CONNECTORS or len(parts) not in (3, 4) or parts[-2] not in (*_ENV_PIPELINES, _LEARNER):
        return False
    module_id = parts[1] if len(parts) == 4 else DEFAULT_MODULE_ID
    reports = _reports_of_pipeline(config, module_id, parts[-2])
    if reports is None:
        return True
    return len(parts) == 4 and not config.multi_agent.is_mapping_complete and parts[-1] in reports


def is_of_learner(name: str) -> bool:
    """Return whether a connector metric belongs to a learner pipeline, the only one used with recorded data."""
    return name.split("/")[-2] == _LEARNER


def _reports_of_pipeline(config: ExperimentConfig, module_id: str, pipeline: str) -> dict[str, str] | None:
    """Return metric -> meaning for the connectors of one pipeline; None if one source cannot be analysed."""
    try:
        return reports_of_edits(_edits_of_pipeline(config, module_id, pipeline))
    except UnknowableError:
        return None


def _edits_of_pipeline(config: ExperimentConfig, module_id: str, pipeline: str) -> list[Any]:
    edits = config.connectors.edits_of(module_id, pipeline)
    field = OF_ALGORITHM.get(pipeline)
    if field is None:
        return edits
    of_module = config.multi_agent.algorithm_config_overrides_per_module.get(module_id, {}).get(field, [])
    return [*added_up(getattr(config.algorithm_of(module_id), field), of_module), *edits]


def operator_metric(operator: str, name: str) -> str:
    """Return the name of an operator's metric in the run; for the second operator of a class it is `Name_2/...`."""
    return f"{PLAN}{operator.replace('#', '_')}/{name}"


def free_name(class_name: str, taken: Container[str]) -> str:
    """Return the unique name of an operator or connector: its class, or `Class#2` for the second one of a class."""
    name, number = class_name, 1
    while name in taken:
        number += 1
        name = f"{class_name}#{number}"
    return name


def callback_metric(name: str) -> str:
    """Return the name of a callback's metric in the run."""
    return _CALLBACKS + name


def with_evaluation(names: Mapping[str, str], config: ExperimentConfig) -> dict[str, str]:
    """Return metric of callbacks -> meaning, with copies under `evaluation/` if there are evaluations."""
    if config.evaluation.evaluation_interval is None:
        return dict(names)
    return dict(names) | {f"{_EVALUATION}{name}": f"{meaning}, in evaluations" for name, meaning in names.items()}


def part_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Return metric of the run -> meaning for the callbacks and operators whose source can be analysed."""
    return with_evaluation(_meanings(_of_callbacks(config)), config) | _meanings(_of_operators(config))


def may_be_of_part(name: str, config: ExperimentConfig) -> bool:
    """Return whether a metric may belong to a callback or operator whose source cannot be analysed."""
    if name.startswith(PLAN) and read_plan(config.algorithm.plan)[0].is_function:
        return True
    of_callbacks = dict.fromkeys(_unknown(_of_callbacks(config)), "")
    return name.startswith((*with_evaluation(of_callbacks, config), *_unknown(_of_operators(config))))


def _of_callbacks(config: ExperimentConfig) -> _Declared:
    for block in config.callbacks:
        yield _CALLBACKS, _known_reports(str(block.get("_target_")), CALLBACKS.bases[0])


def _of_operators(config: ExperimentConfig) -> _Declared:
    names: list[str] = []
    for step in steps_of(read_plan(config.algorithm.plan)):
        names.append(free_name(_class_name(step), names))
        yield operator_metric(names[-1], ""), _known_reports(step.name, OPERATOR) if step.config is None else {}


def _known_reports(path: str, base: str) -> Reports | None:
    """Return the reports of a class; None if its source cannot be analysed."""
    try:
        return declared_reports(path, base)
    except UnknowableError:
        return None


def _meanings(declared: _Declared) -> dict[str, str]:
    known = [(prefix, reports) for prefix, reports in declared if reports is not None]
    return {f"{prefix}{name}": meaning_of(reports, name) for prefix, reports in known for name in reports}


def _unknown(declared: _Declared) -> list[str]:
    return [prefix for prefix, reports in declared if reports is None]


def _class_name(step: PlanStep) -> str:
    """Return the name of a step's class, resolving import aliases."""
    return next(iter(find_ancestors(step.name)), step.name).rpartition(".")[2]


def is_percentile(reduction: str) -> bool:
    """Return whether the name is one of `p1` to `p99`."""
    return _PERCENTILE.fullmatch(reduction) is not None


def find_reduction_fault(what: str, reduction: str, named: Sequence[str]) -> Problem | None:
    """Return the problem of a reduction that is neither one of `named` nor a percentile, or None.

    Args:
        what: description of the problem.
        reduction: reduction given.
        named: valid reductions besides percentiles.
    """
    if reduction in named or is_percentile(reduction):
        return None
    return Problem(what, None, reduction, f"{', '.join(named)}, p1 to p99", nearest_match(reduction, named))
