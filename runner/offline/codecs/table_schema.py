"""Roles of the columns of a table, by RLlib's names, names of other libraries, and the user's mapping."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.config.errors import Problem, list_names
from runner.config.recorded_columns import ALIASES, canonical_name, find_schema_faults
from runner.offline.codecs.layout import Layout
from runner.offline.files.data_error import DataError

_REQUIRED = ("obs", "actions", "rewards")
END_FLAGS = ("terminateds", "truncateds", "dones")


@dataclass(frozen=True)
class TableSchema:
    """Roles of the columns.

    Attributes:
        names: native name -> name in the files.
        extra: native name -> name in the files, for columns that become extra model outputs.
        features: name in `names` or `extra` that is not a column -> columns with its features.
    """

    names: Mapping[str, str]
    extra: Mapping[str, str]
    features: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def without(self, columns: Container[str]) -> TableSchema:
        """Return the schema without some extra columns."""
        return replace(self, extra={name: one for name, one in self.extra.items() if name not in columns})

    @property
    def has_end_flags(self) -> bool:
        """Whether rows mark the ends of episodes."""
        return any(name in self.names for name in END_FLAGS)

    @property
    def has_trajectories(self) -> bool:
        """Whether rows can be grouped to complete trajectories."""
        return self.has_end_flags or "eps_id" in self.names or "t" in self.names

    @property
    def has_next_obs(self) -> bool:
        """Whether the observation after the last step of an episode is recorded."""
        return "new_obs" in self.names

    def columns_of(self, name: str) -> Sequence[str]:
        """Return the file columns of a name in `names` or `extra`."""
        return self.features.get(name, (name,))

    def file_columns(self, columns: Iterable[str]) -> list[str]:
        """Select the file columns to read from `columns`, including nested ones (`obs/x`)."""
        needed = {column for name in (*self.names.values(), *self.extra.values()) for column in self.columns_of(name)}
        return [column for column in columns if column in needed or column.partition("/")[0] in needed]


def schema_of_layout(layout: Layout, file_columns: Sequence[str], wanted: Iterable[str] | None = None) -> TableSchema:
    """Return the schema of a native table, whose columns have native names."""
    wanted_names = None if wanted is None else set(wanted)
    fixed = {name: name for name in ALIASES if name in file_columns}
    required = {name: name for name in _REQUIRED}
    if "new_obs" in top_level_names(file_columns) or "obs" not in top_level_names(file_columns):
        required["new_obs"] = "new_obs"  # observations without values are not stored in a column
    extra = {
        name: name
        for name in layout.columns
        if name not in _REQUIRED and (wanted_names is None or name in wanted_names)
    }
    return TableSchema(fixed | required, extra)


def top_level_names(columns: Iterable[str]) -> list[str]:
    """Return the columns of a file; the leaves of a nested column (`obs/x`, `obs/y`) count as one."""
    return list(dict.fromkeys(column.partition("/")[0] for column in columns))


def resolve_schema(
    file_columns: Sequence[str],
    mapping: Mapping[str, str | list[str]],
    where: str,
    wanted: Iterable[str] | None = None,
) -> TableSchema:
    """Find the roles of the columns of a table.

    Args:
        file_columns: columns of the file.
        mapping: `offline.input_read_schema`.
        where: the file, for messages.
        wanted: columns to read, or None for all. If `rewards` is not among them, it may be missing from the file.

    Raises:
        DataError: names in the mapping are misspelt, or columns are missing; lists all with the most similar names.
    """
    if faults := list(find_schema_faults(mapping)):
        raise DataError(faults)
    present = [*top_level_names(file_columns), *file_columns]
    given = {canonical_name(name): _label(columns) for name, columns in mapping.items()}
    features = {_label(columns): columns for columns in mapping.values() if not isinstance(columns, str)}
    wanted_names = None if wanted is None else {canonical_name(name) for name in wanted}
    problems = _missing_of_mapping(mapping, present, where)
    names = {
        name: column for name, column in given.items() if name in ALIASES and (column in present or column in features)
    }
    taken = set(given.values()).union(*features.values())
    for here, options in ALIASES.items():
        if here in given:
            continue
        found = next((option for option in options if option in present and option not in taken), None)
        if found is not None:
            names[here] = found
            taken.add(found)
    optional = "rewards" if wanted_names is not None and "rewards" not in wanted_names else None
    problems += [
        _missing(f"there is no column {name}", name, present, where, f"set offline.input_read_schema.{name}=COLUMN")
        for name in _REQUIRED
        if name not in names and name not in given and name != optional
    ]
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
    return TableSchema(names, extra, features)


def _missing_of_mapping(mapping: Mapping[str, str | list[str]], present: Sequence[str], where: str) -> list[Problem]:
    return [
        _missing(f"offline.input_read_schema.{name}: there is no column {column}", column, present, where)
        for name, columns in mapping.items()
        for column in ([columns] if isinstance(columns, str) else columns)
        if column not in present
    ]


def _label(columns: str | list[str]) -> str:
    return columns if isinstance(columns, str) else f"[{', '.join(columns)}]"


def _missing(what: str, name: str, present: Sequence[str], where: str, fix: str | None = None) -> Problem:
    options = list(dict.fromkeys(present))
    by_lower = {option.lower(): option for option in options}
    close = dict.fromkeys(
        match
        for known in ALIASES.get(name, (name,))
        for match in difflib.get_close_matches(known, by_lower, n=3, cutoff=0.5)
    )
    nearest = ", ".join([by_lower[match] for match in close][:3]) or None
    return Problem(what, where=where, expected=f"columns: {list_names(options, name)}", nearest=nearest, fix=fix)
