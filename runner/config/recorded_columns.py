"""Names of columns of recorded tables, and checks of `offline.input_read_schema`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.errors import Problem, list_names, show_value

# Name -> alternative names in files, in order of precedence.
ALIASES: Mapping[str, Sequence[str]] = {
    "eps_id": ("eps_id", "episode_id"),
    "agent_id": ("agent_id",),
    "module_id": ("module_id",),
    "multi_agent_episode_id": ("multi_agent_episode_id",),
    "t": ("t",),
    "obs": ("obs", "observations", "observation"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "new_obs": ("new_obs", "next_obs", "new_observations", "next_observations", "next_observation"),
    "terminateds": ("terminateds", "terminated", "terminals", "terminal"),
    "truncateds": ("truncateds", "truncated", "timeouts", "timeout"),
    "dones": ("dones", "done"),
    "infos": ("infos", "info"),
    "new_infos": ("new_infos",),
    "env_t": ("env_t",),
    "new_env_t": ("new_env_t",),
}
_MODEL_OUTPUTS = ("action_logp", "action_dist_inputs", "vf_preds")
_WITH_FEATURES = ("obs", "actions", "new_obs")
_SIMILAR = 0.8
_SHORTEST_PREFIX = 3


def canonical_name(name: str) -> str:
    """Return runner's name of a column."""
    return next((here for here, names in ALIASES.items() if name in names), name)


def find_schema_faults(mapping: Mapping[str, Any], key: str = "offline.input_read_schema") -> Iterator[Problem]:
    """Yield misspelt names, and values that are neither a column nor a list of columns."""
    for name, columns in mapping.items():
        where, nearest = f"{key}.{name}", _misspelt(name)
        if nearest is not None:
            known = list_names([*ALIASES, *_MODEL_OUTPUTS])
            yield Problem(f"{where} is not a known column", where, expected=known, nearest=f"{key}.{nearest}")
        elif isinstance(columns, str):
            continue
        elif not isinstance(columns, list) or not columns or not all(isinstance(column, str) for column in columns):
            expected = "the name of a column, or a list of names: one column per feature"
            yield Problem(f"{where} must be a column", where, show_value(columns), expected)
        elif canonical_name(name) in ALIASES and canonical_name(name) not in _WITH_FEATURES:
            what = f"{where} must be a single column; only {list_names(_WITH_FEATURES)} and model outputs have features"
            yield Problem(what, where, show_value(columns), "the name of a column")


def _misspelt(name: str) -> str | None:
    """Return the known name that is most similar to an unknown one; None if the name is known, or not similar."""
    known = list(dict.fromkeys([*ALIASES, *(alias for names in ALIASES.values() for alias in names), *_MODEL_OUTPUTS]))
    if name in known:
        return None
    typed = name.lower()
    if len(typed) >= _SHORTEST_PREFIX:
        for option in known:
            if option.startswith(typed):
                return option
    return next(iter(difflib.get_close_matches(typed, known, n=1, cutoff=_SIMILAR)), None)
