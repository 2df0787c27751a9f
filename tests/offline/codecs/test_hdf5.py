"""HDF5 in D4RL's layout: where episodes end, what their last observation is, and that only a block is in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.hdf5 import blocks
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError

h5py = pytest.importorskip("h5py")


def fields(done: str, with_next: bool = False, **changes: Any) -> dict[str, Any]:
    """Steps that end as the letters say: T, U (timeout) or `.`; observation i is [i, -i], after an end 100 more."""
    flags = np.array(list(done))
    episode = np.concatenate(([0], np.cumsum(flags != ".")[:-1]))
    rows = np.arange(len(done)) + 100.0 * episode
    made: dict[str, Any] = {
        "observations": np.stack((rows, -rows), 1).astype(np.float32),
        "actions": np.stack((rows, rows), 1).astype(np.float32) / 10,
        "rewards": rows.astype(np.float32),
        "terminals": flags == "T",
        "timeouts": flags == "U",
    }
    if with_next:
        made["next_observations"] = made["observations"] + np.array([1, -1], np.float32)
    return {name: value for name, value in (made | changes).items() if value is not None}


def write(path: Path, content: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            file[name] = value
    return path


def outline(parts: list[ColumnBlock]) -> list[tuple[list[float], str, int]]:
    return [
        (
            episode.get_observations()[:, 0].tolist(),
            "T" * episode.is_terminated + "U" * episode.is_truncated,
            episode.t_started,
        )
        for block in parts
        for episode in block
    ]


def test_episodes_end_with_terminals_and_timeouts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", fields("..T..U.."))
    counts = ReadCounts()
    parts = list(blocks(path, counts=counts))
    assert outline(parts) == [([0, 1, 2, 2], "T", 0), ([103, 104, 105], "U", 0), ([206, 207], "U", 0)]
    assert counts == ReadCounts(final_obs_repeated=1, final_steps_dropped=2)
    (block,) = parts
    assert block.columns["actions"].dtype == np.float32
    np.testing.assert_allclose(block.columns["actions"][:, 0], [0, 0.1, 0.2, 10.3, 10.4, 20.6], rtol=1e-6)
    assert block.columns["rewards"].tolist() == [0, 1, 2, 103, 104, 206]
    assert len(set(block.episode_ids)) == 3


def test_next_observations_are_the_last_ones(tmp_path: Path) -> None:
    counts = ReadCounts()
    parts = list(blocks(write(tmp_path / "a.hdf5", fields("..T.U..", with_next=True)), counts=counts))
    assert outline(parts) == [([0, 1, 2, 3], "T", 0), ([103, 104, 105], "U", 0), ([205, 206, 207], "U", 0)]
    assert counts == ReadCounts()


def test_without_timeouts_next_observations_tell_where_episodes_end(tmp_path: Path) -> None:
    content = fields("..U..T", with_next=True, timeouts=None)
    assert outline(list(blocks(write(tmp_path / "a.hdf5", content)))) == [
        ([0, 1, 2, 3], "U", 0),
        ([103, 104, 105, 106], "T", 0),
    ]
    with pytest.raises(DataError, match="the ends of episodes are unknown"):
        list(blocks(write(tmp_path / "b.hdf5", fields("...", timeouts=None))))


def test_breaks_between_flags_are_counted(tmp_path: Path) -> None:
    content = fields("....T", with_next=True)
    content["observations"][2:] += 50
    content["next_observations"][2:] += 50
    counts = ReadCounts()
    parts = list(blocks(write(tmp_path / "a.hdf5", content), counts=counts))
    assert outline(parts) == [([0, 1, 2], "U", 0), ([52, 53, 54, 55], "T", 0)]
    assert counts == ReadCounts(breaks=1)


@settings(max_examples=40)
@given(st.text("..TU", min_size=2, max_size=40), st.integers(1, 12), st.booleans())
def test_blocks_of_any_size_hold_the_same_steps(
    tmp_path_factory: pytest.TempPathFactory, done: str, max_steps: int, with_next: bool
) -> None:
    path = write(tmp_path_factory.mktemp("d4rl") / "a.hdf5", fields(done[:-1] + "T", with_next))
    whole, whole_counts, counts = list(blocks(path)), ReadCounts(), ReadCounts()
    list(blocks(path, counts=whole_counts))
    parts = list(blocks(path, max_steps, counts=counts))
    assert all(block.num_rows <= max_steps for block in parts)
    joined: dict[str, tuple[list[float], str, int]] = {}
    for block in parts:
        for id_, (obs, end, t) in zip(block.episode_ids, outline([block]), strict=True):
            if t:
                before = joined[id_]
                assert before[0][-1] == obs[0]
                assert (len(before[0]) - 1, before[1]) == (t, "")
                joined[id_] = (before[0] + obs[1:], end, 0)
            else:
                joined[id_] = (obs, end, t)
    expected = dict(zip([i for block in whole for i in block.episode_ids], outline(whole), strict=True))
    # A dropped last step that was a chunk of its own leaves the chunk before it open.
    assert {id_: one[0] for id_, one in joined.items()} == {id_: one[0] for id_, one in expected.items()}
    assert (counts.final_steps_dropped, counts.final_obs_repeated) == (
        whole_counts.final_steps_dropped,
        whole_counts.final_obs_repeated,
    )


def test_forms_of_the_fields(tmp_path: Path) -> None:
    content = fields("..T", rewards=np.arange(3).reshape(3, 1), terminals=np.array([[0.0], [0], [1]]), timeouts=None)
    content["observations"] = content["observations"].astype(">f8")
    (block,) = blocks(write(tmp_path / "a.hdf5", content))
    assert (block.columns["rewards"].dtype, block.columns["rewards"].tolist()) == (np.float64, [0, 1, 2])
    assert block.columns["obs"].dtype == np.dtype("f8").newbyteorder("=")
    assert block.is_terminated.tolist() == [True]


def test_nested_observations_outputs_and_infos(tmp_path: Path) -> None:
    content = fields("..TU..U")
    obs = content.pop("observations")
    content |= {
        "observations/position": obs,
        "observations/parts/_index_0": np.arange(7),
        "observations/parts/_index_1": np.zeros((7, 2, 2), np.uint8),
        "infos/action_log_probs": -np.arange(7.0),
        "infos/qpos": obs * 2,
        "infos/goal": np.zeros(3),
        "metadata/policy/weights": np.zeros((4, 4)),
        "vf_preds": np.arange(7.0),
    }
    path = write(tmp_path / "a.hdf5", content)
    (block,) = blocks(path)
    assert block.infos is None
    assert set(block.columns) == {"obs", "actions", "rewards", "action_logp", "vf_preds"}
    assert isinstance(block.columns["obs"]["parts"], tuple)
    assert block.columns["obs"]["parts"][0].tolist() == [0, 1, 2, 2, 4, 5, 6]
    assert block.columns["action_logp"].tolist() == [0, -1, -2, -4, -5]
    (block,) = blocks(path, with_infos=True)
    infos = block[1].get_infos()
    assert [sorted(info) for info in infos] == [["action_log_probs", "qpos"]] * 3
    assert [info["qpos"].tolist() for info in infos] == (obs[[4, 5, 6]] * 2).tolist()
    assert sorted(block[0].get_infos()[2]) == ["action_log_probs", "qpos"]
    assert block[0].get_infos()[3] == {}


def test_open_files_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", fields("..T"))
    with open(path, "rb") as file:
        (block,) = blocks(file, name="s3://bucket/data/a.hdf5")
    assert block.episode_ids == ["data/a/0"]


def test_memory_is_that_of_a_block(tmp_path: Path) -> None:
    steps = 200_000
    done = np.zeros(steps, np.bool_)
    done[999::1000] = True
    obs = np.arange(steps, dtype=np.float32)[:, None] + np.zeros(50, np.float32)
    content = {
        "observations": obs,
        "actions": obs[:, :4],
        "rewards": obs[:, 0],
        "terminals": done,
        "timeouts": ~done & False,
    }
    path = write(tmp_path / "a.hdf5", content)
    size = obs.nbytes
    del obs, content
    tracemalloc.start()
    total = sum(block.num_rows for block in blocks(path, 5000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == steps
    assert peak < size / 8


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        list(blocks(path))
    for word in (path.name, *words):
        assert word in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observations": None, "observation": np.zeros(3)}, ["no field observations", "did you mean observation"]),
        ({"actions": None}, ["no field actions"]),
        ({"rewards": None}, ["no field rewards"]),
        ({"terminals": None}, ["terminals"]),
        ({"actions": np.zeros((2, 2))}, ["actions", "(2, 2)"]),
        ({"timeouts": np.zeros(4)}, ["timeouts", "(4,)"]),
        ({"next_observations": np.zeros((2, 2))}, ["next_observations"]),
        ({"next_observations": np.zeros((3, 3))}, ["next observations and observations differ"]),
        ({"rewards": np.zeros((3, 2))}, ["one reward per step"]),
        ({"rewards": np.array([0, np.nan, 0])}, ["a reward is not finite", "step 1"]),
        ({"rewards": np.zeros(0)}, ["does not contain any steps"]),
        ({"rewards": 1.0}, ["does not contain any steps"]),
        ({"terminals": np.array([0, 3, 0])}, ["true or false", "step 1"]),
        ({"terminals": np.zeros((3, 2))}, ["one flag per step"]),
        ({"observations": ["a", "b", "c"]}, ["array of numbers"]),
        ({"observations": 1.0}, ["one row for each"]),
        ({"rewards/a": np.zeros(3), "rewards": None}, ["got a group"]),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    assert_refused(write(tmp_path / "a.hdf5", fields("..T", **changes)), *words)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", fields("..T"))
    truncated = tmp_path / "b.hdf5"
    truncated.write_bytes(path.read_bytes()[:3000])
    assert_refused(truncated, "damaged")
    text = tmp_path / "c.hdf5"
    text.write_text("no HDF5")
    assert_refused(text, "damaged")
    assert_refused(tmp_path / "missing.hdf5", "does not exist")


def test_other_files_are_not_read(tmp_path: Path) -> None:
    other = write(tmp_path / "other.hdf5", fields("..T"))
    for number, link in enumerate((h5py.ExternalLink(str(other), "observations"), h5py.SoftLink("/actions"))):
        path = write(tmp_path / f"{number}.hdf5", fields("..T", observations=None))
        with h5py.File(path, "a") as file:
            file["observations"] = link
        assert_refused(path, "observations", "link")
    virtual = write(tmp_path / "virtual.hdf5", fields("..T", observations=None))
    layout = h5py.VirtualLayout((3, 2), "f4")
    layout[:] = h5py.VirtualSource(str(other), "observations", (3, 2))
    with h5py.File(virtual, "a") as file:
        file.create_virtual_dataset("observations", layout)
    assert_refused(virtual, "observations", "in this file")
