"""Ordered list of the connectors of a pipeline, which can be edited by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from runner.config.declared_metrics import free_name
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.pipelines.connector import Connector

Anchor = str | type[Connector]


class PipelineError(ConfigError):
    """Error in an edit or in the order of a pipeline's connectors."""


class ConnectorList:
    """Base class of pipelines: connectors that are edited by name. An anchor may be in a nested pipeline."""

    name: str
    _connectors: list[Connector]

    def _infer(self) -> None:
        """Update all properties that depend on the connectors; called after each edit."""
        raise NotImplementedError

    def prepend(self, connector: Connector) -> None:
        """Insert `connector` at the beginning."""
        self._connectors.insert(0, connector)
        self._infer()

    def append(self, connector: Connector) -> None:
        """Insert `connector` at the end."""
        self._connectors.append(connector)
        self._infer()

    def insert_before(self, anchor: Anchor, connector: Connector) -> None:
        """Insert `connector` before the connector named `anchor` (class or class name)."""
        connectors, index = self._place(anchor)
        connectors.insert(index, connector)
        self._infer()

    def insert_after(self, anchor: Anchor, connector: Connector) -> None:
        """Insert `connector` after the connector named `anchor`."""
        connectors, index = self._place(anchor)
        connectors.insert(index + 1, connector)
        self._infer()

    def replace(self, anchor: Anchor, connector: Connector) -> None:
        """Replace the connector named `anchor` by `connector`."""
        connectors, index = self._place(anchor)
        connectors[index] = connector
        self._infer()

    def remove(self, anchor: Anchor) -> None:
        """Remove the connector named `anchor`."""
        connectors, index = self._place(anchor)
        del connectors[index]
        self._infer()

    def _place(self, anchor: Anchor) -> tuple[list[Connector], int]:
        """Return the list that contains the first connector named `anchor`, and its index there."""
        name = anchor if isinstance(anchor, str) else anchor.__name__
        place = self._find(name)
        if place is None:
            names = [type(connector).__name__ for connector in self.every_connector()]
            raise PipelineError(
                [
                    Problem(
                        f"the {self.name} pipeline does not contain a connector {name}",
                        where=f"connectors.{self.name}",
                        got=name,
                        expected=", ".join(names),
                        nearest=nearest_match(name, names),
                    )
                ]
            )
        return place

    def _find(self, name: str) -> tuple[list[Connector], int] | None:
        for index, connector in enumerate(self._connectors):
            if type(connector).__name__ == name:
                return self._connectors, index
            inner = connector._find(name) if isinstance(connector, ConnectorList) else None
            if inner is not None:
                return inner
        return None

    def every_connector(self) -> Iterator[Connector]:
        """Yield all connectors in the order of their calls, a nested pipeline before its connectors."""
        for connector in self._connectors:
            yield connector
            if isinstance(connector, ConnectorList):
                yield from connector.every_connector()

    def single_connectors(self) -> Iterator[Connector]:
        """Yield the connectors in the order of their calls; the connectors of nested pipelines replace the nested
        pipelines.
        """
        return (connector for connector in self.every_connector() if not isinstance(connector, ConnectorList))

    def __len__(self) -> int:
        return len(self._connectors)

    def __iter__(self) -> Iterator[Connector]:
        return iter(self._connectors)

    @overload
    def __getitem__(self, key: int | str) -> Connector: ...
    @overload
    def __getitem__(self, key: type[Connector]) -> list[Connector]: ...
    def __getitem__(self, key: int | Anchor) -> Connector | list[Connector]:
        if isinstance(key, int):
            return self._connectors[key]
        if isinstance(key, str):
            connectors, index = self._place(key)
            return connectors[index]
        return [connector for connector in self.every_connector() if isinstance(connector, key)]


def named_connectors(connectors: Sequence[Connector]) -> dict[str, Connector]:
    """Return connectors by class name; a second one of the same class is `Name#2`."""
    named: dict[str, Connector] = {}
    for connector in connectors:
        named[free_name(type(connector).__name__, named)] = connector
    return named
