"""Messages of recorded data name files: here they are compared without the line breaks that long paths make."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def assert_golden(assert_golden: Callable[[str, str], None], tmp_path: Path) -> Callable[[str, str], None]:
    """As in `tests.conftest`, with each entry of a message on one line."""

    def check(name: str, text: str) -> None:
        text = text.replace(str(tmp_path), "TMP")
        text = re.sub(r"\n {12}(?=\S)", " ", text)
        assert_golden(name, re.sub(r"\n {3}(?!where |got |allowed |nearest )(?=\S)", " ", text))

    return check
