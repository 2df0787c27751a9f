"""Operators that transform experiences: join, complete, select, standardise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from runner.config.errors import Problem, RunFailure, nearest_match
from runner.config.operators import ConcatBatchesConfig, SelectExperiencesConfig, StandardizeFieldsConfig
from runner.config.plans.training_ratio import train_batch_size
from runner.env_runners.episode_ids import runner_of
from runner.episodes.columns import OBS, Column, ColumnBlock, Rollout, concat_rollouts
from runner.plans.complete_episodes import EpisodeAssembler
from runner.plans.context import PlanContext
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.items import Experiences, Origin, ReplayRows
from runner.plans.operator import Operator

_SMALLEST_STD = 1e-4


class ConcatBatches(Operator):
    """Join experiences until they hold `min_env_steps` env steps."""

    options: ConcatBatchesConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        least = self.options.min_env_steps
        self._least = train_batch_size(context.config) if isinstance(least, str) else least  # auto
        self._parts: list[Experiences] = []

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the collected experiences as one item once they are enough."""
        self._parts.append(item)
        if sum(part.num_env_steps for part in self._parts) < self._least:
            return []
        parts, self._parts = self._parts, []
        return [joined(parts)]

    def get_state(self) -> dict[str, Any]:
        """Return the experiences collected so far."""
        return {"parts": [item_to_state(part) for part in self._parts]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._parts = [item_from_state(part, self.context) for part in state["parts"]]


class CompleteEpisodes(Operator):
    """Keep the steps of unfinished episodes, and return episodes when they are complete.

    Episodes of a crashed runner or of a re-created environment are dropped, since they will never finish.
    """

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._episodes = EpisodeAssembler()
        self._origins: dict[Origin, None] = {}  # also of steps that were held back

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the episodes that have ended, if any."""
        self._origins |= dict.fromkeys(item.origins)
        rollout = self._episodes.add(item.rollout)
        if item.aborted:
            self._episodes.drop(frozenset(item.aborted).__contains__)
        if any(self.context.env_runners.actors.generations):
            self._episodes.drop(self._is_lost)
        if not rollout.blocks:
            return []
        origins, self._origins = tuple(self._origins), dict.fromkeys(item.origins)
        return [Experiences(rollout, origins)]

    def _is_lost(self, episode_id: str) -> bool:
        """Return whether the runner of an episode crashed; connected simulators continue theirs at the next runner."""
        runner = runner_of(episode_id)
        return runner is not None and self.context.env_runners.actors.generations[runner[0]] != runner[1]

    def get_state(self) -> dict[str, Any]:
        """Return the steps of unfinished episodes."""
        return {"episodes": self._episodes.get_state(), "origins": [asdict(origin) for origin in self._origins]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._episodes.set_state(state["episodes"])
        self._origins = {Origin(**origin): None for origin in state["origins"]}


class SelectExperiences(Operator):
    """Keep the experiences of some modules."""

    options: SelectExperiencesConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        context.check_module_ids("SelectExperiences", self.options.modules)

    def accepts(self, item: Experiences) -> bool:
        """Return whether a replayed item comes from a buffer that contains one of these modules.

        Otherwise the buffer would return the same experiences until another branch stores some of these modules.
        """
        buffers = [self.context.replay_buffers[name] for name in item.replay_rows]
        sources = self.context.config.multi_agent.auxiliary_modules
        wanted = {*self.options.modules, *(sources[one] for one in self.options.modules if one in sources)}
        return not buffers or any(not wanted.isdisjoint(buffer.module_ids) for buffer in buffers)

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item reduced to these modules, or nothing if it does not contain any of them."""
        auxiliary = self.context.config.multi_agent.auxiliary_modules
        selected = item.rollout.of_modules(self.options.modules, auxiliary)
        return [replace(item, rollout=selected)] if selected.blocks else []


class StandardizeFields(Operator):
    """Standardise columns of each module to mean 0 and standard deviation 1 over the rows of an item."""

    options: StandardizeFieldsConfig

    def transform(self, item: Experiences) -> list[Experiences]:
        """Return the item with these columns standardised; the standard deviation is at least 1e-4."""
        blocks = item.rollout.blocks.items()
        return [item.with_columns({module_id: self._standardised(block) for module_id, block in blocks})]

    def _standardised(self, block: ColumnBlock) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name in self.options.fields:
            column = block.columns.get(name)
            if not isinstance(column, np.ndarray) or name == OBS or column.dtype.kind != "f":
                known = [
                    key
                    for key, one in block.columns.items()
                    if getattr(one, "dtype", np.dtype("O")).kind == "f" and key != OBS
                ]
                raise RunFailure(
                    Problem(
                        f"StandardizeFields cannot standardise {name}: it is not a float column of the steps",
                        where="algorithm.plan",
                        got=name,
                        expected=", ".join(known),
                        nearest=nearest_match(name, known),
                    )
                )
            columns[name] = (column - column.mean(0)) / np.maximum(column.std(0), _SMALLEST_STD)
        return columns


def joined(parts: list[Experiences]) -> Experiences:
    """Join experiences to one item whose samples are not counted again."""
    rollout: Rollout = concat_rollouts([part.rollout for part in parts])
    origins = tuple(origin for part in parts for origin in part.origins)
    aborted = tuple(id_ for part in parts for id_ in part.aborted)
    return Experiences(rollout, origins, _joined_rows([part.replay_rows for part in parts]), aborted)


def _joined_rows(parts: list[ReplayRows]) -> ReplayRows:
    joined_rows: dict[str, dict[str, Any]] = {}
    for part in parts:
        for buffer, of_modules in part.items():
            of_buffer = joined_rows.setdefault(buffer, {})
            for module_id, rows in of_modules.items():
                of_buffer[module_id] = np.concatenate([of_buffer.get(module_id, rows[:0]), rows])
    return joined_rows
