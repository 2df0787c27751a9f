"""The layout of episodes in our format whose metadata are lost: Ray Data and other tools leave them out of tables.

The types of the columns say what they hold wherever a row of the environment is a number, a text or a list of these.
Rows of more dimensions are bytes, of which only the metadata say what they are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.episodes.columns import REWARDS
from runner.offline.codecs.episode_format import KEYS
from runner.offline.codecs.layout import RESERVED_NAMES, Layout, Leaf
from runner.offline.codecs.table_format import nest_columns
from runner.offline.files.data_error import DataLocation, data_error

_MODULE_ID = "module_id"


def are_columns_of_episodes(schema: pa.Schema) -> bool:
    """Return whether columns have the names of our episodes, and rewards are lists."""
    return {*KEYS, REWARDS} <= set(schema.names) and _is_list(schema.field(REWARDS).type)


def infer_layout(table: pa.Table, place: DataLocation) -> Layout:
    """Return the layout of episodes by the types of their columns, without spaces and the environment's name.

    Args:
        table: the first episodes, with the columns of `episode_format`.
        place: of the first one, for messages.

    Raises:
        DataError: a column does not say what it holds.
    """
    leaves = {
        name: _leaf_of(table[name], place.of(name))
        for name in table.column_names
        if name not in RESERVED_NAMES and _is_list(table[name].type)
    }
    module_ids = table[_MODULE_ID].to_pylist() if _MODULE_ID in table.column_names else []
    return Layout(nest_columns(leaves), module_id=next(iter(module_ids), None))


def _leaf_of(column: pa.ChunkedArray, place: DataLocation) -> Leaf:
    shape: tuple[int, ...] = ()
    values = pc.list_flatten(column)
    if _is_list(values.type):
        sizes = pc.list_value_length(values)
        if not len(sizes) or pc.count_distinct(sizes).as_py() > 1:
            raise data_error("the first episodes do not show the shape of a row", place, allowed="lists of one length")
        values, shape = pc.list_flatten(values), (sizes[0].as_py(),)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return Leaf(np.dtype("U1"), shape, str(place.column))
    try:
        return Leaf(np.dtype(values.type.to_pandas_dtype()), shape, str(place.column))
    except (TypeError, NotImplementedError):
        what = f"only the metadata of our files say what a column of {values.type} holds, and they are not there"
        allowed = "the folder as offline.input_, with offline.input_read_method=auto; or without this column"
        raise data_error(what, place, allowed=allowed) from None


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))
