"""Selection of the columns and agents to read from recorded data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runner.config.errors import Problem, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.config.recorded_columns import canonical_name
from runner.episodes.columns import ACTIONS, OBS, REWARDS, ColumnBlock, concat_blocks
from runner.episodes.rollout_parts import take_chunks
from runner.offline.codecs.layout import Layout
from runner.offline.files.data_error import DataError, DataLocation, data_error

MAPPING = "multi_agent.agent_to_module"


@dataclass(frozen=True)
class ModuleAgents:
    """Agents whose episodes a module learns from.

    Attributes:
        module_id: module to which the episodes are assigned.
        agents: agents of this module.
        others: agents of other modules.
    """

    module_id: str
    agents: tuple[str, ...]
    others: tuple[str, ...] = ()

    def check_known(self, agents: Iterable[str], place: DataLocation) -> None:
        """Reject an agent without a module. Raises `DataError`."""
        known = (*self.agents, *self.others)
        for agent in agents:
            if agent not in known:
                what = f"agent {agent} of the data does not exist in the experiment"
                expected = f"{', '.join(known)}, the agents of the environment and of {MAPPING}"
                raise data_error(what, place, got=agent, expected=expected, nearest=nearest_match(agent, list(known)))

    def no_rows(self, found: Iterable[str], place: DataLocation) -> DataError:
        """Return the error for data without steps of these agents; `found` are the agents in the data."""
        what = f"no rows for module {self.module_id}: the data do not contain steps of {', '.join(self.agents)}"
        fix = f"map an agent of the data to it in {MAPPING}, or remove it from multi_agent.modules_to_train"
        return data_error(what, place, got=", ".join(found) or "no agents", fix=fix)

    def chosen(self, block: ColumnBlock, place: DataLocation) -> ColumnBlock:
        """Return the episodes of the module's agents.

        Raises:
            DataError: the data come from a single agent, or have an agent without a module.
        """
        if block.agents is None:
            known = ", ".join((*self.agents, *self.others))
            what = "these data come from a single agent, but the experiment has several"
            raise data_error(what, place, expected=f"data that name the agent of each episode, one of {known}")
        self.check_known(dict.fromkeys(block.agents.agent_ids), place)
        mine = [chunk for chunk, agent in enumerate(block.agents.agent_ids) if agent in self.agents]
        return replace(take_chunks(block, mine), module_id=self.module_id)

    def joined(self, blocks: Sequence[ColumnBlock], place: DataLocation) -> ColumnBlock:
        """Join the episodes of the module's agents in blocks of any modules. See `chosen`.

        Raises:
            DataError: see `chosen`; or columns of these agents differ.
        """
        chosen = [self.chosen(block, place) for block in blocks]
        kept = [block for block in chosen if len(block)] or chosen[:1]
        odd = sorted({name for block in kept for name in block.columns.keys() ^ kept[0].columns.keys()})
        try:
            if odd:
                raise ValueError(f"only some have {', '.join(odd)}")
            return concat_blocks(kept)
        except ValueError as error:
            what = f"the agents {', '.join(self.agents)} share a module but their columns differ: {error}"
            expected, fix = "agents with equal spaces", "give the other agents a separate module"
            raise data_error(what, place, expected=expected, fix=fix) from None


def several_agents(agents: Iterable[str], place: DataLocation) -> DataError:
    """Return the error for data of these agents in an experiment with a single agent."""
    what = "these data come from several agents, but the experiment has one"
    fix = "use an experiment with several agents (env._target_ is a MultiAgentEnv)"
    return data_error(what, place, got=list_names(agents), fix=fix)


ALWAYS_READ = (OBS, ACTIONS, REWARDS)
# Columns of files that are not model outputs.
_NO_OUTPUTS = ("eps_id", "t", "env_t", "infos", "terminateds", "truncateds", "new_obs")


@dataclass(frozen=True)
class Selection:
    """Columns to read from recorded data.

    Attributes:
        columns: extra model outputs to read in addition to `ALWAYS_READ`, or None for all.
        with_infos: whether to read infos and tasks.
        of_module: agents whose episodes are read, or None in single-agent experiments.
    """

    columns: tuple[str, ...] | None = None
    with_infos: bool = True
    of_module: ModuleAgents | None = None

    @classmethod
    def of(cls, config: OfflineConfig) -> Selection:
        """Read `input_read_method_kwargs.columns`. A leaf of a nested column (`obs/x`) selects the entire column."""
        given = config.input_read_method_kwargs.get("columns")
        if given is None:
            return cls()
        return cls(tuple(dict.fromkeys(canonical_name(str(name).partition("/")[0]) for name in given)))

    def narrowed(self, columns: Sequence[str] | None, with_infos: bool) -> Selection:
        """Return the intersection with another selection."""
        if columns is None:
            kept = self.columns
        else:
            kept = tuple(name for name in columns if self.columns is None or canonical_name(name) in self.columns)
        return Selection(kept, self.with_infos and with_infos, self.of_module)

    def layout(self, layout: Layout) -> Layout:
        """Return the selected part of a layout."""
        return layout if self.columns is None else layout.selected({*ALWAYS_READ, *self.columns})

    def check_columns(self, layout: Layout, where: str) -> None:
        """Reject selected columns that the files do not have. Raises `DataError`."""
        known = layout.columns
        problems = [
            Problem(f"there is no column {name}", where, None, list_names(known), nearest_match(name, known))
            for name in self.columns or ()
            if name not in known and canonical_name(name) not in _NO_OUTPUTS
        ]
        if problems:
            raise DataError(problems)

    def block(self, block: ColumnBlock) -> ColumnBlock:
        """Return the selected part of a block."""
        if self.columns is not None:
            kept = {*ALWAYS_READ, *self.columns}
            block = replace(block, columns={name: one for name, one in block.columns.items() if name in kept})
        return block if self.with_infos else replace(block, infos=None)
