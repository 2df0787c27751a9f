"""The layout of several files that were written by `runner`, and what is missing in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from runner.config.errors import Problem, list_names, nearest_match
from runner.config.recorded_columns import canonical_name
from runner.episodes.nested import StateError
from runner.offline.codecs.arrow_columns import value_type
from runner.offline.codecs.layout import Layout
from runner.offline.files.data_error import DataError, DataLocation, data_error
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.selection import ALWAYS_READ, Selection

_NO_OUTPUTS = ("eps_id", "t", "infos", "terminateds", "truncateds", "new_obs")


def common_layout(
    data: RawData, selection: Selection, read: Callable[[pa.Schema], Layout | None], keys: Sequence[str] = ()
) -> Layout | None:
    """Return the layout of all files, narrowed to what is read; None where files have none.

    Args:
        data: the files.
        selection: what is read.
        read: takes the layout from the metadata of a schema.
        keys: columns that files need beside the layout's.

    Raises:
        DataError: metadata are damaged, columns are missing or differ between files.
    """
    layout: Layout | None = None
    for path, schema in zip(data.paths, data.schemas, strict=True):
        try:
            found = read(schema)
            if found is None:
                return None
            _check_complete(found, schema, path, keys)
            _check_names(selection, found, path)
            found = selection.layout(found)
            layout = found if layout is None else layout.merged_with(found)
        except StateError as error:
            raise data_error(f"the metadata of this file are damaged: {error}", DataLocation(path)) from None
        except ValueError as error:
            what = f"the files do not hold the same columns: {error}"
            allowed = (
                f"the columns of {data.where}; or a pattern that names the files of one module; or "
                "offline.input_read_method_kwargs.columns=[obs,actions,rewards,...]"
            )
            raise DataError([Problem(what, path, allowed=allowed)]) from None
    return layout


def _check_names(selection: Selection, layout: Layout, path: str) -> None:
    """Refuse names of columns that the files do not have."""
    missing = [
        name
        for name in selection.columns or ()
        if name not in layout.columns and canonical_name(name) not in _NO_OUTPUTS
    ]
    if missing:
        allowed = list_names(layout.columns)
        problems = [
            Problem(f"there is no column {name}", path, allowed=allowed, nearest=nearest_match(name, layout.columns))
            for name in missing
        ]
        raise DataError(problems)


def _check_complete(layout: Layout, schema: pa.Schema, path: str, keys: Sequence[str]) -> None:
    """Refuse a file of ours from which another tool has taken columns that every reader needs."""
    needed = [leaf.column for leaf in layout.selected(set(ALWAYS_READ)).leaves() if value_type(leaf) is not None]
    missing = [name for name in ALWAYS_READ if name not in layout.columns]
    missing += [name for name in (*needed, *keys) if name not in schema.names]
    if missing:
        raise data_error(
            f"there is no column {', '.join(missing)}", DataLocation(path), allowed=list_names(schema.names)
        )
