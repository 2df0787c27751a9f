"""Builds the replay buffers of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import gymnasium as gym

from runner.config.algorithms import RECORDED
from runner.config.callables import made_arguments
from runner.config.errors import ChoiceError, ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_makers import make_environment
from runner.experiment.replay_shards import build_shard_group
from runner.module_building import BuiltModule
from runner.pipelines.raw_observations import raw_filters
from runner.pipelines.requirements import Requirements
from runner.replay import HindsightReplayBuffer, ReplayBuffer, ShardedReplayBuffer
from runner.replay.goals import ACHIEVED, DESIRED, GoalJudge
from runner.streams import random_stream


def build_replay_buffers(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], may_be_remote: bool = False
) -> dict[str, ReplayBuffer]:
    """Make the buffers of `algorithm.replay_buffers` by name, each with its own random stream.

    With `may_be_remote`, shards are separate processes if env runners are.

    Raises:
        ConfigError: the arguments of a buffer are wrong, or a module or a learner pipeline needs data that is not
            replayed.
    """
    buffers, has_processes = {}, config.env_runners.max_env_runners > 0 and config.engine != "inline"
    for name, block in config.algorithm.replay_buffers.items():
        key = f"algorithm.replay_buffers.{name}"
        positional, arguments = made_arguments({name: value for name, value in block.items() if name != RECORDED}, key)
        buffer_class = import_target(block["_target_"], f"{key}._target_", ReplayBuffer)
        if issubclass(buffer_class, ShardedReplayBuffer) and may_be_remote and has_processes:
            buffer_class = partial(buffer_class, shards=partial(build_shard_group, config))
        try:
            buffer = buffers[name] = buffer_class(*positional, **arguments)
        except ChoiceError as error:
            raise ConfigError([error.problem(key)]) from error
        except (TypeError, ValueError) as error:
            what = f"{block['_target_']} cannot be created: {error}"
            raise ConfigError([Problem(what, key, str(arguments))]) from error
        problems = [
            problem
            for of_module in built_modules.values()
            for problem in (
                *_misfits(key, buffer, of_module, config.learners.num_learners),
                *_changed_goals(key, buffer, of_module),
            )
        ]
        if problems:
            buffer.close()
            raise ConfigError(problems)
        if isinstance(buffer, HindsightReplayBuffer):
            buffer.use_judge(_goal_judge(config, key))
        buffer.use_stream(random_stream(config.seed, f"replay_buffers/{name}"))
        buffer.use_lookback(_lookbacks(built_modules))
    return buffers


def _lookbacks(built_modules: Mapping[str, BuiltModule]) -> dict[str, int]:
    """Return the past steps that the learner pipelines on each module's experiences need."""
    found = {module_id: built.learner.requires.num_lookback for module_id, built in built_modules.items()}
    for built in built_modules.values():
        if built.spec.trains_on is not None:
            needed = built.learner.requires.num_lookback
            found[built.spec.trains_on] = max(found[built.spec.trains_on], needed)
    return found


def _goal_judge(config: ExperimentConfig, key: str) -> GoalJudge:
    """Return the object that computes rewards for other goals in the experiment's environment.

    Raises:
        ConfigError: the environment is an external simulator, has several agents, or does not have goals.
    """
    if config.env.is_external:
        raise _no_goals(config, key, "the rewards of external simulators for other goals are not known here")
    env = make_environment(config.env, 1, "sync")
    if not isinstance(env, gym.Env):
        env.close()
        fault = f"{config.env.name} has several agents, or steps all its sub-environments together"
        raise _no_goals(config, key, fault)
    try:
        return GoalJudge(env)
    except ValueError as error:
        env.close()
        raise _no_goals(config, key, str(error)) from error


def _no_goals(config: ExperimentConfig, key: str, fault: str) -> ConfigError:
    expected = "an environment with goals, or runner.replay.ReplayBuffer"
    return ConfigError([Problem(f"hindsight replay: {fault}", f"{key}, env", config.env.name, expected)])


def _misfits(key: str, buffer: ReplayBuffer, built: BuiltModule, num_learners: int) -> Iterator[Problem]:
    """Yield the conflicts between the data that a module needs and the data that a buffer returns."""
    module_id, is_stateful = built.spec.module_id, built.module.is_stateful
    longest, max_seq_len = buffer.fragment_length + buffer.burn_in_len, built.spec.module.max_seq_len
    if built.learner.requires.needs_other_agents and buffer.env_steps is None:
        what = f"a learner connector of module {module_id} reads other agents, but agents are replayed independently"
        yield Problem(what, f"{key}.replay_mode", "independent", "lockstep")
    if buffer.env_steps is not None and built.spec.agents is None:
        what = "replay_mode `lockstep` needs several agents, but this environment has one"
        yield Problem(what, f"{key}.replay_mode", "lockstep", "independent")
    if is_stateful and buffer.n_step != (1, 1):
        what = f"module {module_id} is recurrent, so it needs every step, but n_step > 1 skips steps"
        yield Problem(what, f"{key}.n_step", str(buffer.n_step[-1]), "1")
    if buffer.burn_in_len and num_learners > 1:
        what = "burn-in does not support several learners"
        yield Problem(what, f"{key}.burn_in_len, learners.num_learners", f"{num_learners} learners", "1 or 0 learners")
    if built.spec.trains_on is not None:
        return  # burn-in is for the module that acts
    if buffer.burn_in_len and not is_stateful:
        what = f"burn-in needs a recurrent module, but module {module_id} is not recurrent"
        yield Problem(what, f"{key}.burn_in_len", str(buffer.burn_in_len), "0, or module.use_lstm=true")
    elif buffer.burn_in_len and longest > max_seq_len:
        what = f"burn-in and the steps after it do not fit into one sequence of module {module_id}"
        got = f"burn_in_len {buffer.burn_in_len} + batch_length_T {buffer.fragment_length} = {longest}"
        yield Problem(what, f"{key}, module.max_seq_len", got, f"at most module.max_seq_len, {max_seq_len}")


def _changed_goals(key: str, buffer: ReplayBuffer, built: BuiltModule) -> Iterator[Problem]:
    """Yield the first connector that stores changed goals; the environment computes rewards for unchanged ones."""
    space, pipeline = built.spec.observation_space, built.env_to_module
    if not isinstance(buffer, HindsightReplayBuffer) or not isinstance(space, gym.spaces.Dict):
        return
    goals = {name: space[name] for name in (ACHIEVED, DESIRED) if name in space.spaces}
    raw = raw_filters(pipeline).values()
    for connector, after in pipeline.observation_spaces_after():
        if connector in raw or not Requirements.of(connector).writes_obs_to_episodes:
            continue
        stored = {name: after.spaces.get(name) for name in goals} if isinstance(after, gym.spaces.Dict) else after
        if stored != goals:
            what = f"hindsight replay computes rewards for the environment's goals, but {type(connector).__name__} "
            what += "stores changed goals in the episodes"
            fix = f"do not change {ACHIEVED} and {DESIRED}; MeanStdFilter has keys_to_leave"
            yield Problem(what, f"{key}, connectors.env_to_module", str(stored), str(goals), fix=fix)
            return  # the connectors after it may only pass them on
