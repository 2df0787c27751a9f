"""Ray resources that a run needs. Imports neither torch nor ray, because a sweep's driver process needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from runner.cluster import connected
from runner.config.blocks import PACK, SPREAD
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig


def is_held_out_read_by_ray(config: ExperimentConfig) -> bool:
    """Return whether a function of `ray.data` reads the held-out data, which needs a cluster."""
    from runner.offline.reading.source import is_read_by_ray

    return config.evaluation.offline_evaluation_input_ is not None and is_read_by_ray(config.offline)


@contextmanager
def ray_cluster(config: ExperimentConfig, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a Ray cluster if the configuration needs one; messages go to `note` (see `connected`).

    Raises:
        ConfigError: the cluster can never provide the resources that the configuration needs.
    """
    actors = _remote_actors(config)
    wanted, asked_by = [*actors, *tasks_on_data(config)], _asked_by_actors(config)
    if RECORDED_DATA in needs_of(config):
        asked_by.append("offline.map_batches_kwargs (pre-learners, and one CPU to read)")
    elif is_held_out_read_by_ray(config):
        wanted.append({"CPU": 1.0})
        asked_by.append("evaluation.offline_evaluation_input_ (one CPU to read)")
    elif not wanted:
        yield
        return
    if config.offline.is_written_by_ray:
        asked_by.append("offline.output_write_method (one CPU to write)")
    with connected(config.ray, total(wanted), ", ".join(asked_by), note, wanted):
        yield


def _remote_actors(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return the resources of each env runner and learner that is a Ray actor."""
    runners, learners = config.env_runners, config.learners
    num_runners = config.evaluation.evaluation_num_env_runners
    num_runners += runners.min_env_runners if ENV_RUNNERS in needs_of(config) else 0
    of_runners = [runners.resources_per_env_runner] * (0 if config.engine == "inline" else num_runners)
    return of_runners + [learners.resources_per_learner] * learners.num_learners


def other_actors(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return the resources of each remote actor except training env runners."""
    return _remote_actors(replace(config, env_runners=replace(config.env_runners, num_env_runners=0)))


def _asked_by_actors(config: ExperimentConfig) -> list[str]:
    """Return the options that determine `_remote_actors`."""
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
    """Return the resources of Ray tasks that read and write recorded data."""
    bundles = []
    if RECORDED_DATA in needs_of(config):
        from runner.offline.training.workers import resources_asked_for  # imports Ray Data's libraries

        bundles += resources_asked_for(config.offline)
    if config.offline.is_written_by_ray:
        bundles.append({"CPU": 1.0, "GPU": 0.0})
    return bundles


def strategy_of(config: ExperimentConfig) -> str:
    """Return the strategy of a trial's placement group: SPREAD if actors of one kind need it."""
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
