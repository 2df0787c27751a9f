"""Where Ray Data's log goes in a run."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def quiet_ray_data() -> None:
    """Let Ray Data write to its own log and to the run's, not to the terminal, where the run's display is."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.execution_options.preserve_order = True  # batches do not depend on which worker is faster
    logger = logging.getLogger("ray.data")
    for handler in logger.handlers[:]:
        if not isinstance(handler, (logging.FileHandler, _ToRunLog)):
            logger.removeHandler(handler)
    if not any(isinstance(handler, _ToRunLog) for handler in logger.handlers):
        logger.addHandler(_ToRunLog(logging.WARNING))


class _ToRunLog(logging.Handler):
    """Passes on to the run's log, but for what Ray Data says of the setting made here."""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("Progress bars disabled"):
            _log.handle(record)
