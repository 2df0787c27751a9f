"""The newest weights by their sequence number, and the files in which clients get them."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.env_runners.sample import Weights


class FileMaker(Protocol):
    """Makes files of the parameters of one module.

    Attributes:
        problem: the reason why it cannot; None if it can.
    """

    problem: str | None

    def __call__(self, weights: Any, shared_state: Mapping[str, Any], weights_seq_no: int) -> bytes:
        """Make the file with these parameters (P,), this state of the module's connectors and this number."""


@dataclass(frozen=True)
class Version:
    """One version of the weights.

    Attributes:
        seq_no: its sequence number.
        weights: module id -> (P,) parameters.
        shared_state: module id -> merged state of the connectors that runners share.
    """

    seq_no: int
    weights: Weights
    shared_state: Mapping[str, Any]


@dataclass
class Versions:
    """The newest versions.

    Args:
        num_kept: number of versions that are kept.
        makers: file format (`onnx`, `safetensors`) -> module id -> maker of its file.
        newest_seq_no: number before the first version.
    """

    num_kept: int
    makers: Mapping[str, Mapping[str, FileMaker]]
    newest_seq_no: int = 0
    num_files_made: int = 0
    _kept: OrderedDict[int, Version] = field(default_factory=OrderedDict)
    _files: dict[tuple[str, str], bytes] = field(default_factory=dict)

    @property
    def newest(self) -> Version | None:
        """Return the newest version; None before the first."""
        return self._kept.get(self.newest_seq_no)

    def add(self, weights: Weights, shared_state: Mapping[str, Any], needed: int | None = None) -> Version:
        """Add a version, which gets the next number; keep all versions from number `needed` on, however many."""
        self.newest_seq_no += 1
        version = Version(self.newest_seq_no, weights, shared_state)
        self._kept[version.seq_no] = version
        self._files.clear()
        while len(self._kept) > self.num_kept and (needed is None or next(iter(self._kept)) < needed):
            self._kept.popitem(last=False)
        return version

    def get(self, seq_no: int) -> Version | None:
        """Return the version; None if it is not kept any more."""
        return self._kept.get(seq_no)

    @property
    def kept(self) -> list[int]:
        """Return the numbers of the versions that are kept."""
        return list(self._kept)

    def compressed_file(self, file_format: str, module_id: str) -> bytes:
        """Return a module's file of the newest version, made once for all clients; an ONNX file as its gzip."""
        key = file_format, module_id
        if key not in self._files:
            newest = self._kept[self.newest_seq_no]
            content = self.makers[file_format][module_id](
                newest.weights[module_id], newest.shared_state.get(module_id, {}), newest.seq_no
            )
            self._files[key] = content if file_format == "safetensors" else gzip.compress(content, 1, mtime=0)
            self.num_files_made += 1
        return self._files[key]
