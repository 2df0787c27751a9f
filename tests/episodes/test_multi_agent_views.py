"""Multi-agent episodes as views of what a runner sampled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout, concat_rollouts
from runner.episodes.multi_agent_views import multi_agent_episodes
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import build_acting_module, make_module_specs
from runner.modules.flat_parameters import FlatParameters
from tests.support.configs import config_from


def samples_of(experiment: str, num_fragments: int) -> Iterator[Sample]:
    config = config_from(f"+experiment={experiment}")
    plans = make_module_specs(config)
    runner = build_env_runner(config, plans, TRAINING, 0, 0)
    weights = {
        name: FlatParameters(build_acting_module(config, plan).module).to_numpy() for name, plan in plans.items()
    }
    for _ in range(num_fragments):
        yield runner.sample(150, True, weights, {})
    runner.close()


def test_each_fragment_is_made_of_episodes_that_fit_together() -> None:
    for sample in samples_of("ppo_multi_agent_cartpole", 4):
        episodes = multi_agent_episodes(sample.rollout)
        for episode in episodes:
            episode.validate()
            assert episode.is_numpy
        assert sum(len(episode) for episode in episodes) == sample.rollout.num_env_steps
        assert sum(e.agent_steps() for e in episodes) == sum(b.num_rows for b in sample.rollout.blocks.values())
        assert sum(e.is_done for e in episodes) == len(sample.finished.returns)


def test_fragments_joined_give_the_returns_and_lengths_of_whole_episodes() -> None:
    samples = list(samples_of("ppo_multi_agent_cartpole_shared", 4))
    episodes = [e for e in multi_agent_episodes(concat_rollouts([s.rollout for s in samples])) if e.is_done]
    assert len(episodes) > 8
    assert sorted(e.get_return() for e in episodes) == sorted(np.concatenate([s.finished.returns for s in samples]))
    assert sorted(map(len, episodes)) == sorted(np.concatenate([s.finished.lengths for s in samples]))
    assert all(e.agent_ids == {"agent_0", "agent_1"} for e in episodes)


def test_a_view_shows_rows_without_copying_them() -> None:
    (sample,) = samples_of("ppo_multi_agent_cartpole", 1)
    episode = multi_agent_episodes(sample.rollout)[0]
    for agent_episode in episode.agent_episodes.values():
        rows = sample.rollout.blocks[str(agent_episode.module_id)].columns["obs"]
        assert np.shares_memory(agent_episode.observations.data, rows)


def test_rows_of_one_agent_are_refused() -> None:
    (sample,) = samples_of("ppo_cartpole", 1)
    with pytest.raises(ValueError, match="the block of module 'default_policy' has a single agent"):
        multi_agent_episodes(Rollout(sample.rollout.blocks, 150))
