"""What a run asks of Ray."""

from __future__ import annotations

from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig


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
    return bundles


def total(bundles: list[dict[str, float]]) -> dict[str, float]:
    """Return the sum of bundles."""
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in ("CPU", "GPU")}
