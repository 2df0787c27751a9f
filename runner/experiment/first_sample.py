"""Samples the first env steps of a configuration in this process, before the rest of a run is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from runner.config.schemas import EnvConfig, ExperimentConfig
from runner.env_runners.protocol import FragmentSource
from runner.episodes.columns import Rollout
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import BuiltModule, acting_modules, weights_of

_MOST_ENVS = 2
_LEAST_ENV_STEPS = 8


def first_sample(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], role: str = TRAINING) -> Rollout:
    """Make an env runner like `first_env_runner`, and sample some env steps."""
    with first_env_runner(config, built_modules, role) as runner:
        return sample_with(runner, built_modules)


def sample_with(runner: FragmentSource, built_modules: Mapping[str, BuiltModule]) -> Rollout:
    """Sample some env steps."""
    return runner.sample(_LEAST_ENV_STEPS, True, weights_of(acting_modules(built_modules)), {}).rollout


@contextmanager
def first_env_runner(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], role: str = TRAINING
) -> Iterator[FragmentSource]:
    """Make an env runner with few sub-environments, which records nothing, and close it afterwards.

    It does not wait for simulators; it steps an environment with the same spaces instead.

    Args:
        config: configuration of the run.
        built_modules: module id -> network and pipelines; the acting modules are used.
        role: role of the env runner.

    Raises:
        ConfigError: the environment or a part cannot be created.
        RunFailure: a step failed.
    """
    env = _stepped_here(config.env) if role == TRAINING else replace(config.env, port=None)
    specs = {module_id: built.spec for module_id, built in acting_modules(built_modules).items()}
    runner = build_env_runner(replace(reduced(config), env=env), specs, role, 0, 0)
    try:
        yield runner
    finally:
        runner.close()


def reduced(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration with few sub-environments, all in this process and on the CPU, and without callbacks.

    Updates are compiled only if `learners.compile` is true.
    """
    runners, evaluation = config.env_runners, config.evaluation
    return replace(
        config,
        engine="inline",
        callbacks=[],
        env_runners=replace(runners, num_envs_per_env_runner=min(_MOST_ENVS, runners.num_envs_per_env_runner)),
        evaluation=replace(evaluation, num_envs_per_env_runner=min(_MOST_ENVS, evaluation.num_envs_per_env_runner)),
        learners=replace(config.learners.in_driver(), device="cpu", compile=config.learners.compile is True),
        offline=replace(config.offline, output=None),
    )


def _stepped_here(env: EnvConfig) -> EnvConfig:
    """Return the environment; in place of simulators, `env.name` or an environment with their spaces."""
    if not env.is_external:
        return env
    here = replace(env, port=None, observation_space=None, action_space=None, agents=None)
    if env.agents is not None:
        stand_in, arguments = "MultiAgentStandIn", {"agents": env.agents}
    elif env.observation_space is not None:
        stand_in = "StandIn"
        arguments = {"observation_space": env.observation_space, "action_space": env.action_space or {}}
    else:
        return here
    return replace(
        here, env=None, _target_=f"runner.environments.stand_in.{stand_in}", env_config=arguments, wrappers=[]
    )
