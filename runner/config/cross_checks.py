"""Checks that need more than one field: the environment, metric names, and blocks that must fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.config.algorithms import AlgorithmConfig, PPOConfig
from runner.config.callables import find_nested_faults
from runner.config.callback_checks import find_callback_problems
from runner.config.composed import Composed
from runner.config.curriculum_checks import find_curriculum_problems
from runner.config.elastic_checks import find_elastic_problems
from runner.config.env_checks import find_env_problems
from runner.config.env_runner_checks import find_env_runner_problems
from runner.config.errors import Problem, list_names, nearest_match, show_value
from runner.config.info_metrics import find_info_metric_problems
from runner.config.kinds import LOSSES, MODULES
from runner.config.league_checks import find_league_problems
from runner.config.list_patch_checks import describe_fault, find_edit_problems
from runner.config.list_patches import OF_ALGORITHM
from runner.config.metrics import may_be_produced, producible_metrics
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids, is_mapping_complete
from runner.config.multi_agent_checks import find_module_edit_problems, find_multi_agent_problems
from runner.config.offline_checks import find_offline_problems
from runner.config.offline_evaluation import PREFIX, find_offline_evaluation_problems
from runner.config.operators import SelectExperiencesConfig
from runner.config.optimizer import find_optimizer_problems
from runner.config.own_class_checks import find_own_class_problems
from runner.config.placement_checks import find_placement_problems
from runner.config.plans import (
    find_asynchrony_problems,
    find_buffer_problems,
    find_compile_problems,
    find_plan_problems,
    find_untrained_plan,
    find_useless_intensity,
    read_plan,
    steps_of,
)
from runner.config.prefetch_checks import find_prefetch_problems
from runner.config.q_checks import find_q_problems
from runner.config.schemas import TRACKERS, VIDEO, ExperimentConfig, ModuleConfig
from runner.config.stores import find_store_problem
from runner.config.sweep_checks import find_sweep_problems
from runner.config.targets import Kinds, find_target_fault


def find_cross_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of a configuration whose fields are valid one by one (invalid ones are at their defaults)."""
    of_plan = [] if "algorithm" in composed.unread else find_plan_problems(config.algorithm.plan, composed.where)
    yield from of_plan
    yield from _check_blocks(config, composed)
    if not of_plan:  # which resources and metrics there are follows from the plan
        yield from _check_resources(config, composed)


def _check_blocks(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    unread = composed.unread
    if not unread & {"experiment", "env"}:
        yield from find_env_problems(config, composed)
    if "algorithm" not in unread:
        yield from _check_algorithm(config, composed)
    if "module" not in unread:
        yield from _check_module(config.module, composed)
    yield from _check_processes(config, composed)
    yield from find_callback_problems(config, composed)
    yield from find_nested_faults(composed)
    yield from find_own_class_problems(config, composed)
    yield from _check_trackers(config.tracking.extra_trackers, composed)
    yield from _check_upload(config.checkpoint.upload_to, composed)
    if not unread & {"multi_agent", "module", "algorithm"}:
        yield from find_q_problems(config, composed)
        yield from find_multi_agent_problems(config, composed)
    if not unread & {"experiment", "league", "algorithm", "env", "multi_agent"}:
        yield from find_league_problems(config, composed)
    if not unread & {"experiment", "curriculum", "algorithm", "env", "env_runners"}:
        yield from find_curriculum_problems(config, composed)
    for name in ("env_to_module", "module_to_env", "learner"):
        yield from find_edit_problems(f"connectors.{name}", getattr(config.connectors, name), composed.where)
    if not unread & {"multi_agent", "connectors"}:
        yield from find_module_edit_problems(config, composed)
    if not unread & {"experiment", "evaluation"}:
        yield from _check_evaluation(config, composed)
        yield from find_offline_evaluation_problems(config, composed)


def _check_resources(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    unread = composed.unread
    if not unread & {"experiment", "algorithm", "env_runners", "learners", "evaluation"}:
        yield from find_placement_problems(config, composed)
        if "env" not in unread:
            yield from find_elastic_problems(config, composed)
    if not unread & {"env", "algorithm", "multi_agent", "module"}:
        yield from find_asynchrony_problems(config, composed.where)
        if not unread & {"experiment", "env_runners", "learners"}:
            yield from find_prefetch_problems(config, composed)
        yield from find_untrained_plan(config, composed.where)
        yield from find_compile_problems(config, composed.where)
        yield from find_useless_intensity(config.algorithm, composed.where)
        yield from find_buffer_problems(config, composed.where)
        yield from _check_selected_modules(config, composed)
    of_data = [] if unread & {"offline", "algorithm"} else list(find_offline_problems(config, composed))
    yield from of_data
    if not unread & {"experiment", "sweep", "checkpoint"}:
        yield from find_sweep_problems(config, composed)
    if not unread & {"experiment", "evaluation", "algorithm"} and not of_data:  # which metrics there are follows
        yield from _check_metrics(config, composed)


def _check_selected_modules(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Find modules that no run of this configuration has: their experiences would never come."""
    if not is_mapping_complete(config):
        return
    known = declared_module_ids(config) or [DEFAULT_MODULE_ID]
    for step in steps_of(read_plan(config.algorithm.plan)):
        selected = step.config.modules if isinstance(step.config, SelectExperiencesConfig) else []
        for name in [name for name in selected if name not in known]:
            what = f"{step.key}: SelectExperiences keeps a module that this run does not have"
            yield Problem(what, composed.where(step.key), name, ", ".join(known), nearest_match(name, known))


def _check_path(key: str, path: str, composed: Composed, kinds: Kinds | None = None) -> Iterator[Problem]:
    fault = find_target_fault(path, kinds=kinds)
    if fault is not None:
        yield describe_fault(key, fault, composed.where(key), path)


def _check_algorithm(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    for key, algorithm in config.algorithms.items():
        yield from _check_path(f"{key}.loss", algorithm.loss, composed, LOSSES)
        if algorithm.loss == AlgorithmConfig.loss and not isinstance(algorithm, PPOConfig):
            what = f"{key}.loss is missing: its default, PPOLoss, reads fields of PPOConfig"
            yield Problem(
                what, composed.where(f"{key}.schema"), algorithm.schema, "the path of the loss that goes with it"
            )
        for field in OF_ALGORITHM.values():
            yield from find_edit_problems(f"{key}.{field}", getattr(algorithm, field), composed.where)
        yield from find_optimizer_problems(algorithm.optimizer, f"{key}.optimizer", composed.where)
    algorithm = config.algorithm
    minibatch, batch = algorithm.minibatch_size, algorithm.train_batch_size_per_learner
    if minibatch is not None and minibatch > batch and "experiment" not in composed.unread:
        key = "algorithm.minibatch_size"
        where = composed.where(key) or composed.where("algorithm.train_batch_size_per_learner")
        what = f"{key} {minibatch} is larger than algorithm.train_batch_size_per_learner {batch}"
        yield Problem(what, where, str(minibatch), f"at most {batch}, or null for the whole batch")


def _check_processes(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield problems of env runners and learners."""
    yield from find_env_runner_problems(config, composed)
    if config.engine == "inline" and config.learners.num_learners:
        what = "engine inline has one learner, in the driver's process"
        yield Problem(what, composed.where("learners.num_learners"), str(config.learners.num_learners), "0")


def _check_module(module: ModuleConfig, composed: Composed) -> Iterator[Problem]:
    yield from _check_path("module._target_", module._target_, composed, MODULES)
    if module.use_lstm and module.use_gru:
        where = composed.where("module.use_gru") or composed.where("module.use_lstm")
        yield Problem("module.use_lstm and module.use_gru are both true", where, "true and true", "one of them")
    key = "module.conv_filters"
    for number, conv_filter in enumerate(module.conv_filters or ()):
        if len(conv_filter) != 3 or min(conv_filter) < 1:
            allowed = "[out_channels, kernel, stride], integers >= 1"
            yield Problem(f"{key}[{number}] is no filter", composed.where(key), show_value(conv_filter), allowed)


def _check_evaluation(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    yield from _check_video(config, composed)
    evaluation = config.evaluation
    if not evaluation.evaluation_parallel_to_training:
        return
    key = "evaluation.evaluation_parallel_to_training"
    faults = {
        "evaluation.evaluation_num_env_runners above 0": evaluation.evaluation_num_env_runners == 0,
        "engine=ray": config.engine != "ray",
        "an evaluation.evaluation_interval": evaluation.evaluation_interval is None,
    }
    needed = [text for text, is_lacking in faults.items() if is_lacking]
    if needed:
        yield Problem(f"{key} needs {' and '.join(needed)}", composed.where(key), "true")


def _check_trackers(names: Sequence[str], composed: Composed) -> Iterator[Problem]:
    key = "tracking.extra_trackers"
    for index, name in enumerate(names):
        if name not in TRACKERS:
            what, nearest = f"{key} names a tracker that is not known", nearest_match(name, TRACKERS)
            yield Problem(what, composed.where(key), name, ", ".join(TRACKERS), nearest)
        elif name in names[:index]:
            yield Problem(f"{key} names a tracker twice", composed.where(key), name, "each once")


def _check_upload(url: str | None, composed: Composed) -> Iterator[Problem]:
    key = "checkpoint.upload_to"
    problem = None if url is None else find_store_problem(key, url, composed.where(key))
    if problem is not None:
        yield problem


def _check_video(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    key, video = "evaluation.video", config.evaluation.video
    for name, value in video.items():
        if name not in VIDEO:
            nearest = nearest_match(str(name), VIDEO)
            yield Problem(f"{key}.{name} is not known", composed.where(key), str(name), ", ".join(VIDEO), nearest)
        elif type(value) is not int or value < 1:
            yield Problem(f"{key}.{name} is a number of times", composed.where(key), show_value(value), "1 or more")
    if video and config.evaluation.evaluation_interval is None:
        what = f"{key} films evaluations, and nothing is evaluated: evaluation.evaluation_interval is null"
        yield Problem(what, composed.where(key), show_value(video), "evaluation.evaluation_interval=10")


def _check_metrics(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    if config.metrics:
        yield from find_info_metric_problems(config, composed, set(producible_metrics(replace(config, metrics={}))))
    known = producible_metrics(config)
    if not config.stop and not _has_problem_below("stop", composed):
        allowed = "stop.training_iteration=100, stop.env_runners.episode_return_mean=450, or any other metric"
        yield Problem("stop is empty: nothing would end the run", composed.where("stop"), "{}", allowed)
    for name in config.stop:
        yield from _check_metric(f"stop.{name}", name, known, config, composed)
    yield from _check_metric("checkpoint.metric", config.checkpoint.metric, known, config, composed)
    metric = config.sweep.metric or []
    for name in [metric] if isinstance(metric, str) else metric:
        yield from _check_metric("sweep.metric", name, known, config, composed)
    yield from _check_metric("sweep.time_attr", config.sweep.time_attr, known, config, composed)


def _has_problem_below(key: str, composed: Composed) -> bool:
    return bool(composed.values.get(key))


def _check_metric(
    key: str, name: str, known: dict[str, str], config: ExperimentConfig, composed: Composed
) -> Iterator[Problem]:
    yield from find_metric_problems(name, known, config, composed.where(key))


def find_metric_problems(
    name: str, known: dict[str, str], config: ExperimentConfig, where: str | None
) -> Iterator[Problem]:
    """Yield a problem if no part of a run of `config`, whose metrics are `known`, produces this metric."""
    if name in known or may_be_produced(name, config):
        return
    what, allowed = f"no part of this run produces the metric {name}", list_names(known, name, limit=12)
    if name.startswith(PREFIX) and config.evaluation.offline_evaluation_interval is None:
        what += ": nothing is evaluated on held-out data, because evaluation.offline_evaluation_interval is null"
        allowed = "evaluation.offline_evaluation_interval=10 with evaluation.offline_evaluation_input_=PATH"
        yield Problem(what, where, name, allowed)
        return
    if name.startswith("evaluation/") and not name.startswith(PREFIX) and config.evaluation.evaluation_interval is None:
        what += ": nothing is evaluated, because evaluation.evaluation_interval is null"
        yield Problem(what, where, name, "evaluation.evaluation_interval=10, or a metric of training")
        return
    nearest = nearest_match(name, known) or _same_last_part(name, known)
    yield Problem(what, where, name, allowed, nearest)


def _same_last_part(name: str, known: dict[str, str]) -> str | None:
    last = name.rpartition("/")[2]
    return next((metric for metric in known if metric.rpartition("/")[2] == last), None)
