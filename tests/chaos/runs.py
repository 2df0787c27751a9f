"""The experiments of `conf/experiment`, shortened to seconds, and when two of their runs are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import list_checkpoints
from runner.environments.other_packages import GAMES
from runner.segments import Segment
from tests.conftest import lines_of, progress_of

NUM_ITERATIONS = 15
EVERY_ITERATIONS = 3
_SHORT = (
    "tracking=none",
    f"checkpoint.every_iterations={EVERY_ITERATIONS}",
    f"stop.training_iteration={NUM_ITERATIONS}",
)
_SMALL_BATCHES = (
    *_SHORT,
    "algorithm.train_batch_size_per_learner=256",
    "algorithm.minibatch_size=64",
    "algorithm.num_epochs=2",
    "stop.env_runners.episode_return_mean=10000",
)
_SAMPLED = (
    *_SMALL_BATCHES,
    "env_runners.num_envs_per_env_runner=4",
    "evaluation.evaluation_interval=4",
    "evaluation.evaluation_duration=2",
    "stop.evaluation.env_runners.episode_return_mean=10000",
)
_RECORDED = (
    *_SHORT,
    "algorithm.train_batch_size_per_learner=64",
    "offline.dataset_num_iters_per_learner=2",
    "evaluation.evaluation_interval=4",
    "evaluation.evaluation_duration=1",
    "stop.evaluation.env_runners.episode_return_mean=10000",
)

# Of several agents whose return grows; without evaluations.
_COOPERATIVE = tuple(override for override in _SAMPLED if "evaluation" not in override)
# Of algorithms with one gradient step an update.
_ONE_STEP = (*_SAMPLED, "algorithm.minibatch_size=null", "algorithm.num_epochs=1")
_SHORT_FRAGMENTS = (*_ONE_STEP, "env_runners.rollout_fragment_length=5", "algorithm.train_batch_size_per_learner=20")
_QUEUE = (
    "{Concurrently: {plans: [[ParallelRollouts, {Enqueue: {queue: q, capacity: 3}}], [{Dequeue: {queue: q}}, "
    "TrainOneStep]], round_robin_weights: [2, '*'], output_indexes: [1]}}"
)
_ASYNC = "{ParallelRollouts: {mode: async, num_async: 2}}"
_IN_ORDER = "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}"
_APPO = f"algorithm.plan=[{_IN_ORDER},ConcatBatches,MixInReplay,TrainOneStep,UpdateTargetNetwork]"
_APEX = (
    f"algorithm.plan=[{{Concurrently: {{output_indexes: [1], round_robin_weights: auto, plans: [[{_IN_ORDER}, "
    "StoreToReplayBuffer], [{Replay: {learning_starts: 400}}, TrainOneStep, UpdatePriorities, UpdateTargetNetwork]]}}]"
)

# Replay whose ring of 2,500 rows, three segments, is written over before the end.
_REPLAY = (
    *_SHORT,
    "algorithm.min_sample_timesteps_per_iteration=300",
    "algorithm.num_steps_sampled_before_learning_starts=400",
    "algorithm.replay_capacity=2500",
    "algorithm.train_batch_size_per_learner=16",
    "algorithm.training_intensity=1",
    "algorithm.epsilon=[[0,1.0],[6000,0.05]]",
    "env_runners.num_envs_per_env_runner=4",
    "evaluation.evaluation_interval=4",
    "evaluation.evaluation_duration=2",
    "stop.env_runners.episode_return_mean=10000",
    "stop.evaluation.env_runners.episode_return_mean=10000",
)

# PPO and DQN side by side, whose ring of 1,000 rows is written over before the end.
_OWN_ALGORITHMS = (
    *_SHORT,
    "algorithm.min_sample_timesteps_per_iteration=300",
    "algorithm.replay_buffers.replay.capacity=1500",
    "algorithm.train_batch_size_per_learner=256",
    "env_runners.num_envs_per_env_runner=4",
    "env_runners.rollout_fragment_length=16",
    "evaluation.evaluation_interval=4",
    "evaluation.evaluation_duration=2",
    "stop.env_runners.episode_return_mean=10000",
    "stop.evaluation.env_runners.episode_return_mean=10000",
)
_CONTINUOUS_REPLAY = tuple(override for override in _REPLAY if not override.startswith("algorithm.epsilon"))

# Of pictures of games.
_SMALL_IMAGES = (
    "module.conv_filters=[[4,8,4],[4,4,2]]",
    "module.fcnet_hiddens=[8]",
)

# Experiment -> overrides that shorten it.
SAMPLED = {
    "a2c_cartpole": (*_SHORT_FRAGMENTS, "algorithm.min_sample_timesteps_per_iteration=200"),
    "a2c_replay_cartpole": (*_SHORT_FRAGMENTS, "algorithm.min_sample_timesteps_per_iteration=200"),
    "a3c_cartpole": (
        *_SHORT_FRAGMENTS,
        "algorithm.min_sample_timesteps_per_iteration=200",
        "algorithm.plan=[{AsyncGradients: {num_async: 2, deterministic: true}},{ApplyGradients: {update_all: false}}]",
    ),
    "apex_cartpole": (*_REPLAY, _APEX),
    "appo_cartpole": (*_SHORT_FRAGMENTS, _APPO),
    "appo_misbehaving_cartpole": (*_SHORT_FRAGMENTS, _APPO),
    "appo_pendulum": (*_SHORT_FRAGMENTS, "algorithm.minibatch_size=null", _APPO),
    "appo_stateless_cartpole_lstm": (
        *_SHORT_FRAGMENTS,
        "algorithm.minibatch_size=null",
        "module.lstm_cell_size=8",
        _APPO,
    ),
    "appo_multi_agent_cartpole": (*_SHORT_FRAGMENTS, "algorithm.minibatch_size=null", _APPO),
    **dict.fromkeys(
        ("crossq_half_cheetah", "crossq_hopper", "crossq_walker2d"),
        (*_CONTINUOUS_REPLAY, "module.fcnet_hiddens=[16,16]"),
    ),
    "crossq_pendulum": _CONTINUOUS_REPLAY,
    "ddpg_pendulum": _CONTINUOUS_REPLAY,
    "dqn_atari_breakout": (*_REPLAY, *_SMALL_IMAGES),
    "dqn_cartpole": _REPLAY,
    "dqn_cartpole_compiled": _REPLAY,
    "dqn_cartpole_iqn": _REPLAY,
    "dqn_lunarlander": _REPLAY,
    **dict.fromkeys([f"dqn_minatar_{game}" for game in GAMES], (*_REPLAY, "module.fcnet_hiddens=[8]")),
    "dqn_multi_agent_cartpole": _REPLAY,
    "dqn_stateless_cartpole_lstm": (*_REPLAY, "module.lstm_cell_size=8"),
    "her_bit_flipping": _REPLAY,
    "ippo_investment_game": _COOPERATIVE,
    "ippo_speaker_listener": _COOPERATIVE,
    "impala_cartpole": (*_SHORT_FRAGMENTS, f"algorithm.plan=[{_IN_ORDER},ConcatBatches,TrainOneStep]"),
    "impala_multi_agent_cartpole": (
        *_SHORT_FRAGMENTS,
        f"algorithm.plan=[{_IN_ORDER},ConcatBatches,TrainOneStep]",
    ),
    "mappo_investment_game": _COOPERATIVE,
    "mappo_simple_spread": _COOPERATIVE,
    "mappo_speaker_listener": _COOPERATIVE,
    "munchausen_dqn_cartpole": _REPLAY,
    "pg_cartpole": (*_ONE_STEP, "algorithm.min_sample_timesteps_per_iteration=200"),
    "pqn_cartpole": (*_SHORT_FRAGMENTS, "algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=20"),
    **dict.fromkeys(
        [f"pqn_minatar_{game}" for game in GAMES],
        (*_SHORT_FRAGMENTS, "algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=20"),
    ),
    "ppo_acrobot": _SAMPLED,
    "ppo_ant": _SAMPLED,
    "ppo_atari_breakout": (*_SAMPLED, *_SMALL_IMAGES),
    "ppo_atari_pong": (*_SAMPLED, *_SMALL_IMAGES),
    "ppo_bipedal_walker": _SAMPLED,
    "ppo_cartpole": _SAMPLED,
    "ppo_cartpole_remote": _SAMPLED,
    "ppo_cartpole_two_learners": _SAMPLED,
    "ppo_catch": _SAMPLED,
    "ppo_curriculum_goal_maze": (
        *_SAMPLED,
        "env.env_config={size: 5, num_levels: 4}",
        "curriculum={num_levels: 4, promote_at: 0.3, window: 10, evaluate: [level_3]}",
    ),
    "ppo_dict_cartpole": _SAMPLED,
    "ppo_dqn_multi_agent_cartpole": _OWN_ALGORITHMS,
    "ppo_half_cheetah": _SAMPLED,
    "ppo_hopper": _SAMPLED,
    "ppo_humanoid": _SAMPLED,
    "ppo_inverted_pendulum": _SAMPLED,
    "ppo_league_connect_four": (*_SAMPLED, "league.snapshot_every=500"),
    "ppo_league_pursuit": (*_SAMPLED, "league.snapshot_every=500"),
    "ppo_league_tictactoe": (*_SAMPLED, "league.snapshot_every=500"),
    "ppo_lunarlander": _SAMPLED,
    "ppo_masked_cartpole": _SAMPLED,
    **dict.fromkeys([f"ppo_minatar_{game}" for game in GAMES], _SAMPLED),
    **dict.fromkeys([f"ppo_minigrid_{task}" for task in ("doorkey", "empty", "key_corridor")], _SAMPLED),
    "ppo_minigrid_memory": (*_SAMPLED, "module.lstm_cell_size=8"),
    "ppo_multi_agent_cartpole": _SAMPLED,
    "ppo_multi_agent_cartpole_shared": _SAMPLED,
    "ppo_pendulum": _SAMPLED,
    "ppo_sb3_cartpole": _SAMPLED,
    "ppo_speaker_listener": _SAMPLED,
    "ppo_stateless_cartpole_lstm": (*_SAMPLED, "module.lstm_cell_size=8"),
    "qmix_two_step_game": _REPLAY,
    "rainbow_cartpole": (*_CONTINUOUS_REPLAY, "module.num_atoms=11"),
    "sac_bipedal_walker": (*_CONTINUOUS_REPLAY, "module.fcnet_hiddens=[16,16]"),
    "sac_cartpole_discrete": _CONTINUOUS_REPLAY,
    "sac_hopper": (*_CONTINUOUS_REPLAY, "module.fcnet_hiddens=[16,16]"),
    "sac_lunarlander_continuous": _CONTINUOUS_REPLAY,
    "sac_multi_agent_pendulum": _CONTINUOUS_REPLAY,
    "sac_pendulum": _CONTINUOUS_REPLAY,
    "td3_pendulum": _CONTINUOUS_REPLAY,
    **dict.fromkeys(("ppo_pusher", "ppo_reacher", "ppo_swimmer", "ppo_walker2d"), _SAMPLED),
    **dict.fromkeys([f"ppo_{robot}_tuned" for robot in ("ant", "half_cheetah", "swimmer")], _SAMPLED),
    "tqc_pendulum": _CONTINUOUS_REPLAY,
    "vdn_two_step_game": _REPLAY,
}
# Plan, beside those of the experiments -> overrides of a2c_cartpole.
PLANS = {
    "a3c": (*_SHORT_FRAGMENTS, "algorithm=a3c", "algorithm.min_sample_timesteps_per_iteration=200"),
    "async": (*_SHORT_FRAGMENTS, f"algorithm.plan=[{_ASYNC},ConcatBatches,TrainOneStep]"),
    "raw": (
        *_SHORT_FRAGMENTS,
        "algorithm.plan=[{ParallelRollouts: {mode: raw}},TrainOneStep]",
        "engine=inline",
        "env_runners.num_env_runners=3",
    ),
    "queue": (*_SHORT_FRAGMENTS, f"algorithm.plan=[{_QUEUE}]"),
    "gradients": (
        *_SHORT_FRAGMENTS,
        "algorithm.plan=[ParallelRollouts,ComputeGradients,{AverageGradients: {num_gradients: 3}},ApplyGradients]",
    ),
}
# Experiment that learns from recorded data -> overrides, and the experiment that records them.
RECORDED = {
    "bc_cartpole": (_RECORDED, "ppo_cartpole"),
    # Which batches are made with newer parameters is a matter of time, see docs/guides/offline.md.
    "marwil_cartpole": ((*_RECORDED, "offline.prelearner_module_synch_period=1000"), "ppo_cartpole"),
    "iql_pendulum": (_RECORDED, "ppo_pendulum"),
    "sac_rlpd_pendulum": (_CONTINUOUS_REPLAY, "ppo_pendulum"),
    "cql_pendulum": ((*_RECORDED, "algorithm.bc_iters=10"), "ppo_pendulum"),
    "cql_discrete_cartpole": (_RECORDED, "ppo_cartpole"),
}
# Experiments of GPUs, and of recorded data that are not at hand or are another form of what RECORDED has.
NOT_KILLED = {
    *("ppo_atari_breakout_gpu", "ppo_atari_breakout_multi_gpu", "iql_half_cheetah_d4rl", "iql_half_cheetah_minari"),
    *("bc_cartpole_rllib", "bc_cartpole_table", "bc_multi_agent_cartpole"),  # data of other kinds: tests/offline
}
# Experiment with simulators -> overrides, and the client of examples/external with its arguments.
EXTERNAL = {
    "ppo_external_cartpole": (_SMALL_BATCHES, ("cartpole_client.py",)),
    "ppo_external_cartpole_remote": (_SMALL_BATCHES, ("cartpole_client.py", "--inference", "server")),
    "ppo_external_multi_agent_cartpole": (_SMALL_BATCHES, ("multi_agent_client.py",)),
}


def newest_state(run_dir: Path) -> dict[str, Any]:
    """Return the state in the newest checkpoint."""
    return load_checkpoint(list_checkpoints(run_dir / "checkpoints")[-1])[0]


def differences(first: Any, second: Any, name: str = "") -> Iterator[str]:
    """Yield names of the parts in which two states differ in a bit; wall-clock seconds are no part of a state."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted(first.keys() | second.keys()):
            if key != "time_total_s":
                yield from differences(first.get(key), second.get(key), f"{name}/{key}")
    elif isinstance(first, Segment) and isinstance(second, Segment):
        yield from differences(first.values(), second.values(), name)
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{name}/{index}")
    elif _bits(first) != _bits(second):
        yield name


def _bits(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value), repr(value)  # repr: NaN equals NaN, and -0.0 is not 0.0


def assert_equal_ends(straight: Path, killed: Path) -> None:
    """Check that each line of metrics and each bit of the last checkpoint are as in the run that was not killed."""
    assert lines_of(killed) == lines_of(straight)
    assert list(differences(newest_state(straight), newest_state(killed))) == []


def assert_each_iteration_once(run_dir: Path, num_iterations: int) -> None:
    """Check that no iteration is missing or doubled, and that the env steps of all add up to the lifetime's."""
    lines = progress_of(run_dir)
    assert [line["training_iteration"] for line in lines] == list(range(1, num_iterations + 1))
    total = 0
    for line in lines:
        total += line["num_env_steps_sampled"]
        assert line["num_env_steps_sampled_lifetime"] == total, line["training_iteration"]
