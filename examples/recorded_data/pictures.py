"""Learning from picture files: the whole pipeline is one's own, from files to rows and from rows to episodes."""

from __future__ import annotations

import io
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
    """A dark picture (32, 32, 3) uint8 with a bright square on one side."""
    picture = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8)
    top, left = generator.integers(0, 22), generator.integers(0, 6) + 16 * SIDES.index(side)
    picture[top : top + 10, left : left + 10] += 150
    return picture


class WhichSide(gym.Env[np.ndarray, int]):
    """One step: say on which side the square is, for a reward of 1."""

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


def decode(row: dict[str, Any]) -> dict[str, Any]:
    """A file's bytes as an array; its name (left_003.png) says what a person called it."""
    return {
        "name": Path(row["path"]).stem,
        "array": np.asarray(Image.open(io.BytesIO(row["bytes"]))),
        "label": SIDES.index(Path(row["path"]).stem.partition("_")[0]),
    }


class ImageOfflineData(OfflineData):
    """Reads picture files; `offline.offline_data_class`."""

    def __init__(self, config: ExperimentConfig) -> None:
        import ray.data

        self.config = config
        self.data = ray.data.read_binary_files(config.offline.input_, include_paths=True).map(decode)


class ImageOfflinePreLearner(OfflinePreLearner):
    """Each picture is an episode of one step."""

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


def main() -> None:
    """Draw the pictures that the experiment learns from."""
    generator, folder = np.random.default_rng(0), Path("pictures")
    folder.mkdir(exist_ok=True)
    for number in range(60):
        for side in SIDES:
            Image.fromarray(draw(side, generator)).save(folder / f"{side}_{number:03}.png")


if __name__ == "__main__":
    main()
