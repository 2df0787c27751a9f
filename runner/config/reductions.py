"""Names of the ways in which several numbers become one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.config.errors import Problem, nearest_match

_PERCENTILE = re.compile(r"p[1-9]\d?")


def is_percentile(reduction: str) -> bool:
    """Return whether the name is one of `p1` to `p99`."""
    return _PERCENTILE.fullmatch(reduction) is not None


def find_reduction_fault(what: str, reduction: str, named: Sequence[str]) -> Problem | None:
    """Return the problem of a reduction that is neither one of `named` nor a percentile; None if there is none.

    Args:
        what: the problem in words.
        reduction: that was given.
        named: reductions that are allowed beside percentiles.
    """
    if reduction in named or is_percentile(reduction):
        return None
    return Problem(what, None, reduction, f"{', '.join(named)}, p1 to p99", nearest_match(reduction, named))
