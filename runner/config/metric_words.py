"""Words for metrics, for the terminal and for titles of charts. Keys stay the names for `stop` and `--assert`."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Metric -> words. `{}` of an episode metric is replaced by "evaluation ".
_OF_RUNS: Mapping[str, str] = {
    "training_iteration": "iterations",
    "num_env_steps_sampled": "env steps per iteration",
    "num_env_steps_sampled_lifetime": "env steps",
    "num_env_steps_trained_lifetime": "trained env steps",
    "num_gradient_steps_lifetime": "gradient updates",
    "training_intensity": "trained env steps per sampled env step",
    "num_episodes_lifetime": "episodes",
    "time_this_iter_s": "seconds per iteration",
    "time_total_s": "seconds of training",
    "timers/learner_update": "time for updates (s)",
    "timers/learner_connector": "time in the learner pipeline (s)",
    "timers/synch_weights": "time for sending weights (s)",
    "timers/env_runner_sampling": "time for sampling (s)",
    "timers/learner_compile": "time for compiling updates (s)",
    "timers/evaluation": "time for evaluation (s)",
    "timers/env_runner_idle": "idle time of env runners, in total (s)",
    "timers/learner_idle": "idle time of the learner (s)",
    "timers/offline_sampling": "time waiting for recorded data (s)",
    "timers/offline_evaluation": "time for evaluation on recorded data (s)",
    "system/cpu_percent": "CPU use of the machine (%)",
    "system/run_cpus": "CPUs used by the run",
    "system/memory_percent": "memory use of the machine (%)",
    "system/run_memory_gb": "memory of the run (GB)",
    "system/gpu_percent": "GPU use (%)",
    "system/gpu_memory_gb": "GPU memory in use (GB)",
    "fault_tolerance/num_learner_restarts": "restarts of learners",
    "fault_tolerance/num_remote_worker_restarts": "restarts of env runners",
    "fault_tolerance/num_healthy_workers": "env runners that answered",
    "rllink/num_clients": "connected simulators",
    "rllink/weights_seq_no": "number of the newest weights",
    "rllink/num_env_steps_received": "env steps from simulators",
    "rllink/num_env_steps_acted": "env steps with actions from servers",
    "rllink/num_env_steps_stale": "env steps with outdated weights",
    "rllink/num_episodes_lost": "episodes truncated by disconnections",
    "rllink/num_clients_with_episodes": "simulators with finished episodes",
    "rllink/num_clients_quarantined": "simulators in quarantine",
    "rllink/num_env_steps_quarantined": "env steps skipped by quarantine",
    "rllink/num_requests_refused": "rejected requests of simulators",
    "offline_data/num_rows_read_lifetime": "recorded rows read",
    "offline_data/rows_read_per_s": "recorded rows per second",
    "offline_data/queued_blocks_read": "blocks waiting to be read",
    "offline_data/queued_blocks_prelearner": "blocks waiting for a pre-learner",
    "offline_data/queued_blocks_learner": "blocks waiting for the learner",
    "env_runners/num_env_steps_sampled": "env steps per iteration",
    "env_runners/num_observations_outside_space": "observations outside their space",
    "env_runners/sample_bytes_per_env_step": "bytes per env step in the object store",
    "env_runners/weights_lag_mean": "mean age of the weights (updates)",
    "env_runners/weights_lag_max": "largest age of the weights (updates)",
    "env_runners/num_samples_ready": "samples waiting for the learner",
    "env_runners/num_env_restarts": "restarts of sub-environments",
}
# Metrics that only grow, with words in the plural.
COUNTERS = (
    "training_iteration",
    "num_env_steps_sampled_lifetime",
    "num_env_steps_trained_lifetime",
    "num_gradient_steps_lifetime",
    "num_episodes_lifetime",
    "time_total_s",
)
_OF_EPISODES: Mapping[str, str] = {
    "episode_return_mean": "mean {}return",
    "episode_return_min": "lowest {}return",
    "episode_return_max": "highest {}return",
    "episode_len_mean": "mean {}episode length (env steps)",
    "episode_len_min": "shortest {}episode (env steps)",
    "episode_len_max": "longest {}episode (env steps)",
    "num_episodes": "{}episodes per iteration",
}
_OF_LEARNERS: Mapping[str, str] = {
    "vf_loss": "value loss",
    "qf_loss": "Q loss",
    "cql_loss": "CQL loss",
    "entropy": "policy entropy (nats)",
    "mean_kl_loss": "KL divergence of the update (nats)",
    "curr_kl_coeff": "KL coefficient",
    "curr_entropy_coeff": "entropy coefficient",
    "alpha_loss": "loss of alpha",
    "alpha_value": "entropy weight alpha",
    "alpha_prime_value": "multiplier of the conservative term",
    "qf_mean": "mean Q value",
    "vf_mean": "mean value",
    "td_error_mean": "mean TD error",
    "logp_mean": "mean log probability of actions",
    "mean_weight": "mean weight of recorded actions",
    "squared_advantages": "mean squared advantage",
    "moving_average_sqd_adv_norm": "moving average of squared advantages",
    "curr_bc_iters_left": "remaining steps of behaviour cloning",
    "num_minibatch_updates": "gradient steps per iteration",
}
_OF_BUFFERS: Mapping[str, str] = {
    "capacity": "capacity (env steps)",
    "num_env_steps": "stored env steps",
    "num_bytes": "memory (bytes)",
    "age_of_oldest": "age of the oldest row (batches)",
    "num_shard_restarts": "restarts of shards",
}
_OF_RECORDED_DATA: Mapping[str, str] = {
    "num_episodes": "held-out episodes",
    "num_env_steps": "held-out env steps",
    "eval_loss": "loss on held-out data",
    "discounted_return_mean": "mean discounted return of held-out episodes",
}
# Ending of an estimate's metric, such as `wis_low` -> words after its name.
_OF_ESTIMATES: Mapping[str, str] = {
    "_low": "low end of the {} estimate",
    "_high": "high end of the {} estimate",
    "_effective_sample_size": "effective episodes of the {} estimate",
    "": "{} estimate of the return",
}
# Infos that many environments report -> words.
_OF_INFOS: Mapping[str, str] = {"is_success": "success rate"}
# Ending of a derived name -> words around the rest.
_ENDINGS: Mapping[str, str] = {
    "_mean": "mean {}",
    "_std": "standard deviation of {}",
    "_min": "lowest {}",
    "_max": "highest {}",
    "_lifetime": "{} so far",
    "_per_s": "{} per second",
    "_s": "{} (s)",
}
_LEARNING_RATE = re.compile(r"(\w+)_optimizer_learning_rate")
_GRADIENT_NORM = re.compile(r"gradients_(\w+)_optimizer_global_norm")
_OF_ONE = re.compile(r"(agent|module)_(\w+)/(.+)")  # the mean of an agent or a module
_RECORDED_DATA = "evaluation/offline/"
_EPISODES, _EVALUATION, _LEARNERS, _BUFFERS = "env_runners/", "evaluation/", "learners/", "replay_buffers/"


def words_of(metric: str) -> str:
    """Return the words for a metric. If the metric is user-defined, they are derived from its key.

    >>> words_of("env_runners/episode_return_mean")
    'mean return'
    """
    if metric in _OF_RUNS:
        return _OF_RUNS[metric]
    kind, rest = _part_after(metric, _EPISODES, f"{_EVALUATION}{_EPISODES}", _LEARNERS, _BUFFERS)
    if kind == _LEARNERS and "/" in rest:
        module, _, name = rest.rpartition("/")
        return _with_owner(learner_words(name), module)
    if kind == _BUFFERS and "/" in rest:
        buffer, _, name = rest.rpartition("/")
        return _with_owner(_OF_BUFFERS.get(name) or _derived(name), buffer)
    if kind.endswith(_EPISODES):
        return _episode_words(rest, "evaluation " if kind.startswith(_EVALUATION) else "")
    if metric.startswith(_RECORDED_DATA):
        agent, _, name = metric.removeprefix(_RECORDED_DATA).rpartition("/")
        return _with_owner(_recorded_words(name), agent)
    return _words_with_owner(metric)


def title_of(metric: str) -> str:
    """Return the words for a metric with a capital letter."""
    return capitalised(words_of(metric))


def capitalised(words: str) -> str:
    """Return the words with a capital letter; the rest is unchanged."""
    return words[:1].upper() + words[1:]


def learner_words(name: str) -> str:
    """Return the words for a metric of a learner, without its module.

    >>> learner_words("gradients_actor_optimizer_global_norm")
    'gradient norm (actor)'
    """
    if name in _OF_LEARNERS:
        return _OF_LEARNERS[name]
    for pattern, words in ((_LEARNING_RATE, "learning rate"), (_GRADIENT_NORM, "gradient norm")):
        if match := pattern.fullmatch(name):
            return words if match[1] == "default" else f"{words} ({match[1].replace('_', ' ')})"
    return _derived(name)


def _episode_words(name: str, of_evaluation: str) -> str:
    if name in _OF_EPISODES:
        return _OF_EPISODES[name].format(of_evaluation)
    if f"{_EPISODES}{name}" in _OF_RUNS:
        return of_evaluation + _OF_RUNS[f"{_EPISODES}{name}"]
    if match := _OF_ONE.fullmatch(name):
        words = _OF_EPISODES.get(match[2], "").format(of_evaluation) or of_evaluation + _derived(match[2])
        return f"{words} of {match[1]} {match[3]}"
    return of_evaluation + _words_with_owner(name)


def _recorded_words(name: str) -> str:
    if name in _OF_RECORDED_DATA:
        return _OF_RECORDED_DATA[name]
    ending, words = next(each for each in _OF_ESTIMATES.items() if name.endswith(each[0]))
    return words.format(name.removesuffix(ending).upper())


def _words_with_owner(metric: str) -> str:
    """Return `words of the last part (everything before it)`."""
    owner, _, name = metric.rpartition("/")
    owners = [_OF_INFOS.get(part) or part.replace("_", " ") for part in owner.split("/")]
    return _with_owner(_derived(name), ", ".join(owners))


def _with_owner(words: str, owner: str) -> str:
    """Return `words (owner)`; a unit in parentheses comes before the owner."""
    if not owner:
        return words
    return f"{words[:-1]}, {owner})" if words.endswith(")") else f"{words} ({owner})"


def _derived(name: str) -> str:
    """Return words for the last part of a key, such as `mean speed (s)` for `speed_s_mean`."""
    if name in _OF_INFOS:
        return _OF_INFOS[name]
    for ending, words in _ENDINGS.items():
        stem = name.removesuffix(ending)
        if stem and stem != name:
            return words.format(_derived(stem))
    return name.removeprefix("num_").replace("_", " ").strip() or name


def _part_after(metric: str, *prefixes: str) -> tuple[str, str]:
    for prefix in prefixes:
        if metric.startswith(prefix):
            return prefix, metric.removeprefix(prefix)
    return "", metric
