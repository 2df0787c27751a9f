"""The dry run of `validate --build`: make the parts of a run in this process, and run one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from runner.callbacks import Callbacks, build_callbacks
from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError
from runner.config.operators import ENV_RUNNERS, LEARNERS, REPLAY_BUFFERS
from runner.config.plans.needs import columns_added_by_plan, needs_of
from runner.config.plans.steps import read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import problem_of
from runner.episodes.columns import ColumnBlock, Rollout, block_from_episodes
from runner.experiment.build import check_metrics
from runner.experiment.checkpointing import Stateful, check_storable, store_and_restore
from runner.experiment.env_runner_builder import EVALUATION
from runner.experiment.features import features_of
from runner.experiment.first_sample import first_env_runner, first_sample, reduced, sample_with
from runner.experiment.learner_builder import build_learner_group
from runner.experiment.loaded_modules import load_modules
from runner.experiment.recorded_data_builder import build_held_out_evaluation, check_recorded_data
from runner.experiment.recorded_replay import open_recorded_replay
from runner.experiment.replay_builder import build_replay_buffers
from runner.experiment.replay_memory import measure_replay
from runner.experiment.video_recording import VideoRecorder
from runner.learners.remote_learner_group import Learners
from runner.module_building import (
    BuiltModule,
    ModuleSpec,
    acting_modules,
    build_auxiliary_modules,
    build_module,
    encoding_doubts,
    join_modules,
    learner_device,
    make_module_specs,
)
from runner.pipelines.recorded_episodes import with_held_observations

T = TypeVar("T")

_RECORDED_STEPS = 64


@dataclass(frozen=True)
class Rehearsed:
    """Descriptions of the parts that were made and tried, the parts that only a run makes, and warnings."""

    made: tuple[str, ...]
    not_made: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def rehearse(config: ExperimentConfig) -> Rehearsed:
    """Make environments, pipelines and modules, sample or read some steps, and update on them.

    Raises:
        ConfigError: all problems up to the first that prevents further steps.
    """
    return _Rehearsal(config).run()


class _Rehearsal:
    """One dry run. It collects problems and continues as long as the next part can be made."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = reduced(config)
        self._given = config
        self._problems: list[Problem] = []
        self._cause: Exception | None = None
        self._made: list[str] = []
        self._stores = True  # all parts so far could be written to a checkpoint
        self._not_made = list(_made_elsewhere(config))
        self._warnings: list[str] = []

    def run(self) -> Rehearsed:
        torch.set_num_threads(self._config.learners.torch_num_threads)
        self._try("the device of the learner", lambda: learner_device(self._given))
        parts = self._make_parts()
        if parts is not None:
            self._take_a_step(parts)
            self._try_evaluation(acting_modules(parts))
        if self._problems:
            raise ConfigError(list(dict.fromkeys(self._problems))) from self._cause
        return Rehearsed(tuple(self._made), tuple(self._not_made), tuple(self._warnings))

    def _make_parts(self) -> dict[str, BuiltModule] | None:
        """Make the network and pipelines of each module; return None if one of them cannot be created."""
        config = self._config
        specs = self._try("the environment", self._make_specs) or {}
        made = {
            module_id: self._try(f"module {module_id} and its pipelines", partial(build_module, config, spec))
            for module_id, spec in specs.items()
        }
        built_modules = {module_id: built for module_id, built in made.items() if built is not None}
        if not specs or len(built_modules) < len(specs):
            return None
        joined = self._try("multi_agent.multi_rl_module", lambda: join_modules(config, built_modules))
        if joined is None:
            return None
        auxiliary = self._try("auxiliary modules", lambda: build_auxiliary_modules(config, joined))
        if auxiliary is None:
            return None
        built_modules = joined | auxiliary
        self._made += [config.env.name, *_described(built_modules)]
        self._warnings += encoding_doubts(built_modules)
        callbacks = self._try("callbacks", lambda: build_callbacks(self._given)) or Callbacks()
        self._try("the metrics", lambda: check_metrics(config, built_modules, callbacks))
        self._try("module.load_state_path", lambda: load_modules(config, built_modules))
        if len(callbacks):
            self._store("callbacks", callbacks)
        self._try("a checkpoint", lambda: check_storable({"config": _settings_of(self._given)}))
        for feature in features_of(config):
            self._try(feature.title, partial(feature.make_part, joined))
        return built_modules

    def _make_specs(self) -> dict[str, ModuleSpec]:
        """Return module id -> specification, after checking the requirements of features."""
        specs = make_module_specs(self._config)
        for feature in features_of(self._config):
            feature.check(specs)
        return specs

    def _take_a_step(self, built_modules: Mapping[str, BuiltModule]) -> None:
        rollout = self._try_rollout(built_modules)
        if rollout is None:
            return
        learners = self._try("the learner", lambda: build_learner_group(self._config, built_modules))
        if learners is None:
            return
        added = columns_added_by_plan(self._config)
        if added:
            self._not_made.append(f"an update (operators of the plan add {', '.join(added)})")
        else:
            self._update(learners, rollout)
        self._made += ["one checkpoint, which was read back"] if self._stores else []

    def _update(self, learners: Learners, rollout: Rollout) -> None:
        of_all = rollout.of_modules(None, self._config.multi_agent.auxiliary_modules)
        update = self._try("one update", lambda: learners.update(of_all, rollout.num_env_steps))
        if update is not None:
            compiled = f", compiled in {update.compile_s:.1f} s" if update.compile_s else ""
            self._made.append(f"one update on {rollout.num_env_steps} env steps{compiled}")
            self._store(LEARNERS, learners)

    def _try_rollout(self, built_modules: Mapping[str, BuiltModule]) -> Rollout | None:
        """Return recorded, sampled or replayed env steps, as an update receives them."""
        if ENV_RUNNERS not in needs_of(self._config):
            return self._try("the recorded data", lambda: self._read(built_modules))
        sampled = self._try("one step", lambda: self._sample(built_modules))
        if sampled is None or not self._config.algorithm.replay_buffers:
            return sampled
        return self._try("the replay buffers", lambda: self._replay(built_modules, sampled))

    def _sample(self, built_modules: Mapping[str, BuiltModule]) -> Rollout:
        with first_env_runner(self._config, built_modules) as env_runner:
            rollout = sample_with(env_runner, built_modules)
            self._store(ENV_RUNNERS, env_runner)
            return rollout

    def _store(self, name: str, part: Stateful) -> None:
        """Save a part in a checkpoint, and restore it."""
        num_problems = len(self._problems)
        self._try(f"a checkpoint of {name}", lambda: store_and_restore(name, part))
        self._stores &= len(self._problems) == num_problems

    def _replay(self, built_modules: Mapping[str, BuiltModule], rollout: Rollout) -> Rollout:
        """Store env steps in all buffers, and sample the same number from the first one."""
        self._made += [
            f"replay buffer {one.name} ({one})" for one in measure_replay(self._config, built_modules, rollout)
        ]
        if open_recorded_replay(self._config, built_modules) is not None:
            self._made.append("the first recorded steps")
        buffers = list(build_replay_buffers(self._config, built_modules).values())
        for buffer in buffers:
            buffer.add(rollout)
            self._store(REPLAY_BUFFERS, buffer)
        return buffers[0].sample(rollout.num_env_steps).rollout

    def _read(self, built_modules: Mapping[str, BuiltModule]) -> Rollout | None:
        """Read the first recorded steps; return None if only Ray can read them."""
        sources = check_recorded_data(self._config, built_modules)
        if not sources:
            self._not_made.append("recorded data (only Ray can read it)")
            return None
        held = {
            id_: with_held_observations(
                _first_chunks(source.first_block()), built_modules[id_].env_to_module, built_modules[id_].module
            )
            for id_, source in sources.items()
        }
        self._made.append("the first recorded steps")
        return Rollout(held, max(block.num_rows for block in held.values()))

    def _try_evaluation(self, built_modules: Mapping[str, BuiltModule]) -> None:
        config = self._config
        if config.evaluation.evaluation_interval is not None:
            earlier = list(self._problems)
            sampled = self._try("one step of evaluation", lambda: first_sample(config, built_modules, EVALUATION))
            known = {problem.what for problem in earlier}  # from the training step, which uses the same parts
            self._problems = earlier + [one for one in self._problems[len(earlier) :] if one.what not in known]
            self._made += [] if sampled is None else ["one step of evaluation"]
        if self._given.evaluation.video:
            specs = {module_id: built.spec for module_id, built in built_modules.items()}
            self._try("evaluation.video", lambda: VideoRecorder(self._given, specs).close())
        held_out = self._try("held-out data", lambda: build_held_out_evaluation(config, built_modules))
        self._made += [] if held_out is None else ["held-out data"]

    def _try(self, stage: str, make: Callable[[], T]) -> T | None:
        """Return the result of `make`, or None after recording its error as a problem."""
        try:
            return make()
        except Exception as error:  # user code may raise anything
            self._cause = self._cause or error
            self._problems += _problems_of(error, stage)
            return None


def _made_elsewhere(config: ExperimentConfig) -> Iterator[str]:
    """Yield the parts that only a run makes: in other processes, on other machines, or in other programs."""
    if config.env.is_external and ENV_RUNNERS in needs_of(config):
        yield f"the server at port {config.env.port} (did not wait for simulators)"
    counts = {
        "env runner": config.env_runners.min_env_runners if ENV_RUNNERS in needs_of(config) else 0,
        "evaluation runner": config.evaluation.evaluation_num_env_runners,
        "learner": config.learners.num_learners,
    }
    actors = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count]
    if actors and config.engine == "ray":
        yield f"Ray actors ({', '.join(actors)})"
    steps = steps_of(read_plan(config.algorithm.plan))
    custom = list(dict.fromkeys(step.name for step in steps if step.config is None))
    if custom:
        yield f"calls of {', '.join(custom)}"
    if config.callbacks:
        yield "calls of callbacks"
    if config.tracking.mlflow:
        yield "the MLflow run"


def _settings_of(config: ExperimentConfig) -> dict[str, Any]:
    """Return the configuration blocks with arguments of user-defined classes."""
    return {name: asdict(getattr(config, name)) for name in ("env", "module", "algorithm")}


def _described(built_modules: Mapping[str, BuiltModule]) -> Iterator[str]:
    for module_id, built in built_modules.items():
        name = (
            type(built.module).__name__ if built.spec.agents is None else f"{module_id}: {type(built.module).__name__}"
        )
        num_parameters = sum(parameter.numel() for parameter in built.module.parameters())
        yield f"{name} ({num_parameters:,} parameters) and its pipelines"
    together = next(iter(built_modules.values())).together
    if together is not None:
        num_parameters = sum(parameter.numel() for parameter in together.parameters())
        yield f"{type(together).__name__} of {', '.join(built_modules)} ({num_parameters:,} parameters in all)"


def _first_chunks(block: ColumnBlock) -> ColumnBlock:
    """Return the first chunks of a block, with `_RECORDED_STEPS` steps or slightly more."""
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
    return [problem_of(error, stage)]
