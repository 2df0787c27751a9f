"""Overrides as typed by users, translated for Hydra.

Users write `experiment=x`, `stop.env_runners.episode_return_mean=450`, `env.env_config.size=3`. Hydra needs a `+` for
a group that `config.yaml` does not choose and `++` for a key without a default.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException

from runner.config.defaults import core_groups, known_keys
from runner.config.env_ids import GROUP, option_at, registered_ids
from runner.config.errors import Problem, list_names, nearest_match, nearest_matches
from runner.config.paths import list_options
from runner.config.renamed_keys import find_double_keys, old_key_in, renamed_keys, renaming_note

MOST_COMBINATIONS = 300  # checked combinations of a sweep, 50 ms each
_NAME = re.compile(r"[\w/-]+")
_NOUNS = ("algorithm", "experiment")  # groups whose options are called by the name of the group
_SUFFIX = ".yaml"  # Hydra accepts it, but rules and folders use the name of an option
_FORMS = "key=value, group=option, ~key (remove)"
# Messages of OmegaConf and Python about a name where a list needs an index.
_NO_INDEX = re.compile(r"(?:Index|invalid literal for int\(\) with base 10:) '([^']*)'")
_NO_REMOVAL = "list indices must be integers"


@dataclass(frozen=True)
class OverrideLine:
    """One override: `text` is the normalised form for messages, `hydra_text` the form for Hydra.

    `renamed_from`: the old key that was typed, or None.
    """

    text: str
    hydra_text: str
    parsed: Override
    is_group: bool
    renamed_from: str | None = None

    @property
    def key(self) -> str:
        """The dotted key or the group."""
        return str(self.parsed.key_or_group)

    @property
    def where(self) -> str:
        """The location of a problem in this override."""
        return f"override {self.text.lstrip('+')}"

    @property
    def options(self) -> list[str]:
        """Options that a group override chooses."""
        value = self.parsed.value()
        chosen = value if isinstance(value, list) else [value]
        return ["null" if option is None else str(option) for option in chosen]


def parse_overrides(texts: Sequence[str], dirs: Sequence[Path]) -> tuple[list[OverrideLine], list[Problem]]:
    """Parse overrides; return the valid ones, and a problem for each invalid one."""
    lines: list[OverrideLine] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            lines.append(_parse_override(text, dirs))
        except (HydraException, ValueError) as error:  # a number with too many digits
            problems.append(_describe_syntax_error(text, error))
    places = {line.renamed_from: f"override {line.renamed_from}" for line in lines if line.renamed_from is not None}
    others = [line.key for line in lines if line.renamed_from is None]
    problems += find_double_keys(places, others) if places else ()
    return lines, problems


def renaming_notes(lines: Sequence[OverrideLine]) -> list[str]:
    """Return a note for each key that was typed with its old name."""
    return [
        renaming_note(
            line.renamed_from, renamed_keys().get(line.renamed_from, line.key), f"override {line.renamed_from}"
        )
        for line in lines
        if line.renamed_from is not None
    ]


def with_key(line: OverrideLine, key: str) -> OverrideLine:
    """Return an override of a single key with the new name of the key."""
    return replace(_parse_override(line.text.replace(line.key, key, 1), ()), renamed_from=line.key)


def _parse_override(text: str, dirs: Sequence[Path]) -> OverrideLine:
    text = _use_dots_in_metric(text)
    parsed = OverridesParser.create().parse_override(text)
    old = old_key_in(str(parsed.key_or_group))
    if old is not None:
        renamed = _parse_override(text.replace(old, renamed_keys()[old], 1), dirs)
        return replace(renamed, renamed_from=old)
    if str(parsed.key_or_group) == "algorithm.plan" and isinstance(parsed.value(), dict):  # plans are lists
        key, _, value = text.partition("=")
        return _parse_override(f"{key}=[{value}]", dirs)
    key = str(parsed.key_or_group)
    bare = text.lstrip("+")
    if parsed.is_hydra_override():
        return OverrideLine(text, text, parsed, is_group="=" in text and "/" in key)
    if _is_group(parsed, dirs):
        if text.endswith(_SUFFIX) and isinstance(parsed.value(), str):
            return _parse_override(text.removesuffix(_SUFFIX), dirs)
        if isinstance(parsed.value(), (int, float)):  # the name of an option
            chosen, _, name = text.partition("=")
            return _parse_override(f"{chosen}={quoted(name)}", dirs)
        is_chosen = key in core_groups() or parsed.is_delete()
        tidy = text if parsed.package else bare if is_chosen else f"+{bare}"  # only Hydra knows packages
        return OverrideLine(tidy, tidy, parsed, is_group=True)
    if parsed.is_delete():
        is_stop = key.startswith("stop.")
        return OverrideLine(text, f"++{key}=null" if is_stop else text, parsed, is_group=False)
    is_known = key in known_keys() and not isinstance(parsed.value(), dict)
    return OverrideLine(bare, bare if is_known else f"++{bare}", parsed, is_group=False)


def _use_dots_in_metric(text: str) -> str:
    key, separator, value = text.partition("=")
    if key.lstrip("+~").startswith("stop."):
        key = key.replace("/", ".")
    return key + separator + value


def _is_group(parsed: Override, dirs: Sequence[Path]) -> bool:
    key = str(parsed.key_or_group)
    is_name = not isinstance(parsed.value(), dict) and "." not in key
    return is_name and any(os.path.isdir(folder / key) for folder in dirs)


def _describe_syntax_error(text: str, error: Exception) -> Problem:
    where = f"override {text}"
    if "=" not in text:
        return Problem(f"{text} is not an override: the value is missing", where, expected=_FORMS)
    reason = str(error).splitlines()[0]
    key = text.partition("=")[0].lstrip("+~")
    if key.startswith("metrics."):
        expected = "'metrics={env_runners/NAME: {info: KEY}}', the complete block"
        return Problem(f"this override cannot be read: {reason}", where, text, expected)
    value = text.partition("=")[2]
    is_text = isinstance(error, HydraException) and value[:1] not in "'\"[{" and "${" not in value
    if is_text and _is_readable(f"{key}={quoted(value)}"):
        return Problem(f"this override cannot be read: {reason}", where, text, f'quotes: "{key}={quoted(value)}"')
    if value.startswith("${") and _is_readable(f'{key}="{value}"'):
        return Problem(f"this override cannot be read: {reason}", where, text, f"quotes: '{key}=\"{value}\"'")
    suggestion = key.replace("/", ".") if "/" in key else None
    return Problem(f"this override cannot be read: {reason}", where, text, _FORMS, suggestion)


def _is_readable(text: str) -> bool:
    try:
        OverridesParser.create().parse_override(text)
    except (HydraException, ValueError):
        return False
    return True


def describe_list_key(line: OverrideLine, error: Exception) -> Problem | None:
    """Return the problem of an override that names an item of a list, given the error of applying it; else None."""
    found, names = _NO_INDEX.search(str(error)), line.key.split(".")
    if found is not None and found[1] in names[1:]:
        key = ".".join(names[: names.index(found[1], 1)])
        what = f"{key} is a list, so {found[1]} is not one of its keys"
        return Problem(what, line.where, expected=f"{key}.0 for its first item, or {key}=[...] for all of them")
    if _NO_REMOVAL in str(error) and line.parsed.is_delete() and names[-1].isdigit():
        expected = f"{'.'.join(names[:-1])}=[...] with the other items"
        return Problem("a single item of a list cannot be removed", line.where, expected=expected)
    return None


def override_value(text: str) -> str:
    """Return the value of `key=value` as text: without Hydra's quotes, otherwise as typed."""
    typed = text.partition("=")[2]
    try:
        value = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return typed
    return str(value) if isinstance(value, str) else typed


def names_run_dir(text: str) -> bool:
    """Return whether an override sets `hydra.run.dir`."""
    return text.lstrip("+").startswith("hydra.run.dir=")


def quoted(text: str) -> str:
    """Return text as the value of an override, regardless of its characters."""
    return QuotedString(text, Quote.single).with_quotes()


def find_unknown_option(line: OverrideLine, dirs: Sequence[Path]) -> Problem | None:
    """Return the problem of a group override with an unknown option, or None."""
    if not line.is_group or line.parsed.is_hydra_override() or line.parsed.is_delete():
        return None
    for option in line.options:
        is_file = option.removesuffix(_SUFFIX) in list_options(dirs, line.key)
        if not is_file and option_at(f"{line.key}/{option}") is None:
            return describe_unknown_option(line.key, option, line.where, dirs)
    return None


def describe_unknown_option(group: str, option: str, where: str, dirs: Sequence[Path]) -> Problem:
    """Return the problem of an option that no file defines."""
    options = list_options(dirs, group)
    what = (
        f"unknown {group} '{option}'" if group in _NOUNS else f"unknown option '{option}' of the config group {group}"
    )
    if not options:
        what = f"unknown config group {group}"
    expected = list_names(options, option) or None
    if expected is not None and len(dirs) == 1:
        expected += f"; or a file in DIR/{group} with --config-dir DIR"
    known = [*options]
    if group == GROUP:
        known += registered_ids()
        expected = f"{expected}; or an id of Gymnasium, with module:ID to import the module that registers it"
    folder = _folder_of_experiment(option) if group == "experiment" and len(dirs) == 1 else None
    fix = None if folder is None else f"add --config-dir {folder}, which has this experiment"
    return Problem(what, where, option, expected, None if fix else nearest_matches(option, known), fix=fix)


def _folder_of_experiment(name: str) -> Path | None:
    """Return the folder below the working directory that has an experiment, or None."""
    folders = sorted(Path().glob("*/experiment")) if _NAME.fullmatch(name) else []
    return next((folder.parent for folder in folders if os.path.isfile(f"{folder}/{name}.yaml")), None)


def expand_sweep(lines: Sequence[OverrideLine], dirs: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Yield combinations of single values (values and ends of intervals) to check, with each seed at least once.

    If there are more than `MOST_COMBINATIONS`, yield an even selection, and combinations that cover each value. Lines
    without values are left out.
    """
    named = [(line.key, values) for line in lines if (values := _sweep_values(line, dirs))]
    choices = [values for _, values in named]
    longest = max((len(values) for values in choices), default=0)
    covering = (tuple(values[min(index, len(values) - 1)] for values in choices) for index in range(longest))
    without_seeds = [values[:1] if key == "seed" else values for key, values in named]
    num_all = math.prod(map(len, without_seeds))
    num_chosen = min(num_all, MOST_COMBINATIONS) if named else 0
    chosen = (_combination(without_seeds, index * num_all // num_chosen) for index in range(num_chosen))
    return iter(dict.fromkeys(itertools.chain(covering, chosen)))


def find_empty_sweeps(lines: Sequence[OverrideLine], dirs: Sequence[Path]) -> list[Problem]:
    """Return a problem for each sweep without values, which `expand_sweep` leaves out."""
    parts = [(line.where, line.text.partition("=")) for line in lines if not _sweep_values(line, dirs, limit=1)]
    return [Problem(f"{key} does not have a value to try", where, given) for where, (key, _, given) in parts]


def _combination(choices: Sequence[Sequence[str]], index: int) -> tuple[str, ...]:
    """Return the combination at this index of `itertools.product`."""
    reversed_combination = []
    for values in reversed(choices):
        index, place = divmod(index, len(values))
        reversed_combination.append(values[place])
    return tuple(reversed(reversed_combination))


def _sweep_values(line: OverrideLine, dirs: Sequence[Path], limit: int = 1000) -> list[str]:
    if not line.parsed.is_sweep_override():
        return [line.text]
    key = line.text.partition("=")[0]
    sweep: Any = line.parsed.value()
    if isinstance(sweep, Glob):
        values: Iterator[Any] = iter(sweep.filter(sorted(list_options(dirs, line.key))))
    elif isinstance(sweep, RangeSweep) and sweep.step == 0:
        values = iter(())
    elif line.parsed.is_discrete_sweep():
        values = line.parsed.sweep_string_iterator()
    else:
        values = iter((sweep.start, sweep.end))
    return [f"{key}={value}" for value in itertools.islice(values, limit)]


def describe_sweep(line: OverrideLine) -> Problem:
    """Return the problem of a sweep in a single run."""
    text = line.text.partition("=")[2]
    fix = f"`runner sweep` (or -m) for one run per value, [{text}] for a list, '{text}' in quotes for text with a comma"
    return Problem(f"{line.key} has several values, which needs a sweep", line.where, text, fix=fix)


def describe_idle(line: OverrideLine, followed: Sequence[str]) -> Problem:
    """Return the problem of an override of a Hydra key without effect; `followed` are the keys with an effect."""
    what = f"{line.key} has no effect, because runner creates the folders and logs of runs itself"
    return Problem(what, line.where, expected=list_names(followed), nearest=nearest_match(line.key, followed))
