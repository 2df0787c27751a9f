"""Tables with columns of every Arrow type: extra columns never stop a command, known ones get a clear error."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.offline.codecs.step_columns import column_to_arrays
from runner.offline.codecs.table_format import read_steps
from runner.offline.codecs.table_schema import resolve_schema
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.reading.inspection import inspect_data
from runner.offline.reading.inspection_report import plain_report
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from tests.conftest import Run

_NUM_ROWS = 6
_DAY, _NOON = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 12)
_TWO = pa.array(["left", "right"] * 3)
BASE = {
    "eps_id": pa.array([0, 0, 0, 1, 1, 1]),
    "t": pa.array([0, 1, 2] * 2),
    "obs": pa.array([[1.0, 2.0]] * 6, pa.list_(pa.float32(), 2)),
    "actions": pa.array([0, 1] * 3),
    "rewards": pa.array([1.0] * 6),
    "terminateds": pa.array([False, False, True] * 2),
}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class _Money(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.int32(), "tests.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: Any) -> _Money:
        return cls()


def _repeated(value: Any, type_: Any = None) -> pa.Array:
    return pa.array([value] * _NUM_ROWS, type_)


def _limits(dtype: str) -> pa.Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return pa.array(np.array([low, high, 0, 1, 1, 0], dtype))


# Name -> the values of a column that becomes an array.
READABLE: dict[str, pa.Array] = {
    "bool": pa.array([True, False] * 3),
    **{name: _limits(name) for name in _INTEGERS},
    "float16": pa.array(np.array([0.5, 1, np.inf, 2, np.nan, 0], np.float16)),
    "float32": _repeated(0.5, pa.float32()),
    "float64": pa.array([1e308, -1e308, 5e-324, np.nan, np.inf, 0.0]),
    "decimal32": _repeated(Decimal("1.50"), pa.decimal32(5, 2)),
    "decimal128": _repeated(Decimal("1.50")),
    "decimal256": _repeated(Decimal("1.50"), pa.decimal256(50, 2)),
    "string": _TWO,
    "large_string": _TWO.cast(pa.large_string()),
    "string_view": _TWO.cast(pa.string_view()),
    "text_of_lists": _repeated("[1, 2.5]"),
    "binary": _repeated(b"ab"),
    "large_binary": _repeated(b"ab", pa.large_binary()),
    "binary_view": _repeated(b"ab", pa.binary_view()),
    "fixed_binary": _repeated(b"ab", pa.binary(2)),
    "list": _repeated([1, 2]),
    "large_list": _repeated([1, 2], pa.large_list(pa.int8())),
    "fixed_list": _repeated([1.0, 2.0], pa.list_(pa.float32(), 2)),
    "list_view": _repeated([1, 2], pa.list_view(pa.int64())),
    "large_list_view": _repeated([1, 2], pa.large_list_view(pa.int64())),
    "empty_lists": _repeated([], pa.list_(pa.int64())),
    "lists_of_lists": _repeated([[1], [2]]),
    "lists_of_bools": _repeated([True, False]),
    "lists_of_structs": _repeated([{"a": 1}]),
    "struct": _repeated({"a": 1, "b": [True, False]}),
    "struct_of_odd_names": _repeated({"a/b": 1, "%": 2, "0": 4}),
    "struct_like_a_tensor": _repeated({"data": 1, "shape": "a"}),
    "dictionary": _TWO.dictionary_encode(),
    "extension": pa.ExtensionArray.from_storage(_Money(), _repeated(1, pa.int32())),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((_NUM_ROWS, 2, 3), np.float32)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), _repeated(b"0" * 16, pa.binary(16))),
}
# Name -> the values of a column that becomes none.
UNREADABLE: dict[str, pa.Array] = {
    "date32": _repeated(_DAY),
    "date64": _repeated(_DAY, pa.date64()),
    "time32": _repeated(1, pa.time32("s")),
    "time64": _repeated(1, pa.time64("us")),
    "timestamp": _repeated(_NOON),
    "timestamp_with_zone": _repeated(1, pa.timestamp("ns", "UTC")),
    "duration": _repeated(1, pa.duration("s")),
    "map": _repeated([("a", 1)], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(_NUM_ROWS),
    "only_nulls": pa.nulls(_NUM_ROWS, pa.float32()),
    "bools_and_nulls": pa.array([True, None] * 3),
    "integers_and_nulls": pa.array([1, None] * 3),
    "floats_and_nulls": pa.array([1.5, None] * 3),
    "texts_and_nulls": pa.array(["a", None] * 3),
    "lists_and_nulls": pa.array([[1], None] * 3),
    "fixed_lists_and_nulls": pa.array([[1, 2], None] * 3, pa.list_(pa.int64(), 2)),
    "fixed_lists_of_nothing": _repeated([], pa.list_(pa.int64(), 0)),
    "structs_and_nulls": pa.array([{"a": 1}, None] * 3),
    "dictionary_with_nulls": pa.array(["a", None] * 3).dictionary_encode(),
    "lists_with_nulls": _repeated([1, None]),
    "lists_of_times": _repeated([_NOON]),
    "ragged_lists": pa.array([[1], [1, 2]] * 3),
    "ragged_lists_in_text": _repeated("[[1], [2, 3]]"),
    "text_that_begins_like_a_list": _repeated("[left] of 3"),
    "objects_in_text": _repeated('[{"a": 1}]'),
    "half_lists_in_text": pa.array(["[1", "2]"] * 3),
    "struct_with_a_date": _repeated({"a": _DAY, "b": 1}),
    "struct_with_two_of_a_name": pa.StructArray.from_arrays([_repeated(1), _repeated(2)], names=["a", "a"]),
    "tensor_of_another_size": _repeated({"data": [1, 2], "shape": [3]}),
}
# Types that Parquet does not have.
_IN_MEMORY: dict[str, tuple[pa.Array, bool]] = {
    "run_end_encoded": (pa.RunEndEncodedArray.from_arrays([2, 6], [1, 2]), True),
    "run_end_encoded_text": (pa.RunEndEncodedArray.from_arrays([2, 6], ["a", "b"]), True),
    "empty_struct": (_repeated({}, pa.struct([])), False),
    "interval": (_repeated(pa.MonthDayNano([1, 2, 3])), False),
    "union": (pa.UnionArray.from_sparse(pa.array([0] * _NUM_ROWS, pa.int8()), [_repeated(1)]), False),
}


@pytest.fixture(scope="module", autouse=True)
def _registered_type() -> Iterator[None]:
    pa.register_extension_type(_Money())
    yield
    pa.unregister_extension_type("tests.money")


def _file(folder: Path, **columns: pa.Array) -> str:
    pq.write_table(pa.table(BASE | columns), folder / "steps.parquet")
    return str(folder / "steps.parquet")


@pytest.mark.parametrize("name", READABLE)
def test_an_extra_column_is_described_and_converted(name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, x=READABLE[name])
    found = inspect_data(OfflineConfig(input_=path))
    assert any(column.name.partition("/")[0] == "x" for column in found.columns)
    assert found.counts.columns_left_out == {}
    assert "x" in plain_report(found, 80)
    convert(OfflineConfig(input_=path, output=str(tmp_path / "out")))
    again = inspect_data(OfflineConfig(input_=str(tmp_path / "out")))
    assert (again.episodes, again.steps) == (2, 6)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_extra_column_that_is_no_array_is_left_out(name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, x=UNREADABLE[name])
    found = inspect_data(OfflineConfig(input_=path))
    assert [column.name for column in found.columns] == ["obs", "actions", "rewards"]
    assert list(found.counts.columns_left_out) == ["x"]
    assert "x is left out: " in plain_report(found, 80)
    report = convert(OfflineConfig(input_=path, output=str(tmp_path / "out")))
    assert list(report.counts.columns_left_out) == ["x"]
    assert set(open_source(OfflineConfig(input_=path)).layout.columns) == {"obs", "actions", "rewards"}
    narrow = open_source(OfflineConfig(input_=path), columns=("rewards",))
    assert narrow.first_block().num_rows == 6


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_named_column_that_is_no_array_is_an_error(name: str, tmp_path: Path) -> None:
    if UNREADABLE[name].null_count == _NUM_ROWS:
        pytest.skip("an empty column counts as missing, which whoever needs it reports")
    path = _file(tmp_path, x=UNREADABLE[name])
    with pytest.raises(DataError) as failure:
        open_source(OfflineConfig(input_=path, input_read_method_kwargs={"columns": ["x", "rewards"]}))
    assert "column x" in str(failure.value.problems[0].where)


@pytest.mark.parametrize("known", ["obs", "actions"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_known_column_that_is_no_array_is_an_error(known: str, name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, **{known: UNREADABLE[name]})
    with pytest.raises(DataError) as failure:
        inspect_data(OfflineConfig(input_=path))
    assert f"column {known}" in str(failure.value.problems[0].where)


@pytest.mark.parametrize("known", ["eps_id", "t", "rewards", "terminateds", "new_obs", "infos"])
@pytest.mark.parametrize("name", [*READABLE, *UNREADABLE])
def test_a_known_column_of_another_type_is_read_or_an_error(known: str, name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, **{known: (READABLE | UNREADABLE)[name]})
    with suppress(DataError):  # any other error fails
        assert inspect_data(OfflineConfig(input_=path)).steps


@pytest.mark.parametrize("new_obs", [[[1.0, 2.0, 3.0]] * 6, [["a", "b"]] * 6, [{"x": 1.0, "y": 2.0}] * 6])
def test_next_observations_have_the_form_of_observations(new_obs: list[Any], tmp_path: Path) -> None:
    path = _file(tmp_path, new_obs=pa.array(new_obs))
    with pytest.raises(DataError) as failure:
        inspect_data(OfflineConfig(input_=path))
    assert failure.value.problems[0].what.startswith("next observations and observations differ")
    assert "column new_obs" in str(failure.value.problems[0].where)


@pytest.mark.parametrize("name", _IN_MEMORY)
def test_types_that_no_file_has(name: str) -> None:
    values, is_readable = _IN_MEMORY[name]
    table = pa.table(BASE | {"x": values})
    schema = resolve_schema(table.column_names, {}, "memory")
    left_out: dict[str, str] = {}
    rows = read_steps(table, schema, None, DataLocation(), left_out)
    assert ("x" in rows.columns, "x" in left_out) == (is_readable, not is_readable)
    if not is_readable:
        with pytest.raises(DataError):
            column_to_arrays(table["x"], table.schema.field("x"), DataLocation())


def test_run_ends_and_views_have_their_values() -> None:
    runs = column_to_arrays(
        pa.RunEndEncodedArray.from_arrays([2, 6], [1, 2]), pa.field("x", pa.int64()), DataLocation()
    )
    assert np.asarray(runs).tolist() == [1, 1, 2, 2, 2, 2]
    views = column_to_arrays(READABLE["list_view"], pa.field("x", pa.int64()), DataLocation())
    assert np.asarray(views).tolist() == [[1, 2]] * 6


def test_bools_and_the_limits_of_integers_are_counted(tmp_path: Path) -> None:
    limits = {name: READABLE[name] for name in _INTEGERS}
    high = pa.array(np.array([2**64 - 3, 2**64 - 1] * 3, np.uint64))
    found = inspect_data(OfflineConfig(input_=_file(tmp_path, flag=READABLE["bool"], high=high, **limits)))
    columns = {column.name: column for column in found.columns}
    assert columns["flag"].counts == {0: 3, 1: 3}
    assert columns["int8"].counts == {-128: 1, 0: 2, 1: 2, 127: 1}
    assert columns["high"].counts == {2**64 - 3: 3, 2**64 - 1: 3}
    assert columns["uint64"].mean == pytest.approx((2**64 + 1) / 6)


def test_a_column_that_is_no_array_further_on(tmp_path: Path) -> None:
    values = pa.array([1.0, 2.0, 3.0, None, 5.0, 6.0])
    pq.write_table(pa.table(BASE | {"x": values}), tmp_path / "steps.parquet", row_group_size=3)
    config = OfflineConfig(input_=str(tmp_path / "steps.parquet"), output=str(tmp_path / "out"))
    found = inspect_data(config)
    assert (found.steps, list(found.counts.columns_left_out)) == (6, ["x"])
    assert [column.name for column in found.columns] == ["obs", "actions", "rewards"]
    with pytest.raises(DataError, match="column x can be converted only for some of the rows: a value is missing"):
        convert(config)
    assert list((tmp_path / "out").iterdir()) == []


def test_bytes_in_text_files_are_an_error(tmp_path: Path) -> None:
    path = _file(tmp_path, x=READABLE["binary"])
    for method in ("write_json", "write_csv"):
        options = {"output_write_episodes": False, "output_write_method": method}
        with pytest.raises(ConfigError, match="x: bytes"):
            convert(OfflineConfig(input_=path, output=str(tmp_path / method), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["False", "False", "True"] * 2, [False, False, True] * 2),
        ([b"false", b"False", b"TRUE"] * 2, [False, False, True] * 2),
        ([" 0", "0.0", "1"] * 2, [False, False, True] * 2),
        ([0.0, 0.0, 1.0] * 2, [False, False, True] * 2),
    ],
)
def test_end_flags_in_text(values: list[Any], expected: list[bool], tmp_path: Path) -> None:
    found = inspect_data(OfflineConfig(input_=_file(tmp_path, terminateds=pa.array(values))))
    assert (found.episodes, found.terminated) == (2, sum(expected))


@pytest.mark.parametrize("value", ["no", "", "2"])
def test_other_text_is_no_end_flag(value: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an end flag must be true or false") as failure:
        inspect_data(OfflineConfig(input_=_file(tmp_path, terminateds=pa.array(["False", value, "True"] * 2))))
    problem = failure.value.problems[0]
    assert (problem.got, problem.where) == (value, f"{tmp_path}/steps.parquet, row 1, column terminateds")


def test_end_flags_in_json_text(tmp_path: Path) -> None:
    lines = [
        f'{{"eps_id": 0, "t": {t}, "obs": [1.0], "actions": 0, "rewards": 1.0, "terminateds": "{t == 2}"}}\n'
        for t in range(3)
    ]
    (tmp_path / "steps.json").write_text("".join(lines))
    found = inspect_data(OfflineConfig(input_=str(tmp_path / "steps.json")))
    assert (found.episodes, found.steps, found.terminated) == (1, 3, 1)


def test_end_flags_of_episodes_in_text(tmp_path: Path) -> None:
    convert(OfflineConfig(input_=_file(tmp_path), output=str(tmp_path / "out")))
    (path,) = (tmp_path / "out").iterdir()
    table = pq.read_table(path)
    names = table.column_names
    for text, num_terminated in (("False", 0), ("true", 2), ("never", None)):
        changed = table.set_column(names.index("terminated"), "terminated", pa.array([text] * 2))
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
        if num_terminated is not None:
            assert inspect_data(OfflineConfig(input_=str(path))).terminated == num_terminated
            continue
        with pytest.raises(DataError, match="an end flag must be true or false: row 0, column terminated, got never"):
            inspect_data(OfflineConfig(input_=str(path)))


# --- one column per feature -----------------------------------------------------------------------


def _features() -> dict[str, pa.Array]:
    count = np.arange(_NUM_ROWS)
    return {
        "x": pa.array(count.astype(np.float32)),
        "y": pa.array(count * 10),
        "next_x": pa.array(count.astype(np.float32) + 1),
        "next_y": pa.array(count * 10 + 10),
        "left": pa.array([0.5] * _NUM_ROWS),
        "right": pa.array([-0.5] * _NUM_ROWS),
        "mean": pa.array([[0.0, 1.0]] * _NUM_ROWS),
        "std": pa.array([2.0] * _NUM_ROWS),
        "rewards": BASE["rewards"],
        "eps_id": BASE["eps_id"],
        "t": BASE["t"],
        "terminateds": BASE["terminateds"],
    }


def test_one_column_per_feature(tmp_path: Path) -> None:
    pq.write_table(pa.table(_features()), tmp_path / "steps.parquet")
    schema = {
        "obs": ["x", "y"],
        "next_obs": ["next_x", "next_y"],
        "action": ["left", "right"],
        "action_dist_inputs": ["mean", "std"],
    }
    source = open_source(OfflineConfig(input_=str(tmp_path / "steps.parquet"), input_read_schema=schema))
    block = source.first_block()
    assert set(block.columns) == {"obs", "actions", "rewards", "action_dist_inputs"}
    expected = [[0, 0], [1, 10], [2, 20], [3, 30], [3, 30], [4, 40], [5, 50], [6, 60]]
    assert np.asarray(block.columns["obs"]).tolist() == expected
    assert np.asarray(block.columns["actions"]).tolist() == [[0.5, -0.5]] * 6
    assert np.asarray(block.columns["action_dist_inputs"]).tolist() == [[0, 1, 2]] * 6


def test_a_feature_that_is_no_number(tmp_path: Path) -> None:
    for name, values in (("y", _TWO), ("y", pa.array([1, None] * 3)), ("y", READABLE["tensor"])):
        pq.write_table(pa.table(_features() | {"y": values, "actions": BASE["actions"]}), tmp_path / "steps.parquet")
        with pytest.raises(DataError) as failure:
            open_source(OfflineConfig(input_=str(tmp_path / "steps.parquet"), input_read_schema={"obs": ["x", "y"]}))
        assert f"column {name}" in str(failure.value.problems[0].where)


@pytest.mark.parametrize(
    ("schema", "what", "nearest"),
    [
        ({"obss": "obs"}, "offline.input_read_schema.obss is not a known column", "obs"),
        ({"rewads": "rewards"}, "offline.input_read_schema.rewads is not a known column", "rewards"),
        ({"OBS": ["obs"]}, "offline.input_read_schema.OBS is not a known column", "obs"),
        ({"term": "terminateds"}, "offline.input_read_schema.term is not a known column", "terminateds"),
        ({"vf_pred": "x"}, "offline.input_read_schema.vf_pred is not a known column", "vf_preds"),
        ({"obs": []}, "offline.input_read_schema.obs must be a column", None),
        ({"obs": 3}, "offline.input_read_schema.obs must be a column", None),
        ({"rewards": ["a", "b"]}, "offline.input_read_schema.rewards must be a single column", None),
        ({"obs": ["x", "z"]}, "offline.input_read_schema.obs: there is no column z", None),
    ],
)
def test_mistakes_in_the_schema(schema: dict[str, Any], what: str, nearest: str | None, tmp_path: Path) -> None:
    path = _file(tmp_path, x=READABLE["float32"])
    with pytest.raises(DataError) as failure:
        open_source(OfflineConfig(input_=path, input_read_schema=schema))
    problem = failure.value.problems[0]
    assert problem.what.startswith(what)
    if nearest is not None:
        assert problem.nearest == f"offline.input_read_schema.{nearest}"


def test_names_of_other_model_outputs_are_taken(tmp_path: Path) -> None:
    path = _file(tmp_path, x=READABLE["float32"])
    source = open_source(OfflineConfig(input_=path, input_read_schema={"action_mask": "x"}))
    assert "action_mask" in source.layout.columns


def test_features_and_mistakes_on_the_command_line(run_main: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table(_features() | {"actions": BASE["actions"]}), tmp_path / "steps.parquet")
    outcome = run_main("inspect", "steps.parquet", "offline.input_read_schema.obs=[x,y]")
    assert outcome.code == 0, outcome.err
    assert re.search(r"obs +float64 \[2\]", outcome.out)
    arguments = ("experiment=bc_cartpole", "offline.input_=steps.parquet", "offline.input_read_schema.obss=x")
    outcome = run_main("validate", *arguments)
    assert outcome.code == 2
    assert "offline.input_read_schema.obss is not a known column" in outcome.err
    assert "override offline.input_read_schema.obss=x" in outcome.err
