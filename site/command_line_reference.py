"""Write docs/reference/command_line.md from the table of verbs: `python site/command_line_reference.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.cli.arguments import usage_of
from runner.cli.help import EXIT_CODES
from runner.cli.verbs import COMMON, GROUPS, VERBS, VERSION, WORDS, CommandOption, Verb

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command_line.md"
_HEAD = """\
# Command line

`runner VERB [OPTIONS] [KEY=VALUE ...]` runs one of the verbs below. `runner help VERB` prints the same text.
`python -m runner` does the same as `runner`. Without a verb, `runner` trains: `runner experiment=ppo_cartpole` is
`runner train ppo_cartpole`.

Options and overrides may come in any order. `KEY=VALUE` sets a key of the
[configuration](configuration.md), `GROUP=OPTION` chooses a file of a group, and `~KEY` removes a key.

```bash
runner list experiments 'ppo_c*'
```

```text
experiments: runner train NAME
  ppo_cartpole               PPO on CartPole-v1, to a return of 450.
  ppo_cartpole_remote        ppo_cartpole with env runners and learner as Ray actors.
  ppo_cartpole_two_learners  ppo_cartpole with two learners.
  ppo_catch                  PPO with a convolutional network on Catch, to 0.9 of 1.
  ppo_curriculum_goal_maze   PPO with a curriculum of start positions in a long maze.
```
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

## Limitations
- Flags of Hydra are not accepted. The error names the verb or the option with the same purpose.
- `latest` and names of experiments find runs only below `outputs` in the working directory.

## Next steps
- [Write and validate experiments](../guides/experiments.md)
- [Configuration](configuration.md)
- [Metrics and files](metrics_and_files.md)
"""
_SHARED = "Arguments and options of several verbs"
_FEWEST = 3  # verbs that share a row of a table
Row = tuple[str, str]


def page() -> str:
    """Return the page."""
    sections = [_HEAD, *_common(), *(section for group in GROUPS for section in _group(group)), _COMPLETION]
    return "\n".join(sections)


def _common() -> Iterator[str]:
    yield "## Options of every verb\n" + _table(("option", "meaning"), _rows((*COMMON, VERSION)))
    yield f"## {_SHARED}\n" + _table(("argument or option", "meaning"), _shared_rows())
    codes = ((f"`{code}`", text) for code, text in EXIT_CODES.items())
    yield "## Exit codes\n" + _table(("code", "meaning"), codes)


def _group(group: str) -> Iterator[str]:
    yield f"## {group}\n"
    for name, verb in VERBS.items():
        if verb.group != group:
            continue
        summary = f"{verb.summary[0].upper()}{verb.summary[1:]}."
        text = f"{summary} {verb.details}".strip()
        table, shared = _options_of(verb, _shared_rows())
        examples = "".join(f"- `runner {example}`\n" for example in verb.examples)
        yield f"### {name}\n`{usage_of(name)}`\n\n{text}\n{table}{shared}\nExamples:\n\n{examples}"


def _shared_rows() -> list[Row]:
    """Return the rows that the tables of several verbs would repeat."""
    counts = Counter(row for verb in VERBS.values() for row in _rows_of(verb))
    return [row for row, number in counts.items() if number >= _FEWEST]


def _options_of(verb: Verb, shared: list[Row]) -> tuple[str, str]:
    """Return the table of a verb's rows, and a line with the names of those that are shared."""
    own = [row for row in _rows_of(verb) if row not in shared]
    names = ", ".join(name for name, text in _rows_of(verb) if (name, text) in shared)
    table = "\n" + _table(("argument or option", "meaning"), own) if own else ""
    anchor = _SHARED.lower().replace(" ", "-")
    return table, f"\nAlso: {names} ([shared](#{anchor})).\n" if names else ""


def _rows_of(verb: Verb) -> list[Row]:
    return [*((f"`{word}`", WORDS[word.strip("[]")]) for word in verb.words), *_rows(verb.options)]


def _rows(options: Iterable[CommandOption]) -> Iterator[Row]:
    for option in options:
        yield f"`{option.usage}`", option.summary


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ("---", "---"), *rows]
    cells = ((left.replace("|", "\\|"), right.replace("|", "\\|")) for left, right in lines)
    return "".join(f"| {left} | {right} |\n" for left, right in cells)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
