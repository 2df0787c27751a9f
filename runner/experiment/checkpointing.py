"""Saves and restores the state of a run part by part, without knowing any feature."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.checkpoints.files import find_unstorable
from runner.checkpoints.folder import shared_state_in
from runner.config.errors import ConfigError
from runner.config.references import Digests, with_references
from runner.plans.plan import Plan
from runner.plans.run_parts import RunParts


class Stateful(Protocol):
    """A part of a run that a checkpoint holds."""

    def get_state(self) -> Any:
        """Return the state."""

    def set_state(self, state: Any, /) -> Any:
        """Restore a state."""


def state_of(parts: RunParts, plan: Plan, digests: Digests) -> dict[str, Any]:
    """Return everything that the next iteration depends on: nested dicts of arrays, plain values and segments.

    The plan comes first because it waits for the answers of env runners.
    """
    of_plan = plan.get_state()
    settings = _settings(parts, plan, digests.of_each())
    state: dict[str, Any] = {"plan": {**of_plan, "settings": settings, **digests.get_state()}}
    for part in parts:
        if of_part := part.get_state():
            _put(state, part.name, of_part)
    return state


def restore(parts: RunParts, plan: Plan, digests: Digests, state: Mapping[str, Any]) -> list[str]:
    """Restore a state of `state_of`.

    A part whose settings differ is reset, and so are the operators that need it. The state of a different plan is
    dropped.

    Returns:
        Lines for the user about what differs from the checkpoint.

    Raises:
        ConfigError: the state belongs to another network.
    """
    of_plan = state["plan"]
    digests = digests.with_salt(of_plan["salt"]) if "salt" in of_plan else Digests({}, {})
    saved, settings = of_plan["settings"], _settings(parts, plan, digests.of_each())
    parts.learners.set_state(state[parts.learners.name])
    parts.broadcast_policy(shared_state_in(state))
    reset = set()
    for part in parts:
        if part is parts.learners:
            continue
        old_state = _get(state, part.name)
        if old_state is not None and _get(saved, part.name, {}) == _get(settings, part.name, {}):
            part.set_state(old_state)
        else:
            part.reset(old_state or {})
            reset.add(part.name)
    parts.begin()
    if all(saved.get(name) == settings[name] for name in plan.settings):
        plan.set_state(of_plan, reset)
    changed = list(digests.changed(of_plan.get("references", {})))
    what = "values differ from the checkpoint, so the parts that depend on them are reset"
    notes = [f"{what}: {', '.join(changed)}"] if changed else []
    for part in parts:
        was_saved = _get(saved, part.name) is not None
        notes += part.restore_notes(_get(state, part.name) or {}, part.name in reset and was_saved)
    return notes


def check_storable(state: Mapping[str, Any]) -> None:
    """Check that a checkpoint can hold a state; raise `ConfigError` with one problem per unsupported value."""
    problems = [problem for part, values in state.items() for problem in find_unstorable(values, part)]
    if problems:
        raise ConfigError(problems)


def store_and_restore(name: str, part: Stateful) -> None:
    """Save the state of a part in a temporary checkpoint, load it, and restore the part from it.

    Raises:
        ConfigError: a checkpoint cannot hold the state.
    """
    state = {name: part.get_state()}
    check_storable(state)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint")
        save_checkpoint(checkpoint, state, {})
        part.set_state(load_checkpoint(checkpoint)[0][name])


def _settings(parts: RunParts, plan: Plan, references: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the plan and of each part, with references in place of the values of resolvers."""
    settings: dict[str, Any] = {
        name: with_references(value, references, f"algorithm.{name}") for name, value in plan.settings.items()
    }
    for part in parts:
        if part.settings:
            _put(settings, part.name, with_references(part.settings, references, part.settings_key))
    return settings


def _put(nested: dict[str, Any], name: str, value: Any) -> None:
    *folders, last = name.split("/")
    for folder in folders:
        nested = nested.setdefault(folder, {})
    nested[last] = value


def _get(nested: Mapping[str, Any], name: str, default: Any = None) -> Any:
    *folders, last = name.split("/")
    for folder in folders:
        nested = nested.get(folder, {})
    return nested.get(last, default)
