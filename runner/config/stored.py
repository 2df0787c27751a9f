"""The configuration in a checkpoint with overrides on top, which `resume` and `evaluate` start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.compose import compose_experiment
from runner.config.composed import CHECKPOINT_SOURCE, Composed, leaf_values
from runner.config.composition_rules import apply_edits, changes_edits, rename_all, rename_in_line
from runner.config.defaults import core_groups
from runner.config.documents import TooLargeError, check_expansion
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.list_patches import edit_list_of
from runner.config.overrides import OverrideLine, describe_idle, describe_list_key, parse_overrides, renaming_notes
from runner.config.path_fields import absolute_paths
from runner.config.paths import search_dirs
from runner.config.provenance import Provenance
from runner.config.resolvers import find_references, register_value_resolvers, unresolved_values

_EXPERIMENT = "experiment"
# Errors about an override, also about a name where a list needs an index.
_NOT_APPLIED = (HydraException, OmegaConfBaseException, TypeError, ValueError)


def compose_stored(
    unresolved: Mapping[str, Any],
    overrides: Sequence[str],
    earlier: Sequence[str],
    experiment: str | None,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Composed:
    """Compose stored values with overrides of single keys; problems are collected, not raised.

    Args:
        unresolved: `Composed.unresolved` of the run, so that an override also changes references to its key.
        overrides: overrides of the command line without `hydra.` keys.
        earlier: overrides that the stored values already contain.
        experiment: name of the experiment file.
        sources: dotted key -> source of its value, for values that are not from a checkpoint.
    """
    lines, problems = parse_overrides(overrides, search_dirs(None))
    config = OmegaConf.create(dict(unresolved))
    rename_all(config)
    lines = [rename_in_line(config, line) for line in lines]
    problems += [problem for line in lines if (problem := _find_unusable(line)) is not None]
    usable = [line for line in lines if _find_unusable(line) is None]
    stored = leaf_values(unresolved_values(config))
    num_edits = {key: len(one) for key, one in stored.items() if isinstance(one, list) and edit_list_of(key) == key}
    provenance = Provenance({**dict.fromkeys(stored, CHECKPOINT_SOURCE), **sources}, num_edits)
    for line in usable:
        provenance.record_override(line)
    problems += set_values(config, usable)
    values, plain = absolute_paths(_resolved(config)), absolute_paths(unresolved_values(config))
    stop = values.get("stop", {})
    if isinstance(stop, dict):  # otherwise it is reported as a mistake
        stop = {metric: bound for metric, bound in stop.items() if bound is not None}
    values["stop"] = plain["stop"] = stop
    return Composed(
        values,
        provenance.sources,
        (*earlier, *(line.text for line in lines)),
        experiment,
        tuple(problems),
        unresolved=plain,
        references=find_references(plain),
        notes=tuple(dict.fromkeys((*renaming_notes(lines), *provenance.notes))),
    )


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        check_expansion(unresolved_values(config))
        register_value_resolvers()
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except (OmegaConfBaseException, TooLargeError) as error:
        what = f"the stored configuration and its overrides cannot be resolved: {str(error).splitlines()[0]}"
        raise ConfigError([Problem(what, CHECKPOINT_SOURCE)]) from error


def set_values(config: DictConfig, lines: Sequence[OverrideLine]) -> Iterator[Problem]:
    """Apply overrides of single keys; a removed key becomes null."""
    for line in lines:
        try:
            if changes_edits(line.text):
                apply_edits(config, line.parsed)
            else:
                for key, value in _updates_of(line).items():
                    OmegaConf.update(config, key, value, force_add=True)
        except _NOT_APPLIED as error:
            yield describe_list_key(line, error) or Problem(f"this override cannot be applied: {error}", line.where)
    rename_all(config)


def _updates_of(line: OverrideLine) -> dict[str, Any]:
    """Return key -> value; a metric of `stop` is one key with slashes in it, everything else a dotted path."""
    value = None if line.parsed.is_delete() else line.parsed.value()
    block, _, name = line.key.partition(".")
    if block != "stop" or not (name or isinstance(value, dict)):
        return {line.key: value}
    prefix = f"{name}." if name else ""
    metrics = leaf_values(value, prefix) if isinstance(value, dict) else {name: value}
    return {f"stop[{metric.replace('.', '/')}]": bound for metric, bound in metrics.items()}


def compose_new_run(
    manifest: Mapping[str, Any],
    stored: Mapping[str, Any],
    checkpoint: Path,
    overrides: Sequence[str],
    config_dir: Path | None,
) -> tuple[Composed, set[str]]:
    """Compose a new run that starts with the checkpoint's modules; problems are collected, not raised.

    Overrides of groups are also valid: an option of a group replaces the stored block, and an experiment replaces all
    blocks except `module`, because the checkpoint contains the parameters of that network.

    Args:
        manifest: manifest of the checkpoint.
        stored: configuration of the checkpoint, safe to resolve.
        checkpoint: folder of the checkpoint.
        overrides: overrides of the command line without `hydra.` keys.
        config_dir: folder with custom experiments and options.

    Returns:
        The configuration, and the names of its new blocks.
    """
    choices = {text: group for text in overrides if (group := _chosen_group(text, search_dirs(config_dir))) is not None}
    chosen = compose_experiment(list(choices), config_dir)
    groups, has_experiment = set(choices.values()), _EXPERIMENT in choices.values()
    replaced = {name for name in chosen.unresolved if name in groups or (has_experiment and name != "module")}
    values = {**stored, **{name: chosen.unresolved[name] for name in replaced}}
    composed = compose_stored(
        _beginning_with(checkpoint, values),
        [text for text in overrides if text not in choices],
        [*([] if has_experiment else manifest["overrides"]), *chosen.overrides],
        chosen.experiment if has_experiment else manifest["experiment"],
        {key: source for key, source in chosen.sources.items() if key.partition(".")[0] in replaced},
    )
    problems, notes = (*chosen.problems, *composed.problems), (*chosen.notes, *composed.notes)
    composed = replace(composed, problems=problems, unread=chosen.unread, config_dir=config_dir, notes=notes)
    return composed, replaced | ({_EXPERIMENT} if has_experiment else set())


def _beginning_with(checkpoint: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Load the parameters of all modules from this checkpoint, instead of from where the stored run did."""
    load = {"load_state_path": str(checkpoint), "load_state_strict": True}
    agents = dict(values.get("multi_agent", {}))
    modules = {
        module_id: {name: value for name, value in fields.items() if name not in load}
        for module_id, fields in agents.get("modules", {}).items()
    }
    return {**values, "module": {**values["module"], **load}, "multi_agent": {**agents, "modules": modules}}


def _chosen_group(text: str, dirs: Sequence[Path]) -> str | None:
    """Return the group whose option an override chooses for the block of its name, or None."""
    lines, _ = parse_overrides([text], dirs)
    is_choice = bool(lines) and lines[0].is_group and not (lines[0].parsed.is_delete() or lines[0].parsed.package)
    return lines[0].key if is_choice and lines[0].key in (*core_groups(), _EXPERIMENT) else None


def _find_unusable(line: OverrideLine) -> Problem | None:
    if line.parsed.is_sweep_override():
        return Problem("a stored run takes one value per key, not a sweep", line.where)
    if line.is_group:
        fix = "`runner resume RUN_DIR --module-only` starts a new run with the same module, and takes group=option"
        what = "a stored run takes overrides of single keys, not of groups"
        return Problem(what, line.where, expected="key=value", fix=fix)
    if line.parsed.is_hydra_override():
        return describe_idle(line, ["hydra.run.dir"])
    return None


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return dotted key -> (old, new) as text for every value that differs."""
    old, new = leaf_values(before), leaf_values(after)
    names = [name for name in {**old, **new} if old.get(name, _MISSING) != new.get(name, _MISSING)]
    return {name: (_text(old.get(name, _MISSING)), _text(new.get(name, _MISSING))) for name in names}


_MISSING = object()


def _text(value: object) -> str:
    return "not set" if value is _MISSING else show_value(value)


_CHOOSES_KEYS = "algorithm.schema"  # the keys of `algorithm` depend on it


def compose_variant(shared: Sequence[str], differing: Sequence[str], config_dir: Path | None) -> Composed:
    """Compose `compose_experiment([*shared, *differing], config_dir)`, ten times as fast from the second call on.

    Args:
        shared: overrides that the configurations share.
        differing: further overrides of other keys.
        config_dir: folder with custom experiments and options; changed files are not read again.
    """
    lines, problems = parse_overrides(differing, search_dirs(config_dir))
    singles = [line.text for line in lines if _sets_a_key(line)]
    others = [line.text for line in lines if not _sets_a_key(line)]
    if problems or not singles:
        return compose_experiment([*shared, *differing], config_dir)
    base = _composed_once((*shared, *others), config_dir)
    if base.problems:  # perhaps an interpolation of a key of `differing`
        return compose_experiment([*shared, *differing], config_dir)
    composed = compose_stored(base.unresolved, singles, base.overrides, base.experiment, base.sources)
    return replace(
        composed,
        unread=base.unread,
        config_dir=config_dir,
        run_url=base.run_url,
        notes=(*base.notes, *composed.notes),
    )


def _sets_a_key(line: OverrideLine) -> bool:
    parsed = line.parsed
    is_of_hydra = line.is_group or parsed.is_hydra_override()
    return not (is_of_hydra or parsed.is_delete() or parsed.is_sweep_override() or line.key == _CHOOSES_KEYS)


@lru_cache(maxsize=16)
def _composed_once(overrides: tuple[str, ...], config_dir: Path | None) -> Composed:
    return compose_experiment(overrides, config_dir)
