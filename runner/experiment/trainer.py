"""The trainer: all parts of an experiment, trained one iteration at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.callbacks import build_callbacks
from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import newest_checkpoint
from runner.checkpoints.trust import StoredValues
from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.errors import Problem, UserError, nearest_match
from runner.config.metrics import NUM_RESTARTS
from runner.config.plans.steps import read_plan
from runner.config.references import Digests
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.experiment.build import build_run
from runner.experiment.checkpointing import restore, state_of
from runner.experiment.evaluation_schedule import TrainedIteration
from runner.experiment.notes import Notes
from runner.interrupts import Interrupted, PartialIteration, is_overdue
from runner.learners.remote_learner_group import Learners
from runner.module_building import ModuleSpec
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.shown_pipelines import ShownPipelines
from runner.plans import IterationEnd, NotReady, Result
from runner.plans.shown_plan import ShownPlan

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded
    from runner.tracking.run_info import DataSet

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerProvenance:
    """The configuration and checkpoint that a trainer was made from; `runner.fit` records them.

    Attributes:
        composed: values and sources of the configuration.
        checkpoint: checkpoint that the trainer resumes, or None for a new run.
        is_trusted: whether to follow the files next to the checkpoint, whoever wrote them.
    """

    composed: Composed
    checkpoint: Path | None = None
    is_trusted: bool = False


class Trainer:
    """Trains a policy according to a configuration.

    `train` trains one iteration. The loop around it is `Run.train_until_stopped`; `runner.fit` calls that from Python.

    Args:
        config: configuration of the experiment, complete and checked.
        loads_modules: whether to load the parameters that `module.load_state_path` names; false if `set_state` follows.
        note: prints a line for the user, for example while the run waits. None means that such lines are logged.
        run_dir: folder that env runners write files to, or None.
        provenance: origin of the configuration, or None if it is a dataclass.

    Attributes:
        parts: everything with state: learners, env runners, recorded data, replay buffers, and more.
        context: the environment of the plan's operators.
        evaluator: evaluates the policy in episodes and on held-out data, and records videos of it.
        addresses: `host:port` where external simulators connect; empty if env runners step the environments.
        last_result: metrics of the newest iteration, also if its evaluation failed.
        loaded_modules: modules whose parameters were loaded from other runs.
        callbacks: callbacks of the driver.
        notes: lines for the user.
        provenance: origin of the configuration.
        replay_memory: memory of each replay buffer once it is full.

    Raises:
        ConfigError: a part cannot be built (environment, pipeline, module, cluster resources), or replay buffers need
            more memory than there is.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        loads_modules: bool = True,
        note: Callable[[str], None] | None = None,
        run_dir: Path | None = None,
        provenance: TrainerProvenance | None = None,
    ) -> None:
        self.config, self.provenance, self.notes = config, provenance, Notes(note)
        self.callbacks = build_callbacks(config, trainer=self)
        run = build_run(config, self.callbacks, self.notes, loads_modules, run_dir)
        self.parts, self._plan, self.context, self._resources = run.parts, run.plan, run.plan.context, run.resources
        self._evaluations, self.evaluator = run.evaluations, run.evaluations.evaluator
        self._built_modules, self.loaded_modules = run.built_modules, run.loaded_modules
        self.addresses, self.replay_memory = run.addresses, run.replay_memory
        self._inputs = run.inputs
        composed = None if provenance is None else provenance.composed
        self._digests = Digests({}, {}) if composed is None else Digests(composed.references, composed.values)
        self.last_result: Result = {}
        self._num_restarts = 0

    @classmethod
    def from_experiment(cls, name: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Trainer:
        """Make the trainer of `conf/experiment/<name>.yaml`, or of a file in `config_dir`, with overrides."""
        composed = compose_experiment(
            [f"+experiment={name}", *overrides], None if config_dir is None else Path(config_dir)
        )
        config = build_experiment_config(composed)
        _warn_of_renamed_keys(composed)
        return cls(config, provenance=TrainerProvenance(composed))

    @classmethod
    def from_checkpoint(cls, folder: str | Path, overrides: Sequence[str] = (), trust: bool = False) -> Trainer:
        """Make a trainer that continues exactly from a checkpoint.

        Args:
            folder: a checkpoint, or a run dir, whose newest checkpoint is used.
            overrides: overrides of single keys, as on the command line.
            trust: whether to follow the configuration whatever it imports, contacts and reads, even from
                an untrusted source.

        Raises:
            CheckpointError: the checkpoint is truncated or altered.
            UntrustedError: the checkpoint is not signed with your key and needs permissions beyond computing.
            UserError: the folder does not contain a checkpoint.
        """
        checkpoint = newest_checkpoint(Path(folder).absolute())
        state, manifest = load_checkpoint(checkpoint)
        stored = StoredValues.of(checkpoint, manifest, trust).compose(overrides)
        provenance = TrainerProvenance(stored, checkpoint, trust)
        config = build_experiment_config(stored)
        _warn_of_renamed_keys(stored)
        trainer = cls(config, loads_modules=False, provenance=provenance)
        try:
            trainer.set_state(state)
            trainer.last_result = dict(manifest.get("result", {}))
        except BaseException:
            trainer.close()
            raise
        return trainer

    # -- training --------------------------------------------------------------------------------------------------

    def train(self) -> Result:
        """Train one iteration: step the plan until it ends the iteration, then evaluate if an evaluation is due.

        Returns:
            Metric -> value, with names joined by slashes; None if there is nothing to average yet.

        Raises:
            RunFailure: an environment, a loss or an env runner failed; earlier iterations are kept.
            Interrupted: the run was asked to end while it waited for simulators, or during an evaluation.
            PartialIteration: the run was asked to end in the middle of an iteration, while it waited for asynchronous
                env runners or more than `PATIENCE_S` ago. The next `train` continues the iteration.
        """
        with self._errors_reported():
            trained = self._evaluations.start(self.parts)
            if trained is None:  # else only its interrupted evaluation is repeated
                self.parts.metrics.begin_iteration()
                while not isinstance(found := self._plan.root.step(), IterationEnd):
                    if isinstance(found, NotReady):
                        self.context.wait(found)
                    if is_overdue() and self._plan.can_be_saved:
                        raise PartialIteration
                trained = TrainedIteration(self.parts.end_iteration(self.context.plan_metrics()))
            self.last_result = trained.result
            self._evaluations.finish_iteration(trained, self.parts)
            if not trained.is_reported:
                self._report(trained.result)
            return trained.result

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Report errors in this context to callbacks; the next `train` continues an iteration that was stopped."""
        try:
            yield
        except Interrupted as stop:
            if isinstance(stop, PartialIteration) and self._plan.can_be_saved:
                self.parts.metrics.stop_midway()
            self.evaluator.abandon()
            raise
        except Exception as error:
            try:
                self.callbacks.call("on_exception", error=error)
            except Exception as failure:  # report the first error
                _log.warning("%s", failure)
            raise

    def _report(self, result: Result) -> None:
        """Call the callbacks after an iteration, and add the metrics that the driver's callbacks reported."""
        restarts = int(result.get(NUM_RESTARTS) or 0)
        if restarts > self._num_restarts:
            self.callbacks.call("on_env_runners_recreated", num_restarts=restarts - self._num_restarts)
        self._num_restarts = restarts
        self.callbacks.call("on_train_result", result=result)
        self._add_reported(result)

    def _add_reported(self, result: Result) -> None:
        for name, reduced in self.callbacks.take_metrics().items():
            if reduced.weight or name not in result:
                result[name] = reduced.result

    def evaluate(self, num_episodes: int | None = None) -> Result:
        """Evaluate exactly `num_episodes` complete episodes, always with the same seeds, and return their metrics.

        Args:
            num_episodes: number of episodes, or None for the configured duration, in episodes or env steps.
        """
        return self.evaluator.evaluate(self.parts, num_episodes)

    def evaluate_at_end(self, result: Result) -> None:
        """Add the evaluations at the end of a run to the result of its last iteration, unless it already has them.

        Raises:
            Interrupted: the run was asked to end; `train` then returns the same result, and it can be called again.
        """
        self._evaluations.finish_iteration(TrainedIteration(result, is_reported=True), self.parts, is_last=True)
        self._add_reported(result)

    def finish_recording(self) -> Recorded | None:
        """Finish the files of recorded episodes; return None if none are recorded.

        Raises:
            RunFailure: recorded episodes could not be written.
        """
        if self.config.offline.output is None or self.parts.env_runners is None:
            return None
        return self.parts.env_runners.finish_recording()

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next iteration depends on: nested dicts of arrays, plain values and segments."""
        return state_of(self.parts, self._plan, self._digests)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        If the number of env runners, the number of sub-environments or the environment differs, running episodes cannot
        continue: new ones start with new seeds, and everything else is restored. Different recorded data is read from
        its start.

        Raises:
            ConfigError: the state belongs to another network.
        """
        for text in restore(self.parts, self._plan, self._digests, state):
            self.notes.warn(text)
        self._num_restarts = 0 if self.parts.env_runners is None else self.parts.env_runners.num_restarts
        self.callbacks.call("on_checkpoint_loaded")

    def note_checkpoint(self, checkpoint: Path) -> None:
        """Remember the newest checkpoint of this trainer, from which another call of `runner.fit` resumes."""
        if self.provenance is not None:
            self.provenance = replace(self.provenance, checkpoint=checkpoint)

    def close(self) -> None:
        """Close environments and runners, and leave the Ray cluster if this trainer joined or started it."""
        self._resources.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- views -----------------------------------------------------------------------------------------------------

    @property
    def training_iteration(self) -> int:
        """Number of completed iterations."""
        return self.parts.metrics.training_iteration

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the newest iteration is trained and the next `train` only repeats its evaluation."""
        return self._evaluations.interrupted is not None

    @property
    def learners(self) -> Learners:
        """The learners of all modules."""
        return self.parts.learners

    @property
    def env_runners(self) -> EnvRunnerGroup:
        """The env runners that sample; empty for runs that learn only from recorded data."""
        return self.context.env_runners

    @property
    def module_specs(self) -> list[ModuleSpec]:
        """The specification of each module: its agents, spaces and configuration blocks."""
        return [built.spec for built in self._built_modules.values()]

    @property
    def plan(self) -> ShownPlan:
        """The execution plan, which prints as a tree and is drawn in notebooks."""
        return ShownPlan(read_plan(self.config.algorithm.plan))

    def pipelines(self, module_id: str = DEFAULT_MODULE_ID) -> ShownPipelines:
        """Return the connector pipelines of a module, which are drawn in notebooks.

        Raises:
            UserError: the module does not exist.
        """
        if module_id not in self._built_modules:
            what, expected = f"{module_id} is not a module of this run", ", ".join(self._built_modules)
            nearest = nearest_match(module_id, self._built_modules)
            raise UserError(Problem(what, "Trainer.pipelines", module_id, expected, nearest))
        parts = self._built_modules[module_id]
        return ShownPipelines(parts.env_to_module, parts.module_to_env, parts.learner)

    def data_sets(self) -> list[DataSet]:
        """Return the recorded data that the run learns from, and the held-out data."""
        from runner.offline.reading.source import recorded_data_set

        return [recorded_data_set(*one) for one in self._inputs]


def _warn_of_renamed_keys(composed: Composed) -> None:
    for note in composed.notes:
        _log.warning("%s", note)
