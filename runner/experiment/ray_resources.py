"""What a run asks of Ray. Imports neither torch nor ray: a sweep's own process does without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from runner.cluster import connected
from runner.config.blocks import PACK, SPREAD
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig


def is_held_out_read_by_ray(config: ExperimentConfig) -> bool:
    """Whether held-out data are read by a function of `ray.data`, which takes a cluster."""
    from runner.offline.reading.source import is_read_by_ray

    return config.evaluation.offline_evaluation_input_ is not None and is_read_by_ray(config.offline)


@contextmanager
def ray_cluster(config: ExperimentConfig, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a Ray cluster if the configuration needs one; `note` is told about it, see `connected`.

    Raises:
        ConfigError: the cluster can never give the resources that the configuration asks for.
    """
    actors = _remote_actors(config)
    wanted, asked_by = list(actors), _asked_by_actors(config)
    if RECORDED_DATA in needs_of(config):
        from runner.offline.training.workers import resources_asked_for

        wanted += resources_asked_for(config.offline)
        asked_by.append("offline.map_batches_kwargs (pre-learners, and one CPU to read)")
    elif is_held_out_read_by_ray(config):
        wanted.append({"CPU": 1.0})
        asked_by.append("evaluation.offline_evaluation_input_ (one CPU to read)")
    elif not actors and not config.offline.is_written_by_ray:
        yield
        return
    if config.offline.is_written_by_ray:
        wanted.append({"CPU": 1.0})
        asked_by.append("offline.output_write_method (one CPU to write)")
    with connected(config.ray, total(wanted), ", ".join(asked_by), note, wanted):
        yield


def _remote_actors(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return what each env runner and learner asks for that is a Ray actor."""
    runners, learners = config.env_runners, config.learners
    num_runners = config.evaluation.evaluation_num_env_runners
    num_runners += runners.min_env_runners if ENV_RUNNERS in needs_of(config) else 0
    of_runners = [runners.resources_per_env_runner] * (0 if config.engine == "inline" else num_runners)
    return of_runners + [learners.resources_per_learner] * learners.num_learners


def other_actors(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return what each remote actor asks for that is no env runner which trains."""
    return _remote_actors(replace(config, env_runners=replace(config.env_runners, num_env_runners=0)))


def _asked_by_actors(config: ExperimentConfig) -> list[str]:
    """Return the options that `_remote_actors` goes by."""
    keys = ["evaluation.evaluation_num_env_runners", "env_runners.num_cpus_per_env_runner, num_gpus_per_env_runner"]
    if ENV_RUNNERS in needs_of(config):
        keys.insert(0, "env_runners.num_env_runners")
    if config.env_runners.custom_resources_per_env_runner:
        keys.append("env_runners.custom_resources_per_env_runner")
    if config.learners.num_learners:
        keys.append("learners.num_learners, num_cpus_per_learner, num_gpus_per_learner")
    if config.learners.custom_resources_per_learner:
        keys.append("learners.custom_resources_per_learner")
    return keys


def bundles_of(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return bundles: a CPU and a local learner's GPUs for the trainer, one more for each remote actor."""
    learners = config.learners
    local_learner_gpus = 0.0 if learners.num_learners else learners.num_gpus_per_learner
    bundles = [{"CPU": 1.0, "GPU": local_learner_gpus}, *_remote_actors(config)]
    return bundles + tasks_on_data(config)


def tasks_on_data(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return what Ray's tasks that read and write recorded data ask for."""
    bundles = []
    if RECORDED_DATA in needs_of(config):
        from runner.offline.training.workers import resources_asked_for  # imports Ray Data's libraries

        bundles += resources_asked_for(config.offline)
    if config.offline.is_written_by_ray:
        bundles.append({"CPU": 1.0, "GPU": 0.0})
    return bundles


def strategy_of(config: ExperimentConfig) -> str:
    """Return the strategy of the placement group of a trial: SPREAD where actors of one kind ask for it."""
    runners, learners = config.env_runners, config.learners
    strategies = [runners.scheduling_strategy, learners.scheduling_strategy]
    if RECORDED_DATA in needs_of(config):
        from runner.offline.training.workers import actor_options  # imports Ray Data's libraries

        strategies.append(actor_options(config.offline).get("scheduling_strategy", PACK))
    return SPREAD if SPREAD in strategies else PACK


def total(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of bundles."""
    names = dict.fromkeys(("CPU", "GPU", *(name for bundle in bundles for name in bundle)))
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}
