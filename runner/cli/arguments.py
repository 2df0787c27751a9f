"""A command line: its verb, options and overrides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.cli.verbs import NAMES
from runner.config.errors import UserError, nearest_match

# Option with a value -> the kind of value.
_WITH_VALUE: Mapping[str, str] = {
    "--config-dir": "a folder",
    "-cd": "a folder",
    "--assert": "a condition: --assert 'METRIC >= 450'",
    "--budget": "a duration: --budget 10m",
    "--junit": "a file: --junit results.xml",
    "--format": "a format",
}
# Option without a value -> the field of `Arguments` that it sets.
_SWITCHES: Mapping[str, str] = {
    "-m": "is_multirun",
    "--multirun": "is_multirun",
    "--profile": "has_profile",
    "--plan": "is_plan_only",
    "--module-only": "is_module_only",
    "--build": "is_built",
    "--trust": "is_trusting",
}
# Flag of Hydra -> what to type for the same purpose.
_SHOW = "python -m runner show [OVERRIDES], which prints the composed configuration"
_FLAGS_OF_HYDRA: Mapping[str, str] = {
    **dict.fromkeys(("--cfg", "-c", "--resolve", "--package", "-p", "--info", "-i"), _SHOW),
    **dict.fromkeys(("--config-name", "-cn"), "experiment=NAME"),
    **dict.fromkeys(("--config-path", "-cp"), "--config-dir DIR"),
    **dict.fromkeys(("--run", "-r"), "no flag: without -m there is one run"),
    **dict.fromkeys(("--shell-completion", "-sc"), "python -m runner list, which prints all experiments and options"),
    "--hydra-help": "python -m runner --help",
    "--experimental-rerun": "python -m runner resume RUN_DIR",
}
_FLAGS = ("--help", "-h", "--version", *_WITH_VALUE, *_SWITCHES)
# Option -> the verbs that take it (None: training); every verb takes the others. `_INSTEAD` names the substitute.
_OPTIONS_OF_FEW: Mapping[str, tuple[str | None, ...]] = {
    "--module-only": ("resume",),
    "--build": ("validate",),
    "--profile": ("show",),
    "--plan": ("show",),
    "--trust": (None, "resume", "evaluate", "play", "record", "export", "register", "sweep", "report"),
    **dict.fromkeys(("--assert", "--budget", "--junit"), (None, "resume")),
    "--format": ("validate", "export"),
}
# Word -> what it may be.
_WORDS: Mapping[str, str] = {
    "RUN_DIR": "the folder or URL of a run",
    "FILE": "the file to write",
    "DATA": "a folder or file of recorded data",
    "ENV": "an option of env (cartpole), a dotted path (my_package.Maze), or an id of Gymnasium (CartPole-v1)",
}
_INSTEAD = {"--module-only": "module.load_state_path=RUN_DIR"}


class UsageError(UserError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class Arguments:
    """A parsed command line. `words` are neither options nor overrides: the RUN_DIR of `resume`.

    `assertions`, `budget` and `junit` are what a CI job asks of training, as they were typed.
    """

    overrides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    config_dir: Path | None = None
    assertions: tuple[str, ...] = ()
    budget: str | None = None
    junit: Path | None = None
    format: str | None = None
    is_multirun: bool = False
    has_profile: bool = False
    is_plan_only: bool = False
    is_module_only: bool = False
    is_trusting: bool = False
    is_built: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether a CI job asks for something."""
        return bool(self.assertions) or self.budget is not None or self.junit is not None


def wants_stack_trace(argv: Sequence[str]) -> bool:
    """Whether `debug=true` is among the arguments."""
    return any(text.lstrip("+").lower() == "debug=true" for text in argv)


def split_verb(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb (None: train) and the other arguments. Only the first word can be a verb."""
    if not argv or not _is_word(argv[0]):
        return None, list(argv)
    verb = argv[0]
    if verb not in NAMES:
        raise UsageError(_describe_unknown_verb(verb))
    return verb, list(argv[1:])


def check_options(verb: str | None, argv: Sequence[str]) -> None:
    """Raise `UsageError` for an option that is known and means nothing to this verb."""
    for name in (text.partition("=")[0] for text in argv):
        verbs = _OPTIONS_OF_FEW.get(name, (verb,))
        if verb not in verbs:
            told = f"{name} is an option of {' and of '.join(known or 'training' for known in verbs)}"
            raise UsageError(f"{told}\n   expected      {_INSTEAD[name]}" if name in _INSTEAD else told)


def _is_word(text: str) -> bool:
    return "=" not in text and not text.startswith(("-", "+", "~"))


def _describe_unknown_verb(verb: str) -> str:
    nearest = nearest_match(verb, NAMES)
    hint = f"\n   did you mean  {nearest}" if nearest else ""
    expected = f"{', '.join(NAMES)}; without a verb it trains: python -m runner +experiment=NAME"
    return f"unknown verb {verb}\n   expected      {expected}{hint}"


def take_options(
    argv: Sequence[str], with_value: Sequence[str], flags: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Split a verb's own options from the other arguments; a flag that is given has the value "".

    Raises:
        UsageError: another option, or one without its value.
    """
    taken: dict[str, str] = {}
    others: list[str] = []
    rest = list(argv)
    while rest:
        text = rest.pop(0)
        name, separator, value = text.partition("=")
        if name in with_value:
            if not separator and not rest:
                raise UsageError(f"{name} needs a value")
            taken[name] = value if separator else rest.pop(0)
        elif text in flags:
            taken[text] = ""
        elif text.startswith("-"):
            raise UsageError(_describe_unknown_option(text, (*with_value, *flags)))
        else:
            others.append(text)
    return taken, others


def _describe_unknown_option(text: str, options: Sequence[str]) -> str:
    name = text.partition("=")[0]
    if name in _FLAGS_OF_HYDRA:
        return f"{name} is a flag of Hydra that runner does not have\n   expected      {_FLAGS_OF_HYDRA[name]}"
    nearest = nearest_match(name, options)
    hint = f"\n   did you mean  {nearest}" if nearest else ""
    return f"unknown option {text}\n   expected      {', '.join(options)}{hint}"


def parse_arguments(argv: Sequence[str], word_names: Sequence[str] = ()) -> Arguments:
    """Parse options, overrides and the words named `word_names` (of `_WORDS`), all required; raises `UsageError`."""
    arguments = Arguments()
    rest, positionals = list(argv), list[str]()
    while rest:
        if rest[0].startswith("-"):
            arguments = _take_option(arguments, rest)
        else:
            positionals.append(rest.pop(0))
    words, overrides = split_words(positionals, len(word_names))
    arguments = replace(arguments, words=tuple(words), overrides=tuple(overrides))
    if len(words) < len(word_names):
        name = word_names[len(words)]
        raise UsageError(f"{name} is missing\n   expected      {_WORDS[name]}")
    if len(arguments.words) > len(word_names):
        extra = arguments.words[len(word_names)]
        raise UsageError(f"{extra} is no override\n   expected      key=value, group=option, ~key")
    return arguments


def split_words(texts: Sequence[str], num_words: int) -> tuple[list[str], list[str]]:
    """Split arguments without options into words and overrides.

    If there are fewer words than the verb takes, arguments with a `=` that are paths become words: existing ones
    first, then names in an existing folder.
    """
    words = {text for text in texts if _is_word(text)}
    others = [text for text in texts if text not in words and not text.startswith(("+", "~"))]
    existing = [text for text in others if os.path.exists(text)]
    in_folders = [text for text in others if os.path.isdir(os.path.dirname(text))]
    num_missing = max(0, num_words - sum(text in words for text in texts))
    words |= set(list(dict.fromkeys([*existing, *in_folders]))[:num_missing])
    return [text for text in texts if text in words], [text for text in texts if text not in words]


def _take_value(arguments: Arguments, name: str, value: str) -> Arguments:
    if name in ("--config-dir", "-cd"):
        return replace(arguments, config_dir=Path(value))
    if name == "--assert":
        return replace(arguments, assertions=(*arguments.assertions, value))
    if name == "--budget":
        return replace(arguments, budget=value)
    if name == "--junit":
        return replace(arguments, junit=Path(value).absolute())
    return replace(arguments, format=value)


def _take_option(arguments: Arguments, rest: list[str]) -> Arguments:
    text = rest.pop(0)
    name, separator, value = text.partition("=")
    if name in _WITH_VALUE:
        if not separator and not rest:
            raise UsageError(f"{name} needs {_WITH_VALUE[name]}")
        return _take_value(arguments, name, value if separator else rest.pop(0))
    if text in _SWITCHES:
        switch: dict[str, Any] = {_SWITCHES[text]: True}
        return replace(arguments, **switch)
    raise UsageError(_describe_unknown_option(text, _FLAGS))
