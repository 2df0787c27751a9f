"""Training from replay with memory and stacked frames: it learns what can be learned in seconds."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.errors import ConfigError, Problem
from runner.experiment.trainer import Trainer
from runner.pipelines import LearnerConnector, Requirements
from tests.support.configs import config_from
from tests.support.problems import not_a_choice

MEMORY = ("module.use_lstm=true", "module.fcnet_hiddens=[32]", "module.lstm_cell_size=16")
RECALL = (
    "env._target_=tests.support.environments.Recall",
    "evaluation=none",
    "tracking=none",
    "algorithm.train_batch_size_per_learner=64",
    "algorithm.min_sample_timesteps_per_iteration=500",
    "stop.num_env_steps_sampled_lifetime=100000",
    *MEMORY,
)
BUFFER = "algorithm.replay_buffers.replay"
DQN = (
    "algorithm=dqn",
    "module=double_q",
    "algorithm.lr=3e-3",
    "algorithm.epsilon=[[0,1.0],[2000,0.05]]",
    "algorithm.target_network_update_freq=200",
    "algorithm.training_intensity=null",
    "algorithm.n_step=1",
    f"{BUFFER}.batch_length_T=2",
    f"{BUFFER}.burn_in_len=2",
)
# Noisy layers explore: random actions do not.
NOISY_DQN = (*(text for text in DQN if "epsilon" not in text), "algorithm.epsilon=0.0", "module.noisy=true")
A2C = (
    "algorithm=a2c_replay",
    "algorithm.lr=5e-3",
    "env_runners.num_envs_per_env_runner=8",
    f"{BUFFER}.capacity=400",
    f"{BUFFER}.batch_length_T=2",
    f"{BUFFER}.burn_in_len=2",
)
_OFF_POLICY = (
    "algorithm.num_steps_sampled_before_learning_starts=200",
    "algorithm.training_intensity=16",
    "algorithm.tau=0.02",
    f"{BUFFER}.batch_length_T=2",
    f"{BUFFER}.burn_in_len=2",
)
DISCRETE_SAC = (
    *("algorithm=sac_discrete", "module=sac_discrete", "algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3"),
    *("algorithm.initial_alpha=0.1", "algorithm.target_entropy=0.1"),
    *_OFF_POLICY,
)
_REAL = ("env._target_=tests.support.environments.RecallReal", "algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3")
SAC = ("algorithm=sac", "module=sac", "algorithm.initial_alpha=0.05", *_OFF_POLICY)
TQC = ("algorithm=tqc", "module=tqc", "algorithm.initial_alpha=0.05", "module.num_atoms=5", *_OFF_POLICY)
TD3 = ("algorithm=td3", "module=td3", "algorithm.num_random_steps=500", *_OFF_POLICY)
LEARNED = "env_runners/episode_return_mean"


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [DQN, NOISY_DQN, A2C, DISCRETE_SAC, (*SAC, *_REAL), (*TQC, *_REAL), (*TD3, *_REAL)],
    ids=["dqn", "noisy_dqn", "a2c_replay", "sac_discrete", "sac", "tqc", "td3"],
)
def test_memory_is_learned_from_replay(algorithm: tuple[str, ...]) -> None:
    with Trainer(config_from(*RECALL, *algorithm)) as trainer:
        for _ in range(16):
            result = trainer.train()
            if (result[LEARNED] or 0) > 0.8:
                return
    assert result[LEARNED] > 0.8


STACKED = "{_target_: runner.pipelines.FrameStacking, num_frames: 4}"
IN_BOTH = tuple(
    f"connectors.{name}=[{{insert_after: AddObservationsFromEpisodesToBatch, connector: {STACKED}}}]"
    for name in ("env_to_module", "learner")
)
WRITTEN = (
    f"connectors.env_to_module=[{{insert_after: AddObservationsFromEpisodesToBatch, connector: {STACKED}}},"
    "{insert_after: FrameStacking, connector: {_target_: runner.pipelines.WriteObservationsToEpisodes}}]",
)


def replayed_bytes(*overrides: str) -> int:
    """Memory of a buffer of 1000 env steps of 10 x 5 images, after two updates."""
    quick = ("algorithm=a2c_replay", "env=catch", "evaluation=none", "tracking=none", f"{BUFFER}.capacity=1000")
    stop = ("stop.training_iteration=2", "module.fcnet_hiddens=[8]")
    with Trainer(config_from(*quick, *stop, *overrides)) as trainer:
        trainer.train()
        return trainer.train()["replay_buffers/replay/num_bytes"]


def test_stacked_frames_are_stored_once() -> None:
    single = replayed_bytes()
    assert replayed_bytes(*IN_BOTH) <= 1.3 * single
    assert replayed_bytes(*WRITTEN) > 2 * single, "what connectors write to episodes is stored as it is"


TOGETHER = (
    "algorithm=a2c_replay",
    "env=multi_agent_cartpole",
    "module.fcnet_hiddens=[8]",
    "evaluation=none",
    "tracking=none",
    f"{BUFFER}.batch_length_T=1",
    "stop.training_iteration=9",
)
READS_OTHERS = "connectors.learner=[{append: {_target_: tests.experiment.test_replayed_training.ReadsOthers}}]"


class ReadsOthers(LearnerConnector):
    """Checks that each step comes with the ones of the other agent at the same env step."""

    requires = Requirements(needs_other_agents=True)

    def __call__(self, *, batch: Any, episodes: Any, episodes_of_modules: Any = None, **kwargs: Any) -> Any:
        """Change nothing."""
        blocks = episodes_of_modules.values()
        found = {
            (id_, agent): block.agents.env_t[2 * chunk]
            for block in blocks
            for chunk, (id_, agent) in enumerate(
                zip(block.agents.multi_agent_episode_ids, block.agents.agent_ids, strict=True)
            )
        }
        assert len(found) > len(episodes.agents.agent_ids)
        for (id_, agent), env_t in found.items():
            other = "agent_1" if agent == "agent_0" else "agent_0"
            assert found.get((id_, other), env_t) == env_t
        return batch


@pytest.mark.parametrize("memory", [(), ("module.use_gru=true",)], ids=["no memory", "memory"])
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_several_agents_learn_from_replay(mode: str, memory: tuple[str, ...]) -> None:
    modules = "multi_agent.agent_to_module={agent_0: p0, agent_1: p1}"
    others = [READS_OTHERS] if mode == "lockstep" else []
    with Trainer(config_from(*TOGETHER, modules, *memory, f"{BUFFER}.replay_mode={mode}", *others)) as trainer:
        for _ in range(3):
            result = trainer.train()
    assert {"learners/p0/policy_loss", "learners/p1/policy_loss"} <= result.keys()


MISTAKES = [
    pytest.param(
        ("algorithm=a2c_replay", f"{BUFFER}.replay_mode=lockstep", f"{BUFFER}.batch_length_T=1"),
        Problem(
            "replay_mode `lockstep` needs several agents, but this environment has one",
            where="algorithm.replay_buffers.replay.replay_mode",
            got="lockstep",
            expected="independent",
        ),
        id="one agent in step",
    ),
    pytest.param(
        (*TOGETHER, READS_OTHERS),
        Problem(
            "a learner connector of module default_policy reads other agents, but agents are replayed independently",
            where="algorithm.replay_buffers.replay.replay_mode",
            got="independent",
            expected="lockstep",
        ),
        id="several agents apart",
    ),
    pytest.param(
        ("algorithm=a2c_replay", f"{BUFFER}.replay_mode=together"),
        not_a_choice(
            "replay_mode", '"together"', "independent, lockstep", where="algorithm.replay_buffers.replay.replay_mode"
        ),
        id="no such mode",
    ),
    pytest.param(
        ("algorithm=a2c_replay", f"{BUFFER}.replay_mode=lockstep"),
        Problem(
            (
                "runner.replay.ReplayBuffer cannot be created: replay_mode lockstep needs batch_length_T 1 "
                "and no burn-in, got batch_length_T 20, burn_in_len 0"
            ),
            where="algorithm.replay_buffers.replay",
            got="{'capacity': 1000, 'batch_length_T': 20, 'replay_mode': 'lockstep'}",
        ),
        id="chunks in step",
    ),
    pytest.param(
        ("algorithm=a2c_replay", f"{BUFFER}.burn_in_len=4"),
        Problem(
            "burn-in needs a recurrent module, but module default_policy is not recurrent",
            where="algorithm.replay_buffers.replay.burn_in_len",
            got="4",
            expected="0, or module.use_lstm=true",
        ),
        id="burn-in without memory",
    ),
    pytest.param(
        ("algorithm=dqn", "module=double_q", "algorithm.n_step=3", *MEMORY),
        Problem(
            "module default_policy is recurrent, so it needs every step, but n_step > 1 skips steps",
            where="algorithm.replay_buffers.replay.n_step",
            got="3",
            expected="1",
        ),
        id="several steps with memory",
    ),
    pytest.param(
        ("algorithm=a2c_replay", f"{BUFFER}.burn_in_len=8", *MEMORY),
        Problem(
            "burn-in and the steps after it do not fit into one sequence of module default_policy",
            where="algorithm.replay_buffers.replay, module.max_seq_len",
            got="burn_in_len 8 + batch_length_T 20 = 28",
            expected="at most module.max_seq_len, 20",
        ),
        id="sequences too short",
    ),
    pytest.param(
        ("algorithm=dqn", "module=double_q", "algorithm.n_step=3", f"{BUFFER}.batch_length_T=4"),
        Problem(
            (
                "runner.replay.PrioritizedReplayBuffer cannot be created: chunks of several steps "
                "(batch_length_T 4, burn_in_len 0) need n_step 1, got 3"
            ),
            where="algorithm.replay_buffers.replay",
            got="{'capacity': 50000, 'n_step': 3, 'gamma': 0.99, 'batch_length_T': 4}",
        ),
        id="chunks of several steps",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), MISTAKES)
def test_what_is_said_about_memory_and_replay(overrides: tuple[str, ...], expected: Problem) -> None:
    stop = "stop.training_iteration=1"
    with pytest.raises(ConfigError) as raised:
        Trainer(config_from("env=cartpole", "tracking=none", "evaluation=none", stop, *overrides))
    assert list(raised.value.problems) == [expected]
