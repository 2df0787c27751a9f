"""The namespaces that a row store must work in, and values that fit them."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.episodes import nested
from runner.rows.array_namespace import NUMPY, ArrayNamespace, TorchArrays

NAMESPACES: dict[str, ArrayNamespace] = {"numpy": NUMPY, "torch": TorchArrays("cpu")}

# A Box, a Dict and a Tuple of parts with several shapes and dtypes.
BLANKS: dict[str, Any] = {
    "box": np.zeros(3, np.float32),
    "dict": {"image": np.zeros((2, 2, 1), np.uint8), "deep": {"flag": np.zeros((), np.bool_), "x": np.zeros(2)}},
    "tuple": (np.zeros((), np.int64), {"a": np.zeros((1, 2), np.float32)}),
}


def filled(blank: Any, number: float) -> Any:
    """An item of this structure that stands for a number."""
    return nested.map_leaves(lambda leaf: (np.zeros_like(leaf) + number % 251).astype(leaf.dtype), blank)


def as_given(xp: ArrayNamespace, tree: Any) -> Any:
    """The same arrays in a namespace, also in dicts and tuples."""
    return nested.map_leaves(lambda leaf: xp.from_host(np.array(leaf)), tree)


def on_host(xp: ArrayNamespace, tree: Any) -> Any:
    """The same arrays in numpy."""
    return nested.map_leaves(lambda leaf: np.asarray(xp.to_host(leaf)), tree)
