"""What connectors such as `MeanStdFilter` know of recorded data before anything is learned from them."""

from __future__ import annotations

import copy
from typing import Any

from runner.modules.rl_module import RLModule
from runner.offline.reading.recorded_source import RecordedSource
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.pipelines.recorded_episodes import pass_through


def statistics_of(source: RecordedSource, env_to_module: EnvToModulePipeline, module: RLModule) -> dict[str, Any]:
    """Return connector name -> its state after one pass over all observations, the last one of each episode included.

    Args:
        source: of the data.
        env_to_module: stays as it is; its connectors begin with what they know.
        module: what connectors are given as such.

    Raises:
        DataError: damaged data.
    """
    learning = copy.deepcopy(env_to_module)
    connectors = list(learning.single_connectors())
    while connectors and not connectors[-1].shares_state:
        del connectors[-1]
    for block in source.narrowed((), with_infos=False).blocks():
        pass_through(connectors, block, module)
    return learning.merge_states([learning.get_state()])
