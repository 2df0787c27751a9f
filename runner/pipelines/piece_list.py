"""The pieces of a pipeline in their order, found and edited by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from runner.config.errors import ConfigError, Problem, nearest_match
from runner.pipelines.piece import ConnectorPiece

Anchor = str | type[ConnectorPiece]


class PipelineError(ConfigError):
    """An edit or the order of a pipeline's pieces is wrong."""


class PieceList:
    """Base of pipelines: pieces that are edited by name. An anchor may be a piece of a nested pipeline."""

    name: str
    _pieces: list[ConnectorPiece]

    def _infer(self) -> None:
        """Infer anew what follows from the pieces; called after each edit."""
        raise NotImplementedError

    def prepend(self, piece: ConnectorPiece) -> None:
        """Make `piece` the first."""
        self._pieces.insert(0, piece)
        self._infer()

    def append(self, piece: ConnectorPiece) -> None:
        """Make `piece` the last."""
        self._pieces.append(piece)
        self._infer()

    def insert_before(self, anchor: Anchor, piece: ConnectorPiece) -> None:
        """Put `piece` before the piece named `anchor` (class or class name)."""
        pieces, index = self._place(anchor)
        pieces.insert(index, piece)
        self._infer()

    def insert_after(self, anchor: Anchor, piece: ConnectorPiece) -> None:
        """Put `piece` after the piece named `anchor`."""
        pieces, index = self._place(anchor)
        pieces.insert(index + 1, piece)
        self._infer()

    def replace(self, anchor: Anchor, piece: ConnectorPiece) -> None:
        """Put `piece` in the place of the piece named `anchor`."""
        pieces, index = self._place(anchor)
        pieces[index] = piece
        self._infer()

    def remove(self, anchor: Anchor) -> None:
        """Take out the piece named `anchor`."""
        pieces, index = self._place(anchor)
        del pieces[index]
        self._infer()

    def _place(self, anchor: Anchor) -> tuple[list[ConnectorPiece], int]:
        """Return the list that holds the first piece named `anchor`, and its index there."""
        name = anchor if isinstance(anchor, str) else anchor.__name__
        place = self._find(name)
        if place is None:
            names = [type(piece).__name__ for piece in self.every_piece()]
            raise PipelineError(
                [
                    Problem(
                        f"the {self.name} pipeline has no piece {name}",
                        where=f"connectors.{self.name}",
                        got=name,
                        allowed=", ".join(names),
                        nearest=nearest_match(name, names),
                    )
                ]
            )
        return place

    def _find(self, name: str) -> tuple[list[ConnectorPiece], int] | None:
        for index, piece in enumerate(self._pieces):
            if type(piece).__name__ == name:
                return self._pieces, index
            inner = piece._find(name) if isinstance(piece, PieceList) else None
            if inner is not None:
                return inner
        return None

    def every_piece(self) -> Iterator[ConnectorPiece]:
        """Yield all pieces in the order of their calls, a nested pipeline before its pieces."""
        for piece in self._pieces:
            yield piece
            if isinstance(piece, PieceList):
                yield from piece.every_piece()

    def single_pieces(self) -> Iterator[ConnectorPiece]:
        """Yield the pieces in the order of their calls; the pieces of nested pipelines in the place of those."""
        return (piece for piece in self.every_piece() if not isinstance(piece, PieceList))

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[ConnectorPiece]:
        return iter(self._pieces)

    @overload
    def __getitem__(self, key: int | str) -> ConnectorPiece: ...
    @overload
    def __getitem__(self, key: type[ConnectorPiece]) -> list[ConnectorPiece]: ...
    def __getitem__(self, key: int | Anchor) -> ConnectorPiece | list[ConnectorPiece]:
        if isinstance(key, int):
            return self._pieces[key]
        if isinstance(key, str):
            pieces, index = self._place(key)
            return pieces[index]
        return [piece for piece in self.every_piece() if isinstance(piece, key)]


def named_pieces(pieces: Sequence[ConnectorPiece]) -> dict[str, ConnectorPiece]:
    """Return pieces by class name; the second of a class is `Name#2`."""
    named: dict[str, ConnectorPiece] = {}
    for piece in pieces:
        name, number = type(piece).__name__, 1
        key = name
        while key in named:
            number += 1
            key = f"{name}#{number}"
        named[key] = piece
    return named
