import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from runner.tracking import write_result


def test_result_is_readable_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "run" / "result.json"
    write_result(path, {"status": "finished", "loss": np.float32(0.5), "mean": math.nan, "checkpoint": Path("/c")})
    assert json.loads(path.read_text()) == {
        "status": "finished",
        "loss": 0.5,
        "mean": None,
        "checkpoint": "/c",
    }


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_result(path, {"status": "old"})

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_result(path, {"status": "new"})
    assert json.loads(path.read_text()) == {"status": "old"}
    assert os.listdir(tmp_path) == ["result.json"]
