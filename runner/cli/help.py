"""The help of the command line, made from the table of verbs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from runner.cli.arguments import usage_of
from runner.cli.verbs import COMMON, GROUPS, VERBS, VERSION, WORDS, CommandOption, subverbs_of
from runner.config.exit_codes import ExitCode

_WIDTH = 100
_INDENT = "  "
_WIDEST_NAME = 30
EXIT_CODES = {
    ExitCode.FINISHED: "finished",
    ExitCode.FAILED: "failed",
    ExitCode.MISTAKE: "the command line, the configuration or a file is wrong; no run was started",
    ExitCode.ASSERTION: "finished, but an --assert condition is not met",
    ExitCode.BUDGET: "the --budget ran out before the end",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM, SIGHUP); training writes a checkpoint first, also if its "
    "output pipe is closed",
    ExitCode.BROKEN_PIPE: "the reader of the output closed the pipe, as in `runner list | head`",
}


def general_help() -> str:
    """Return the help of `runner --help`: one line per verb."""
    width = max(len(" ".join([name, *verb.words])) for name, verb in VERBS.items()) + 2
    lines = [
        "usage: runner VERB [OPTIONS] [KEY=VALUE ...]",
        "",
        "Train reinforcement learning experiments that are defined in YAML files.",
    ]
    for group in GROUPS:
        lines += ["", group]
        for name, verb in VERBS.items():
            if verb.group == group:
                lines += _entry(" ".join([name, *verb.words]), verb.summary, width)
    lines += ["", "Options of every verb", *_options((*COMMON, VERSION))]
    lines += ["", "Exit codes", *_table((str(code), text) for code, text in EXIT_CODES.items())]
    lines += ["", "`runner help VERB` prints the options and examples of a verb, such as `runner help train`."]
    return _joined(lines)


def verb_help(name: str) -> str:
    """Return the help of one verb, or of the verbs that begin with this word."""
    subverbs = [f"{name} {subverb}" for subverb in subverbs_of(name)]
    if name not in VERBS:
        entries = ((" ".join([one, *VERBS[one].words]), VERBS[one].summary) for one in subverbs)
        return _joined([f"usage: runner {name} COMMAND [OPTIONS]", "", "commands", *_table(entries)])
    verb = VERBS[name]
    summary = f"{verb.summary[0].upper()}{verb.summary[1:]}."
    lines = [f"usage: {usage_of(name)}", "", *textwrap.wrap(f"{summary} {verb.details}".strip(), _WIDTH)]
    if verb.words:
        lines += ["", "arguments", *_table((word, WORDS[word.strip("[]")]) for word in verb.words)]
    lines += ["", "options", *_options((*verb.options, *COMMON))]
    if subverbs:
        lines += ["", "commands", *_table((one, VERBS[one].summary) for one in subverbs)]
    lines += ["", "examples", *(f"{_INDENT}runner {example}" for example in verb.examples)]
    return _joined(lines)


def _options(options: Iterable[CommandOption]) -> list[str]:
    return _table((option.usage, option.summary) for option in options)


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = min(max(len(name) for name, _ in rows), _WIDEST_NAME)
    return [line for name, text in rows for line in _entry(name, text, width + 2)]


def _entry(name: str, text: str, width: int) -> list[str]:
    """Return name and text in two columns; a name that is too long gets a separate line."""
    indent = " " * (len(_INDENT) + width)
    first = f"{_INDENT}{name:<{width}}"
    lines = textwrap.wrap(text, _WIDTH - len(indent), break_on_hyphens=False)
    if len(first) > len(indent):
        return [first, *(indent + line for line in lines)]
    return [first + lines[0], *(indent + line for line in lines[1:])]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
