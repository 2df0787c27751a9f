"""Small files that unpack to more than the memory has: one message, exit code 2, little memory."""

from __future__ import annotations

import base64
import gzip
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.offline import OfflineConfig
from runner.offline import open_source
from runner.offline.files import input_files
from runner.offline.files.data_error import DataError
from tests.conftest import ROOT, WAIT_S, Run

# Peak of `inspect` on a good small file is 0.3 GB.
_MOST_MEMORY_KB = 700_000
_PROGRAM = (
    "import sys; from runner.cli.main import main; code = main(sys.argv[1:]);"
    "lines = open('/proc/self/status').read().splitlines();"
    "print(next(line.split()[1] for line in lines if line.startswith('VmHWM:'))); sys.exit(code)"
)


def lz4_bomb(folder: Path) -> Path:
    """A frame of 240 MB that does not say how much it holds."""
    import lz4.frame

    with lz4.frame.LZ4FrameCompressor() as compressor:
        packed = (
            compressor.begin() + b"".join(compressor.compress(bytes(2**24)) for _ in range(15)) + compressor.flush()
        )
    text = base64.b64encode(packed).decode()
    return table(folder, obs=[text], actions=[0], rewards=[0.0], eps_id=["a"], terminated=[True])


def table(folder: Path, **columns: list[object]) -> Path:
    pq.write_table(pa.table(columns), folder / "data.parquet")
    return folder / "data.parquet"


def zstd_bomb(folder: Path) -> Path:
    path = folder / "data.jsonl.zst"
    with pa.output_stream(str(path), compression="zstd") as stream:
        stream.write(b'{"obs": [1.0], "actions": 0, "rewards": 0.0, "eps_id": "a", "x": "')
        for _ in range(12):
            stream.write(b"x" * 2**24)
    return path


def gzip_bomb(folder: Path) -> Path:
    path = folder / "data.csv.gz"
    path.write_bytes(gzip.compress(b"obs,actions,rewards,eps_id\n" + b"0.5,1,0.5,1\n" * 10_000_000, 6))
    return path


def sample_batch_bomb(folder: Path) -> Path:
    path = folder / "data.json.gz"
    path.write_bytes(gzip.compress(b'{"type": "SampleBatch", "obs": "' + bytes(2**27) + b'"}\n', 6))
    return path


def parquet_bomb(folder: Path) -> Path:
    """One row with 20 million equal numbers: 160 MB in a few kilobytes."""
    values = pa.ListArray.from_arrays(pa.array([0, 20_000_000], pa.int32()), pa.array(np.zeros(20_000_000, np.float64)))
    path = folder / "data.parquet"
    pq.write_table(
        pa.table({"obs": values, "actions": [0], "rewards": [0.0], "eps_id": ["a"]}), path, compression="zstd"
    )
    return path


def hdf5_bomb(folder: Path) -> Path:
    """A data set that declares 8 GB and stores nothing."""
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, shape in {"observations": (10**6, 1000), "actions": (10**6, 1), "rewards": (10**6,)}.items():
            file.create_dataset(name, shape, "f8", chunks=True)
        file.create_dataset("terminals", (10**6,), "?")
    return folder / "data.hdf5"


BOMBS: dict[str, Callable[[Path], Path]] = {
    "lz4": lz4_bomb,
    "zstd": zstd_bomb,
    "gzip": gzip_bomb,
    "sample_batch": sample_batch_bomb,
    "parquet": parquet_bomb,
    "hdf5": hdf5_bomb,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_before_it_has_been_unpacked(tmp_path: Path, kind: str) -> None:
    path = BOMBS[kind](tmp_path)
    assert path.stat().st_size < 10_000_000
    command = [sys.executable, "-c", _PROGRAM, "inspect", str(path)]
    limit = (4 * 2**30, 4 * 2**30)  # of the address space
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert result.returncode == 2, result.stderr[-2000:]
    assert "Traceback" not in result.stderr
    assert "not unpacked" in result.stderr
    assert "raise offline.input_max_unpacked_ratio" in result.stderr
    assert int(result.stdout.split()[-1]) < _MOST_MEMORY_KB


def test_the_option_raises_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "FREE_BYTES", 2**16)
    rows = b"0.5,1,0.5,1\n" * 300_000
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(b"obs,actions,rewards,eps_id\n" + rows, 9))
    config = OfflineConfig(input_=str(tmp_path / "data.csv.gz"))
    with pytest.raises(DataError, match="packed bytes hold more than"):
        open_source(config)
    raised = OfflineConfig(input_=config.input_, input_max_unpacked_ratio=1000.0)
    assert sum(table.num_rows for table in open_source(raised).tables()) == 300_000


@pytest.mark.parametrize("column", ["obs", "new_obs", "rewards", "eps_id"])
def test_pickles_in_a_binary_column_are_no_data(tmp_path: Path, column: str, run_main: Run) -> None:
    columns: dict[str, list[object]] = {
        "obs": [[1.0], [2.0]],
        "actions": [0, 1],
        "rewards": [0.0, 1.0],
        "eps_id": ["a", "a"],
        "t": [0, 1],
        "terminated": [False, True],
        "new_obs": [[2.0], [3.0]],
    }
    assert run_main("inspect", str(table(tmp_path, **columns))).code == 0
    columns[column] = [pickle.dumps({"a": np.zeros(3)})] * 2
    outcome = run_main("inspect", str(table(tmp_path, **columns)))
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert column in outcome.err


def test_numbers_beyond_64_bits_are_described(tmp_path: Path, run_main: Run) -> None:
    columns = {"obs": [[1.0]] * 2, "rewards": [0.0] * 2, "eps_id": ["a"] * 2, "terminated": [False, True]}
    outcome = run_main("inspect", str(table(tmp_path, actions=pa.array([2**64 - 1] * 2, pa.uint64()), **columns)))
    assert (outcome.code, outcome.err) == (0, "")
