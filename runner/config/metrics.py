"""All metrics that a run can report, with their meanings; `stop`, `checkpoint.metric` and the docs use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.config.algorithms import AlgorithmConfig
from runner.config.blocks import DEFAULT_MODULE_ID as DEFAULT_MODULE_ID
from runner.config.curriculum import curriculum_metrics
from runner.config.declared_metrics import (
    CONNECTORS,
    PLAN,
    connector_metrics,
    is_of_learner,
    may_be_of_part,
    may_be_reported,
    part_metrics,
)
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.info_metrics import info_metrics, may_be_of_agent
from runner.config.league import league_metrics
from runner.config.offline_evaluation import PREFIX as OFFLINE
from runner.config.offline_evaluation import offline_evaluation_metrics
from runner.config.operators import ENV_RUNNERS, QUEUES, RECORDED_DATA, REPLAY_BUFFERS, EnqueueConfig
from runner.config.plans.compilation import compiles
from runner.config.plans.needs import needs_of, samples_asynchronously
from runner.config.plans.steps import read_plan, steps_of
from runner.config.schemas import ExperimentConfig

COMPILE_S = "timers/learner_compile"
NUM_RESTARTS = "fault_tolerance/num_remote_worker_restarts"
NUM_HEALTHY = "fault_tolerance/num_healthy_workers"
WEIGHTS_LAG_MEAN, WEIGHTS_LAG_MAX = "env_runners/weights_lag_mean", "env_runners/weights_lag_max"
NUM_ENV_RESTARTS = "env_runners/num_env_restarts"
SAMPLE_BYTES = "env_runners/sample_bytes_per_env_step"
IDLE_S, NUM_READY = "timers/env_runner_idle", "env_runners/num_samples_ready"
LEARNER_IDLE_S = "timers/learner_idle"
_COMPILE_METRICS = {COMPILE_S: "seconds this iteration spent compiling updates; missing if it compiled none"}

# Listed first where a metric is expected.
MOST_USED = (
    "env_runners/episode_return_mean",
    "evaluation/env_runners/episode_return_mean",
    "num_env_steps_sampled_lifetime",
    "training_iteration",
    "env_runners/episode_len_mean",
    "num_episodes_lifetime",
    "time_total_s",
)

_RUN_METRICS: Mapping[str, str] = {
    "training_iteration": "number of the iteration, from 1",
    "num_env_steps_sampled": "env steps sampled in this iteration; recorded steps if nothing is sampled",
    "num_env_steps_sampled_lifetime": "env steps sampled so far; the x-axis of plots",
    "num_env_steps_trained_lifetime": "rows trained on so far, counted once per update",
    "num_gradient_steps_lifetime": "gradient steps so far; with several modules, the largest number",
    "training_intensity": "rows trained on for each sampled env step so far",
    "num_episodes_lifetime": "episodes finished so far",
    "env_steps_per_s": "env steps per second of this iteration, including updates",
    "time_this_iter_s": "duration of this iteration in seconds",
    "time_total_s": "seconds of training so far, including the time before resumes",
    "timers/learner_update": "seconds the slowest learner spent on updates, including its learner pipeline",
    "timers/learner_connector": "seconds spent in the learner pipeline",
    "timers/synch_weights": "seconds spent on sending weights and connector states to env runners",
    "fault_tolerance/num_learner_restarts": "restarts of the remote learners so far",
}

CPU_PERCENT, MEMORY_PERCENT = "system/cpu_percent", "system/memory_percent"
RUN_CPUS, RUN_MEMORY_GB = "system/run_cpus", "system/run_memory_gb"
GPU_PERCENT, GPU_MEMORY_GB = "system/gpu_percent", "system/gpu_memory_gb"
SYSTEM = "system/"
_SYSTEM_METRICS: Mapping[str, str] = {
    CPU_PERCENT: "use of all CPUs of the driver's machine, in percent",
    RUN_CPUS: "CPUs kept busy by the driver and the processes that it started, on average",
    MEMORY_PERCENT: "memory in use on the driver's machine, in percent",
    RUN_MEMORY_GB: "resident memory of the driver and the processes that it started, in GB",
}
_GPU_METRICS: Mapping[str, str] = {
    GPU_PERCENT: "mean use of the GPUs of the driver's machine, in percent",
    GPU_MEMORY_GB: "memory in use on these GPUs, in GB",
}

_ONLINE_METRICS: Mapping[str, str] = {
    "timers/env_runner_sampling": "seconds spent on sampling or on waiting for env runners",
    NUM_RESTARTS: "env runners restarted so far",
    NUM_HEALTHY: "env runners that answered in this iteration",
}

_REMOTE_METRICS = {
    SAMPLE_BYTES: "bytes per env step in Ray's object store, without weights; measured on every 16th sample"
}

_ASYNC_METRICS: Mapping[str, str] = {
    WEIGHTS_LAG_MEAN: "mean age of the weights that sampled the trained steps, in updates; with replay, the age when "
    "the sample arrived",
    WEIGHTS_LAG_MAX: "largest age of these weights in this iteration",
    IDLE_S: "seconds that remote env runners waited for requests, summed over env runners",
    LEARNER_IDLE_S: "seconds of this iteration without an update",
    NUM_READY: "samples that were ready but unused at the end of the iteration",
}


_RESTART_METRICS = {NUM_ENV_RESTARTS: "sub-environments that failed and were restarted so far"}

QUARANTINED = "rllink/quarantined/"  # followed by the name of a client
_EXTERNAL_METRICS: Mapping[str, str] = {
    "rllink/num_clients": "connected simulators",
    "rllink/weights_seq_no": "number of the newest weights, summed over servers",
    "rllink/num_env_steps_received": "env steps received from simulators since the start of the run",
    "rllink/num_env_steps_acted": "env steps whose actions servers computed since the start of the run",
    "rllink/num_env_steps_stale": "env steps rejected since the start of the run because their weights were too old",
    "rllink/num_episodes_lost": "open episodes truncated since the start of the run: their simulator disconnected",
    "rllink/num_clients_with_episodes": "connected simulators with recently finished episodes; with three or more "
    "simulators, stop criteria on returns wait for more than half of them",
    "rllink/num_clients_quarantined": "connected simulators in quarantine: their episodes are skipped because their "
    "returns differ from all others",
    "rllink/num_env_steps_quarantined": "env steps skipped by quarantine since the start of the run",
    "rllink/num_requests_refused": "requests answered with an error since the start of the run",
}

_OFFLINE_METRICS: Mapping[str, str] = {
    "timers/offline_sampling": "seconds spent on waiting for train batches",
    "offline_data/num_rows_read_lifetime": (
        "train rows that pre-learners made for this process; rows that are kept are counted once"
    ),
    "offline_data/rows_read_per_s": "these rows per second in this iteration",
    "offline_data/queued_blocks_read": "blocks waiting to be read, including further passes",
    "offline_data/queued_blocks_prelearner": "blocks waiting for a pre-learner",
    "offline_data/queued_blocks_learner": "blocks waiting for the learner",
}

_BUFFER_METRICS: Mapping[str, str] = {
    "capacity": "env steps that the buffer can store, summed over modules",
    "num_env_steps": "env steps stored",
    "num_bytes": "allocated memory in bytes",
    "age_of_oldest": "batches sampled since its oldest row was written",
    "mean_priority": "mean priority of the rows; prioritised buffers only",
    "num_shard_restarts": "shards replaced after a crash so far; sharded buffers only",
}

_METRICS_OF_RESOURCES = {ENV_RUNNERS: _ONLINE_METRICS, RECORDED_DATA: _OFFLINE_METRICS}

_EPISODE_METRICS: Mapping[str, str] = {
    "episode_return_mean": "mean undiscounted return of finished episodes",
    "episode_return_min": "lowest return of these episodes",
    "episode_return_max": "highest return of these episodes",
    "episode_len_mean": "mean length of finished episodes, in env steps",
    "episode_len_min": "shortest length of these episodes",
    "episode_len_max": "longest length of these episodes",
    "num_episodes": "episodes finished in this iteration",
    "num_env_steps_sampled": "env steps of this iteration",
    "num_observations_outside_space": "observations of this iteration with a value outside their Box",
}

_LEARNER_METRICS: Mapping[str, str] = {
    "total_loss": "loss that the optimiser minimises, mean over minibatches",
    "policy_loss": "loss of the policy (PPO: negative clipped surrogate), mean over minibatches",
    "vf_loss": "loss of the value function (PPO: squared error, capped), mean over minibatches",
    "entropy": "entropy of the policy in nats, mean over the last epoch",
    "mean_kl_loss": "KL from the sampling policy to the updated one in nats, mean over the last epoch",
    "curr_kl_coeff": "weight of the KL penalty in this update",
    "curr_entropy_coeff": "weight of the entropy bonus in this update",
    "qf_loss": "loss of the TD errors, summed over the Q functions, mean over minibatches",
    "td_error_mean": "mean absolute TD error; with a distribution of returns, the mean loss of the rows",
    "cql_loss": "log-sum-exp of Q over actions minus Q of recorded actions, summed over the Q functions",
    "alpha_loss": "loss of the entropy weight alpha",
    "alpha_value": "entropy weight alpha",
    "alpha_prime_value": "Lagrange multiplier of the conservative term; 1 without lagrangian",
    "qf_mean": "mean Q of recorded or replayed actions",
    "vf_mean": "mean value of the recorded observations",
    "logp_mean": "mean log probability of the policy's actions",
    "mean_weight": "mean weight of the recorded actions' log probabilities",
    "squared_advantages": "mean squared advantage",
    "moving_average_sqd_adv_norm": "moving average of squared advantages; its root divides the advantages",
    "curr_bc_iters_left": "remaining gradient steps of behaviour cloning",
    "num_minibatch_updates": "gradient steps in this iteration",
}

# Metrics of each optimiser; the braces are replaced by its name.
_OPTIMIZER_METRICS: Mapping[str, str] = {
    "{}_optimizer_learning_rate": "learning rate of this update",
    "gradients_{}_optimizer_global_norm": "gradient norm before clipping, mean over minibatches",
}


_RETURNS_BY_ID: Mapping[str, str] = {
    "agent": "mean undiscounted return of this agent",
    "module": "mean undiscounted return per agent of this module",
}


def producible_metrics(
    config: ExperimentConfig,
    agents_by_module: Mapping[str, Sequence[str]] | None = None,
    reported: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return metric name -> meaning for the metrics that a run of `config` can report.

    Args:
        config: the experiment.
        agents_by_module: module id -> its agents, in environments with several agents; None: unknown.
        reported: metric -> meaning for connectors; None: read from the source of the connectors.

    Metrics of callbacks and operators are read from their source.
    """
    has_evaluation = config.evaluation.evaluation_interval is not None
    needs = needs_of(config)
    samples = ENV_RUNNERS in needs
    prefixes = [*(["env_runners"] if samples else []), *(["evaluation/env_runners"] if has_evaluation else [])]
    names = dict(_RUN_METRICS)
    for resource in sorted(needs):
        names |= _METRICS_OF_RESOURCES.get(resource, {})
    for buffer in config.algorithm.replay_buffers:
        names |= {f"{REPLAY_BUFFERS}/{buffer}/{name}": meaning for name, meaning in _BUFFER_METRICS.items()}
    is_remote = config.engine == "ray" and config.env_runners.min_env_runners > 0
    names |= {**_SYSTEM_METRICS, **(_GPU_METRICS if uses_gpus(config) else {})}
    names |= _REMOTE_METRICS if samples and is_remote else {}
    names |= _COMPILE_METRICS if compiles(config) else {}
    names |= _ASYNC_METRICS if samples_asynchronously(config) else {}
    queues = [
        step.config.queue
        for step in steps_of(read_plan(config.algorithm.plan))
        if isinstance(step.config, EnqueueConfig)
    ]
    names |= {f"{QUEUES}/{queue}/num_items": "items in the queue at the end of the iteration" for queue in queues}
    names |= _env_metrics(config) if samples else {}
    for prefix in prefixes:
        names |= {f"{prefix}/{name}": meaning for name, meaning in _EPISODE_METRICS.items()}
        for module_id, agents in (agents_by_module or {}).items():
            ids = {"agent": agents, "module": [module_id]}
            for kind, meaning in _RETURNS_BY_ID.items():
                names |= {f"{prefix}/{kind}_episode_return_mean/{id_}": meaning for id_ in ids[kind]}
    names |= info_metrics(config, prefixes, agents_by_module)
    module_ids = config.multi_agent.module_ids(agents_by_module)
    of_connectors = connector_metrics(config, module_ids) if reported is None else reported
    names |= {name: meaning for name, meaning in of_connectors.items() if samples or is_of_learner(name)}
    names |= league_metrics(config.league, config.evaluation) | curriculum_metrics(config.curriculum, config.evaluation)
    names |= part_metrics(config)
    for module_id in config.multi_agent.trained_modules(module_ids):
        for name, meaning in _learner_metrics(config.algorithm_of(module_id)).items():
            names[f"learners/{module_id}/{name}"] = meaning
    if has_evaluation:
        names["timers/evaluation"] = "seconds spent on evaluation"
    trained = config.multi_agent.trained_modules(list(agents_by_module or {}))
    agents = [agent for module_id in trained for agent in (agents_by_module or {})[module_id]]
    return names | offline_evaluation_metrics(config.evaluation, agents)


def uses_gpus(config: ExperimentConfig) -> bool:
    """Return whether learners or env runners get GPUs."""
    return config.learners.num_gpus_per_learner > 0 or config.env_runners.num_gpus_per_env_runner > 0


def _env_metrics(config: ExperimentConfig) -> Mapping[str, str]:
    if config.env.is_external:
        return _EXTERNAL_METRICS
    return _RESTART_METRICS if config.env_runners.restart_failed_sub_environments else {}


def _learner_metrics(algorithm: AlgorithmConfig) -> dict[str, str]:
    of_loss = {name: _LEARNER_METRICS.get(name, f"{name} of the loss") for name in algorithm.metrics.names()}
    of_optimizers = {
        pattern.format(optimizer): meaning
        for optimizer in algorithm.optimizers
        for pattern, meaning in _OPTIMIZER_METRICS.items()
    }
    others = ["num_minibatch_updates", *algorithm.coefficients]
    return of_loss | of_optimizers | {name: _LEARNER_METRICS.get(name, f"{name} of the loss") for name in others}


def may_be_produced(name: str, config: ExperimentConfig) -> bool:
    """Return whether the metric may end with the id of an agent or module that only the environment knows."""
    if name.startswith(f"{CONNECTORS}/"):
        return may_be_reported(name, config) and (ENV_RUNNERS in needs_of(config) or is_of_learner(name))
    if may_be_of_part(name, config):
        return True
    if config.env._target_ is None and not config.env.agents:
        return False
    if name.startswith(OFFLINE):
        key = f"{OFFLINE}{name.rpartition('/')[2]}"
        return name.removeprefix(OFFLINE).count("/") == 1 and key in offline_evaluation_metrics(config.evaluation)
    kind = name.removeprefix("evaluation/" if config.evaluation.evaluation_interval is not None else "")
    starts = tuple(f"env_runners/{owner}_episode_return_mean/" for owner in _RETURNS_BY_ID)
    if may_be_of_agent(kind, config):
        return True
    of_learners = {name for algorithm in config.algorithms.values() for name in _learner_metrics(algorithm)}
    is_learners = name.startswith("learners/") and name.rpartition("/")[2] in of_learners
    return kind.startswith(starts) or (is_learners and not config.multi_agent.is_mapping_complete)


def check_metric_names(config: ExperimentConfig, known: Mapping[str, str], of_plan: bool = False) -> None:
    """Check the metrics of `stop`, the checkpoint rule and sweeps when the agents are known.

    Args:
        config: the experiment.
        known: metric -> meaning.
        of_plan: check the metrics of operators, instead of all others.

    Raises:
        ConfigError: no part of the run produces a metric.
    """
    named = [(f"stop.{name}", name) for name in config.stop]
    named += [("checkpoint.metric", config.checkpoint.metric), *(("sweep.metric", name) for name in config.objectives)]
    problems = [
        Problem(f"this run does not produce the metric {name}", key, name, nearest=nearest_match(name, known))
        for key, name in named
        if name.startswith(PLAN) == of_plan and name not in known
    ]
    if problems:
        raise ConfigError(problems)
