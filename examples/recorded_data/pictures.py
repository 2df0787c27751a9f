"""Train on picture files with a completely custom pipeline, from files to rows and from rows to episodes.

Alternatively, Ray Data reads the files or an archive of them, and only the pre-learner is custom.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from runner.config.schemas import ExperimentConfig
from runner.episodes import SingleAgentEpisode
from runner.offline import OfflineData, OfflinePreLearner

SIDES = ("left", "right")


def draw(side: str, generator: np.random.Generator) -> np.ndarray:
    """Draw a dark picture (32, 32, 3) uint8 with a bright square on one side."""
    picture = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8)
    top, left = generator.integers(0, 22), generator.integers(0, 6) + 16 * SIDES.index(side)
    picture[top : top + 10, left : left + 10] += 150
    return picture


class WhichSide(gym.Env[np.ndarray, int]):
    """One step: name the side of the square, for a reward of 1."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(SIDES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._side = int(self.np_random.integers(len(SIDES)))
        self._picture = draw(SIDES[self._side], self.np_random)
        return self._picture, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._picture, float(action == self._side), True, False, {}


def label_of(path: str) -> int:
    """Return the label that a person gave a picture, from its file name (left_003.png)."""
    return SIDES.index(Path(path).stem.partition("_")[0])


def decode(row: dict[str, Any]) -> dict[str, Any]:
    """Decode the bytes of a file to an array."""
    picture = np.asarray(Image.open(io.BytesIO(row["bytes"])))
    return {"name": Path(row["path"]).stem, "array": picture, "label": label_of(row["path"])}


class ImageOfflineData(OfflineData):
    """Reads picture files; used as `offline.offline_data_class`."""

    def __init__(self, config: ExperimentConfig) -> None:
        import ray.data

        self.config = config
        folder = Path(config.offline.input_).absolute()  # Ray's workers on a cluster use another working directory
        self.data = ray.data.read_binary_files(str(folder), include_paths=True).map(decode)


class ImageOfflinePreLearner(OfflinePreLearner):
    """Makes an episode of one step from each picture."""

    @staticmethod
    def _map_to_episodes(
        is_multi_agent: bool, batch: Mapping[str, np.ndarray], *args: Any, **kwargs: Any
    ) -> dict[str, list[SingleAgentEpisode]]:
        episodes = [
            SingleAgentEpisode(
                id_=str(name),
                observations=[picture, picture],
                actions=[label],
                rewards=[1.0],
                observation_space=kwargs["observation_space"],
                action_space=kwargs["action_space"],
                terminated=True,
                len_lookback_buffer=0,
            ).to_numpy()
            for name, picture, label in zip(batch["name"], batch["array"], batch["label"], strict=True)
        ]
        return {"episodes": episodes}


class ReadImagePreLearner(ImageOfflinePreLearner):
    """Handles rows of `ray.data.read_images` with paths."""

    @staticmethod
    def _map_to_episodes(
        is_multi_agent: bool, batch: Mapping[str, np.ndarray], *args: Any, **kwargs: Any
    ) -> dict[str, list[SingleAgentEpisode]]:
        labels = np.array([label_of(path) for path in batch["path"]])
        pictures = {"name": batch["path"], "array": batch["image"], "label": labels}
        return ImageOfflinePreLearner._map_to_episodes(is_multi_agent, pictures, *args, **kwargs)


class ArchivedImagePreLearner(ImageOfflinePreLearner):
    """Handles rows of `ray.data.read_webdataset`: a column for each file extension of a sample."""

    @staticmethod
    def _map_to_episodes(
        is_multi_agent: bool, batch: Mapping[str, np.ndarray], *args: Any, **kwargs: Any
    ) -> dict[str, list[SingleAgentEpisode]]:
        pictures = {"name": batch["__key__"], "array": batch["png"], "label": batch["cls"]}
        return ImageOfflinePreLearner._map_to_episodes(is_multi_agent, pictures, *args, **kwargs)


def main() -> None:
    """Draw the pictures for the experiments, and pack them into a WebDataset archive with their labels."""
    generator, folder = np.random.default_rng(0), Path("pictures")
    folder.mkdir(exist_ok=True)
    with tarfile.open("pictures.tar", "w") as archive:
        for number in range(60):
            for side in SIDES:
                path = folder / f"{side}_{number:03}.png"
                Image.fromarray(draw(side, generator)).save(path)
                archive.add(path, path.name)
                label = tarfile.TarInfo(f"{path.stem}.cls")
                label.size = 1
                archive.addfile(label, io.BytesIO(str(label_of(path.name)).encode()))


if __name__ == "__main__":
    main()
