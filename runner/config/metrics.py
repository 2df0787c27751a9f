"""Every metric a run can report, and what it means. `stop`, `checkpoint.metric` and the docs are checked against it."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.fields import names_of
from runner.config.schemas import ExperimentConfig

DEFAULT_MODULE_ID = "default_policy"

_RUN_METRICS: Mapping[str, str] = {
    "training_iteration": "iterations done, from 1",
    "num_env_steps_sampled": "env steps sampled in this iteration",
    "num_env_steps_sampled_lifetime": "env steps sampled so far; the step axis of all plots",
    "num_env_steps_trained_lifetime": "rows that went through an update so far, each counted once",
    "num_episodes_lifetime": "episodes finished so far",
    "env_steps_per_s": "env steps of this iteration per second, sampling and update together",
    "time_this_iter_s": "seconds this iteration took",
    "time_total_s": "seconds of training so far, over all resumes",
    "timers/env_runner_sampling": "seconds this iteration spent sampling",
    "timers/learner_update": "seconds this iteration spent in the update, learner pipeline included",
    "timers/learner_connector": "seconds this iteration spent in the learner pipeline",
    "timers/synch_weights": "seconds this iteration spent sending weights and connector states to env runners",
    "fault_tolerance/num_remote_worker_restarts": "env runners restarted so far",
    "fault_tolerance/num_healthy_workers": "env runners that answered in this iteration",
}

_EPISODE_METRICS: Mapping[str, str] = {
    "episode_return_mean": "mean undiscounted return of finished episodes",
    "episode_return_min": "lowest of these returns",
    "episode_return_max": "highest of these returns",
    "episode_len_mean": "mean length of finished episodes, in env steps",
    "episode_len_min": "shortest of these lengths",
    "episode_len_max": "longest of these lengths",
    "num_episodes": "episodes finished in this iteration",
    "num_env_steps_sampled": "env steps stepped in this iteration",
}

_LEARNER_METRICS: Mapping[str, str] = {
    "total_loss": "what the optimiser minimised, mean over minibatches",
    "policy_loss": "negative clipped surrogate, mean over minibatches",
    "vf_loss": "squared error of the value function (capped), mean over minibatches",
    "entropy": "entropy of the policy in nats, mean over the last epoch",
    "mean_kl_loss": "KL from the sampling policy to the updated one in nats, mean over the last epoch",
    "curr_kl_coeff": "weight of the KL penalty in this update",
    "curr_entropy_coeff": "weight of the entropy bonus in this update",
    "default_optimizer_learning_rate": "learning rate of this update",
    "gradients_default_optimizer_global_norm": "norm of the gradient before clipping, mean over minibatches",
    "num_minibatch_updates": "gradient steps in this iteration",
}


def producible_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Metric name -> meaning, for the metrics that a run of `config` can report."""
    learner = [*names_of(config.algorithm.metrics), "default_optimizer_learning_rate"]
    learner += ["gradients_default_optimizer_global_norm", "num_minibatch_updates"]
    learner += [name for name in ("curr_kl_coeff", "curr_entropy_coeff") if hasattr(config.algorithm, "entropy_coeff")]
    names = dict(_RUN_METRICS)
    names |= {f"env_runners/{name}": meaning for name, meaning in _EPISODE_METRICS.items()}
    names |= {
        f"learners/{DEFAULT_MODULE_ID}/{name}": _LEARNER_METRICS.get(name, f"{name} of the loss") for name in learner
    }
    if config.evaluation.evaluation_interval is not None:
        names |= {f"evaluation/env_runners/{name}": meaning for name, meaning in _EPISODE_METRICS.items()}
        names["timers/evaluation"] = "seconds this iteration spent in evaluation"
    return names
