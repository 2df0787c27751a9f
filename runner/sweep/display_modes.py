"""Which display of a sweep a mode stands for."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from runner.config.schemas import ExperimentConfig
from runner.sweep.display import SweepDisplay
from runner.tracking.display_modes import is_capable_terminal


def make_sweep_display(config: ExperimentConfig, facts: Mapping[str, str], num_trials: int) -> SweepDisplay:
    """Return the display of `tracking.display`; "auto" is live on a terminal and plain elsewhere.

    Args:
        config: of one of the trials.
        facts: what is known at the start, by name.
        num_trials: how many there will be.
    """
    mode = config.tracking.display
    if mode == "live" or (mode == "auto" and is_capable_terminal(sys.stdout)):
        from runner.sweep.live_display import LiveSweepDisplay

        return LiveSweepDisplay(config, facts, num_trials)
    return SweepDisplay(config, facts, None if mode == "none" else sys.stdout)
