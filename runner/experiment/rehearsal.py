"""The rehearsal of `validate --build`: make the parts of a run in this process, and take one step through them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError
from runner.config.metrics import check_metric_names
from runner.config.operators import ENV_RUNNERS
from runner.config.plans import needs_of
from runner.config.schemas import EnvConfig, ExperimentConfig
from runner.episodes.columns import ColumnBlock, Rollout, block_from_episodes
from runner.experiment.env_runner_builder import EVALUATION, TRAINING, build_env_runner
from runner.experiment.learner_builder import build_learner_group
from runner.experiment.loaded_modules import load_modules
from runner.experiment.recorded_data_builder import build_held_out_evaluation, check_recorded_data
from runner.module_parts import (
    ModuleParts,
    build_module_parts,
    join_modules,
    plan_modules,
    reported_metrics,
    weights_of,
)
from runner.pipelines.piece import DEFAULT_MODULE_ID
from runner.pipelines.recorded_episodes import with_held_observations

T = TypeVar("T")

_MOST_ENVS = 2
_LEAST_ENV_STEPS = 8
_RECORDED_STEPS = 64
_PACKAGE_DIR = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Rehearsed:
    """Descriptions of the parts that were made and tried, and of the parts that only a run makes."""

    made: tuple[str, ...]
    not_made: tuple[str, ...]


def rehearse(config: ExperimentConfig) -> Rehearsed:
    """Make environments, pipelines and modules; sample, and update on it, or on the first recorded steps.

    Raises:
        ConfigError: all problems up to the first one that nothing can be made after.
    """
    return _Rehearsal(config).run()


class _Rehearsal:
    """One rehearsal, which collects problems and goes on as long as the next part can be made."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = _small(config)
        self._given = config
        self._problems: list[Problem] = []
        self._cause: Exception | None = None
        self._made: list[str] = []
        self._not_made = list(_made_elsewhere(config))

    def run(self) -> Rehearsed:
        torch.set_num_threads(self._config.learners.torch_num_threads)
        parts = self._make_parts()
        if parts is not None:
            self._take_a_step(parts)
            self._try_evaluation(parts)
        if self._problems:
            raise ConfigError(list(dict.fromkeys(self._problems))) from self._cause
        return Rehearsed(tuple(self._made), tuple(self._not_made))

    def _make_parts(self) -> dict[str, ModuleParts] | None:
        """Make network and pipelines of each module; None if one of them cannot be made."""
        config = self._config
        plans = self._try("the environment", lambda: plan_modules(config)) or {}
        made = {
            module_id: self._try(f"module {module_id} and its pipelines", partial(build_module_parts, config, plan))
            for module_id, plan in plans.items()
        }
        parts = {module_id: module_parts for module_id, module_parts in made.items() if module_parts is not None}
        if not plans or len(parts) < len(plans):
            return None
        joined = self._try("multi_agent.multi_rl_module", lambda: join_modules(config, parts))
        if joined is None:
            return None
        parts = joined
        self._made += [config.env.name, *_described(parts)]
        agents = {
            module_id: module_parts.plan.agents for module_id, module_parts in parts.items() if module_parts.plan.agents
        }
        self._try("the metrics", lambda: check_metric_names(config, agents, reported_metrics(config, parts)))
        self._try("module.load_state_path", lambda: load_modules(config, parts))
        return parts

    def _take_a_step(self, parts: Mapping[str, ModuleParts]) -> None:
        if ENV_RUNNERS not in needs_of(self._config):
            rollout = self._try("the recorded data", lambda: self._read(parts))
        else:
            env = _stepped_here(self._config.env)
            rollout = self._try("one step", lambda: self._sample(env, TRAINING, parts))
        if rollout is None:
            return
        learners = self._try("the learner", lambda: build_learner_group(self._config, parts))
        if learners is None:
            return
        update = self._try("one update", lambda: learners.update(rollout, rollout.num_env_steps))
        if update is not None:
            self._made.append(f"one update on {rollout.num_env_steps} env steps")

    def _sample(self, env: EnvConfig, role: str, parts: Mapping[str, ModuleParts]) -> Rollout:
        config = replace(self._config, env=env)
        plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
        runner = build_env_runner(config, plans, role, 0, 0)
        try:
            return runner.sample(_LEAST_ENV_STEPS, True, weights_of(parts), {}).rollout
        finally:
            runner.close()

    def _read(self, parts: Mapping[str, ModuleParts]) -> Rollout | None:
        """Read the first recorded steps; None where reading needs Ray."""
        source = check_recorded_data(self._config, parts)
        if source is None:
            self._not_made.append("recorded data (reading these takes Ray)")
            return None
        module_parts = parts[DEFAULT_MODULE_ID]
        block = _first_chunks(source.first_block())
        self._made.append("the first recorded steps")
        held = with_held_observations(block, module_parts.env_to_module, module_parts.module)
        return Rollout({DEFAULT_MODULE_ID: held}, held.num_rows)

    def _try_evaluation(self, parts: Mapping[str, ModuleParts]) -> None:
        config = self._config
        if config.evaluation.evaluation_interval is not None:
            env = replace(config.env, port=None)
            sampled = self._try("one step of evaluation", lambda: self._sample(env, EVALUATION, parts))
            self._made += [] if sampled is None else ["one step of evaluation"]
        held_out = self._try("held-out data", lambda: build_held_out_evaluation(config, parts))
        self._made += [] if held_out is None else ["held-out data"]

    def _try(self, stage: str, make: Callable[[], T]) -> T | None:
        """Return the result of `make`; None after a problem, which is kept."""
        try:
            return make()
        except Exception as error:  # the user's code may raise anything
            self._cause = self._cause or error
            self._problems += _problems_of(error, stage)
            return None


def _small(config: ExperimentConfig) -> ExperimentConfig:
    """Reduce a configuration to few sub-environments, all in this process, on the CPU."""
    runners, evaluation = config.env_runners, config.evaluation
    return replace(
        config,
        engine="inline",
        env_runners=replace(runners, num_envs_per_env_runner=min(_MOST_ENVS, runners.num_envs_per_env_runner)),
        evaluation=replace(evaluation, num_envs_per_env_runner=min(_MOST_ENVS, evaluation.num_envs_per_env_runner)),
        learners=replace(config.learners, num_learners=0, num_gpus_per_learner=0.0, device="cpu"),
        offline=replace(config.offline, output=None),
    )


def _stepped_here(env: EnvConfig) -> EnvConfig:
    """Return the environment; where simulators connect, the named one like them, or one with their spaces."""
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


def _made_elsewhere(config: ExperimentConfig) -> Iterator[str]:
    """Yield what a run makes in other processes, on other machines or for other programs."""
    if config.env.is_external and ENV_RUNNERS in needs_of(config):
        yield f"the server at port {config.env.port} (no simulator was waited for)"
    counts = {
        "env runner": config.env_runners.num_env_runners if ENV_RUNNERS in needs_of(config) else 0,
        "evaluation runner": config.evaluation.evaluation_num_env_runners,
        "learner": config.learners.num_learners,
    }
    actors = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count]
    if actors and config.engine == "ray":
        yield f"Ray actors ({', '.join(actors)})"
    if config.tracking.mlflow:
        yield "the MLflow run"


def _described(parts: Mapping[str, ModuleParts]) -> Iterator[str]:
    for module_id, module_parts in parts.items():
        name = (
            type(module_parts.module).__name__
            if module_parts.plan.agents is None
            else f"{module_id}: {type(module_parts.module).__name__}"
        )
        num_parameters = sum(parameter.numel() for parameter in module_parts.module.parameters())
        yield f"{name} ({num_parameters:,} parameters) and its pipelines"
    together = next(iter(parts.values())).together
    if together is not None:
        num_parameters = sum(parameter.numel() for parameter in together.parameters())
        yield f"{type(together).__name__} of {', '.join(parts)} ({num_parameters:,} parameters in all)"


def _first_chunks(block: ColumnBlock) -> ColumnBlock:
    """Return the first chunks of a block, some dozens of steps."""
    count, num_steps = 0, 0
    while count < len(block) and num_steps < _RECORDED_STEPS:
        num_steps += int(block.lengths[count])
        count += 1
    return block_from_episodes([block[index] for index in range(count)])


def _problems_of(error: Exception, stage: str) -> list[Problem]:
    if isinstance(error, ConfigError):
        return list(error.problems)
    if isinstance(error, RunFailure):
        where = ", ".join(filter(None, (stage, error.problem.where)))
        return [replace(error.problem, where=where)]
    if isinstance(error, RunnerError):
        return [Problem(str(error), stage)]
    return [Problem(f"{type(error).__name__}: {error}", f"{stage}, {_place_of(error)}")]


def _place_of(error: Exception) -> str:
    """Return file and line of an error: the innermost ones outside of runner and installed packages, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if not Path(frame.filename).is_relative_to(_PACKAGE_DIR) and "site-packages" not in frame.filename
    ]
    frame = (theirs or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}"
