"""Cost of checkpoints of a ring with 1,000,000 CartPole rows: the first one, the next one, and resuming."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import bench_common as bc
import numpy as np

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.episodes.columns import ColumnBlock, Rollout
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer

NUM_NEW = 1000
BATCH_SIZE = 32  # rows with new priorities per new row
LENGTH = 199  # steps per episode, 200 rows each
ID = "default_policy"


def rollout_of(num_rows: int, stream: np.random.Generator, name: str) -> Rollout:
    """Return CartPole steps of complete episodes with `num_rows` observations in total."""
    num_episodes = num_rows // (LENGTH + 1)
    num_steps = num_episodes * LENGTH
    columns = {
        "obs": stream.random((num_episodes * (LENGTH + 1), 4), np.float32),
        "actions": stream.integers(0, 2, num_steps),
        "rewards": np.ones(num_steps, np.float32),
    }
    block = ColumnBlock(
        columns=columns,
        lengths=np.full(num_episodes, LENGTH),
        is_terminated=np.ones(num_episodes, np.bool_),
        is_truncated=np.zeros(num_episodes, np.bool_),
        t_started=np.zeros(num_episodes, np.int64),
        episode_ids=[f"{name}-{number}" for number in range(num_episodes)],
    )
    return Rollout({ID: block}, num_steps)


def train(buffer: ReplayBuffer, stream: np.random.Generator, name: str) -> None:
    """Add new rows; in a prioritised buffer, also update the priorities of a batch after each row."""
    buffer.add(rollout_of(NUM_NEW, stream, name))
    if isinstance(buffer, PrioritizedReplayBuffer):
        rows = buffer.sample(NUM_NEW * BATCH_SIZE).rows[ID]
        buffer.update_priorities(ID, rows, stream.random(len(rows)))


def read_plainly(folder: Path) -> None:
    """Read and hash all files of a folder."""
    for path in folder.iterdir():
        hashlib.sha256(path.read_bytes()).hexdigest()


def bytes_of(folder: Path) -> int:
    """Return the total size of all files in bytes."""
    return sum(path.stat().st_size for path in folder.iterdir())


def new_bytes_of(folder: Path) -> int:
    """Return the bytes of the files that belong to no other checkpoint."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.stat().st_nlink == 1)


def rows_of(make: Callable[[], ReplayBuffer], folder: Path, num_rounds: int) -> Iterator[list[str]]:
    """Yield the measurements as value and unit."""
    stream, buffer = np.random.default_rng(0), make()
    buffer.add(rollout_of(buffer.capacity + 2 * LENGTH, stream, "first"))
    first = folder / "first"
    yield ["first checkpoint", f"{1e3 * bc.seconds_of(lambda: save_checkpoint(first, state_of(buffer), {})):,.0f} ms"]
    yield ["first checkpoint, bytes", f"{bytes_of(first):,}"]
    seconds, new = [], []
    for number in range(num_rounds):
        train(buffer, stream, str(number))
        one = folder / f"checkpoint_{number}"
        seconds.append(bc.seconds_of(lambda one=one: save_checkpoint(one, state_of(buffer), {})))  # type: ignore[misc]
        new.append(new_bytes_of(one))
    yield [f"checkpoint after {NUM_NEW:,} new rows, median", f"{1e3 * statistics.median(seconds):,.0f} ms"]
    yield ["longest of them", f"{1e3 * max(seconds):,.0f} ms"]
    yield ["new bytes, median", f"{statistics.median(new):,.0f}"]
    yield ["new bytes, most", f"{max(new):,}"]
    resumes, reads = [], []
    for _ in range(5):
        resumes.append(bc.seconds_of(lambda: make().set_state(load_checkpoint(one)[0]["replay"])))
        reads.append(bc.seconds_of(lambda: read_plainly(one)))
    megabytes = bytes_of(one) / 1e6
    yield ["resume, median of five", f"{megabytes / statistics.median(resumes):,.0f} MB/s"]
    yield ["plain read with SHA-256 of the same files", f"{megabytes / statistics.median(reads):,.0f} MB/s"]


def state_of(buffer: ReplayBuffer) -> dict[str, object]:
    """Return the state of a checkpoint that contains only the buffer."""
    return {"replay": buffer.get_state()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=70, help="number of checkpoints after the first one")
    parser.add_argument(
        "--folder", type=Path, help="folder on the disk to measure (default: the system's temporary folder)"
    )
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    capacity, rounds = (20_000, 5) if args.quick else (args.capacity, args.rounds)
    table: dict[str, list[str]] = {}
    for make in (ReplayBuffer, PrioritizedReplayBuffer):
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            for name, value in rows_of(lambda make=make: make(capacity), folder, rounds):  # type: ignore[misc]
                table.setdefault(name, [name]).append(value)
        finally:
            shutil.rmtree(folder)
    print(f"{capacity:,} rows; a prioritised buffer gets {BATCH_SIZE} new priorities per new row.\n")
    print(bc.markdown_table(["", "uniform", "prioritised"], list(table.values())))


if __name__ == "__main__":
    main()
