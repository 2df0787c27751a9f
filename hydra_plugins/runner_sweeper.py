"""Hydra's view of `runner sweep`: a `Sweeper` that hands over to Ray Tune. Hydra finds plugins in this package.

Imports neither Ray nor torch: Hydra imports it at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

RunSweep = Callable[[Path], int]


class TuneSweeper(Sweeper):
    """Runs, in `hydra.sweep.dir`, the sweep that `sweeping` has announced."""

    run_sweep: RunSweep | None = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        """As Hydra demands."""
        self._folder = Path(str(config.hydra.sweep.dir))

    def sweep(self, arguments: list[str]) -> int:
        """The exit code; `arguments` have been read before Hydra was started."""
        run_sweep = type(self).run_sweep
        if run_sweep is None:
            raise RuntimeError("this sweeper is started with `runner sweep`")
        return run_sweep(self._folder)


@contextmanager
def sweeping(run_sweep: RunSweep) -> Iterator[None]:
    """Within, Hydra's multirun is this sweep; it gets the sweep's folder and returns the exit code."""
    TuneSweeper.run_sweep = staticmethod(run_sweep)
    try:
        yield
    finally:
        TuneSweeper.run_sweep = None


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="tune",
    node={"_target_": f"{TuneSweeper.__module__}.{TuneSweeper.__qualname__}"},
    provider="runner",
)
