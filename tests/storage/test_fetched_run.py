"""A local copy of a run in a store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.checkpoints.checkpoint import MANIFEST
from runner.config.errors import UserError
from runner.storage.fetched_run import _Fetch


@pytest.mark.parametrize(("local", "is_ahead"), [("iteration_1000000", True), ("iteration_999998", False)])
def test_checkpoints_are_compared_by_number(tmp_path: Path, local: str, is_ahead: bool) -> None:
    folder = tmp_path / "checkpoints" / local
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    files: Any = SimpleNamespace(url="s3://bucket/run")
    fetch = _Fetch(files, print)
    if is_ahead:
        with pytest.raises(UserError, match="iteration_1000000 locally, iteration_999999 in the store"):
            fetch._is_here(tmp_path, "iteration_999999")
    else:
        assert not fetch._is_here(tmp_path, "iteration_999999")
