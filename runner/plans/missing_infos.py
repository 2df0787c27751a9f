"""Warnings about metrics whose key is missing in the infos of all finished episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from runner.config.errors import list_names, nearest_match
from runner.config.info_metrics import InfoMetric


class MissingInfos:
    """Warns once, after the first finished episodes of a run, about metrics whose key is missing in all infos.

    Args:
        of_infos: the metrics.
        warn: prints a line.
    """

    def __init__(self, of_infos: Sequence[InfoMetric], warn: Callable[[str], None]) -> None:
        self._of_infos = of_infos
        self._warn = warn
        self._has_looked = False

    def warn_once(self, numbers: Mapping[str, Sequence[float] | npt.NDArray[np.float64]], keys: Sequence[str]) -> None:
        """Look for metrics without a number.

        Args:
            numbers: metric -> numbers of finished episodes.
            keys: keys of the newest infos.
        """
        if self._has_looked or not numbers:
            return
        self._has_looked = True
        for metric in self._of_infos:
            if not metric.is_part and np.isnan(np.asarray(numbers.get(metric.name, ()), np.float64)).all():
                key = "/".join(metric.path)
                near = nearest_match(key, keys)
                texts = (
                    f"{metric.name}: no info of the finished episodes has {key}",
                    f"it has {list_names(keys, key)}" if keys else "",
                    f"nearest: {near}" if near else "",
                )
                self._warn("; ".join(filter(None, texts)))
