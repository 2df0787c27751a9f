"""Error messages: the problem, its location, the value given, the expected value, the nearest match, and the fix."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from runner.config.exit_codes import ExitCode

_LINE_WIDTH = 110
_INDENT = " " * 17
# Minimum length of a name that is searched for within other names.
_SHORTEST_PART = 4
# Name in other frameworks -> keys with the same meaning, most likely first. They are suggested, never accepted.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "learning_rate": ("algorithm.lr", "algorithm.actor_lr"),
    "discount": ("algorithm.gamma",),
    "gae_lambda": ("algorithm.lambda_",),
    "n_epochs": ("algorithm.num_epochs",),
    "clip_range": ("algorithm.clip_param",),
    "clip_coef": ("algorithm.clip_param",),
    "ent_coef": ("algorithm.entropy_coeff",),
    "vf_coef": ("algorithm.vf_loss_coeff",),
    "max_grad_norm": ("algorithm.grad_clip",),
    "buffer_size": ("algorithm.replay_capacity",),
    "n_envs": ("env_runners.num_envs_per_env_runner",),
    "num_envs": ("env_runners.num_envs_per_env_runner",),
    "num_workers": ("env_runners.num_env_runners",),
    "total_timesteps": ("stop.num_env_steps_sampled_lifetime",),
    "env_steps": ("stop.num_env_steps_sampled_lifetime",),
    "iterations": ("stop.training_iteration",),
}


class RunnerError(Exception):
    """An error that ends the process with a message and `exit_code` instead of a stack trace."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class Problem:
    """One mistake. Everything except `what` may be unknown.

    Attributes:
        what: description of the problem, in terms of the key.
        where: `file:line`, the override, the function, or the key of the configuration; see `Composed.located`.
        got: value given.
        expected: values that are valid.
        nearest: valid name that is most similar to the value given.
        fix: command or value that solves the problem.
    """

    what: str
    where: str | None = None
    got: str | None = None
    expected: str | None = None
    nearest: str | None = None
    fix: str | None = None

    def render(self, number: int) -> str:
        """Return the problem as a numbered paragraph."""
        return self._render(f"{number}. ")

    def render_alone(self) -> str:
        """Return the problem as a paragraph without a number."""
        return self._render("")

    def details(self) -> dict[str, str]:
        """Return label -> text of everything that is known besides `what`, in the order of a message."""
        details = {
            "where": self.where,
            "got": self.got,
            "expected": self.expected,
            "did you mean": self.nearest,
            "fix": self.fix,
        }
        return {label: text for label, text in details.items() if text is not None}

    def _render(self, first: str) -> str:
        lines = [_wrap(first, " " * len(first), self.what)]
        lines += [_wrap(f"   {label:<14}", _INDENT, text) for label, text in self.details().items()]
        return "\n".join(lines)


class UserError(RunnerError):
    """The user's mistake: a wrong command line, configuration or file."""

    exit_code = ExitCode.MISTAKE

    def __init__(self, problem: Problem | str) -> None:
        self.problem = problem if isinstance(problem, Problem) else Problem(problem)
        super().__init__(problem.render_alone() if isinstance(problem, Problem) else problem)


class ConfigError(UserError):
    """All problems of one configuration."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(render_problems(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class RunFailure(RunnerError):
    """A problem that occurred during the run and ends it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.render_alone())

    def __reduce__(self) -> tuple[type[RunFailure], tuple[Problem]]:
        return type(self), (self.problem,)


class ChoiceError(ValueError):
    """An argument is not one of its choices.

    Args:
        name: name of the argument.
        value: value given.
        choices: valid values.
    """

    def __init__(self, name: str, value: object, choices: Sequence[str]) -> None:
        super().__init__(f"{name} is not one of its choices")
        self._name, self._value, self._choices = name, value, choices

    def problem(self, block: str) -> Problem:
        """Return the problem of the argument in the block at this key."""
        nearest = nearest_match(str(self._value), self._choices)
        return Problem(str(self), f"{block}.{self._name}", show_value(self._value), ", ".join(self._choices), nearest)


@contextmanager
def relocating(new_place: Callable[[str | None], str | None]) -> Iterator[None]:
    """Change the places of the problems that this block raises.

    Args:
        new_place: function from the place of a problem to its new place; None is an unknown place.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError([replace(one, where=new_place(one.where)) for one in error.problems]) from error


def render_problems(problems: Sequence[Problem]) -> str:
    """Return the report of all problems, one paragraph each."""
    count = f"{len(problems)} problem" + ("" if len(problems) == 1 else "s")
    paragraphs = [problem.render(number) for number, problem in enumerate(problems, start=1)]
    return "\n\n".join([f"{count} in the configuration", *paragraphs])


def nearest_match(name: str, options: Iterable[str]) -> str | None:
    """Return the option that `name` was probably meant to be, or None if no option is similar.

    This is the option with this name in other frameworks, else the first option that begins with the name, else the
    first that contains it, else the similar option with the longest common part.
    """
    by_lower = {option.lower(): option for option in options}
    typed = name.lower()
    meant = next((key for key in map(_last_part, _SYNONYMS.get(typed, ())) if key in by_lower), None)
    if meant is not None:
        return by_lower[meant]
    if len(typed) >= _SHORTEST_PART:
        containing = [option for option in by_lower if typed in option]
        if containing:
            return by_lower[next((option for option in containing if option.startswith(typed)), containing[0])]
    close = difflib.get_close_matches(typed, by_lower, n=max(1, len(by_lower)), cutoff=0.6)  # most similar first
    return by_lower[max(close, key=lambda option: _common_length(typed, option))] if close else None


def unknown_name(what: str, where: str | None, name: str, known: Collection[str]) -> Problem:
    """Return the problem of a name that is not one of the known names."""
    return Problem(what, where, name, ", ".join(known), nearest_match(name, known))


def nearest_key(name: str, names: Sequence[str], prefix: str) -> str | None:
    """Return the key that an unknown key was probably meant to be: `nearest_match`, or a key of another block.

    Args:
        name: the unknown key.
        names: keys of its block.
        prefix: dotted path of its block with a dot at the end; empty for the top level.
    """
    known = _SYNONYMS.get(name.lower(), ())
    if any(_last_part(key) in names for key in known):
        return nearest_match(name, names)
    # Which keys `algorithm` has depends on the algorithm, so they are only suggested where no block is named.
    others = [key for key in known if not prefix or not key.startswith("algorithm.")]
    return others[0] if others else nearest_match(name, names)


def _last_part(key: str) -> str:
    return key.rpartition(".")[2]


def nearest_matches(name: str, options: Iterable[str], limit: int = 4) -> str | None:
    """Return the nearest match and further options that begin with the same letters, or None if nothing is close."""
    names = list(options)
    beginning = sorted((one for one in names if one.lower().startswith(name.lower())), key=len)
    nearest = nearest_match(name, names)
    is_first = nearest is not None and (not beginning or nearest in beginning)
    found = list(dict.fromkeys([*([nearest] if nearest is not None and is_first else []), *beginning]))[:limit]
    return ", ".join(found) or None


def _common_length(first: str, second: str) -> int:
    return difflib.SequenceMatcher(None, first, second, autojunk=False).find_longest_match().size


def list_names(names: Iterable[str], near: str = "", limit: int = 24, first: Sequence[str] = ()) -> str:
    """List names in alphabetical order, at most `limit`.

    Args:
        names: all names.
        near: if there are more, the names that are most similar to this one are listed.
        limit: number of names.
        first: names that are listed before the others, in this order.
    """
    ordered = sorted(names)
    leading = [name for name in first if name in ordered]
    others = [name for name in ordered if name not in leading]
    num_others = max(limit - len(leading), 0)
    if len(others) <= num_others:
        return ", ".join([*leading, *others])

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, near, name).ratio()

    kept = sorted(sorted(others, key=likeness, reverse=True)[:num_others])
    return ", ".join([*leading, *kept]) + f", ... ({len(others) - num_others} more)"


def show_value(value: object) -> str:
    """Format a value as in YAML; text is quoted to distinguish "3" from 3."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _wrap(first: str, indent: str, text: str) -> str:
    wrapped = [
        textwrap.wrap(
            line,
            _LINE_WIDTH - len(indent),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        or [""]
        for line in text.splitlines() or [""]
    ]
    lines = [piece for pieces in wrapped for piece in pieces]
    return "\n".join([first + lines[0], *(indent + line for line in lines[1:])])
