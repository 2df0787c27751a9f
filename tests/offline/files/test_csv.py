"""CSV is parsed in blocks of whole records, in the thread that reads them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataError
from runner.offline.files.input_files import BoundedStream
from runner.offline.files.text_readers import Utf8Stream, record_end, whole_lines
from runner.offline.reading.source import open_source
from tests.conftest import WAIT_S

TEXT = st.text(st.sampled_from('a,"\n\\ß'), max_size=6)


def read(path: Path, **options: Any) -> list[Any]:
    config = OfflineConfig(input_=str(path), input_read_method_kwargs={"block_size": 100, **options})
    return list(open_source(config).blocks())


def test_only_the_caller_reads_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of pyarrow that reads ahead when the process ends would abort it."""
    readers: set[int] = set()
    inner = BoundedStream.read

    def noted(self: BoundedStream, size: int) -> bytes:
        readers.add(threading.get_ident())
        return inner(self, size)

    monkeypatch.setattr(BoundedStream, "read", noted)
    rows = "obs,actions,rewards\n" + "0.5,1,1.0\n" * 100
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((rows + "1\n").encode()))
    with suppress(DataError):
        read(tmp_path / "a.csv.gz")
    assert readers == {threading.get_ident()}


def test_a_process_may_end_in_the_middle_of_a_file(tmp_path: Path) -> None:
    rows = "obs,actions,rewards\n" + "0.123456789,1,1.0\n" * 100_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows.encode(), 1))
    program = """if True:
        import sys
        from runner.config.offline import OfflineConfig
        from runner.offline.reading.source import open_source
        options = {"block_size": 50_000}
        next(iter(open_source(OfflineConfig(input_="a.csv.gz", input_read_method_kwargs=options)).blocks()))
        sys.exit(3)
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=WAIT_S, check=False)
    assert done.returncode == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), max_size=6), st.integers(1, 30))
def test_blocks_end_between_records(rows: list[tuple[str, str]], size: int) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    content = written.getvalue().encode()
    blocks = list(whole_lines(io.BytesIO(content), size, record_end({"newlines_in_values": True})))
    assert b"".join(blocks) == content
    parts = [csv.reader(io.StringIO(block.decode(), newline="")) for block in blocks]
    assert [tuple(row) for part in parts for row in part] == rows


@given(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=30), st.sampled_from(["utf-16", "utf-32-le", "utf8"])
)
def test_text_is_recoded(text: str, encoding: str) -> None:
    stream = Utf8Stream(io.BytesIO(text.encode(encoding)), encoding)
    assert b"".join(iter(lambda: stream.read(3), b"")).decode() == text


def test_columns_and_row_numbers_of_later_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"note {i},{i}.5,{i % 2},1.0" for i in range(50)]
    path.write_text("\n".join(["text,obs,actions,rewards", *rows]), encoding="utf-16")
    blocks = read(path, encoding="utf-16")
    assert [len(blocks) > 2, sum(map(len, blocks))] == [True, 50]
    path.write_text("\n".join(["text,obs,actions,rewards", *rows, "1,2"]))
    with pytest.raises(DataError, match="Row #52: Expected 4 columns, got 2: 1,2"):
        read(path)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_mapped_ids_and_actions_stay_integers(tmp_path: Path, kind: str) -> None:
    """As floats, the two ids would be equal."""
    first = 2**53
    rows = [{"id": first + i, "step": t, "obs": 0.5, "a": 1 - i, "r": 1} for i in range(2) for t in range(2)]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / f"a.{kind}").write_text("\n".join(lines if kind == "csv" else map(json.dumps, rows)))
    mapping = {"eps_id": "id", "t": "step", "actions": "a", "rewards": "r"}
    (block,) = open_source(OfflineConfig(input_=str(tmp_path), input_read_schema=mapping)).blocks()
    assert block.episode_ids == [str(first), str(first + 1)]
    assert block.lengths.tolist() == [1, 1]  # without a final observation, the last step is left out
    assert (block.columns["actions"].tolist(), block.columns["actions"].dtype) == ([1, 0], np.int64)
    assert block.columns["rewards"].dtype == np.float64


@pytest.mark.parametrize("missing", ["eps_id", "t", "obs", "rewards", "note"])
def test_a_later_file_lacks_a_column(tmp_path: Path, missing: str) -> None:
    row = {"eps_id": "a", "t": "0", "obs": "0.5", "actions": "1", "rewards": "1.0", "infos": "", "note": "2"}
    for name, left_out in (("1.csv", ""), ("2.csv", "infos"), ("3.csv", missing)):
        kept = [column for column in row if column != left_out]
        (tmp_path / name).write_text(f"{','.join(kept)}\n{','.join(row[column] for column in kept)}\n")
    with pytest.raises(DataError, match=f"the files do not have the same columns: {missing}\n") as caught:
        read(tmp_path)
    assert f"{tmp_path}/3.csv" in str(caught.value)


def test_a_column_may_be_empty_in_the_first_block(tmp_path: Path) -> None:
    infos = ["", '"{""x"": 1}"']
    rows = [f"e,{t}.5,1,1.0,{t == 19},{infos[t == 15]}" for t in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["eps_id,obs,actions,rewards,terminateds,infos", *rows]))
    (block,) = read(tmp_path)
    assert block.lengths.tolist() == [20]
    assert [dict(info) for info in block[0].get_infos()] == [{}] * 15 + [{"x": 1}] + [{}] * 5
