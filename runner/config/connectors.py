"""Rules of pipeline edits in YAML: their form, their connectors, and the arguments of these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runner.config.errors import Problem, nearest_match, show_value
from runner.config.list_patches import CONNECTOR_KEY, CONNECTORS_KEY, DISCARD, EARLIER, OLD_CONNECTORS_KEY
from runner.config.source_definitions import uses_self_attribute
from runner.config.targets import (
    CONNECTORS,
    ENV_CONNECTORS,
    INSTANTIATE_KEYS,
    NOTHING_GIVEN,
    PIPELINE,
    PIPELINE_KINDS,
    Given,
    describe_fault,
    find_target_fault,
    is_subclass,
    with_positional,
)

CONNECTOR_EDITS = ("prepend", "append")
ANCHORED_EDITS = ("insert_before", "insert_after", "replace")
EDITS = (*CONNECTOR_EDITS, *ANCHORED_EDITS, "remove")
_PLACE_IN_LIST = re.compile(r"\.\d+\.")
# Arguments that a pipeline passes to nested pipelines.
SPACES = ("input_observation_space", "input_action_space")


def find_edit_problems(name: str, edits: Any) -> Iterator[Problem]:
    """Yield the problems of the list of edits at the dotted key `name`."""
    if not isinstance(edits, list):
        return  # a wrong type is reported with the field
    for index, edit in enumerate(edits):
        key = f"{name}.{index}"
        if isinstance(edit, dict):
            yield from _check_edit(key, edit)


def _check_edit(key: str, edit: dict[str, Any]) -> Iterator[Problem]:
    if DISCARD in edit:  # a valid one has been applied before
        what = f"{key}: {DISCARD} must be the first item of a list"
        yield Problem(what, key, show_value(edit), f"- {DISCARD}: {EARLIER}")
        return
    if "_target_" in edit:
        what = f"{key} is a connector without a position"
        expected = "{append: {_target_: ...}}, {prepend: ...}, or {insert_after: CONNECTOR, connector: {_target_: ...}}"
        yield Problem(what, key, show_value(edit), expected)
        return
    kinds = [kind for kind in EDITS if kind in edit]
    expected = f"exactly one of {', '.join(EDITS)}"
    unknown = [str(name) for name in edit if name not in (*EDITS, CONNECTOR_KEY)]
    for name in unknown:
        nearest = nearest_match(name, (*EDITS, DISCARD, CONNECTOR_KEY))
        yield Problem(f"{key}: unknown edit {name}", key, name, expected, nearest)
    if unknown:
        return
    if len(kinds) != 1:
        yield Problem(f"{key} must be one edit", key, ", ".join(kinds) or show_value(edit), expected)
        return
    kind = kinds[0]
    if kind in CONNECTOR_EDITS:
        yield from _check_connector(f"{key}.{kind}", edit[kind])
    elif not isinstance(edit[kind], str):
        what = f"{key}.{kind} must name a connector of the pipeline"
        yield Problem(what, key, show_value(edit[kind]), "a class name")
    if kind in ANCHORED_EDITS:
        yield from _check_connector(f"{key}.{CONNECTOR_KEY}", edit.get(CONNECTOR_KEY))
    elif CONNECTOR_KEY in edit:
        what = f"{key}: {kind} does not take a connector"
        expected = f"{CONNECTOR_KEY} only with {', '.join(ANCHORED_EDITS)}"
        yield Problem(what, key, show_value(edit[CONNECTOR_KEY]), expected)


def _check_connector(key: str, connector: Any) -> Iterator[Problem]:
    if not isinstance(connector, dict) or not isinstance(connector.get("_target_"), str):
        expected = "{_target_: package.module.Connector, argument: value, ...}"
        yield Problem(f"{key} must be a connector with a _target_", key, show_value(connector), expected)
        return
    path = connector["_target_"]
    is_pipeline = is_subclass(path, PIPELINE)
    fault = _find_fault(path, connector, is_pipeline)
    if fault is not None:
        yield describe_fault(f"{key}._target_", fault, path)
    elif is_pipeline:
        yield from _check_kind(key, path)
        if CONNECTORS_KEY in connector:  # otherwise the class creates its connectors
            inner = f"{key}.{CONNECTORS_KEY}"
            yield from _check_connectors(inner, connector[CONNECTORS_KEY])
    elif uses_self_attribute(path, "multi_agent_episodes") and any(is_subclass(path, base) for base in ENV_CONNECTORS):
        what = f"{key}: {path.rpartition('.')[2]} needs multi_agent_episodes, which exist in learner pipelines only"
        expected = "episodes_of_modules, whose episodes have agent_id and multi_agent_episode_id"
        yield Problem(what, key, path, expected)


def _find_fault(path: str, connector: dict[str, Any], is_pipeline: bool) -> Problem | None:
    given = with_positional(Given(names=SPACES) if is_pipeline else NOTHING_GIVEN, connector)
    arguments = [str(name) for name in connector if name not in INSTANTIATE_KEYS]
    fault = find_target_fault(path, arguments, kinds=CONNECTORS, given=given)
    if is_pipeline and fault is not None and CONNECTORS_KEY in arguments:
        arguments[arguments.index(CONNECTORS_KEY)] = (
            OLD_CONNECTORS_KEY  # the class may use the old name of the argument
        )
        return fault if find_target_fault(path, arguments, kinds=CONNECTORS, given=given) else None
    return fault


def _check_kind(key: str, path: str) -> Iterator[Problem]:
    """Yield a problem for a pipeline nested in a pipeline of another kind."""
    list_key = _PLACE_IN_LIST.split(key, maxsplit=1)[0]
    pipeline = list_key.rpartition(".")[2].removesuffix("_pipeline")
    kind = next((name for name, base in PIPELINE_KINDS.items() if is_subclass(path, base)), pipeline)
    if kind != pipeline:
        name = PIPELINE_KINDS[pipeline].rpartition(".")[2]
        what = f"{key}: {path.rpartition('.')[2]} is a pipeline of the kind {kind}, nested in the {pipeline} pipeline"
        expected = f"runner.pipelines.ConnectorPipeline, or a subclass of it or of {name}"
        yield Problem(what, key, path, expected)


def _check_connectors(key: str, connectors: Any) -> Iterator[Problem]:
    if not isinstance(connectors, list):
        yield Problem(f"{key} must be a list of connectors", key, show_value(connectors), "[{_target_: ...}, ...]")
        return
    for index, connector in enumerate(connectors):
        yield from _check_connector(f"{key}.{index}", connector)
