"""Episodes with raw observations, which are standardised when they are replayed instead of when they are sampled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.episodes.columns import OBS, ColumnBlock, Lookback, LookbackRows, Rollout
from runner.pipelines.mean_std_filter import MeanStdFilter
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.pipelines.pipeline_checks import changes_observations
from runner.pipelines.requirements import Requirements


def leave_raw(pipeline: EnvToModulePipeline) -> None:
    """Replace the pipeline's `MeanStdFilter` by one that leaves the observations in the episodes raw.

    This requires that the filter gets the observations as the episodes hold them, and is the last connector that writes
    them. Otherwise the filter is kept.
    """
    connectors = list(pipeline)
    requires = [Requirements.of(connector) for connector in connectors]
    writers = [number for number, one in enumerate(requires) if one.writes_obs_to_episodes]
    place = writers[-1] if writers else 0
    last = connectors[place]
    if not writers or not isinstance(last, MeanStdFilter):
        return
    since_written = connectors[writers[-2] + 1 if len(writers) > 1 else 0 : place]
    if not any(map(changes_observations, since_written)) and not any(one.num_lookback for one in requires[place:]):
        pipeline.substitute_connectors([*connectors[:place], last.for_raw_episodes(), *connectors[place + 1 :]])


def raw_filters(pipeline: EnvToModulePipeline) -> dict[str, MeanStdFilter]:
    """Return name -> connector of the filter that leaves observations raw, or {}."""
    connectors = pipeline.named_connectors().items()
    return {
        name: connector
        for name, connector in connectors
        if isinstance(connector, MeanStdFilter) and connector.leaves_observations_raw
    }


class Standardisation:
    """Standardises replayed observations by the merged statistics of all runners.

    Args:
        env_to_module: module id -> a pipeline equal to the runners'; it is not changed.
        sources: auxiliary module -> the module whose observations it learns from.
    """

    def __init__(
        self, env_to_module: Mapping[str, EnvToModulePipeline], sources: Mapping[str, str] | None = None
    ) -> None:
        self._sources = sources or {}
        self._filters = {module_id: copy.deepcopy(raw_filters(one)) for module_id, one in env_to_module.items()}
        self.is_needed = any(self._filters.values())

    def __call__(self, rollout: Rollout, shared_state: Mapping[str, Any]) -> Rollout:
        """Return the rollout with observations standardised by the newest statistics.

        Args:
            rollout: raw rollout from a replay buffer; it is not changed.
            shared_state: module id -> merged state of the runners' connectors.
        """
        if not self.is_needed:
            return rollout
        blocks = {
            module_id: self._standardised(
                module_id, block, shared_state.get(self._sources.get(module_id, module_id), {})
            )
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
