"""What a run asks of Ray. Imports neither torch nor ray: a sweep's own process does without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.cluster import connected
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
    runners, learners, evaluation = config.env_runners, config.learners, config.evaluation
    num_runners = evaluation.evaluation_num_env_runners
    asked_by = ["evaluation.evaluation_num_env_runners", "env_runners.num_cpus_per_env_runner, num_gpus_per_env_runner"]
    needs = needs_of(config)
    if ENV_RUNNERS in needs:
        num_runners += runners.num_env_runners
        asked_by.insert(0, "env_runners.num_env_runners")
    if config.engine == "inline":
        num_runners = 0
    num_cpus = num_runners * runners.num_cpus_per_env_runner + learners.num_learners * learners.num_cpus_per_learner
    num_gpus = num_runners * runners.num_gpus_per_env_runner + learners.num_learners * learners.num_gpus_per_learner
    if learners.num_learners:
        asked_by.append("learners.num_learners, num_cpus_per_learner, num_gpus_per_learner")
    if RECORDED_DATA in needs:
        from runner.offline.training.workers import resources_asked_for

        for_data = resources_asked_for(config.offline)
        num_cpus, num_gpus = num_cpus + for_data.num_cpus, num_gpus + for_data.num_gpus
        asked_by.append("offline.map_batches_kwargs (pre-learners, and one CPU to read)")
    elif is_held_out_read_by_ray(config):
        num_cpus += 1
        asked_by.append("evaluation.offline_evaluation_input_ (one CPU to read)")
    elif num_runners == learners.num_learners == 0 and not config.offline.is_written_by_ray:
        yield
        return
    if config.offline.is_written_by_ray:
        num_cpus += 1
        asked_by.append("offline.output_write_method (one CPU to write)")
    with connected(config.ray, num_cpus, num_gpus, ", ".join(asked_by), note):
        yield


def bundles_of(config: ExperimentConfig) -> list[dict[str, float]]:
    """Return bundles: a CPU and a local learner's GPUs for the trainer, one more for each remote actor."""
    runners = config.env_runners
    needs = needs_of(config)
    num_remote = config.evaluation.evaluation_num_env_runners
    num_remote += runners.num_env_runners if ENV_RUNNERS in needs else 0
    remote = {"CPU": runners.num_cpus_per_env_runner, "GPU": runners.num_gpus_per_env_runner}
    learners = config.learners
    local_learner_gpus = 0.0 if learners.num_learners else learners.num_gpus_per_learner
    bundles = [{"CPU": 1.0, "GPU": local_learner_gpus}, *([remote] * (0 if config.engine == "inline" else num_remote))]
    bundles += [{"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}] * learners.num_learners
    if RECORDED_DATA in needs:
        from runner.offline.training.workers import resources_asked_for  # imports Ray Data's libraries

        for_data = resources_asked_for(config.offline)
        bundles.append({"CPU": for_data.num_cpus, "GPU": for_data.num_gpus})
    if config.offline.is_written_by_ray:
        bundles.append({"CPU": 1.0, "GPU": 0.0})
    return bundles


def total(bundles: list[dict[str, float]]) -> dict[str, float]:
    """Return the sum of bundles."""
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in ("CPU", "GPU")}
