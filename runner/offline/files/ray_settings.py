"""Settings of Ray Data in a run: where its log goes, the order of its blocks, its places in a trial of a sweep."""

from __future__ import annotations

import logging
import warnings
from typing import Any

_log = logging.getLogger(__name__)


def set_up_ray_data() -> None:
    """Let Ray Data keep the order of blocks, and take the places that a trial of a sweep has reserved.

    It writes to its own log and to the run's, not to the terminal, where the run's display is.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.execution_options.preserve_order = True  # batches do not depend on which worker is faster
    _stay_in_group(context)
    logger = logging.getLogger("ray.data")
    for handler in logger.handlers[:]:
        if not isinstance(handler, (logging.FileHandler, _ToRunLog)):
            logger.removeHandler(handler)
    if not any(isinstance(handler, _ToRunLog) for handler in logger.handlers):
        logger.addHandler(_ToRunLog(logging.WARNING))


def _stay_in_group(context: Any) -> None:
    """Let tasks and actors run in the placement group of this process, if any: nothing else may be free."""
    from ray.util.placement_group import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    if group is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray 2.60 has no other setting for all of them
            context.scheduling_strategy = PlacementGroupSchedulingStrategy(group)
            context.scheduling_strategy_large_args = PlacementGroupSchedulingStrategy(group)


class _ToRunLog(logging.Handler):
    """Passes on to the run's log, but for what Ray Data says of the setting made here."""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("Progress bars disabled"):
            _log.handle(record)
