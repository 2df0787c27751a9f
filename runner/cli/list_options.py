"""`list`: one line for each experiment and for each option of a group. Imports neither torch nor ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner.cli.arguments import parse_arguments
from runner.config.defaults import core_groups
from runner.config.paths import list_groups, list_options, search_dirs

_SENTENCE_ENDS = (".", "!", "?")


def main(argv: Sequence[str]) -> int:
    """Print the options of `conf/` and of the user's `--config-dir`."""
    print(render_options(search_dirs(parse_arguments(argv).config_dir)))
    return 0


def render_options(dirs: Sequence[Path]) -> str:
    """Render experiments first, then the groups in the order of `conf/config.yaml`, then the user's own groups."""
    present = list_groups(dirs)
    core = [group for group in core_groups() if group in present]
    others = [group for group in present if group not in core and group != "experiment"]
    sections = ["\n".join(_render_group("experiments: +experiment=NAME", list_options(dirs, "experiment")))]
    for group in core + others:
        chosen = core_groups().get(group)
        default = f" (default {chosen})" if chosen else ""
        title = f"{group}: {'' if group in core else '+'}{group}=NAME{default}"
        sections.append("\n".join(_render_group(title, list_options(dirs, group))))
    return "\n\n".join(sections)


def _render_group(title: str, options: Mapping[str, Path]) -> Iterator[str]:
    yield title
    width = max(map(len, options), default=0)
    for name, path in options.items():
        yield f"  {name:<{width}}  {describe_file(path)}".rstrip()


def describe_file(path: Path) -> str:
    """The first comment of a YAML file that is not Hydra's package header, to the line that ends a sentence."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            break
        comment = text.lstrip("#").strip()
        if comment and not comment.startswith("@package"):
            words.append(comment)
        if words and (not comment or comment.endswith(_SENTENCE_ENDS)):
            break
    return " ".join(words)
