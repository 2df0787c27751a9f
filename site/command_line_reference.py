"""Write docs/reference/command_line.md from the table of verbs: `python site/command_line_reference.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.cli.arguments import usage_of
from runner.cli.help import EXIT_CODES
from runner.cli.verbs import COMMON, GROUPS, VERBS, VERSION, WORDS, CommandOption

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command_line.md"
_HEAD = """\
# Command line

`runner VERB [OPTIONS] [KEY=VALUE ...]` runs one of the verbs below. `runner help VERB` prints the same text.
`python -m runner` does the same as `runner`. Without a verb, `runner` trains: `runner experiment=ppo_cartpole` is
`runner train ppo_cartpole`.

Options and overrides may come in any order. `KEY=VALUE` sets a key of the
[configuration](configuration.md), `GROUP=OPTION` chooses a file of a group, and `~KEY` removes a key.
"""
_COMPLETION = """\
## Completion
Write the script of your shell to the folder from which it loads completions, and start a new shell:

| shell | command |
| --- | --- |
| bash | `runner completion bash > ~/.local/share/bash-completion/completions/runner` |
| zsh | `runner completion zsh > ~/.zfunc/_runner`, with `fpath+=~/.zfunc` before `compinit` in `.zshrc` |
| fish | `runner completion fish > ~/.config/fish/completions/runner.fish` |

Completion covers verbs, options, experiments, groups, keys of the configuration and their choices, run dirs, and
policies of the zoo.
"""


def page() -> str:
    """Return the page."""
    sections = [_HEAD, *_common(), *(section for group in GROUPS for section in _group(group)), _COMPLETION]
    return "\n".join(sections)


def _common() -> Iterator[str]:
    yield "## Options of every verb\n" + _table(("option", "meaning"), _rows((*COMMON, VERSION)))
    codes = ((f"`{code}`", text) for code, text in EXIT_CODES.items())
    yield "## Exit codes\n" + _table(("code", "meaning"), codes)


def _group(group: str) -> Iterator[str]:
    yield f"## {group}\n"
    for name, verb in VERBS.items():
        if verb.group != group:
            continue
        summary = f"{verb.summary[0].upper()}{verb.summary[1:]}."
        text = f"{summary} {verb.details}".strip()
        words = [(f"`{word}`", WORDS[word.strip("[]")]) for word in verb.words]
        rows = [*words, *_rows(verb.options)]
        table = "\n" + _table(("argument or option", "meaning"), rows) if rows else ""
        examples = "".join(f"- `runner {example}`\n" for example in verb.examples)
        yield f"### {name}\n`{usage_of(name)}`\n\n{text}\n{table}\nExamples:\n\n{examples}"


def _rows(options: Iterable[CommandOption]) -> Iterator[tuple[str, str]]:
    for option in options:
        old = f" (earlier: `{'`, `'.join(option.old_names)}`)" if option.old_names else ""
        yield f"`{option.usage}`", f"{option.summary}{old}"


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    cells = ((left.replace("|", "\\|"), right.replace("|", "\\|")) for left, right in lines)
    return "".join(f"| {left} | {right} |\n" for left, right in cells)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
