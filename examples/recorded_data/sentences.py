"""Train on text: a custom pre-learner makes an episode from each sentence."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from runner.episodes import SingleAgentEpisode
from runner.offline import OfflinePreLearner


def one_hot(words: Sequence[str], vocabulary: Sequence[str]) -> list[np.ndarray]:
    """Return a vector (V,) float32 for each word."""
    return list(np.eye(len(vocabulary), dtype=np.float32)[[vocabulary.index(word) for word in words]])


class NextWord(gym.Env[np.ndarray, int]):
    """Say a sentence of the corpus: 1 for each correct next word; the first mistake ends the episode."""

    def __init__(self, vocabulary: list[str], corpus: str) -> None:
        self._vocabulary = vocabulary
        with open(corpus) as file:
            sentences = [line.split() for line in file]
        self._first = sorted({sentence[0] for sentence in sentences})
        self._follows = {pair for sentence in sentences for pair in itertools.pairwise(sentence)}
        self.observation_space = gym.spaces.Box(0.0, 1.0, (len(vocabulary),), np.float32)
        self.action_space = gym.spaces.Discrete(len(vocabulary))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._word = self._first[self.np_random.integers(len(self._first))]
        return one_hot([self._word], self._vocabulary)[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        follows = (self._word, self._vocabulary[action]) in self._follows
        self._word = self._vocabulary[action]
        is_over = not follows or self._word == "."
        return one_hot([self._word], self._vocabulary)[0], float(follows), is_over, False, {}


class TextOfflinePreLearner(OfflinePreLearner):
    """Converts lines of text, column `text`, to episodes: a word is an observation, the next one is the action."""

    @staticmethod
    def _map_to_episodes(
        is_multi_agent: bool,
        batch: Mapping[str, np.ndarray],
        *args: Any,
        to_numpy: bool = False,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        vocabulary: Sequence[str] = (),
        **kwargs: Any,
    ) -> dict[str, list[SingleAgentEpisode]]:
        if not vocabulary:
            raise ValueError("the vocabulary is missing; set offline.prelearner_kwargs.vocabulary=[...]")
        episodes = []
        for text in batch["text"]:
            words = text.split()
            episode = SingleAgentEpisode(
                id_=hashlib.sha256(text.encode()).hexdigest()[:16],
                observations=one_hot(words, vocabulary),
                observation_space=observation_space,
                actions=[vocabulary.index(word) for word in words[1:]],
                action_space=action_space,
                rewards=[1.0] * (len(words) - 1),
                terminated=True,
                len_lookback_buffer=0,
            )
            episodes.append(episode.to_numpy() if to_numpy else episode)
        return {"episodes": episodes}
