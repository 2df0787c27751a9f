"""The trainer: all parts of an experiment, one iteration at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runner.callbacks import build_callbacks
from runner.checkpoints import load_checkpoint
from runner.checkpoints.trust import StoredValues
from runner.closing import close_each
from runner.config.callbacks import with_evaluation
from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.errors import Problem, RunFailure, UserError, nearest_match
from runner.config.info_metrics import read_info_metrics
from runner.config.metrics import NUM_RESTARTS, check_metric_names
from runner.config.offline_evaluation import NUM_EPISODES
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans import needs_of, read_plan
from runner.config.references import Digests
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.experiment.build import build_context, build_run_parts
from runner.experiment.checkpointing import restore, restore_policy, state_of
from runner.experiment.env_runner_builder import EVALUATION, TRAINING
from runner.experiment.evaluator import EvaluatedPolicy, Evaluator
from runner.experiment.features import features_of
from runner.experiment.learner_builder import check_local_gpus
from runner.experiment.loaded_modules import load_modules, shared_states
from runner.experiment.missing_infos import MissingInfos
from runner.experiment.ray_resources import is_held_out_read_by_ray, ray_cluster
from runner.experiment.recorded_data_builder import build_held_out_evaluation, check_recorded_data
from runner.experiment.recorded_replay import open_recorded_replay
from runner.experiment.replay_memory import measure_replay
from runner.interrupts import Interrupted, PartialIteration, is_overdue
from runner.learners.remote_learner_group import Learners
from runner.module_parts import ModuleParts, ModuleSpec, build_parts, encoding_doubts, reported_metrics
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.shown_pipelines import ShownPipelines
from runner.plans import IterationEnd, NotReady, PlanEnded, Result, RunMetrics, make_plan
from runner.plans.shown_plan import ShownPlan
from runner.rows.finished_episodes import FinishedEpisodes
from runner.tracking.headline import EVALUATION_RETURN

if TYPE_CHECKING:
    from runner.experiment.recorded_data_builder import HeldOut
    from runner.offline.reading.recorded_source import RecordedSource
    from runner.offline.writing.recorder import Recorded
    from runner.tracking import DataSet

_log = logging.getLogger(__name__)
_EVALUATION = "evaluation"  # in checkpoints


@dataclass(frozen=True)
class TrainerProvenance:
    """What a trainer was made from; `runner.fit` records it.

    Attributes:
        composed: values and sources of the configuration.
        checkpoint: checkpoint that the trainer resumes, or None for a new run.
        is_trusted: whether to follow the files next to the checkpoint, whoever wrote them.
    """

    composed: Composed
    checkpoint: Path | None = None
    is_trusted: bool = False


@dataclass(frozen=True)
class UnfinishedIteration:
    """An iteration that is trained, before its evaluations have ended.

    Attributes:
        result: its metrics so far.
        is_told: whether callbacks know the result.
    """

    result: Result
    is_told: bool = False


class Trainer:
    """Trains a policy according to a configuration.

    `train` trains one iteration. The loop around it is `Run.train_until_stopped`; `runner.fit` calls that from Python.

    Args:
        config: configuration of the experiment, complete and checked.
        recorded_role: if `offline.output` names a folder, the role of the env runners whose episodes are recorded:
            `TRAINING` or `EVALUATION`.
        loads_modules: whether to load the parameters that `module.load_state_path` names; false if `set_state` follows.
        note: prints a line for the user, for example while the run waits. None means that such lines are logged.
        run_dir: folder that env runners write files to, or None.
        provenance: what the configuration was made from, or None if it is a dataclass.

    Attributes:
        parts: everything with state: learners, env runners, recorded data, replay buffers, and more.
        addresses: `host:port` where external simulators connect; empty if env runners step the environments.
        last_result: metrics of the newest iteration, also if its evaluation failed.
        loaded_modules: modules whose parameters were loaded from other runs.
        callbacks: callbacks of the driver.
        provenance: what the configuration was made from.
        replay_memory: memory of each replay buffer once it is full; empty if the trainer only evaluates.

    Raises:
        ConfigError: a part cannot be built (environment, pipeline, module, cluster resources), or replay buffers take
            more memory than there is.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        recorded_role: str = TRAINING,
        loads_modules: bool = True,
        note: Callable[[str], None] | None = None,
        run_dir: Path | None = None,
        provenance: TrainerProvenance | None = None,
    ) -> None:
        self.config = config
        self.provenance = provenance
        self._run_dir = run_dir
        self._warn = _log.warning if note is None else note
        self._recorded_role = recorded_role if config.offline.output is not None else None
        torch.set_num_threads(config.learners.torch_num_threads)
        check_local_gpus(config)
        self._module_parts = build_parts(config)
        self.loaded_modules = load_modules(config, self._module_parts) if loads_modules else []
        self.callbacks = build_callbacks(config, trainer=self)
        self._check_parts(trains=recorded_role == TRAINING)
        self.replay_memory = measure_replay(config, self._module_parts) if recorded_role == TRAINING else []
        needs = needs_of(config)
        recorded = check_recorded_data(config, self._module_parts) if RECORDED_DATA in needs else {}
        self._recorded_replay = open_recorded_replay(config, self._module_parts)
        # Mistakes are told before Ray is started, where it is not needed to find them.
        reads_by_ray = is_held_out_read_by_ray(config)
        held_out = None if reads_by_ray else build_held_out_evaluation(config, self._module_parts)
        _check_other_processes(config, self._module_parts)
        if RECORDED_DATA in needs and note is not None:
            _tell_what_is_read(config, recorded, note)
        self._cluster = ExitStack()
        try:
            self._cluster.enter_context(ray_cluster(config, note or _log.info))
            if reads_by_ray:
                held_out = build_held_out_evaluation(config, self._module_parts)
            self._build(config, recorded, held_out)
        except BaseException:
            self.close()
            raise

    def _check_parts(self, trains: bool) -> None:
        """Find the metrics out of infos. For training check the names of all metrics, and warn of doubtful images."""
        agents = {spec.module_id: spec.agents for spec in self.module_specs if spec.agents}
        self._of_infos = read_info_metrics(self.config, agents)
        if trains:
            for doubt in encoding_doubts(self._module_parts):
                self._tell(doubt)
            of_connectors = reported_metrics(self.config, self._module_parts)
            of_callbacks = with_evaluation(self.callbacks.reported_metrics, self.config)
            check_metric_names(self.config, agents, of_connectors, of_callbacks)

    def _build(
        self, config: ExperimentConfig, recorded: Mapping[str, RecordedSource], held_out: HeldOut | None
    ) -> None:
        """Build the parts that may be in other processes."""
        needs, evaluation = needs_of(config), config.evaluation
        records_evaluations = self._recorded_role == EVALUATION
        self._missing_infos = MissingInfos(self._of_infos, self._tell)
        self._evaluator = Evaluator(
            config, self._module_parts, held_out, records_evaluations, self._of_infos, self._missing_infos, self._tell
        )
        takes_all_room = RECORDED_DATA in needs or config.env_runners.is_elastic  # Ray Data, for reading, or runners
        if takes_all_room and evaluation.evaluation_interval and evaluation.evaluation_num_env_runners:
            self._evaluator.build_env_runners()
        smoothing = config.env_runners.metrics_num_episodes_for_smoothing
        self._metrics = RunMetrics(smoothing, ENV_RUNNERS in needs, self._warn_of_outside, self._of_infos)
        is_recording = self._recorded_role == TRAINING
        self.parts = build_run_parts(
            config, self._module_parts, self._metrics, self.callbacks, is_recording, self._run_dir, recorded
        )
        self.context = build_context(config, self._module_parts, self.parts)
        composed = None if self.provenance is None else self.provenance.composed
        self._digests = Digests({}, {}) if composed is None else Digests(composed.references, composed.values)
        if self._recorded_replay is not None:
            self._recorded_replay.fill(self.context.replay_buffers, self._module_parts[DEFAULT_MODULE_ID])
        self.addresses = self.env_runners.addresses() if ENV_RUNNERS in needs else []
        self.parts.broadcast_policy(shared_states(self.loaded_modules) if self.loaded_modules else {})
        self.parts.begin()
        self.last_result: Result = {}
        self._unfinished: UnfinishedIteration | None = None
        self._parallel_policy: EvaluatedPolicy | None = None
        self._num_restarts = 0
        if config.evaluation.video:  # what cannot be filmed is told before anything is trained
            self._evaluator.make_filmer()
        self._plan = make_plan(self.context)

    def _tell(self, text: str) -> None:
        """Show a line as it is shown now: `noting` changes that."""
        self._warn(text)

    def _warn_of_outside(self, problem: Problem) -> None:
        self._warn(
            f"{self.config.env.name}: {problem.what}: {problem.got}, expected {problem.expected} ({problem.where}); "
            "env.validate_observations=warn goes on, num_observations_outside_space counts such observations"
        )

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
        """Make a trainer that goes on exactly where a checkpoint was written.

        Args:
            folder: of the checkpoint.
            overrides: of single keys, as on the command line.
            trust: follow the configuration, whatever it imports, contacts and reads, also if somebody else wrote it.

        Raises:
            CheckpointError: the checkpoint is cut off or altered.
            UntrustedError: somebody else wrote the checkpoint, and it asks for more than computing.
        """
        checkpoint = Path(folder).absolute()
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

    @property
    def training_iteration(self) -> int:
        """Number of iterations done."""
        return self._metrics.training_iteration

    @property
    def is_partial_iteration(self) -> bool:
        """Whether an iteration has begun that a resumed run ends."""
        return self._metrics.is_partial_iteration

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the newest iteration is trained, and the next `train` repeats its evaluation from the start."""
        return self._unfinished is not None

    @property
    def module_specs(self) -> list[ModuleSpec]:
        """The specification of each module: its agents, its spaces and its blocks of the configuration."""
        return [module_parts.spec for module_parts in self._module_parts.values()]

    @property
    def plan(self) -> ShownPlan:
        """The execution plan, which prints as a tree and which a notebook draws."""
        return ShownPlan(read_plan(self.config.algorithm.plan))

    def pipelines(self, module_id: str = DEFAULT_MODULE_ID) -> ShownPipelines:
        """Return the connector pipelines of a module, which a notebook draws.

        Raises:
            UserError: there is no such module.
        """
        if module_id not in self._module_parts:
            nearest = nearest_match(module_id, list(self._module_parts))
            problem = Problem(
                "there is no such module", "Trainer.pipelines", module_id, ", ".join(self._module_parts), nearest
            )
            raise UserError(problem.render_alone())
        parts = self._module_parts[module_id]
        return ShownPipelines(parts.env_to_module, parts.module_to_env, parts.learner)

    def train(self) -> Result:
        """Train one iteration: step the plan until it ends the iteration, then evaluate if an evaluation is due.

        Returns:
            Metric -> value, names joined with slashes; None if there is nothing to average yet.

        Raises:
            RunFailure: an environment, a loss or an env runner failed; earlier iterations are kept.
            Interrupted: the run was asked to end while it waited for simulators, or during an evaluation.
            PartialIteration: the run was asked to end more than `PATIENCE_S` ago, in the middle of an iteration.
        """
        with self._errors_reported():
            unfinished, self._unfinished = self._unfinished, None
            evaluation = self._evaluation_in_parallel(unfinished)
            if unfinished is None:
                self._metrics.begin_iteration()
                while not isinstance(found := self._plan.root.step(), IterationEnd):
                    if isinstance(found, NotReady):
                        self.context.wait(found)
                    if is_overdue() and self._plan.can_be_saved:
                        self._metrics.stop_midway()
                        raise PartialIteration
                unfinished = UnfinishedIteration(self.parts.end_iteration(self.context.plan_metrics()))
            return self._evaluated(unfinished, evaluation)

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Report errors of an iteration within to callbacks."""
        try:
            try:
                yield
            except PlanEnded as end:
                raise RunFailure(Problem("the plan has ended: it gives no more items", "algorithm.plan")) from end
        except Interrupted:
            self._evaluator.abandon()
            raise
        except Exception as error:
            try:
                self.callbacks.call("on_exception", error=error)
            except Exception as failure:  # the first error is the one to report
                _log.warning("%s", failure)
            raise

    def note_checkpoint(self, checkpoint: Path) -> None:
        """Note the newest checkpoint of this trainer, from which another call of `runner.fit` resumes."""
        if self.provenance is not None:
            self.provenance = replace(self.provenance, checkpoint=checkpoint)

    @contextmanager
    def noting(self, note: Callable[[str], None]) -> Iterator[None]:
        """Show lines about waiting, or about an observation outside of its space, with `note` within."""
        before, self._warn = self._warn, note
        try:
            yield
        finally:
            self._warn = before

    def _evaluated(self, unfinished: UnfinishedIteration, wait: Callable[[], FinishedEpisodes] | None) -> Result:
        """Return the result of a trained iteration with the evaluations that are due; `wait` for one in parallel."""
        evaluation = self.config.evaluation
        result = self.last_result = unfinished.result
        iteration = self.training_iteration
        with self.kept_if_interrupted(result, unfinished.is_told):
            if _is_due(evaluation.evaluation_interval, iteration) and EVALUATION_RETURN not in result:
                result |= self._evaluator.evaluate(self.parts, wait=wait)
            self._parallel_policy = None
            if _is_due(evaluation.offline_evaluation_interval, iteration) and NUM_EPISODES not in result:
                result |= self.evaluate_offline()
        if self._metrics.num_episodes_lifetime:
            self._missing_infos.warn_once(self._metrics.infos, self._metrics.info_keys)
        if not unfinished.is_told:
            self._tell_result(result)
        return result

    def _evaluation_in_parallel(self, unfinished: UnfinishedIteration | None) -> Callable[[], FinishedEpisodes] | None:
        """Begin the evaluation that runs in parallel to this iteration, or return None if there is none.

        If it was interrupted it is repeated with the policy of the iteration's start.

        Args:
            unfinished: iteration that is trained already, or None.
        """
        if unfinished is not None and self._parallel_policy is None:
            return None
        iteration = self.training_iteration + (unfinished is None)
        evaluation = self.config.evaluation
        if not (evaluation.evaluation_parallel_to_training and _is_due(evaluation.evaluation_interval, iteration)):
            return None
        repeated = self._parallel_policy
        self._parallel_policy = repeated or EvaluatedPolicy.of(self.parts)
        return self._evaluator.submit(self.parts, repeated=repeated)

    @contextmanager
    def kept_if_interrupted(self, result: Result, is_told: bool = True) -> Iterator[None]:
        """Keep the result of a trained iteration if its evaluation within is interrupted; `train` then repeats that.

        Args:
            result: of the iteration, so far.
            is_told: whether callbacks know it.
        """
        try:
            yield
        except Interrupted:
            self._unfinished = UnfinishedIteration(result, is_told)
            raise

    def _tell_result(self, result: Result) -> None:
        """Call the callbacks after an iteration, and add the metrics that those of the driver reported."""
        restarts = int(result.get(NUM_RESTARTS) or 0)
        if restarts > self._num_restarts:
            self.callbacks.call("on_env_runners_recreated", num_restarts=restarts - self._num_restarts)
        self._num_restarts = restarts
        self.callbacks.call("on_train_result", result=result)
        self.add_reported(result)

    def add_reported(self, result: Result) -> None:
        """Add to an iteration's result what the driver's callbacks have reported since the last one."""
        for name, reduced in self.callbacks.take_metrics().items():
            if reduced.weight or name not in result:
                result[name] = reduced.result

    def evaluate(self, num_episodes: int | None = None) -> Result:
        """Evaluate exactly `num_episodes` whole episodes, always with the same seeds, and return their metrics.

        Args:
            num_episodes: None: the configured duration, in episodes or env steps.
        """
        return self._evaluator.evaluate(self.parts, num_episodes)

    @property
    def has_held_out_data(self) -> bool:
        """Whether there are data for `evaluate_offline`."""
        return self._evaluator.held_out is not None

    def evaluate_offline(self, num_env_steps: int | None = None) -> Result:
        """Evaluate the policy on held-out recorded data (`evaluation.offline_evaluation_...`), and return metrics.

        Args:
            num_env_steps: env steps for schedules of the loss; None: all env steps sampled so far.
        """
        return self._evaluator.evaluate_offline(self.parts, num_env_steps)

    def film(self, paths: Sequence[Path], num_episodes: int) -> FinishedEpisodes:
        """Film whole episodes of the policy as it is.

        Args:
            paths: of the files, .mp4 or .gif, which all show the same episodes; without any a window shows them.
            num_episodes: one after the other in each file.

        Raises:
            ConfigError: the environment cannot be filmed.
            UserError: a file cannot be written.
        """
        return self._evaluator.film(self.parts, paths, num_episodes)

    def data_sets(self) -> list[DataSet]:
        """Return the recorded data that the run learns from, and the held-out data."""
        from runner.offline.reading.source import recorded_data_set

        found = []
        if self.parts.recorded_data is not None:
            found.append(recorded_data_set(self.parts.recorded_data.source, self.config.offline, "training"))
        if self._recorded_replay is not None:
            found.append(recorded_data_set(self._recorded_replay.source, self.config.offline, "training"))
        if self._evaluator.held_out is not None:
            held_out = self._evaluator.held_out.source
            found.append(recorded_data_set(held_out, held_out.config, "evaluation"))
        return found

    def finish_recording(self) -> Recorded | None:
        """Finish the files of recorded episodes; None if none are recorded.

        Raises:
            RunFailure: recorded episodes are not on disk.
        """
        if self._recorded_role is None:
            return None
        if self._recorded_role == EVALUATION:
            return self._evaluator.finish_recording()
        return None if self.parts.env_runners is None else self.parts.env_runners.finish_recording()

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next iteration depends on: nested dicts of arrays, plain values and segments."""
        return state_of(self.parts, self._plan, self._digests) | self._evaluation_state()

    def _evaluation_state(self) -> dict[str, Any]:
        """Return what an interrupted evaluation is repeated with; empty if there is none."""
        unfinished, policy = self._unfinished, self._parallel_policy
        state = {
            **({} if unfinished is None else {"iteration": vars(unfinished)}),
            **({} if policy is None else {"policy": vars(policy)}),
        }
        return {_EVALUATION: state} if state else {}

    def _set_evaluation_state(self, state: Mapping[str, Any]) -> None:
        iteration, policy = state.get("iteration"), state.get("policy")
        self._unfinished = None if iteration is None else UnfinishedIteration(**iteration)
        self._parallel_policy = None if policy is None else EvaluatedPolicy(**policy)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`.

        With another number of env runners or sub-environments, or another environment, the running episodes cannot
        go on: new ones start with new seeds, everything else stands. Other recorded data are read from their start.

        Raises:
            ConfigError: the state is of another network.
        """
        notes = restore(self.parts, self._plan, self._digests, state)
        self._num_restarts = 0 if self.parts.env_runners is None else self.parts.env_runners.num_restarts
        self._set_evaluation_state(state.get(_EVALUATION, {}))
        for text in notes:
            self._warn(text)
        self.callbacks.call("on_checkpoint_loaded")

    def set_policy_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of the policy: parameters and the state of connectors that runners share.

        Raises:
            ConfigError: the state is of another network.
        """
        restore_policy(self.parts, state)

    @property
    def learners(self) -> Learners:
        """The learners of all modules."""
        return self.parts.learners

    @property
    def env_runners(self) -> EnvRunnerGroup:
        """The runners that sample; runs that learn from recorded data alone have none."""
        return self.context.env_runners

    @property
    def evaluation_runners(self) -> EnvRunnerGroup | None:
        """The runners that evaluate; None before the first evaluation."""
        return self._evaluator.env_runners

    def close(self) -> None:
        """Close environments and runners, and leave the Ray cluster if this trainer joined or started it."""
        built = (getattr(self, name, None) for name in ("parts", "_evaluator"))  # None where building it failed
        close_each([*built, self._cluster])

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _warn_of_renamed_keys(composed: Composed) -> None:
    for note in composed.notes:
        _log.warning("%s", note)


def _tell_what_is_read(
    config: ExperimentConfig, recorded: Mapping[str, RecordedSource], note: Callable[[str], None]
) -> None:
    from runner.offline.reading.source import start_text

    note(start_text(config, next(iter(recorded.values()), None)))


def _check_other_processes(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> None:
    for feature in features_of(config):
        feature.check({module_id: of_module.spec for module_id, of_module in parts.items()})
    if config.offline.is_written_by_ray:
        from runner.offline.writing.output_formats import check_output_options

        check_output_options(config.offline)


def _is_due(interval: int | None, iteration: int) -> bool:
    return interval is not None and iteration % interval == 0
