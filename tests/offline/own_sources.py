"""Functions that tests name in a configuration: rows and episodes from code of one's own."""

from __future__ import annotations

import itertools
import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes import SingleAgentEpisode
from runner.pipelines.connector import Batch
from runner.pipelines.observation_connector import ObservationConnector

if TYPE_CHECKING:
    from ray.data import Dataset


def cartpole_episodes(lengths: list[int], start: int = 0, is_endless: bool = False) -> Iterator[SingleAgentEpisode]:
    """Episodes of CartPole's form; each observation holds the number of its episode and of its step."""
    numbers = itertools.count(start) if is_endless else range(start, start + len(lengths))
    for number in numbers:
        length = lengths[number % len(lengths)]
        observations = [np.array([number, step, 0, 0], np.float32) for step in range(length + 1)]
        yield SingleAgentEpisode(
            id_=f"e{number}",
            observations=observations,
            actions=[step % 2 for step in range(length)],
            rewards=[1.0] * length,
            terminated=True,
            len_lookback_buffer=0,
        )


def nameless_episodes(length: int) -> Iterator[SingleAgentEpisode]:
    """One episode with an id that is another one each time."""
    for episode in cartpole_episodes([length]):
        episode.id_ = uuid.uuid4().hex
        yield episode


def failing_episodes(length: int) -> Iterator[SingleAgentEpisode]:
    """One episode, then an error."""
    yield from cartpole_episodes([length])
    raise OSError("the line is dead")


def episodes_after_empty_ones(num_empty: int) -> Iterator[SingleAgentEpisode]:
    """Episodes without a step, then one whose second reward is no number."""
    yield from cartpole_episodes([0] * num_empty)
    for episode in cartpole_episodes([3], start=num_empty):
        episode.rewards[1] = float("nan")
        yield episode


def numbers(count: int) -> Iterator[int]:
    """What are no episodes."""
    yield from range(count)


def connect(path: str) -> sqlite3.Connection:
    """A connection to a database file."""
    return sqlite3.connect(path)


# Reads the table of `write_steps` in order.
QUERY = "SELECT * FROM steps ORDER BY eps_id, t"


def connection_to(path: Path) -> dict[str, Any]:
    """How a configuration names `connect`."""
    return {"_target_": f"{__name__}.connect", "_partial_": True, "path": str(path)}


def write_steps(path: Path, lengths: list[int]) -> None:
    """Make a database with a table of steps, observations as text."""
    with sqlite3.connect(path) as database:
        columns = "eps_id TEXT, t INTEGER, obs TEXT, actions INTEGER, rewards REAL, done INTEGER"
        database.execute(f"CREATE TABLE steps ({columns})")
        for number, length in enumerate(lengths):
            for step in range(length):
                row = (f"e{number}", step, f"[{number}, {step}, 0.5, 0]", step % 2, 1.0, int(step == length - 1))
                database.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", row)


def read_rows_of(path: str, stop: int) -> Dataset:
    """Rows of a database as a data set made by hand; `stop` is the number of episodes."""
    import ray.data

    query = f"SELECT * FROM steps WHERE CAST(SUBSTR(eps_id, 2) AS INTEGER) < {stop} ORDER BY eps_id, t"
    return ray.data.read_sql(query, lambda: sqlite3.connect(path))


def read_episodes_of(path: str) -> Dataset:
    """The rows of Parquet files as Ray Data reads them, which leaves out the metadata of our format."""
    import ray.data

    return ray.data.read_parquet(path)


def read_single_steps(count: str) -> Dataset:
    """Steps that belong to no episode; the observation holds the step's number."""
    import ray.data

    steps = [{"obs": [step, 0.5, 0, 0], "actions": step % 2, "rewards": 1.0} for step in range(int(count))]
    return ray.data.from_items(steps)


def returns_no_dataset(path: str) -> str:
    """What is no data set."""
    return path


def write_lines(dataset: Dataset, path: str, marker: str = "") -> None:
    """Appends rows to a file as JSON lines."""
    with Path(path).open("a", encoding="utf-8") as file:
        for row in dataset.iter_rows():
            file.write(json.dumps({**row, "marker": marker}, default=lambda value: value.tolist()) + "\n")


def packed_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as one file of a WebDataset archive."""
    text = json.dumps(row, default=lambda value: value.tolist())
    return {"__key__": f"{row['eps_id']}-{row['t']}", "txt": text.encode()}


class Halved(ObservationConnector):
    """Halves observations, which augments recorded data if only the learner pipeline contains it."""

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Any:
        return obs / 2
