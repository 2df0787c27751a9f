"""Which columns of recorded data are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.config.offline import OfflineConfig
from runner.config.recorded_columns import canonical_name
from runner.episodes.columns import ACTIONS, OBS, REWARDS, ColumnBlock
from runner.offline.codecs.layout import Layout
from runner.offline.formats.module_agents import ModuleAgents

ALWAYS_READ = (OBS, ACTIONS, REWARDS)


@dataclass(frozen=True)
class Selection:
    """What is read of the recorded columns.

    Attributes:
        columns: the extra model outputs beside `ALWAYS_READ`; None: all.
        with_infos: whether infos, and tasks of a curriculum, are read.
        of_module: whose episodes are read, in experiments with several agents; None: there is a single agent.
    """

    columns: tuple[str, ...] | None = None
    with_infos: bool = True
    of_module: ModuleAgents | None = None

    @classmethod
    def of(cls, config: OfflineConfig) -> Selection:
        """Return what `input_read_method_kwargs.columns` names; a leaf of a nested column (`obs/x`) names all of it."""
        given = config.input_read_method_kwargs.get("columns")
        if given is None:
            return cls()
        return cls(tuple(dict.fromkeys(canonical_name(str(name).partition("/")[0]) for name in given)))

    def narrowed(self, columns: Sequence[str] | None, with_infos: bool) -> Selection:
        """Return what is in this selection and in the other one."""
        if columns is None:
            kept = self.columns
        else:
            kept = tuple(name for name in columns if self.columns is None or canonical_name(name) in self.columns)
        return Selection(kept, self.with_infos and with_infos, self.of_module)

    def layout(self, layout: Layout) -> Layout:
        """Return the selected part of a layout."""
        return layout if self.columns is None else layout.selected({*ALWAYS_READ, *self.columns})

    def block(self, block: ColumnBlock) -> ColumnBlock:
        """Return the selected part of a block."""
        if self.columns is not None:
            kept = {*ALWAYS_READ, *self.columns}
            block = replace(block, columns={name: one for name, one in block.columns.items() if name in kept})
        return block if self.with_infos else replace(block, infos=None)
