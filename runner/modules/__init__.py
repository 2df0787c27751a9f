"""Networks behind the RLModule protocol, and the action distributions they parametrise."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "APPOModule": "appo_module",
    "ActionDistribution": "action_distribution",
    "ActorCriticModule": "actor_critic_module",
    "Bernoulli": "bernoulli",
    "Categorical": "categorical",
    "CentralisedCritic": "centralised_critic",
    "DiagGaussian": "gaussian",
    "DiscreteSACModule": "discrete_sac_module",
    "DoubleQModule": "double_q_module",
    "IQLModule": "iql_module",
    "MixedQModule": "mixed_q_module",
    "MultiCategorical": "categorical",
    "MultiRLModule": "multi_rl_module",
    "NestedDistribution": "nested_distribution",
    "RLModule": "rl_module",
    "RunAgents": "multi_rl_module",
    "SACModule": "sac_module",
    "SharedEncoders": "centralised_critic",
    "SquashedGaussian": "squashed_gaussian",
    "TD3Module": "td3_module",
    "check_mask_space": "action_masks",
    "distribution_for": "distributions",
    "frozen": "frozen_network",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
