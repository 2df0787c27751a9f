"""Microseconds of replay buffers with a million CartPole steps: sampling 256 rows, and adding 400 rows.

The buffers are interleaved. Adding is compared with a plain copy of the same columns into arrays of the same length.
Memory is compared with the columns of these steps: observations (once), actions, rewards, and ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import bench_common as bc
import numpy as np

from runner.episodes.columns import ColumnBlock, Rollout
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer

CAPACITY = 1_000_000
BATCH_SIZE = 256
NUM_ENVS, LENGTH = 8, 50  # per fragment: 400 env steps
EPISODE_LENGTH = 200
MEMORY_BAR = 1.1
ENDS = np.zeros((2, CAPACITY), np.bool_)  # whether a step terminated or truncated its episode

# Name -> factory, and the target in microseconds per batch.
BUFFERS: dict[str, tuple[Callable[[], ReplayBuffer], float | None]] = {
    "uniform": (lambda: ReplayBuffer(CAPACITY), 100.0),
    "uniform, n-step 3": (lambda: ReplayBuffer(CAPACITY, n_step=3, gamma=0.99), None),
    "prioritised": (lambda: PrioritizedReplayBuffer(CAPACITY), 200.0),
    "prioritised, n-step 3": (lambda: PrioritizedReplayBuffer(CAPACITY, n_step=3, gamma=0.99), None),
}


class Fragments:
    """Consecutive fragments of 400 env steps, with random numbers in the columns of CartPole."""

    def __init__(self, rng: np.random.Generator) -> None:
        num_rows = NUM_ENVS * LENGTH
        self.columns: dict[str, np.ndarray] = {
            "obs": rng.standard_normal((num_rows + NUM_ENVS, 4), np.float32),
            "actions": rng.integers(2, size=num_rows),
            "rewards": np.ones(num_rows, np.float32),
        }
        self._count = 0

    def next(self) -> Rollout:
        """Return the next fragment: each sub-environment's episode continues, or restarts after 200 steps."""
        episode, t_started = divmod(self._count * LENGTH, EPISODE_LENGTH)
        self._count += 1
        block = ColumnBlock(
            columns=dict(self.columns),
            lengths=np.full(NUM_ENVS, LENGTH),
            is_terminated=np.full(NUM_ENVS, t_started + LENGTH == EPISODE_LENGTH),
            is_truncated=np.zeros(NUM_ENVS, np.bool_),
            t_started=np.full(NUM_ENVS, t_started),
            episode_ids=[f"{env}_{episode}" for env in range(NUM_ENVS)],
        )
        return Rollout({"default_policy": block}, block.num_rows)


class PlainCopy:
    """Plain rings of columns."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = columns
        self.arrays = {name: np.zeros((CAPACITY, *column.shape[1:]), column.dtype) for name, column in columns.items()}
        self._at = 0

    def add(self) -> None:
        """Copy the columns to the next rows."""
        for name, column in self._columns.items():
            self.arrays[name][self._at : self._at + len(column)] = column
        self._at = (self._at + NUM_ENVS * LENGTH) % (CAPACITY - NUM_ENVS * (LENGTH + 1))

    @property
    def num_bytes(self) -> int:
        """Memory of the columns, including the ends of steps."""
        return ENDS.nbytes + sum(array.nbytes for array in self.arrays.values())


def filled(make: Callable[[], ReplayBuffer], fragments: Fragments) -> ReplayBuffer:
    """Return a full buffer."""
    buffer = make()
    for _ in range(CAPACITY // (NUM_ENVS * LENGTH) + 1):
        buffer.add(fragments.next())
    return buffer


def microseconds(call: Callable[[], object], num_calls: int) -> float:
    """Return the median time of a call."""
    return 1e6 * statistics.median(bc.seconds_of(call) for _ in range(num_calls))


def measure(num_repeats: int, num_calls: int) -> dict[str, list[float]]:
    """Return name of a measurement -> microseconds of each turn, and `memory`."""
    found: dict[str, list[float]] = {}
    fragments = Fragments(np.random.default_rng(0))
    plain = PlainCopy(fragments.columns)
    buffers = {name: filled(make, fragments) for name, (make, _) in BUFFERS.items()}
    for _ in range(num_repeats):
        found.setdefault("plain copy, add", []).append(microseconds(plain.add, num_calls))
        for name, buffer in buffers.items():
            sample = microseconds(lambda one=buffer: one.sample(BATCH_SIZE), num_calls)  # type: ignore[misc]
            add = microseconds(lambda one=buffer: one.add(fragments.next()), num_calls)  # type: ignore[misc]
            found.setdefault(f"{name}, sample", []).append(sample)
            found.setdefault(f"{name}, add", []).append(add)
    for name, buffer in buffers.items():
        found[f"{name}, memory"] = [int(buffer.metrics()["num_bytes"] or 0) / plain.num_bytes]
    return found


def table(found: Mapping[str, list[float]]) -> str:
    """Return one row per buffer, with targets."""
    rows = [["plain copy", "-", bc.spread(found["plain copy, add"], 1), "-", "1"]]
    for name, (_, bar) in BUFFERS.items():
        sample, add, (memory,) = (found[f"{name}, {what}"] for what in ("sample", "add", "memory"))
        against = [ours / plain for ours, plain in zip(add, found["plain copy, add"], strict=True)]
        is_of_columns = name.startswith("uniform")
        rows.append(
            [
                name,
                bc.spread(sample, 1) + ("" if bar is None else f" (bar {bar:.0f}: {_met(sample, bar)})"),
                bc.spread(add, 1),
                bc.spread(against, 2),
                f"{memory:.3f}" + (f" (bar {MEMORY_BAR}: {_met([memory], MEMORY_BAR)})" if is_of_columns else ""),
            ]
        )
    header = [
        "buffer",
        f"a batch of {BATCH_SIZE} (us)",
        "adding 400 env steps (us)",
        "adding / copy",
        "memory / columns",
    ]
    return bc.markdown_table(header, rows)


def _met(values: list[float], most: float) -> str:
    return "met" if statistics.median(values) <= most + 1e-9 else "missed"


def main() -> None:
    parser = bc.Parser(__doc__, "replay.json")
    parser.add_number("--repeats", 3, 1)
    parser.add_number("--calls", 2000, 20)
    args, _ = parser.parse_known_args()
    machine = bc.machine_facts([])
    found = measure(args.repeats, args.calls)
    bc.write_json(args.out, {"machine": machine, "replay": found})
    print(f"Median of {args.repeats} turns (min-max), each the median of {args.calls} calls.\n")
    print(table(found))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
