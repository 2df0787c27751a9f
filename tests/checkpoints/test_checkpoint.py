"""One checkpoint: what goes in comes out, and whatever was damaged is refused with a message that names it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runner.checkpoints import CheckpointError, load_checkpoint, read_manifest, save_checkpoint
from runner.checkpoints.checkpoint import SCHEMA_VERSION
from runner.config.errors import Problem
from tests.support.problems import shown_problems

ROOT = Path(__file__).parent.parent.parent
STATE = {
    "learners": {
        "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.array([1.5, -2.0], np.float16),
        "none": None,
        "yes": True,
        "big": 2**127 + 1,
        "infinity": math.inf,
        "nested": [{"deep": [np.zeros((0, 3), np.int64), "text", -1.25]}, []],
    },
    "counters": {"scalar": np.array(7.0), "numpy_int": np.int64(3), "numpy_bool": np.bool_(False)},
    "nothing": {},
}


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, dtypes and shapes included."""
    if isinstance(theirs, dict):
        assert list(ours) == [str(key) for key in theirs]
        for key, value in theirs.items():
            assert_same(ours[str(key)], value)
    elif isinstance(theirs, (list, tuple)):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    elif isinstance(theirs, np.generic):
        assert_same(ours, theirs.item())
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs or (ours != ours and theirs != theirs)


def test_round_trip(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", STATE, {"note": "hello"})
    state, manifest = load_checkpoint(tmp_path / "one")
    assert_same(state, STATE)
    assert manifest["note"] == "hello"


_arrays = hnp.arrays(
    st.sampled_from([np.bool_, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _arrays
_names = st.text("abc/-_ .", min_size=1, max_size=4)
_states = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=8
)


@given(values=_states)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_goes_round(values: Any, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "any", {"part": values}, {})
    assert_same(load_checkpoint(tmp_path / "any")[0], {"part": values})


def test_tuples_come_back_as_tuples_wherever_they_are(tmp_path: Path) -> None:
    values = {"empty": (), "nested": [(1, (np.arange(3), "a")), {"deep": (None,)}]}
    save_checkpoint(tmp_path / "one", {"part": values}, {})
    loaded = load_checkpoint(tmp_path / "one")[0]["part"]
    assert loaded["empty"] == ()
    (number, (array, text)), rest = loaded["nested"]
    assert isinstance(loaded["nested"], list)
    assert isinstance(loaded["nested"][0], tuple)
    assert isinstance(loaded["nested"][0][1], tuple)
    assert (number, array.tolist(), text, rest) == (1, [0, 1, 2], "a", {"deep": (None,)})


def test_keys_with_slashes_do_not_collide(tmp_path: Path) -> None:
    state = {"part": {"a/b": np.zeros(2), "a": {"b": np.ones(3)}}}
    save_checkpoint(tmp_path / "one", state, {})
    assert_same(load_checkpoint(tmp_path / "one")[0], state)


def test_tensors_come_back_as_arrays_and_are_copied(tmp_path: Path) -> None:
    whole = torch.arange(6.0, requires_grad=True)
    state = {"part": {"whole": whole, "view": whole[::2], "transposed": np.arange(6).reshape(2, 3).T}}
    save_checkpoint(tmp_path / "one", state, {})
    loaded = load_checkpoint(tmp_path / "one")[0]["part"]
    assert loaded["whole"].tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded["view"].tolist() == [0, 2, 4]
    assert loaded["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.array(["text"]), object(), {1, 2}, b"bytes", np.array(["2020"], "M8[Y]"), 1 + 2j],
    ids=["objects", "strings", "object", "set", "bytes", "dates", "complex"],
)
def test_what_has_no_place_in_a_checkpoint_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"part/inner/0: .* cannot be part of a checkpoint"):
        save_checkpoint(tmp_path / "one", {"part": {"inner": [value]}}, {})
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"


# -- damage --------------------------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _edit_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def cut_off(where: str) -> Problem:
    return Problem(
        "a file of the checkpoint is truncated or altered",
        where=where,
        got="N bytes with digest ...",
        expected="digest ...",
    )


def unreadable(got: str) -> Problem:
    return Problem("the checkpoint's manifest cannot be read", where="TMP/one/manifest.json", got=got)


ALTERED = Problem(
    "the checkpoint was altered", where="TMP/one/manifest.json", got="digest ...", expected="63f9ac37ed9a"
)
DAMAGES = [
    pytest.param(lambda f: _cut(f / "learners.safetensors"), cut_off("TMP/one/learners.safetensors"), id="tensors_cut"),
    pytest.param(
        lambda f: _flip(f / "learners.safetensors"), cut_off("TMP/one/learners.safetensors"), id="tensors_flipped"
    ),
    pytest.param(lambda f: _cut(f / "counters.json"), cut_off("TMP/one/counters.json"), id="json_cut"),
    pytest.param(lambda f: _flip(f / "counters.json"), cut_off("TMP/one/counters.json"), id="json_flipped"),
    pytest.param(
        lambda f: (f / "learners.json").unlink(),
        Problem(
            "a file of the checkpoint is missing",
            where="TMP/one/learners.json",
            got="FileNotFoundError: [Errno 2] No such file or directory: 'TMP/one/learners.json'",
        ),
        id="file_missing",
    ),
    pytest.param(
        lambda f: (f / "manifest.json").unlink(),
        unreadable("FileNotFoundError: [Errno 2] No such file or directory: 'TMP/one/manifest.json'"),
        id="manifest_missing",
    ),
    pytest.param(
        lambda f: _cut(f / "manifest.json"),
        unreadable("JSONDecodeError: Expecting ',' delimiter: line 14 column 1 (char 753)"),
        id="manifest_cut",
    ),
    pytest.param(
        lambda f: (f / "manifest.json").write_text("[]"),
        unreadable("TypeError: list indices must be integers or slices, not str"),
        id="manifest_is_a_list",
    ),
    pytest.param(lambda f: _edit_manifest(f, note="goodbye"), ALTERED, id="manifest_altered"),
    pytest.param(lambda f: _edit_manifest(f, files={}), ALTERED, id="digest_replaced"),
    pytest.param(lambda f: _edit_manifest(f, digest=5), replace(ALTERED, expected="5"), id="digest_is_a_number"),
    pytest.param(
        lambda f: _edit_manifest(f, schema_version=1),
        Problem(
            "the checkpoint was written with another schema version",
            where="TMP/one/manifest.json",
            got="1",
            expected=str(SCHEMA_VERSION),
            fix="read this checkpoint with the version of runner that wrote it, or start a new run",
        ),
        id="other_version",
    ),
]


@pytest.mark.parametrize(("change", "expected"), DAMAGES)
def test_damage_is_refused(tmp_path: Path, change: Callable[[Path], object], expected: Problem) -> None:
    folder = tmp_path / "one"
    save_checkpoint(folder, STATE, {"note": "hello"})
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert caught.value.exit_code == 2
    (problem,) = shown_problems(caught.value, tmp_path)
    assert replace(problem, got=re.sub(r"\d+ bytes", "N bytes", problem.got or "")) == expected


def test_every_single_flipped_byte_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    save_checkpoint(folder, {"part": {"a": np.arange(3), "b": 1.5}}, {"note": "hello"})
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for position in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[position] ^= 4
            path.write_bytes(bytes(damaged))
            if path.name == "manifest.json" and json_equal(content, bytes(damaged)):
                continue
            with pytest.raises(CheckpointError):
                load_checkpoint(folder)
        path.write_bytes(content)
    load_checkpoint(folder)


def json_equal(one: bytes, other: bytes) -> bool:
    """Whether two texts say the same (blanks may differ)."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


# -- writing fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [1, 2, 4, 5, 6])
def test_a_write_that_fails_leaves_nothing_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    folder = tmp_path / "one"
    save_checkpoint(folder, {"part": {"a": 1}, "other": {}}, {"note": "old"})
    calls = iter(range(1, 100))

    def full(descriptor: int) -> None:
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(folder, {"part": {"a": 2}, "other": {}}, {"note": "new"})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert read_manifest(folder)["note"] == "old"
    assert load_checkpoint(folder)[0]["part"] == {"a": 1}


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    with pytest.raises(OSError, match="checkpoints"):
        save_checkpoint(tmp_path / "checkpoints" / "one", STATE, {})


# -- no pickle -----------------------------------------------------------------------------------------------------


def test_no_module_imports_pickle() -> None:
    pattern = re.compile(r"^\s*(?:import|from)\s+(pickle|cPickle|cloudpickle|dill|joblib|shelve|marshal)\b", re.M)
    sources = [*(ROOT / "runner").rglob("*.py")]
    assert len(sources) > 50
    assert [str(path) for path in sources if pattern.search(path.read_text())] == []
    loads = re.compile(r"torch\.(load|save)\(|allow_pickle=True|np\.load\(")
    assert [str(path) for path in sources if loads.search(path.read_text())] == []
