"""Networks that implement the RLModule protocol, and their action distributions."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "APPOModule": "actor_critic_module",
    "ActionDistribution": "action_distribution",
    "ActorCriticModule": "actor_critic_module",
    "Bernoulli": "categorical",
    "Beta": "beta",
    "Categorical": "categorical",
    "CentralisedCritic": "multi_rl_module",
    "CrossQModule": "crossq_module",
    "DiagGaussian": "gaussian",
    "DiscreteSACModule": "q_function_modules",
    "DoubleQModule": "double_q_module",
    "IQLModule": "q_function_modules",
    "MixedQModule": "mixed_q_module",
    "MultiCategorical": "categorical",
    "MultiRLModule": "multi_rl_module",
    "NestedDistribution": "distributions",
    "QModule": "double_q_module",
    "RLModule": "rl_module",
    "RunAgents": "multi_rl_module",
    "SACModule": "q_function_modules",
    "SharedEncoders": "multi_rl_module",
    "SquashedGaussian": "gaussian",
    "TD3Module": "q_function_modules",
    "check_mask_space": "action_masks",
    "distribution_for": "distributions",
    "frozen": "target_networks",
    "target_of": "target_networks",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
