"""The table of all rules (checks of several fields); most rules are in the module of their block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runner.config.algorithms import AlgorithmConfig, APPOConfig, PPOConfig
from runner.config.blocks import (
    TRACKERS,
    VIDEO,
    CheckpointConfig,
    ConnectorsConfig,
    EvaluationConfig,
    LearnersConfig,
    MultiAgentConfig,
    TrackingConfig,
)
from runner.config.callables import find_nested_faults
from runner.config.composed import Composed
from runner.config.connectors import find_edit_problems
from runner.config.curriculum import find_curriculum_problems
from runner.config.env import find_env_problems
from runner.config.env_runners import find_env_runner_problems
from runner.config.errors import Problem, list_names, nearest_match, show_value, unknown_name
from runner.config.info_metrics import find_info_metric_problems
from runner.config.league import find_league_problems
from runner.config.list_patches import OF_ALGORITHM, PIPELINES
from runner.config.metrics import MOST_USED, may_be_produced, producible_metrics
from runner.config.modules import find_module_problems, find_q_problems
from runner.config.multi_agent import find_module_edit_problems, find_multi_agent_problems
from runner.config.offline import find_offline_problems
from runner.config.offline_evaluation import PREFIX, find_offline_evaluation_problems
from runner.config.operators import SelectExperiencesConfig, TrainOneStepConfig
from runner.config.optimizer import find_optimizer_problems
from runner.config.paths import find_store_problem
from runner.config.placement import find_elastic_problems, find_placement_problems, find_prefetch_problems
from runner.config.plans.buffers import find_buffer_problems
from runner.config.plans.compilation import find_compile_problems
from runner.config.plans.flow import find_useless_intensity
from runner.config.plans.needs import needs_of
from runner.config.plans.rules import (
    find_asynchrony_problems,
    find_plan_problems,
    find_untrained_auxiliary_modules,
    find_untrained_plan,
)
from runner.config.plans.steps import read_plan, steps_of
from runner.config.rllink import find_external_problems
from runner.config.schemas import ExperimentConfig
from runner.config.sweep import find_sweep_problems
from runner.config.targets import CALLBACKS, LOSSES, find_target_block_problems, find_target_problems
from runner.config.user_classes import find_own_class_problems

_Find = Callable[..., Iterable[Problem]]


@dataclass(frozen=True)
class ConfigRule:
    """A function that yields problems.

    Its parameters name its arguments: blocks of the configuration, values derived from them (`DERIVED`), the complete
    `config` or `composed` configuration. `where` of the problems is a dotted key; see `Composed.located`.

    Attributes:
        find: the function.
        reads: names of blocks, separated by spaces, and `experiment` for the chosen file. The rule is skipped if one
            of them could not be read.
        after: rules that must pass first. The rule is skipped if one of them has found a problem.
    """

    find: _Find
    reads: str = ""
    after: tuple[_Find, ...] = ()


# Values derived from several blocks.
DERIVED: Mapping[str, Callable[[ExperimentConfig], Any]] = {
    "algorithms": lambda config: config.algorithms,
    "needs": needs_of,
    "resets_apart": lambda config: config.resets_apart,
}


def apply_rules(rules: Iterable[ConfigRule], config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of a configuration whose single fields are valid (invalid ones have their defaults)."""
    given = {**vars(config), "config": config, "composed": composed}
    broken: set[_Find] = set()
    for rule in rules:
        if composed.unread.isdisjoint(rule.reads.split()) and broken.isdisjoint(rule.after):
            names = inspect.signature(rule.find).parameters
            arguments = {name: DERIVED[name](config) if name in DERIVED else given[name] for name in names}
            for problem in rule.find(**arguments):
                broken.add(rule.find)
                yield problem


def _check_callbacks(callbacks: list[dict[str, Any]]) -> Iterator[Problem]:
    for index, block in enumerate(callbacks):
        key = f"callbacks.{index}"
        if not isinstance(block.get("_target_"), str):
            expected = "{_target_: package.module.Callback, argument: value, ...}"
            yield Problem(f"{key} must be a callback with a _target_", key, show_value(block), expected)
        else:
            yield from find_target_block_problems(key, block, CALLBACKS)


def _check_plan(algorithm: AlgorithmConfig) -> list[Problem]:
    return find_plan_problems(algorithm.plan)


def _check_selected_modules(algorithm: AlgorithmConfig, multi_agent: MultiAgentConfig) -> Iterator[Problem]:
    """Find modules in SelectExperiences that cannot exist in this run."""
    if not multi_agent.is_mapping_complete:
        return
    known = multi_agent.module_ids()
    for step in steps_of(read_plan(algorithm.plan)):
        selects = isinstance(step.config, (SelectExperiencesConfig, TrainOneStepConfig))
        selected = step.config.modules or [] if selects else []  # type: ignore[union-attr]
        for name in [name for name in selected if name not in known]:
            what = f"{step.key}: {step.name} contains an unknown module"
            yield unknown_name(what, step.key, name, known)


def _check_algorithms(algorithms: Mapping[str, AlgorithmConfig]) -> Iterator[Problem]:
    for key, algorithm in algorithms.items():
        yield from find_target_problems(f"{key}.loss", algorithm.loss, kinds=LOSSES)
        if algorithm.loss == AlgorithmConfig.loss and not isinstance(algorithm, PPOConfig):
            what = f"{key}.loss is required with a custom schema: its default, PPOLoss, needs PPOConfig"
            fix = f"set {key}.loss to the dotted path of the loss"
            yield Problem(what, f"{key}.schema", algorithm.schema, fix=fix)
        for field in OF_ALGORITHM.values():
            yield from find_edit_problems(f"{key}.{field}", getattr(algorithm, field))
        yield from find_optimizer_problems(algorithm.optimizer, f"{key}.optimizer")
        if isinstance(algorithm, APPOConfig) and algorithm.target_kl is not None:
            what = f"{key}.target_kl is the distance from the sampling policy, and APPO's target policy differs from it"
            yield Problem(what, f"{key}.target_kl", show_value(algorithm.target_kl), "null")
        elif isinstance(algorithm, PPOConfig) and algorithm.target_kl is not None and algorithm.use_kl_loss:
            what = f"{key}.target_kl ends updates early, which does not work with the adaptive KL penalty"
            expected = f"null, or {key}.use_kl_loss=false"
            yield Problem(what, f"{key}.target_kl", show_value(algorithm.target_kl), expected)


def _check_minibatch(algorithm: AlgorithmConfig, composed: Composed) -> Iterator[Problem]:
    minibatch, batch = algorithm.minibatch_size, algorithm.train_batch_size_per_learner
    if minibatch is not None and minibatch > batch:
        key, of_batch = "algorithm.minibatch_size", "algorithm.train_batch_size_per_learner"
        what = f"{key} {minibatch} is larger than {of_batch} {batch}"
        expected = f"at most {batch}, or null for the complete batch"
        yield Problem(what, of_batch if composed.where(key) is None else key, str(minibatch), expected)


def _check_learners(engine: str, learners: LearnersConfig) -> Iterator[Problem]:
    if engine == "inline" and learners.num_learners:
        what = "engine=inline has a single learner in the driver's process"
        yield Problem(what, "learners.num_learners", str(learners.num_learners), "0")


def _check_edits(connectors: ConnectorsConfig) -> Iterator[Problem]:
    for name in PIPELINES:
        yield from find_edit_problems(f"connectors.{name}", getattr(connectors, name))


def _check_evaluation(evaluation: EvaluationConfig, engine: str) -> Iterator[Problem]:
    yield from _check_video(evaluation)
    if not evaluation.evaluation_parallel_to_training:
        return
    key = "evaluation.evaluation_parallel_to_training"
    faults = {
        "evaluation.evaluation_num_env_runners above 0": evaluation.evaluation_num_env_runners == 0,
        "engine=ray": engine != "ray",
        "an evaluation.evaluation_interval": evaluation.evaluation_interval is None,
    }
    needed = [text for text, is_lacking in faults.items() if is_lacking]
    if needed:
        yield Problem(f"{key} needs {' and '.join(needed)}", key, "true")


def _check_trackers(tracking: TrackingConfig) -> Iterator[Problem]:
    key, names = "tracking.extra_trackers", tracking.extra_trackers
    for index, name in enumerate(names):
        if name not in TRACKERS:
            yield unknown_name(f"{key} contains an unknown tracker", key, name, TRACKERS)
        elif name in names[:index]:
            yield Problem(f"{key} contains a tracker twice", key, name, "each tracker once")


def _check_upload(checkpoint: CheckpointConfig) -> list[Problem]:
    key, url = "checkpoint.upload_to", checkpoint.upload_to
    problem = None if url is None else find_store_problem(key, url, key)
    return [] if problem is None else [problem]


def _check_video(evaluation: EvaluationConfig) -> Iterator[Problem]:
    key, video = "evaluation.video", evaluation.video
    for name, value in video.items():
        if name not in VIDEO:
            yield unknown_name(f"{key}.{name} is not a known key", key, str(name), VIDEO)
        elif type(value) is not int or value < 1:
            yield Problem(f"{key}.{name} must be a positive integer", key, show_value(value), ">= 1")
    if video and evaluation.evaluation_interval is None:
        what = f"{key} needs evaluations, but evaluation.evaluation_interval is null"
        yield Problem(what, key, show_value(video), "evaluation.evaluation_interval=10")


def _check_metrics(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    if config.metrics:
        yield from find_info_metric_problems(config, set(producible_metrics(replace(config, metrics={}))))
    known = producible_metrics(config)
    if not config.stop and not composed.values.get("stop"):
        expected = "stop.training_iteration=100, stop.env_runners.episode_return_mean=450, or any other metric"
        yield Problem("stop is empty, so the run would never end", "stop", "{}", expected)
    metric = config.sweep.metric or []
    named = [(f"stop.{name}", name) for name in config.stop]
    given = composed.values.get("checkpoint")
    if isinstance(given, dict) and isinstance(given.get("metric", ""), str):  # otherwise another check reports it
        named += [("checkpoint.metric", config.checkpoint.metric)]
    named += [("sweep.metric", name) for name in ([metric] if isinstance(metric, str) else metric)]
    for key, name in [*named, ("sweep.time_attr", config.sweep.time_attr)]:
        yield from find_metric_problems(name, known, config, key)


def find_metric_problems(name: str, known: dict[str, str], config: ExperimentConfig, where: str) -> Iterator[Problem]:
    """Yield a problem if no part of a run of `config`, whose metrics are `known`, produces this metric."""
    if name in known or may_be_produced(name, config):
        return
    reason, evaluation = "", config.evaluation
    nearest: str | None = None
    if name.startswith(PREFIX) and evaluation.offline_evaluation_interval is None:
        reason = ", because evaluation.offline_evaluation_interval is null"
        expected = "evaluation.offline_evaluation_interval=10 with evaluation.offline_evaluation_input_=PATH"
    elif name.startswith("evaluation/") and not name.startswith(PREFIX) and evaluation.evaluation_interval is None:
        reason = ", because evaluation.evaluation_interval is null"
        expected = "evaluation.evaluation_interval=10, or a metric of training"
    elif name.startswith("env_runners/") and not any(one.startswith("env_runners/") for one in known):
        reason, of_evaluation = ", because it does not sample", f"evaluation/{name}"
        expected = of_evaluation if of_evaluation in known else f"{of_evaluation} with evaluation=periodic"
    else:
        expected = list_names(known, name, 12, MOST_USED)
        nearest = nearest_match(name, known) or _same_last_part(name, known)
    yield Problem(f"this run does not produce the metric {name}{reason}", where, name, expected, nearest)


def _same_last_part(name: str, known: dict[str, str]) -> str | None:
    last = name.rpartition("/")[2]
    return next((metric for metric in known if metric.rpartition("/")[2] == last), None)


_OF_PLAN = "env algorithm multi_agent module"
_OF_PROCESSES = "experiment algorithm env_runners learners evaluation"
_after_plan = partial(ConfigRule, after=(_check_plan,))
ENV_RULES = (ConfigRule(find_external_problems, "experiment env"), ConfigRule(find_env_problems, "experiment env"))
RULES = (
    ConfigRule(_check_plan, "algorithm"),
    *ENV_RULES,
    ConfigRule(_check_algorithms, "algorithm"),
    ConfigRule(_check_minibatch, "experiment algorithm"),
    ConfigRule(find_module_problems, "module"),
    ConfigRule(find_env_runner_problems),
    ConfigRule(_check_learners),
    ConfigRule(_check_callbacks),
    ConfigRule(find_nested_faults),
    ConfigRule(find_own_class_problems, "experiment algorithm module multi_agent connectors"),
    ConfigRule(_check_trackers),
    ConfigRule(_check_upload),
    ConfigRule(find_q_problems, "algorithm module multi_agent"),
    ConfigRule(find_multi_agent_problems, "algorithm module multi_agent"),
    ConfigRule(find_league_problems, "experiment league algorithm env multi_agent"),
    ConfigRule(find_curriculum_problems, "experiment curriculum algorithm env env_runners"),
    ConfigRule(_check_edits),
    ConfigRule(find_module_edit_problems, "connectors multi_agent"),
    ConfigRule(_check_evaluation, "experiment evaluation"),
    ConfigRule(find_offline_evaluation_problems, "experiment evaluation"),
    _after_plan(find_placement_problems, _OF_PROCESSES),
    _after_plan(find_elastic_problems, f"{_OF_PROCESSES} env"),
    _after_plan(find_asynchrony_problems, _OF_PLAN),
    _after_plan(find_prefetch_problems, f"{_OF_PLAN} experiment env_runners learners"),
    _after_plan(find_untrained_plan, _OF_PLAN),
    _after_plan(find_untrained_auxiliary_modules, _OF_PLAN),
    _after_plan(find_compile_problems, _OF_PLAN),
    _after_plan(find_useless_intensity, _OF_PLAN),
    _after_plan(find_buffer_problems, _OF_PLAN),
    _after_plan(_check_selected_modules, _OF_PLAN),
    _after_plan(find_offline_problems, "algorithm offline"),
    _after_plan(find_sweep_problems, "experiment sweep checkpoint"),
    ConfigRule(_check_metrics, "experiment evaluation algorithm", after=(_check_plan, find_offline_problems)),
)
"""All rules, in the order of their problems in a report."""
