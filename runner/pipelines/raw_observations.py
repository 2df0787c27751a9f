"""Episodes that hold raw observations, which are standardised when they are replayed, not when they are sampled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.episodes.columns import OBS, ColumnBlock, Lookback, LookbackRows, Rollout
from runner.pipelines.common_connectors import AddObservationsFromEpisodesToBatch
from runner.pipelines.mean_std_filter import MeanStdFilter
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.pipelines.requirements import Requirements

_TAKES_HELD = AddObservationsFromEpisodesToBatch


def leave_raw(pipeline: EnvToModulePipeline) -> None:
    """Exchange the pipeline's `MeanStdFilter` for one that leaves the observations in the episodes raw.

    They can be standardised later if the filter gets them as they are held, and is the last connector to write them.
    Otherwise the filter stays.
    """
    connectors = list(pipeline)
    requires = [Requirements.of(connector) for connector in connectors]
    writers = [number for number, one in enumerate(requires) if one.writes_obs_to_episodes]
    place = writers[-1] if writers else 0
    last = connectors[place]
    if not writers or not isinstance(last, MeanStdFilter):
        return
    since_written = connectors[writers[-2] + 1 if len(writers) > 1 else 0 : place]
    is_changed = any(OBS in Requirements.of(one).writes and not isinstance(one, _TAKES_HELD) for one in since_written)
    if not is_changed and not any(one.num_lookback for one in requires[place:]):
        pipeline.substitute_connectors([*connectors[:place], last.for_raw_episodes(), *connectors[place + 1 :]])


def raw_filters(pipeline: EnvToModulePipeline) -> dict[str, MeanStdFilter]:
    """Return name -> connector of the filter that leaves observations raw; {}: none does."""
    connectors = pipeline.named_connectors().items()
    return {
        name: connector
        for name, connector in connectors
        if isinstance(connector, MeanStdFilter) and connector.leaves_observations_raw
    }


class Standardisation:
    """Standardises replayed observations by what all runners have seen so far.

    Args:
        env_to_module: module id -> pipeline like the runners'; it stays as it is.
    """

    def __init__(self, env_to_module: Mapping[str, EnvToModulePipeline]) -> None:
        self._filters = {module_id: copy.deepcopy(raw_filters(one)) for module_id, one in env_to_module.items()}
        self.is_needed = any(self._filters.values())

    def __call__(self, rollout: Rollout, shared_state: Mapping[str, Any]) -> Rollout:
        """Return the rollout as the modules see it now.

        Args:
            rollout: raw, of a replay buffer; it stays as it is.
            shared_state: module id -> merged state of the runners' connectors.
        """
        if not self.is_needed:
            return rollout
        blocks = {
            module_id: self._standardised(module_id, block, shared_state.get(module_id, {}))
            for module_id, block in rollout.blocks.items()
        }
        return replace(rollout, blocks=blocks)

    def _standardised(self, module_id: str, block: ColumnBlock, states: Mapping[str, Any]) -> ColumnBlock:
        for name, connector in self._filters[module_id].items():
            if name in states:
                connector.set_state(states[name])
            block = replace(
                block,
                columns=_with_obs(block.columns, connector),
                lookback=_past(block.lookback, connector),
                last_lookback=_past(block.last_lookback, connector),
            )
        return block


def _with_obs(columns: Mapping[str, Any], connector: MeanStdFilter) -> dict[str, Any]:
    return {**columns, OBS: connector.standardised(columns[OBS])}


def _past(lookback: Lookback | None, connector: MeanStdFilter) -> Lookback | None:
    if not isinstance(lookback, LookbackRows):
        return lookback
    return replace(lookback, columns=_with_obs(lookback.columns, connector))
