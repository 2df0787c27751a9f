"""Minari data sets: files that Minari wrote, and hand-made ones for what these do not have."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import gymnasium.spaces as gs
import numpy as np
import pytest

from runner.offline.codecs.minari import blocks, read_info, recognises
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError

h5py = pytest.importorskip("h5py")

DATA = Path(__file__).parents[2] / "data" / "minari"


def cartpole() -> list[tuple[np.ndarray, list[int], list[float], bool]]:
    """What was recorded: observations, actions, rewards, whether it terminated."""
    env = gym.make("CartPole-v1", max_episode_steps=15)
    env.action_space.seed(0)
    episodes = []
    for seed in range(3):
        obs, actions, rewards = [env.reset(seed=seed)[0]], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            actions.append(env.action_space.sample())
            after, reward, terminated, truncated, _ = env.step(actions[-1])
            obs.append(after)
            rewards.append(float(reward))
        episodes.append((np.array(obs), actions, rewards, terminated))
    return episodes


@pytest.mark.parametrize("name", ["cartpole_hdf5", "cartpole_arrow"])
def test_files_of_minari(name: str) -> None:
    path = DATA / name
    assert recognises(path)
    assert recognises(path / "data")
    info = read_info(path)
    assert info.env_name == "CartPole-v1"
    assert info.dataset_id == f"cartpole/{info.data_format}-v0"
    assert info.spaces.action == gs.Discrete(2)
    assert isinstance(info.spaces.observation, gs.Box)
    expected = cartpole()
    counts = ReadCounts()
    read = [episode for block in blocks(path, 20, counts=counts) for episode in block]
    for number, (episode, (obs, actions, rewards, terminated)) in enumerate(zip(read, expected, strict=True)):
        np.testing.assert_array_equal(episode.get_observations(), obs)
        assert episode.get_actions().tolist() == actions
        assert episode.get_rewards().tolist() == rewards
        assert (episode.is_terminated, episode.is_truncated) == (terminated, not terminated)
        assert episode.id_ == f"{info.dataset_id}/episode_{number}"
    assert counts == ReadCounts()


def test_blocks_have_about_as_many_steps_as_asked_for() -> None:
    lengths = [len(actions) for _, actions, _, _ in cartpole()]
    assert [len(block) for block in blocks(DATA / "cartpole_hdf5", 1)] == [1, 1, 1]
    assert [block.num_rows for block in blocks(DATA / "cartpole_hdf5", sum(lengths[:2]))] == [
        sum(lengths[:2]),
        lengths[2],
    ]
    assert [len(block) for block in blocks(DATA / "cartpole_arrow")] == [3]


def test_nested_spaces_and_images() -> None:
    pytest.importorskip("PIL")
    path = DATA / "rich_parquet"
    spaces = read_info(path).spaces
    assert isinstance(spaces.observation, gs.Dict)
    assert isinstance(spaces.observation["parts"], gs.Tuple)
    assert spaces.action == gs.Box(-1, 1, (2,), np.float32)
    (block,) = blocks(path)
    assert block.lengths.tolist() == [6, 6]
    steps = np.tile(np.arange(7), 2)
    obs = block.columns["obs"]
    np.testing.assert_array_equal(obs["position"], np.repeat((steps / 10).astype(np.float32)[:, None], 3, 1))
    np.testing.assert_array_equal(obs["parts"][0], steps % 5)
    np.testing.assert_array_equal(obs["parts"][1], np.repeat((steps % 2)[:, None], 4, 1))
    assert obs["image"].shape == (14, 32, 40, 3)
    assert obs["image"].dtype == np.uint8
    assert np.abs(obs["image"].astype(int) - steps[:, None, None, None] * 10).max() <= 2  # JPEG
    assert block.columns["rewards"].tolist() == [1, 2, 3, 4, 5, 6] * 2


SPACES: dict[str, Any] = {
    "observation_space": {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [9, 9]},
    "action_space": {"type": "Discrete", "dtype": "int64", "start": 1, "n": 3},
}


def dataset(path: Path, *episodes: dict[str, Any], metadata: dict[str, Any] | None = None, **spaces: Any) -> Path:
    """A data set of HDF5 as Minari writes it; without metadata that of Minari 0.4."""
    (path / "data").mkdir(parents=True)
    plain = {name: json.dumps(space) for name, space in (SPACES | spaces).items()}
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(episodes):
            for name, value in episode.items():
                file[f"episode_{number}/{name}"] = value
        if metadata is None:
            file.attrs.update(plain | {"total_episodes": len(episodes), "dataset_id": "old-v0"})
    if metadata is not None:
        (path / "data" / "metadata.json").write_text(json.dumps(plain | {"data_format": "hdf5"} | metadata))
    return path


def episode(length: int = 3, end: str = "T", **changes: Any) -> dict[str, Any]:
    flags = np.zeros(length, np.bool_)
    last = np.arange(length) == length - 1
    made = {
        "observations": np.arange(2 * length + 2, dtype=np.float32).reshape(length + 1, 2),
        "actions": np.arange(length),
        "rewards": np.arange(length, dtype=np.float64),
        "terminations": last if end == "T" else flags,
        "truncations": last if end == "U" else flags,
    }
    return {name: value for name, value in (made | changes).items() if value is not None}


def test_data_sets_of_minari_04(tmp_path: Path) -> None:
    path = dataset(tmp_path / "old", episode(), *(episode(2, "U") for _ in range(11)))
    assert recognises(path)
    info = read_info(path)
    assert (info.dataset_id, info.env_name) == ("old-v0", None)
    assert info.spaces.action == gs.Discrete(3, start=1)
    (block,) = blocks(path)
    assert block.lengths.tolist() == [3] + [2] * 11
    assert block.episode_ids[10] == "old-v0/episode_10"  # by number, not by name


def test_last_observations_that_are_missing(tmp_path: Path) -> None:
    no_last = {"observations": np.arange(6, dtype=np.float32).reshape(3, 2)}
    single = episode(1, "U", observations=np.zeros((1, 2), np.float32))
    path = dataset(tmp_path / "a", episode(**no_last), episode(end="U", **no_last), single, episode(end=""))
    counts = ReadCounts()
    (block,) = blocks(path, counts=counts)
    assert block.lengths.tolist() == [3, 2, 3]
    assert block[0].get_observations()[:, 0].tolist() == [0, 2, 4, 4]
    assert block[1].get_observations()[:, 0].tolist() == [0, 2, 4]
    assert (block.is_terminated.tolist(), block.is_truncated.tolist()) == ([True, False, False], [False, True, True])
    assert counts == ReadCounts(final_obs_repeated=1, final_steps_dropped=2, trajectories_dropped=1)


def test_spaces_of_every_kind(tmp_path: Path) -> None:
    parts = [
        {"type": "MultiDiscrete", "nvec": [2, 3], "dtype": "int64", "start": [0, 1]},
        {"type": "MultiBinary", "n": 4},
        {"type": "Text", "min_length": 1, "max_length": 5, "charset": "abc"},
    ]
    nested_space = {
        "type": "Dict",
        "subspaces": {"b": {"type": "Tuple", "subspaces": parts}, "a": SPACES["action_space"]},
    }
    stored = {
        "observations": None,
        "observations/a": np.arange(4),
        "observations/b/_index_0": np.zeros((4, 2), np.int64),
        "observations/b/_index_1": np.ones((4, 4), np.int8),
        "observations/b/_index_2": ["a", "ab", "", "c"],
    }
    path = dataset(tmp_path / "a", episode(**stored), metadata={}, observation_space=nested_space)
    expected = gs.Tuple([gs.MultiDiscrete([2, 3], start=[0, 1]), gs.MultiBinary(4), gs.Text(5, charset="abc")])
    assert read_info(path).spaces.observation == gs.Dict({"b": expected, "a": gs.Discrete(3, start=1)})
    (block,) = blocks(path)
    assert block.columns["obs"]["b"][2].tolist() == ["a", "ab", "", "c"]
    assert block.columns["obs"]["a"].tolist() == [0, 1, 2, 3]
    assert block.columns["obs"]["b"][1].shape == (4, 4)


def test_infos_where_they_are_asked_for(tmp_path: Path) -> None:
    infos = {"infos/x": np.arange(4.0), "infos/deep/y": np.zeros((3, 2)), "infos/name": ["a"] * 4}
    path = dataset(tmp_path / "a", episode(**infos), episode())
    (block,) = blocks(path)
    assert block.infos is None
    (block,) = blocks(path, with_infos=True)
    assert [sorted(info) for info in block[0].get_infos()] == [["deep/y", "x"]] * 3 + [["x"]]
    assert block[1].get_infos() == [{}] * 4


IMAGE = {
    "type": "Box",
    "dtype": "uint8",
    "shape": [32, 48, 3],
    "low": np.zeros((32, 48, 3)).tolist(),
    "high": np.full((32, 48, 3), 255).tolist(),
}


def jpeg(value: int, width: int = 48) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.full((32, width, 3), value, np.uint8)).save(file, format="JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)


def with_images(path: Path, rows: list[np.ndarray]) -> Path:
    dataset(path, episode(observations=None), metadata={}, observation_space=IMAGE)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        rows_of = file.create_dataset("episode_0/observations", (len(rows),), h5py.vlen_dtype(np.uint8))
        for number, row in enumerate(rows):
            rows_of[number] = row
    return path


def test_images_as_jpeg_and_as_they_are(tmp_path: Path) -> None:
    (block,) = blocks(with_images(tmp_path / "jpeg", [jpeg(40 * i) for i in range(4)]))
    assert np.abs(block.columns["obs"][:, 5, 6, 0].astype(int) - [0, 40, 80, 120]).max() <= 2
    raw = np.arange(4, dtype=np.uint8)[:, None, None, None] + np.zeros((32, 48, 3), np.uint8)
    (block,) = blocks(dataset(tmp_path / "raw", episode(observations=raw), metadata={}, observation_space=IMAGE))
    np.testing.assert_array_equal(block.columns["obs"], raw)


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    good = jpeg(1)
    for number, wrong in enumerate(
        (good[:100], np.zeros(0, np.uint8), np.frombuffer(b"GIF89a", np.uint8), jpeg(1, 40))
    ):
        assert_refused(with_images(tmp_path / str(number), [good, wrong, good, good]), "image", "observations[1]")


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        list(blocks(path))
    for word in words:
        assert word in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": None}, "the field actions of an episode is missing"),
        ({"terminations": None}, "the field terminations of an episode is missing"),
        ({"observations": np.zeros((7, 2))}, "inconsistent lengths"),
        ({"actions": np.zeros(4)}, "inconsistent lengths"),
        ({"truncations": np.zeros(2)}, "inconsistent lengths"),
        ({"terminations": np.array([1, 0, 1])}, "before the last step"),
        ({"terminations": np.array([0, 0, 2])}, "one flag per step"),
        ({"rewards": np.array([0, np.inf, 0])}, "rewards[1]"),
        ({"rewards": np.zeros((3, 1))}, "one number per step"),
        ({"rewards": ["a", "b", "c"]}, "one number per step"),
        ({"observations": np.zeros((4, 3), np.float32)}, "episodes differ"),
        ({"observations": None, "observations/a": np.zeros((4, 2))}, "episodes differ"),
        ({"observations": np.zeros(4, [("a", "f4")])}, "array of numbers"),
    ],
)
def test_wrong_episodes_are_refused_with_their_number(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert_refused(dataset(tmp_path / "a", episode(), episode(**changes), metadata={}), "episode", "1", words)


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    path = dataset(tmp_path / "a", episode(), episode(observations=None))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"] = h5py.ExternalLink("other.hdf5", "x")
    assert_refused(path, "links to other files")


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    assert not recognises(tmp_path)
    assert_refused(tmp_path, "neither metadata.json nor main_data.hdf5")
    assert_refused(dataset(tmp_path / "empty"), "does not contain any episodes")
    assert_refused(dataset(tmp_path / "format", episode(), metadata={"data_format": "zarr"}), "zarr", "parquet")
    assert_refused(dataset(tmp_path / "space", episode(), metadata={"action_space": "{"}), "space is damaged")
    assert_refused(dataset(tmp_path / "kind", episode(), metadata={}, action_space={"type": "Graph"}), "Graph")
    objects = SPACES["observation_space"] | {"dtype": "object"}
    assert_refused(dataset(tmp_path / "object", episode(), metadata={}, observation_space=objects), "object")
    path = dataset(tmp_path / "json", episode(), metadata={})
    (path / "data" / "metadata.json").write_text("[")
    assert_refused(path, "metadata cannot be read")
    path = dataset(tmp_path / "truncated", episode(), metadata={})
    main = path / "data" / "main_data.hdf5"
    main.write_bytes(main.read_bytes()[:900])
    assert_refused(path, "damaged")


def test_damaged_arrow_files_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "cartpole_arrow", tmp_path / "a")
    file = tmp_path / "a" / "data" / "1" / "part-0.arrow"
    content = file.read_bytes()
    file.write_bytes(content[:200])
    assert_refused(tmp_path / "a", "episode 1", "damaged")
    file.unlink()
    assert_refused(tmp_path / "a", "episode 1")
