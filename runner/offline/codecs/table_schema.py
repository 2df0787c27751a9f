"""Which column of a table is what: RLlib's names, names of other libraries, and the user's own mapping."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.config.errors import Problem, list_names
from runner.offline.codecs.layout import Layout
from runner.offline.files.data_error import DataError

# Name here -> names that are taken for it in files, the first that is there.
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
_REQUIRED = ("obs", "actions", "rewards")
END_FLAGS = ("terminateds", "truncateds", "dones")


@dataclass(frozen=True)
class TableSchema:
    """Name here -> name in the files. `extra` are the columns that become extra model outputs."""

    names: Mapping[str, str]
    extra: Mapping[str, str]

    @property
    def has_end_flags(self) -> bool:
        """Whether rows say where episodes end."""
        return any(name in self.names for name in END_FLAGS)

    @property
    def has_trajectories(self) -> bool:
        """Whether rows can be put together to whole trajectories."""
        return self.has_end_flags or "eps_id" in self.names or "t" in self.names

    @property
    def has_next_obs(self) -> bool:
        """Whether the observation after the last step of an episode is recorded."""
        return "new_obs" in self.names

    def file_columns(self, columns: Iterable[str]) -> list[str]:
        """Select the columns of a file that are read, nested ones (`obs/x`) too, from its `columns`."""
        wanted = {*self.names.values(), *self.extra.values()}
        return [column for column in columns if column in wanted or column.partition("/")[0] in wanted]


def schema_of_layout(layout: Layout, file_columns: Sequence[str], wanted: Iterable[str] | None = None) -> TableSchema:
    """Return the schema of a table of ours, whose columns have the names here."""
    wanted_names = None if wanted is None else set(wanted)
    fixed = {name: name for name in ALIASES if name in file_columns}
    required = {name: name for name in _REQUIRED}
    if "new_obs" in top_level_names(file_columns) or "obs" not in top_level_names(file_columns):
        required["new_obs"] = "new_obs"  # observations without values have no column
    extra = {
        name: name
        for name in layout.columns
        if name not in _REQUIRED and (wanted_names is None or name in wanted_names)
    }
    return TableSchema(fixed | required, extra)


def canonical_name(name: str) -> str:
    """Return the name here of a column that may go by another one."""
    return next((here for here, names in ALIASES.items() if name in names), name)


def top_level_names(columns: Iterable[str]) -> list[str]:
    """Return the columns of a file; leaves of one nested column (`obs/x`, `obs/y`) count as that column."""
    return list(dict.fromkeys(column.partition("/")[0] for column in columns))


def resolve_schema(
    file_columns: Sequence[str],
    mapping: Mapping[str, str],
    where: str,
    wanted: Iterable[str] | None = None,
) -> TableSchema:
    """Find the columns of a table.

    Args:
        file_columns: of the file.
        mapping: `offline.input_read_schema`.
        where: the file, for messages.
        wanted: columns that are read; None: all. Without `rewards` among them, a file need not have them.

    Raises:
        DataError: all columns that are missing, each with the names in the file that are most like it.
    """
    present = [*top_level_names(file_columns), *file_columns]
    given = {canonical_name(name): column for name, column in mapping.items()}
    wanted_names = None if wanted is None else {canonical_name(name) for name in wanted}
    problems = [
        _missing(f"offline.input_read_schema.{name}: there is no column {column}", column, present, where)
        for name, column in mapping.items()
        if column not in present
    ]
    names = {name: column for name, column in given.items() if name in ALIASES and column in present}
    taken = set(names.values()) | set(given.values())
    for here, options in ALIASES.items():
        if here in given:
            continue
        found = next((option for option in options if option in present and option not in taken), None)
        if found is not None:
            names[here] = found
            taken.add(found)
    for required in _REQUIRED:
        if required in names or required in given:
            continue
        if required != "rewards" or wanted_names is None or "rewards" in wanted_names:
            what = f"there is no column {required}; name it: offline.input_read_schema.{required}=COLUMN"
            problems.append(_missing(what, required, present, where))
    extra = {name: column for name, column in given.items() if name not in ALIASES}
    extra |= {column: column for column in top_level_names(file_columns) if column not in taken}
    problems += [
        _missing(f"there is no column {name}", name, present, where)
        for name in wanted_names or ()
        if name not in ALIASES and name not in extra
    ]
    if problems:
        raise DataError(problems)
    if "terminateds" in names:
        names.pop("dones", None)
    if wanted_names is not None:
        extra = {name: column for name, column in extra.items() if name in wanted_names}
    return TableSchema(names, extra)


def _missing(what: str, name: str, present: Sequence[str], where: str) -> Problem:
    options = list(dict.fromkeys(present))
    by_lower = {option.lower(): option for option in options}
    close = dict.fromkeys(
        match
        for known in ALIASES.get(name, (name,))
        for match in difflib.get_close_matches(known, by_lower, n=3, cutoff=0.5)
    )
    nearest = ", ".join([by_lower[match] for match in close][:3]) or None
    return Problem(what, where=where, allowed=f"columns: {list_names(options, name)}", nearest=nearest)
