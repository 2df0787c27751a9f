"""Evaluate on held-out recorded data: the algorithm's loss, and off-policy estimates of the policy's value.

The evaluation uses separate copies of module, loss and pipelines, with the state of the training. It does not change
the results of the training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from runner.config.errors import ConfigError, Problem, list_names
from runner.config.offline_evaluation import EVAL_LOSS, PREFIX, evaluation_types, fitted_q_config, off_policy_methods
from runner.config.schemas import ExperimentConfig
from runner.episodes.columns import REWARDS, ColumnBlock
from runner.episodes.rollout_parts import take_chunks
from runner.interrupts import end_overdue_evaluation
from runner.learners.loss import Loss
from runner.offline.codecs.layout import Spaces
from runner.offline.evaluation.estimators import times_of
from runner.offline.evaluation.held_out_loss import MeanLoss, inputs_pipeline, writable
from runner.offline.evaluation.policy_evaluation import (
    DIRECT_METHOD,
    RATIO_METHODS,
    PolicyEstimate,
    check_methods,
    evaluate_policy,
)
from runner.offline.evaluation.recorded_actions import BlockReader, ModuleInputs, check_block, device_of
from runner.offline.reading.source import open_source
from runner.offline.training.preflight import check_action_units, check_trajectories
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTION_LOGP, IS_FIRST, STATE_IN, STATE_OUT
from runner.pipelines.learner_connectors import AddColumnsFromEpisodesToTrainBatch
from runner.pipelines.recorded_episodes import with_held_observations
from runner.pipelines.requirements import Requirements
from runner.streams import integer_seed, random_stream

if TYPE_CHECKING:
    from runner.module_building import BuiltModule
    from runner.offline.formats.selection import ModuleAgents
    from runner.offline.reading.recorded_source import RecordedSource


_INPUT = "evaluation.offline_evaluation_input_"
_TYPE = "evaluation.offline_evaluation_type"
_STREAM = "offline_evaluation"
_NUM_TRIED = 4  # episodes evaluated as a test before training starts

Metrics = dict[str, float | int | None]


class HeldOutEvaluation:
    """Evaluation configured by `evaluation.offline_evaluation_...`.

    Every evaluation reads the data again, in blocks. Off-policy estimates with a model hold all observations.

    Args:
        config: the experiment; `offline.input_...` configures how data are read.
        built: module and pipelines used only by this evaluation.
        loss: loss used only by this evaluation.
        of_module: agent whose episodes are read, in multi-agent experiments.

    Raises:
        ConfigError: the data cannot be read, do not fit the environment, or lack columns for the loss, `action_logp`
            for ratios, or trajectories for estimates; or a method does not support the module.
    """

    def __init__(
        self, config: ExperimentConfig, built: BuiltModule, loss: Loss, of_module: ModuleAgents | None = None
    ) -> None:
        self._config, self._built, self._loss = config, built, loss
        self._gamma = built.spec.algorithm.gamma
        self._stream_name = _STREAM if of_module is None else f"{_STREAM}/{'+'.join(of_module.agents)}"
        evaluation = config.evaluation
        self._has_loss = EVAL_LOSS in evaluation_types(evaluation)
        self._methods = off_policy_methods(evaluation)
        self._fitted_q = fitted_q_config(evaluation.offline_evaluation_q_model_config)
        self._module = built.module.eval()
        for pipeline in (built.env_to_module, built.learner):
            pipeline.freeze()
        with _naming_data_keys():
            offline = replace(config.offline, input_=evaluation.offline_evaluation_input_)
            spaces = Spaces(built.spec.observation_space, built.spec.action_space)
            self._source = open_source(offline, spaces, of_module=of_module)
            if self._methods:
                self._inputs = inputs_pipeline(built.learner, self._module)
            self._check(self._source.first_block())

    @property
    def source(self) -> RecordedSource:
        """Source of the held-out data."""
        return self._source

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(
        self, learners_state: Mapping[str, Any], shared_state: Mapping[str, Any], num_env_steps: int
    ) -> Metrics:
        """Return the metrics of the current policy; None replaces numbers that are not finite.

        Equal policies get equal metrics: every call uses the same minibatches, resamples and sampled actions.

        Args:
            learners_state: state of the learners and their pipelines, as in a checkpoint.
            shared_state: module id -> state of the connectors that env runners share.
            num_env_steps: env steps sampled so far, for schedules.

        Raises:
            ConfigError: later episodes cannot be evaluated, unlike the first ones.
            RunFailure: the fitted action values are not finite.
        """
        self._take_over(learners_state, shared_state, num_env_steps)
        loss = MeanLoss(self._module, self._loss, self._built.learner)
        recorded = _RecordedReturns(self._gamma)
        estimates: dict[str, PolicyEstimate] = {}
        with self._torch_stream_kept(), _naming_data_keys():
            blocks = self._read(loss, recorded)
            if self._methods:
                estimates = self._estimates(blocks)
            else:
                for _ in blocks:
                    pass
        metrics: Metrics = {"eval_loss": _finite(loss.mean)} if self._has_loss else {}
        metrics |= recorded.metrics(has_return=bool(self._methods))
        for name, one in estimates.items():
            numbers = {"": one.estimate, "_low": one.low, "_high": one.high}
            numbers["_effective_sample_size"] = one.effective_sample_size
            metrics |= {f"{name}{part}": _finite(number) for part, number in numbers.items()}
        return {f"{PREFIX}{name}": value for name, value in metrics.items()}

    def _take_over(
        self, learners_state: Mapping[str, Any], shared_state: Mapping[str, Any], num_env_steps: int
    ) -> None:
        learner_state = learners_state["learners"][self._built.spec.module_id]
        self._module.load_state_dict({name: torch.as_tensor(value) for name, value in learner_state["module"].items()})
        self._loss.set_state(learner_state["modules"][self._built.spec.module_id]["loss"])
        self._loss.use_stream(self._stream("loss"))
        self._loss.before_update(num_env_steps)
        self._built.learner.set_state(learners_state["pipelines"][self._built.spec.module_id])
        self._built.learner.give_streams(lambda name, position: self._stream(name, position))
        self._built.env_to_module.set_state(shared_state.get(self._built.spec.module_id, {}))

    def _read(self, loss: MeanLoss, recorded: _RecordedReturns) -> Iterator[ColumnBlock]:
        """Yield all episodes with observations as the policy sees them, and add them to the statistics."""
        for block in self._source.blocks():
            end_overdue_evaluation()
            held = self._held(block)
            recorded.add(held)
            if self._has_loss:
                loss.add(held)
            yield held

    def _held(self, block: ColumnBlock) -> ColumnBlock:
        return with_held_observations(writable(block), self._built.env_to_module, self._module)

    def _estimates(self, blocks: Iterable[ColumnBlock]) -> dict[str, PolicyEstimate]:
        evaluation = self._config.evaluation
        return evaluate_policy(
            blocks,
            self._module,
            self._gamma,
            self._stream(),
            self._methods,
            evaluation.offline_evaluation_level,
            evaluation.offline_evaluation_num_resamples,
            self._fitted_q,
            make_inputs=self._make_inputs,
        )

    def _make_inputs(self, block: ColumnBlock) -> ModuleInputs:
        modules = {block.module_id: self._module}
        columns = self._inputs(rl_module=modules, batch={}, episodes=block, shared_data={})[block.module_id]
        return {name: columns[name] for name in self._module.learner_inputs if name not in (STATE_IN, IS_FIRST)}

    def _stream(self, name: str = "", position: int = 0) -> np.random.Generator:
        return random_stream(self._config.seed, f"{self._stream_name}/{name}" if name else self._stream_name, position)

    @contextmanager
    def _torch_stream_kept(self) -> Iterator[None]:
        """Restore torch's random state afterwards; losses and modules may draw from it."""
        on_gpu = device_of(self._module).type == "cuda"
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else []):
            torch.manual_seed(integer_seed(self._config.seed, _STREAM))
            yield

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check(self, block: ColumnBlock) -> None:
        """Reject data whose first episodes show that the evaluation would fail or be wrong."""
        check_action_units(self._config, self._source, self._built.spec.action_space)
        problems = [self._find_missing_columns(block), self._find_missing_states(block)] if self._has_loss else []
        if self._methods:
            problems += [self._find_no_trajectories(), self._find_no_distribution(), self._find_missing_logp(block)]
        found = [problem for problem in problems if problem is not None]
        if found:
            raise ConfigError(found)
        if self._has_loss:
            check_trajectories(self._source, self._built.learner, self._module)
        if self._methods:
            check_methods(self._methods, self._module)
            check_block(block, self._needs_ratios)
        with self._torch_stream_kept():
            held = self._held(take_chunks(block, range(min(_NUM_TRIED, len(block)))))
            if self._methods:
                reader = BlockReader(self._module, self._make_inputs, self._needs_ratios, needs_model=False)
                reader.read(held)
            if self._has_loss:
                MeanLoss(self._module, self._loss, self._built.learner).add(held)

    @property
    def _needs_ratios(self) -> bool:
        return any(name != DIRECT_METHOD for name in self._methods)

    def _find_missing_columns(self, block: ColumnBlock) -> Problem | None:
        """Find model outputs that the loss and the learner pipeline need but the episodes lack."""
        connectors = list(self._built.learner.single_connectors())
        read = [
            *self._loss.reads,
            *self._module.learner_inputs,
            *(name for connector in connectors for name in Requirements.of(connector).reads),
        ]
        made = {
            name
            for connector in connectors
            if not isinstance(connector, AddColumnsFromEpisodesToTrainBatch)
            for name in Requirements.of(connector).writes
        }
        needed = [name for name in dict.fromkeys(read) if name in self._built.recorded and name not in made]
        missing = [name for name in needed if name not in block.columns]
        if not missing:
            return None
        return Problem(
            f"the held-out data lack {', '.join(missing)}, which {self._config.algorithm.loss} needs",
            where=_INPUT,
            got="columns " + list_names(block.columns),
            fix=f"record episodes with evaluation.explore=true, or remove {EVAL_LOSS} from {_TYPE}",
        )

    def _find_missing_states(self, block: ColumnBlock) -> Problem | None:
        if not self._module.is_stateful or STATE_OUT in block.columns:
            return None
        return Problem(
            f"the held-out data lack {STATE_OUT}, the recurrent states with which the loss starts its sequences",
            where=_INPUT,
            got="columns " + list_names(block.columns),
            fix=f"record episodes of a module with these states, or remove {EVAL_LOSS} from {_TYPE}",
        )

    def _find_no_trajectories(self) -> Problem | None:
        if self._source.format.has_trajectories:
            return None
        return Problem(
            "off-policy estimates need complete episodes, but these rows do not form trajectories",
            where=_INPUT,
            got=f"{', '.join(self._methods)} from {self._source.where}",
            fix=f"use a table with eps_id and t, or with end flags; or set {_TYPE}={EVAL_LOSS}",
        )

    def _find_no_distribution(self) -> Problem | None:
        module = self._module
        if ACTION_DIST_INPUTS in module.outputs and hasattr(module.action_dist, "log_prob"):
            return None
        return Problem(
            "off-policy estimates need the probabilities of recorded actions, which this module cannot compute",
            where=_TYPE,
            got=type(module).__name__,
            fix=f"use a module with {ACTION_DIST_INPUTS} among its outputs, or set {_TYPE}={EVAL_LOSS}",
        )

    def _find_missing_logp(self, block: ColumnBlock) -> Problem | None:
        if not self._needs_ratios or ACTION_LOGP in block.columns:
            return None
        methods = [name for name in self._methods if name != DIRECT_METHOD]
        return Problem(
            f"the held-out data lack {ACTION_LOGP}, the log probability of each action, which ratios need",
            where=_INPUT,
            got=f"{', '.join(methods)}, and columns {list_names(block.columns)}",
            fix=f"record episodes with evaluation.explore=true, or use only {DIRECT_METHOD} and {EVAL_LOSS}",
        )


class _RecordedReturns:
    """Counts and returns of the recorded episodes."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._num_episodes = self._num_env_steps = 0
        self._sum_of_returns = 0.0

    def add(self, block: ColumnBlock) -> None:
        self._num_episodes += len(block)
        self._num_env_steps += block.num_rows
        discounts = self._gamma ** times_of(block.lengths)
        self._sum_of_returns += float(discounts @ np.asarray(block.columns[REWARDS], np.float64))

    def metrics(self, has_return: bool) -> Metrics:
        counts: Metrics = {"num_episodes": self._num_episodes, "num_env_steps": self._num_env_steps}
        if not has_return:
            return counts
        return counts | {"discounted_return_mean": _finite(self._sum_of_returns / self._num_episodes)}


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


@contextmanager
def _naming_data_keys() -> Iterator[None]:
    """Replace the keys of `offline` in data problems by the keys of the held-out data."""
    try:
        yield
    except ConfigError as error:
        problems = [replace(one, where=_data_key(one.where)) for one in error.problems]
        raise type(error)(problems) from error


def _data_key(where: str | None) -> str | None:
    return None if where is None else re.sub(r"\boffline\.input_(?![a-z])", _INPUT, where)


_COUNTS = ("num_episodes", "num_env_steps")


class HeldOutAgents:
    """Evaluates each agent separately. Metrics are named `evaluation/offline/AGENT/...`; counts are also summed.

    Args:
        agents: agent -> evaluation of its module on its episodes.
    """

    def __init__(self, agents: Mapping[str, HeldOutEvaluation]) -> None:
        self._agents = dict(agents)

    @property
    def source(self) -> RecordedSource:
        """Source of the first agent's held-out data."""
        return next(iter(self._agents.values())).source

    def evaluate(
        self, learners_state: Mapping[str, Any], shared_state: Mapping[str, Any], num_env_steps: int
    ) -> Metrics:
        """See `HeldOutEvaluation`."""
        metrics: Metrics = {}
        for agent, evaluation in self._agents.items():
            for name, value in evaluation.evaluate(learners_state, shared_state, num_env_steps).items():
                metrics[f"{PREFIX}{agent}/{name.removeprefix(PREFIX)}"] = value
        for count in _COUNTS:
            metrics[f"{PREFIX}{count}"] = sum(int(metrics[f"{PREFIX}{agent}/{count}"] or 0) for agent in self._agents)
        return metrics


def check_methods_of_agents(methods: Sequence[str]) -> None:
    """Reject methods that are invalid for one agent among several. Raises `ConfigError`.

    Ratios only need the agent's own observations. Action values fitted to them are wrong, because they do not include
    the actions of other agents.
    """
    with_model = [name for name in methods if name not in RATIO_METHODS]
    if with_model:
        what = "a single agent's observations do not determine its action values: they lack the other agents' actions"
        expected = f"{', '.join(RATIO_METHODS)}, {EVAL_LOSS}"
        raise ConfigError([Problem(what, "evaluation.offline_evaluation_type", ", ".join(with_model), expected)])
