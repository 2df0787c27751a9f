"""End flags of recorded steps and episodes: bools, the numbers 0 and 1, or text that says true or false."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runner.episodes.nested import Array
from runner.offline.files.data_error import DataLocation, data_error

_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


def read_end_flags(values: Array, place: DataLocation) -> npt.NDArray[np.bool_]:
    """Return (R,) bool of values of any dtype; `place` is the first one's.

    Raises:
        DataError: a value is neither true nor false; in Python each text that is not empty would be true.
    """
    if values.dtype.kind == "b":
        return np.asarray(values, np.bool_)
    if values.dtype.kind in "iuf":
        is_true, is_false = values == 1, values == 0
    else:
        texts = np.char.lower(np.char.strip(_as_text(values)))
        is_true, is_false = np.isin(texts, _TRUE), np.isin(texts, _FALSE)
    wrong = np.flatnonzero(~(is_true | is_false))
    if len(wrong):
        row = int(wrong[0])
        raise data_error(
            "an end flag is true or false", place.at(row), got=str(values[row]), allowed="true, false, 0, 1"
        )
    return np.asarray(is_true, np.bool_)


def _as_text(values: Array) -> Array:
    return np.char.decode(values, "latin-1") if values.dtype.kind == "S" else values.astype(np.str_)
