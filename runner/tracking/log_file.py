"""`runner.log` of a run, where Hydra does not make it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path


def log_to_file(run_dir: Path) -> Callable[[], None]:
    """Send log records of this process to `runner.log`, as Hydra does for a new run; what is returned ends that."""
    run_dir.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(run_dir / "runner.log")
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)

    def stop() -> None:
        root.removeHandler(handler)
        handler.close()

    return stop
