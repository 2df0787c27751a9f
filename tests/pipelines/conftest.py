"""Fixtures of the pipeline tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN_DIR = Path(__file__).parent.parent / "golden" / "pipelines"


@pytest.fixture
def assert_golden() -> Callable[[str, str], None]:
    """Compares a text with the stored one; UPDATE_GOLDEN=1 stores it instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN_DIR / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8"), f"UPDATE_GOLDEN=1 rewrites {path}"

    return check
