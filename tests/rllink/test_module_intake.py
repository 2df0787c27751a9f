"""Received episodes become the same columns as an env runner samples from the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.episode_recording import EpisodeRecording
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import build_acting_module, build_modules, lookback_of, make_module_specs, weights_of
from runner.rllink.inference import Versions
from runner.rllink.module_intake import ModuleIntake
from runner.rllink.received_episodes import OpenEpisode, ReceivedChunks
from tests.support.configs import config_from

FRAMES = "{_target_: runner.pipelines.FrameStacking, num_frames: 3}"
PREVIOUS = "{_target_: runner.pipelines.PrevActionsPrevRewards, n_prev_actions: 2}"
FLAT = "{_target_: runner.pipelines.FlattenObservations}"
STATELESS = ["+experiment=ppo_cartpole", "module.fcnet_hiddens=[8]"]
CASES = {
    "plain": STATELESS,
    "filtered": [*STATELESS, "connectors=mean_std_filter"],
    "frames": [
        *STATELESS,
        f"connectors.env_to_module=[{{prepend: {FRAMES}}}]",
        f"connectors.learner=[{{prepend: {FRAMES}}}]",
    ],
    "previous": [
        *STATELESS,
        f"connectors.env_to_module=[{{prepend: {FLAT}}}, {{prepend: {PREVIOUS}}}]",
        f"connectors.learner=[{{prepend: {FLAT}}}, {{prepend: {PREVIOUS}}}]",
    ],
    "lstm": ["+experiment=ppo_stateless_cartpole_lstm", "module.fcnet_hiddens=[8]", "module.lstm_cell_size=8"],
    "lstm_filtered": [
        "+experiment=ppo_stateless_cartpole_lstm",
        "module.fcnet_hiddens=[8]",
        "module.lstm_cell_size=8",
        "connectors=mean_std_filter",
    ],
    "nested": ["+experiment=ppo_dict_cartpole"],
    "masked": ["+experiment=ppo_masked_cartpole"],
    "continuous": ["+experiment=ppo_pendulum"],
}


class Capture:
    """Captures the recording of a runner: the raw observations of the environment."""

    def __init__(self) -> None:
        self.blocks: list[ColumnBlock] = []

    def add(self, block: ColumnBlock, is_recorded: Any = None) -> None:
        self.blocks.append(block)

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("case", CASES)
def test_a_runner_and_what_arrives_agree(case: str) -> None:
    config = config_from(*CASES[case])
    config = replace(config, env_runners=replace(config.env_runners, num_envs_per_env_runner=3))
    plans = make_module_specs(config)
    (plan,) = plans.values()
    weights = weights_of(build_modules(config))
    runner = build_env_runner(config, plans, TRAINING, 0, 0)
    assert isinstance(runner, SingleAgentEnvRunner)
    first = runner.sample(60, True, weights, {})
    shared = {plan.module_id: runner.env_to_module.merge_states([first.shared_state[plan.module_id]])}
    runner.env_to_module.freeze()  # clients have the statistics of their weights
    capture: Any = Capture()
    runner._listeners = (EpisodeRecording(capture),)
    runner._has_begun = False
    sampled = [runner.sample(90, True, weights, shared).rollout.blocks[plan.module_id] for _ in range(2)]
    runner.close()

    versions = Versions(4, {})
    versions.add(weights, shared)
    acting = build_acting_module(config, plan)
    intake = ModuleIntake(
        acting, build_acting_module(config, plan), versions, lookback_of(config, {plan.module_id: acting})
    )
    intake.use_shared_state(shared.get(plan.module_id, {}))
    episodes: dict[str, OpenEpisode] = {}
    for block, raw in zip(sampled, capture.blocks, strict=True):
        completed = intake.block([arrived(plan.module_id, raw, episodes)]).block
        assert completed.lengths.tolist() == block.lengths.tolist()
        assert completed.t_started.tolist() == block.t_started.tolist()
        assert sorted(completed.columns) == sorted(block.columns)
        for name, column in block.columns.items():
            nested.map_leaves(
                lambda got, expected: np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5),
                completed.columns[name],
                column,
            )
        for ours, theirs in zip(completed, block, strict=True):
            assert len(ours) == len(theirs)
            back = min(1, ours.t_started)
            np.testing.assert_array_equal(
                ours.get_rewards(slice(-back, 2), neg_index_as_lookback=True),
                theirs.get_rewards(slice(-back, 2), neg_index_as_lookback=True),
            )


def arrived(module_id: str, block: ColumnBlock, episodes: dict[str, OpenEpisode]) -> ReceivedChunks:
    """The block as a client sends it: the environment's observations, actions, rewards."""
    open_episodes = [episodes.setdefault(id_, OpenEpisode(id_, client="c", name=id_)) for id_ in block.episode_ids]
    columns = {name: block.columns[name] for name in ("obs", "actions", "rewards")}
    is_done = (block.is_terminated.copy(), block.is_truncated.copy())
    return ReceivedChunks(module_id, columns, block.lengths, *is_done, np.ones(len(block), np.int64), open_episodes)


def test_statistics_are_of_every_observation_once() -> None:
    """Episodes in two parts teach a filter what whole ones do."""
    config = config_from(*CASES["filtered"])
    (plan,) = make_module_specs(config).values()
    weights = weights_of(build_modules(config))
    rng = np.random.default_rng(0)
    obs = rng.normal(scale=0.1, size=(11, 4)).astype(np.float32)

    def learned(*ends: int) -> dict[str, Any]:
        versions = Versions(4, {})
        versions.add(weights, {})
        intake = ModuleIntake(build_acting_module(config, plan), build_acting_module(config, plan), versions, 1)
        episode, start = OpenEpisode("a", client="c", name="a"), 0
        for end in ends:
            columns = {
                "obs": obs[start : end + 1],
                "actions": np.zeros(end - start, np.int64),
                "rewards": np.ones(end - start, np.float32),
            }
            flags = np.array([end == 10]), np.array([False])
            intake.block(
                [
                    ReceivedChunks(
                        plan.module_id, columns, np.array([end - start]), *flags, np.ones(1, np.int64), [episode]
                    )
                ]
            )
            start = end
        return intake.state()["MeanStdFilter"]  # type: ignore[no-any-return]

    whole, parts = learned(10), learned(3, 4, 10)
    assert whole["own_count"] == parts["own_count"] == 11
    np.testing.assert_allclose(parts["own_mean"], whole["own_mean"])
    np.testing.assert_allclose(parts["own_m2"], whole["own_m2"])
    np.testing.assert_allclose(whole["own_mean"], obs.mean(0), rtol=1e-5)
