"""The parser of command lines: a verb of `runner.cli.verbs`, its words, its options and overrides."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from runner.cli.verbs import DEFAULT_VERB, VERBS, VERSION, WORDS, CommandOption, first_words, options_of, subverbs_of
from runner.config.errors import Problem, UserError, nearest_match

_EXPERIMENT = "EXPERIMENT"
_CONFIG_DIR = ("-cd", "--config-dir")
_OVERRIDE = "KEY=VALUE, GROUP=OPTION or ~KEY"
# Flag of Hydra -> what to type for the same purpose; {} stands for the experiment and the overrides before the flag.
_FLAGS_OF_HYDRA: Mapping[str, str] = {
    **dict.fromkeys(("--cfg", "-c", "--resolve", "--package", "-p", "--info", "-i"), "runner show {}"),
    **dict.fromkeys(("--config-name", "-cn"), "runner train EXPERIMENT"),
    **dict.fromkeys(("--config-path", "-cp"), "--config-dir DIR"),
    **dict.fromkeys(("--run", "-r"), "runner train {}"),
    **dict.fromkeys(("--shell-completion", "-sc"), "runner completion bash"),
    "--hydra-help": "runner help",
    "--experimental-rerun": "runner resume RUN",
}


class UsageError(UserError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        verb: a key of `VERBS`.
        words: neither options nor overrides, such as the RUN of `resume`.
        overrides: KEY=VALUE; an EXPERIMENT word is the override `experiment=NAME`.
        options: long name of each option that was given -> its values; a switch has the value "".
    """

    verb: str = DEFAULT_VERB
    words: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether an option was given."""
        return name in self.options

    def values(self, name: str) -> tuple[str, ...]:
        """Return all values of an option that may be repeated."""
        return self.options.get(name, ())

    def value(self, name: str) -> str | None:
        """Return the last value of an option, or None."""
        return self.options[name][-1] if name in self.options else None

    def path(self, name: str) -> Path | None:
        """Return the value of an option as a path, or None."""
        return None if (text := self.value(name)) is None else Path(text)

    def integer(self, name: str, default: int, least: int = 1) -> int:
        """Return the value of an option as an integer; raises `UsageError` for other text or a smaller number."""
        text = self.value(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise UsageError(Problem(f"{name} is not valid", got=text, expected=f"an integer of {least} or more"))
        return int(text)

    def with_overrides(self, *overrides: str) -> Arguments:
        """Return the arguments with further overrides."""
        return replace(self, overrides=(*self.overrides, *overrides))

    @property
    def experiment(self) -> str | None:
        """The name of the experiment, or None."""
        named = [text for text in self.overrides if _names_experiment(text)]
        return experiment_in(named[-1]) if named else None

    @property
    def config_dir(self) -> Path | None:
        """The user's folder of experiments and group options."""
        return self.path("--config-dir")

    @property
    def is_multirun(self) -> bool:
        """Whether the command sweeps."""
        return self.verb == "sweep" or self.has("--multirun")

    @property
    def is_trusting(self) -> bool:
        """Whether files from another source are used without restrictions."""
        return self.has("--trust")

    @property
    def is_debugging(self) -> bool:
        """Whether error messages have stack traces."""
        return self.has("--debug") or wants_stack_trace(self.overrides)

    @property
    def assertions(self) -> tuple[str, ...]:
        """Conditions of `--assert`."""
        return self.values("--assert")

    @property
    def is_judged(self) -> bool:
        """Whether an option for CI jobs was given."""
        return any(self.has(name) for name in ("--assert", "--budget", "--junit"))


def wants_stack_trace(argv: Sequence[str]) -> bool:
    """Whether `--debug` or `debug=true` is among the arguments."""
    return any(text == "--debug" or text.lstrip("+").lower() == "debug=true" for text in argv)


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Parse a command line without the program's name; raises `UsageError`."""
    verb, rest = split_verb(argv)
    options: dict[str, tuple[str, ...]] = {}
    positionals: list[str] = []
    while rest:
        text = rest.pop(0)
        if text.startswith("-"):
            option, value = _take_option(verb, text, rest, argv)
            options[option.name] = (*options.get(option.name, ()), value)
        else:
            positionals.append(text)
    words, overrides = _split_positionals(verb, positionals)
    if VERBS[verb].word_names[:1] == (_EXPERIMENT,):
        overrides = _with_experiment(verb, words, overrides)
        words = []
    _check_words(verb, words, overrides)
    return Arguments(verb, tuple(words), tuple(overrides), options)


def split_verb(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the verb and the other arguments. Only options may precede the verb; without one it is `train`."""
    count = _count_leading_options(argv)
    leading, rest = list(argv[:count]), list(argv[count:])
    if not rest or not _is_word(rest[0]):
        return DEFAULT_VERB, leading + rest
    two_words = " ".join(rest[:2])
    if two_words in VERBS:
        return two_words, leading + rest[2:]
    if rest[0] not in VERBS:
        raise UsageError(_describe_unknown_verb(rest, argv))
    return rest[0], leading + rest[1:]


def _count_leading_options(argv: Sequence[str]) -> int:
    known = {name: option for option in (*options_of(DEFAULT_VERB), VERSION) for name in option.names}
    count = 0
    while count < len(argv) and (option := known.get(argv[count].partition("=")[0])) is not None:
        count += 1 if option.metavar is None or "=" in argv[count] else 2
    return count


def _is_word(text: str) -> bool:
    return "=" not in text and not text.startswith(("-", "+", "~"))


def _describe_unknown_verb(rest: Sequence[str], argv: Sequence[str]) -> Problem:
    from runner.config.paths import find_config, search_dirs

    word, second = rest[0], "".join(rest[1:2])
    if subverbs := subverbs_of(word):
        what = f"{word} needs a command" if not second else f"{word} {second} is not a verb"
        fixes = ", ".join(f"{word} {subverb}" for subverb in subverbs)
        return Problem(what, expected=fixes, nearest=_subverb_like(word, second))
    folder = config_dir_in(argv)
    if find_config(search_dirs(folder if folder and os.path.isdir(folder) else None), f"experiment/{word}") is not None:
        what = f"{word} is an experiment, not a verb"
        return Problem(what, fix=f"runner train {shlex.join([word, *rest[1:]])}")
    nearest = nearest_match(word, first_words())
    return Problem(f"{word} is not a verb", expected=", ".join(first_words()), nearest=nearest, fix="runner help")


def config_dir_in(argv: Sequence[str]) -> Path | None:
    """Return the value of `--config-dir` on a command line that is not parsed yet, or None."""
    folders = [text for name, text in pairwise(argv) if name in _CONFIG_DIR]
    folders += [value for name, _, value in (text.partition("=") for text in argv) if name in _CONFIG_DIR and value]
    return Path(folders[-1]) if folders else None


def _subverb_like(word: str, second: str) -> str | None:
    nearest = nearest_match(second, subverbs_of(word)) if second else None
    return None if nearest is None else f"{word} {nearest}"


def _take_option(verb: str, text: str, rest: list[str], argv: Sequence[str]) -> tuple[CommandOption, str]:
    """Return the option that begins with `text` and its value, which may be taken from `rest`."""
    name, separator, value = text.partition("=")
    option = _find_option(verb, name)
    if option is None:
        raise UsageError(_describe_unknown_option(verb, name, argv))
    if name in option.old_names:
        print_note(f"{name} is now {'/'.join(option.names)}")
    if option.metavar is None:
        if separator:
            raise UsageError(Problem(f"{name} does not take a value", got=text))
        return option, ""
    if not separator:
        if not rest:
            raise UsageError(Problem(f"{name} needs a value", expected=f"{name} {option.metavar}"))
        value = rest.pop(0)
    if option.choices and value not in option.choices:
        nearest = nearest_match(value, option.choices)
        raise UsageError(Problem(f"{name} is not valid", None, value, ", ".join(option.choices), nearest))
    return option, value


def print_note(text: str) -> None:
    """Print a line to stderr, about an old spelling for example."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def _find_option(verb: str, name: str) -> CommandOption | None:
    return next((option for option in options_of(verb) if name in (*option.names, *option.old_names)), None)


def _describe_unknown_option(verb: str, name: str, argv: Sequence[str]) -> Problem:
    if name in _FLAGS_OF_HYDRA:
        place = next(number for number, text in enumerate(argv) if text.partition("=")[0] == name)
        typed = [text for text in split_verb(argv[:place])[1] if not text.startswith("-")]
        what = f"{name} is a Hydra flag that runner does not support"
        return Problem(what, fix=_FLAGS_OF_HYDRA[name].format(shlex.join(typed) or "EXPERIMENT"))
    names = [one for option in options_of(verb) for one in option.names]
    expected = ", ".join(option.name for option in options_of(verb))
    owners = [f"`runner {other}`" for other in VERBS if other != verb and _find_option(other, name) is not None]
    if owners:
        what = f"{name} is an option of {_join(owners)}, not of `runner {verb}`"
        return Problem(what, expected=expected, nearest=nearest_match(name, names))
    return Problem(f"{name} is not an option of `runner {verb}`", None, None, expected, nearest_match(name, names))


def _join(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _split_positionals(verb: str, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    if not VERBS[verb].has_overrides:
        return [text for text in texts if not wants_stack_trace([text])], []
    return split_words(texts, sum(name != _EXPERIMENT for name in VERBS[verb].word_names))


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


def _names_experiment(override: str) -> bool:
    return override.lstrip("+").startswith("experiment=")


def _with_experiment(verb: str, words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides with an EXPERIMENT word as the first of them."""
    is_named = any(map(_names_experiment, overrides))
    surplus = words if is_named else words[1:]
    if surplus:
        nearest = _subverb_like(verb, words[0])
        raise UsageError(Problem(f"{surplus[0]} is not an override", expected=_OVERRIDE, nearest=nearest))
    if not words and not overrides:
        raise UsageError(Problem("EXPERIMENT is missing", expected=WORDS[_EXPERIMENT], fix=_usage(verb)))
    return [*(f"experiment={_readable(word.removesuffix('.yaml'))}" for word in words), *overrides]


def _readable(name: str) -> str:
    """Return a name as the value of an override, in quotes if Hydra requires them."""
    if name.isascii():
        return name
    from runner.config.overrides import quoted  # imports Hydra

    return quoted(name)


def experiment_in(override: str) -> str:
    """Return the name in `experiment=NAME`."""
    if override.isascii():
        return override.partition("=")[2].removesuffix(".yaml")
    from runner.config.overrides import override_value  # imports Hydra

    return override_value(override).removesuffix(".yaml")


def _check_words(verb: str, words: Sequence[str], overrides: Sequence[str]) -> None:
    names, required = VERBS[verb].word_names, VERBS[verb].required_words
    if len(words) < len(required):
        name = required[len(words)]
        raise UsageError(Problem(f"{name} is missing", expected=WORDS[name], fix=_usage(verb)))
    if names[:1] != (_EXPERIMENT,) and len(words) > len(names):
        expected = _OVERRIDE if VERBS[verb].has_overrides else None
        raise UsageError(Problem(f"{words[len(names)]} is an unexpected argument", expected=expected, fix=_usage(verb)))


def _usage(verb: str) -> str:
    return f"{usage_of(verb)}; `runner help {verb}` describes it"


def usage_of(verb: str) -> str:
    """Return the usage line of a verb."""
    entry = VERBS[verb]
    return " ".join(["runner", verb, *entry.words, "[OPTIONS]", *(["[KEY=VALUE ...]"] if entry.has_overrides else [])])
