"""`list`: one line for each experiment and for each option of a group. Imports neither torch nor ray."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from runner.cli.arguments import Arguments, UsageError
from runner.config.defaults import core_groups
from runner.config.errors import Problem, nearest_match
from runner.config.paths import list_groups, list_options, search_dirs

_EXPERIMENT = "experiment"
_SENTENCE_ENDS = (".", "!", "?")
_HEADERS = ("@package", "yaml-language-server:")
_WIDTH = 100


def main(arguments: Arguments) -> int:
    """Print the options of `conf/` and of the user's `--config-dir`."""
    dirs = search_dirs(arguments.config_dir)
    found = find_options(dirs, *_group_and_pattern(arguments.words, dirs))
    if arguments.has("--json"):
        described = {
            group: {name: describe_file(path) for name, path in paths.items()} for group, paths in found.items()
        }
        print(json.dumps(described, indent=2))
    else:
        print(render_options(found))
    return 0


def groups_in(dirs: Sequence[Path]) -> list[str]:
    """Return experiments first, then the groups in the order of `conf/config.yaml`, then the user's own groups."""
    present, core = list_groups(dirs), core_groups()
    others = [group for group in present if group not in core and group != _EXPERIMENT]
    return [_EXPERIMENT, *(group for group in core if group in present), *others]


def _group_and_pattern(words: Sequence[str], dirs: Sequence[Path]) -> tuple[str | None, str]:
    """Return the group, None for all of them, and the pattern of names; raises `UsageError`."""
    if not words:
        return None, "*"
    groups = groups_in(dirs)
    group = next((group for group in groups if words[0] in (group, f"{group}s")), None)
    if group is not None:
        return group, words[1] if len(words) > 1 else "*"
    if len(words) == 1 and any(sign in words[0] for sign in "*?["):
        return None, words[0]
    expected = ", ".join(["experiments", *groups[1:]])
    raise UsageError(Problem(f"{words[0]} is not a group", None, None, expected, nearest_match(words[0], groups)))


def find_options(dirs: Sequence[Path], group: str | None, pattern: str) -> dict[str, dict[str, Path]]:
    """Return group -> option -> file, for the groups with options whose names match the pattern.

    Raises:
        UsageError: no name matches.
    """
    found = {}
    for one in groups_in(dirs) if group is None else [group]:
        options = list_options(dirs, one)
        matching = {name: path for name, path in options.items() if fnmatchcase(name, pattern)}
        if matching:
            found[one] = matching
    if not found:
        raise UsageError(Problem(f"no name matches {pattern}", fix="runner list"))
    return found


def render_options(found: Mapping[str, Mapping[str, Path]]) -> str:
    """Render a paragraph for each group."""
    return "\n\n".join("\n".join(_render_group(group, options)) for group, options in found.items())


def _render_group(group: str, options: Mapping[str, Path]) -> Iterator[str]:
    chosen = core_groups().get(group)
    default = f" (default {chosen})" if chosen else ""
    plus = "" if group in core_groups() or group == _EXPERIMENT else "+"
    yield "experiments: runner train NAME" if group == _EXPERIMENT else f"{group}: {plus}{group}=NAME{default}"
    width = max(map(len, options), default=0)
    for name, path in options.items():
        yield _shortened(f"  {name:<{width}}  {describe_file(path)}".rstrip())


def _shortened(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4].rsplit(' ', 1)[0]} ..."


def describe_file(path: Path) -> str:
    """Return the first sentence of a YAML file's first comment; headers for Hydra and for editors do not count."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    words: list[str] = []
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            break
        comment = text.lstrip("#").strip()
        if comment and not comment.startswith(_HEADERS):
            words.append(comment)
        if words and (not comment or comment.endswith(_SENTENCE_ENDS)):
            break
    comment = " ".join(words)
    sentence, separator, _ = comment.partition(". ")
    return f"{sentence}." if separator else comment
