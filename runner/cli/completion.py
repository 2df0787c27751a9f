"""`completion SHELL`: a script that completes the command line, and the candidates that these scripts request.

The scripts call `runner completion candidates WORDS`, of which the last word is incomplete. Imports neither torch nor
Ray.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from runner.cli.arguments import Arguments, UsageError, config_dir_in, split_verb
from runner.cli.verbs import RUN_WORDS, VERBS, CommandOption, first_words, options_of, subverbs_of
from runner.config.errors import Problem, nearest_match

_BASH = """\
_runner_complete() {
    local word line
    word="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=()
    local IFS=$'\\n'
    local -a words
    IFS=' ' read -r -a words <<< "$word"
    [[ "$word" == *' ' ]] && words+=("")
    local last="${words[${#words[@]}-1]}" prefix=""
    # bash splits words at = and :, and replaces only the last piece
    case "$last" in *[=:]*) [[ "$COMP_WORDBREAKS" == *=* ]] && prefix="${last%"${last##*[=:]}"}";; esac
    while IFS= read -r line; do
        COMPREPLY+=("${line#"$prefix"}")
    done < <(runner completion candidates "${words[@]:1}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=/.] ]] && compopt -o nospace
    [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default
}
complete -F _runner_complete runner
"""
_ZSH = """\
#compdef runner
_runner() {
    local -a found complete partial
    found=("${(@f)$(runner completion candidates "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    complete=("${(@)found:#*[=/.]}")
    partial=("${(@M)found:#*[=/.]}")
    [[ -n "$found" ]] || { _files; return }
    compadd -Q -- "${(@)complete}"
    compadd -Q -S '' -- "${(@)partial}"
}
if [[ "$funcstack[1]" == _runner ]]; then _runner "$@"; else compdef _runner runner; fi
"""
_FISH = """\
function __runner_complete
    set -l words (commandline -opc) (commandline -ct)
    runner completion candidates $words[2..-1] 2>/dev/null
end
complete -c runner -f -a '(__runner_complete)'
complete -c runner -F -n 'not count (__runner_complete) >/dev/null'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def main(arguments: Arguments) -> int:
    """Print the script of a shell."""
    [shell] = arguments.words
    if shell not in _SCRIPTS:
        nearest = nearest_match(shell, _SCRIPTS)
        raise UsageError(Problem(f"{shell} is not a supported shell", None, None, ", ".join(_SCRIPTS), nearest))
    print(_SCRIPTS[shell], end="")
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of these words, which follow `runner` on the command line."""
    *before, typed = words or [""]
    try:
        return sorted({candidate for candidate in _Line.of(before, typed).candidates() if candidate.startswith(typed)})
    except Exception:  # an unfinished line may be wrong in any way, and a shell cannot show messages here
        return []


@dataclasses.dataclass(frozen=True)
class _Line:
    """An unfinished command line: the complete words before the cursor, and the incomplete one."""

    before: Sequence[str]
    typed: str
    verb: str | None
    rest: Sequence[str]

    @classmethod
    def of(cls, before: Sequence[str], typed: str) -> _Line:
        if (
            not before
            or before[0] == "help"
            or (len(before) == 1 and before[0] not in VERBS and subverbs_of(before[0]))
        ):
            return cls(before, typed, None, ())
        return cls(before, typed, *split_verb(before))

    def candidates(self) -> Iterator[str]:
        """Yield candidates, not all of which begin with the incomplete word."""
        yield from self._verbs()
        option = self._options_with_value.get(self.rest[-1]) if self.rest else None
        if option is not None:  # its value comes next
            yield from option.choices or self._words_called(option.metavar or "")
        elif self.typed.startswith("-"):
            yield from (name for one in options_of(self.verb or "train") for name in one.names)
        elif "=" in self.typed:
            yield from self._values()
        elif self.verb is not None:
            words = list(self._words())
            yield from words
            if VERBS[self.verb].has_overrides and (not words or "." in self.typed):
                yield from self._keys()

    def _verbs(self) -> Iterator[str]:
        if not self.before:
            yield from (*first_words(), "help")
        elif self.before == ["help"]:
            yield from first_words()
        elif len(self.before) == 1 or (self.before[0] == "help" and len(self.before) == 2):
            yield from subverbs_of(self.before[-1])

    @property
    def _options_with_value(self) -> dict[str, CommandOption]:
        options = options_of(self.verb) if self.verb else ()
        return {name: option for option in options if option.metavar is not None for name in option.names}

    @property
    def _config_dir(self) -> Path | None:
        return config_dir_in(self.before)

    @property
    def _overrides(self) -> list[str]:
        """The overrides so far, with the EXPERIMENT as one of them."""
        words = self._given_words()
        is_experiment = self.verb is not None and VERBS[self.verb].word_names[:1] == ("EXPERIMENT",)
        named = [f"experiment={words[0]}"] if words and is_experiment else []
        return [*named, *(text for text in self.rest if "=" in text and not text.startswith("-"))]

    def _given_words(self) -> list[str]:
        values = {value for name, value in pairwise(self.rest) if name in self._options_with_value}
        return [text for text in self.rest if "=" not in text and text[0] not in "-+~" and text not in values]

    def _words(self) -> Iterable[str]:
        names, num_given = VERBS[self.verb or "train"].word_names, len(self._given_words())
        return self._words_called(names[num_given]) if num_given < len(names) else ()

    def _words_called(self, name: str) -> Iterable[str]:
        if name in ("EXPERIMENT", "PATTERN"):
            return self._options("experiment")
        if name == "GROUP":
            return ["experiments", *self._groups()[1:]]
        if name in ("ENV", "ALGORITHM"):
            return self._options(name.lower())
        if name == "SHELL":
            return _SCRIPTS
        return _names_of_runs(name)

    def _groups(self) -> list[str]:
        from runner.cli.list_options import groups_in
        from runner.config.paths import search_dirs

        return groups_in(search_dirs(self._config_dir))

    def _options(self, group: str) -> list[str]:
        from runner.config.paths import list_options, search_dirs

        return list(list_options(search_dirs(self._config_dir), group))

    def _values(self) -> Iterator[str]:
        """Yield the options of a group, or the choices of a key."""
        head = self.typed.partition("=")[0]
        choices = self._options(head.lstrip("+")) or self._choices(head.lstrip("+").split("."))
        yield from (f"{head}={choice}" for choice in choices)

    def _choices(self, path: Sequence[str]) -> list[str]:
        from runner.config.checks import typed_fields
        from runner.config.defaults import load_schema
        from runner.config.schemas import ExperimentConfig

        block: Any = ExperimentConfig
        if path[0] == "algorithm":
            block, path = load_schema(self._composed()["algorithm"]["schema"]), path[1:]
        for name in path[:-1]:
            block = typed_fields(block)[name][0]
        annotation, option = typed_fields(block)[path[-1]]
        choices: list[Any] = [] if option is None else [*(option.choices or ())]
        if bool in (annotation, *get_args(annotation)) and not any(isinstance(choice, bool) for choice in choices):
            choices += [True, False]
        return [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]

    def _keys(self) -> Iterator[str]:
        """Yield groups and keys up to the next dot, which keeps the list short."""
        from runner.config.composed import leaf_values

        plus, depth = "+" if self.typed.startswith("+") else "", self.typed.count(".") + 1
        if depth == 1:
            yield from (f"{plus}{group}=" for group in self._groups())
        for key in leaf_values(self._composed()):
            parts = f"{plus}{key}".split(".")
            yield ".".join(parts[:depth]) + ("." if len(parts) > depth else "=")

    def _composed(self) -> dict[str, Any]:
        from runner.config.compose import compose_experiment

        return compose_experiment(self._overrides, self._config_dir).values


def _names_of_runs(name: str) -> list[str]:
    if name not in RUN_WORDS:
        return []
    from runner.cli.named_runs import list_runs
    from runner.config.paths import LATEST, zoo_dir

    zoo = [f"zoo:{path.stem}" for path in zoo_dir().glob("*.onnx")] if name == "POLICY" else []
    return [LATEST, *list_runs(), *zoo]
