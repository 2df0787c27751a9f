"""Evaluation on held-out recorded data: its types, its metrics, and checks of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.config.blocks import EvaluationConfig
from runner.config.checks import convert_fields, find_block_problems
from runner.config.errors import Problem, unknown_name
from runner.config.fields import names_of, option
from runner.config.schemas import ExperimentConfig, ModuleConfig

EVAL_LOSS = "eval_loss"
# Method -> its name. `runner.offline.evaluation.policy_evaluation.METHODS` implements them.
OFF_POLICY_METHODS: Mapping[str, str] = {
    "is": "importance sampling",
    "wis": "weighted importance sampling",
    "pdis": "per-decision importance sampling",
    "wpdis": "weighted per-decision importance sampling",
    "dm": "direct method, fitted Q",
    "dr": "doubly robust, fitted Q",
    "wdr": "weighted doubly robust, fitted Q",
}
EVALUATION_TYPES = (EVAL_LOSS, *OFF_POLICY_METHODS)
PREFIX = "evaluation/offline/"
NUM_EPISODES = f"{PREFIX}num_episodes"
TIMER = "timers/offline_evaluation"

_KEY = "evaluation.offline_evaluation_"
# Fields of the module block for the encoder of observations.
_NETWORK_FIELDS = [name for name in names_of(ModuleConfig) if name.startswith(("fcnet_", "conv_"))]


@dataclass(frozen=True)
class FittedQConfig:
    """Options of the fitted action values of `dm`, `dr` and `wdr`."""

    lr: float = option(1e-3, "initial learning rate, which decreases linearly to 0", above=0)
    batch_size: int = option(256, "rows of a minibatch", unit="steps", minimum=1)
    num_updates: int = option(10_000, "gradient steps per fold", unit="updates", minimum=1)
    target_update_period: int = option(20, "gradient steps between updates of the target", unit="updates", minimum=1)
    num_action_samples: int = option(
        8, "sampled actions per expectation over the policy (exact for Discrete actions)", minimum=1
    )
    num_folds: int = option(
        2,
        "cross-fitting folds of episodes; the values of a fold come from a fit to the others (1: one fit to all data)",
        minimum=1,
    )
    network: ModuleConfig = field(default_factory=lambda: ModuleConfig(fcnet_hiddens=[64, 64], fcnet_activation="relu"))


def evaluation_types(evaluation: EvaluationConfig) -> list[str]:
    """Return the types of evaluation on held-out data without duplicates."""
    given = evaluation.offline_evaluation_type
    return list(dict.fromkeys([given] if isinstance(given, str) else given))


def off_policy_methods(evaluation: EvaluationConfig) -> list[str]:
    """Return the off-policy estimates among the types of evaluation."""
    return [name for name in evaluation_types(evaluation) if name in OFF_POLICY_METHODS]


def fitted_q_config(values: Mapping[str, Any]) -> FittedQConfig:
    """Convert a checked `offline_evaluation_q_model_config`; missing fields get their defaults."""
    default = FittedQConfig()
    fitting = {name: value for name, value in values.items() if name != "network"}
    network = replace(default.network, **convert_fields(ModuleConfig, values.get("network", {})))
    return replace(default, **convert_fields(FittedQConfig, fitting), network=network)


def offline_evaluation_metrics(evaluation: EvaluationConfig, agents: Sequence[str] = ()) -> dict[str, str]:
    """Return metric name -> meaning for iterations with an evaluation on held-out data.

    Args:
        evaluation: the block.
        agents: agents that are evaluated separately, in environments with several agents.
    """
    if evaluation.offline_evaluation_input_ is None or evaluation.offline_evaluation_interval is None:
        return {}
    names = {"num_episodes": "held-out episodes", "num_env_steps": "env steps of the held-out episodes"}
    methods = off_policy_methods(evaluation)
    if EVAL_LOSS in evaluation_types(evaluation):
        names[EVAL_LOSS] = "mean loss of the algorithm over the held-out env steps"
    if methods:
        names["discounted_return_mean"] = "mean discounted return of the held-out episodes as recorded"
    for method in methods:
        names[method] = f"expected discounted return of the policy, estimated by {OFF_POLICY_METHODS[method]}"
        names[f"{method}_low"] = f"lower end of its {100 * evaluation.offline_evaluation_level:g}% bootstrap interval"
        names[f"{method}_high"] = "upper end of this interval"
        names[f"{method}_effective_sample_size"] = "effective number of episodes of the estimate (Kish)"
    of_agents = {f"{agent}/{name}": f"{agent}: {meaning}" for agent in agents for name, meaning in names.items()}
    if agents:
        names = {
            "num_episodes": "held-out episodes of all agents",
            "num_env_steps": "steps of all agents in the held-out episodes",
        }
    meanings = {f"{PREFIX}{name}": meaning for name, meaning in {**names, **of_agents}.items()}
    return meanings | {TIMER: "seconds of the evaluation on held-out data in this iteration"}


def find_offline_evaluation_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield unknown types, an interval without data, and invalid fields of the Q model."""
    evaluation = config.evaluation
    if evaluation.offline_evaluation_input_ is None and evaluation.offline_evaluation_interval is not None:
        key = f"{_KEY}interval"
        what = f"{key} is set, but there is no held-out data"
        got = str(evaluation.offline_evaluation_interval)
        yield Problem(what, key, got, f"null, or {_KEY}input_=PATH")
    types, key = evaluation_types(evaluation), f"{_KEY}type"
    if not types:
        yield Problem(f"{key} is empty", key, "[]", ", ".join(EVALUATION_TYPES))
    for name in types:
        if name not in EVALUATION_TYPES:
            yield unknown_name(f"{key} does not have a type {name}", key, name, EVALUATION_TYPES)
    q_model, key = evaluation.offline_evaluation_q_model_config, f"{_KEY}q_model_config"
    others = {name: value for name, value in q_model.items() if name != "network"}
    yield from find_block_problems(FittedQConfig, others, key)
    yield from find_block_problems(ModuleConfig, q_model.get("network", {}), f"{key}.network", _NETWORK_FIELDS)
