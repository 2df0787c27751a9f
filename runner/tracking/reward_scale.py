"""A hint for runs whose rewards are too large for the value function to learn from."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.tracking.headline import RETURN, number_text

_LARGE_RETURN = 100
_DOMINATES = 100  # times the policy loss
_SMALLEST_POLICY_LOSS = 0.01


def reward_scale_hint(values: Mapping[str, float | None]) -> str | None:
    """Return what to do about large rewards, None if the value loss does not dominate.

    Args:
        values: metric -> the last value.
    """
    last_return = values.get(RETURN)
    if last_return is None or not abs(last_return) >= _LARGE_RETURN:
        return None
    for name, policy_loss in values.items():
        module, _, metric = name.rpartition("/")
        vf_loss = values.get(f"{module}/vf_loss")
        if metric != "policy_loss" or policy_loss is None or vf_loss is None or math.isnan(vf_loss):
            continue
        if vf_loss >= _DOMINATES * max(abs(policy_loss), _SMALLEST_POLICY_LOSS):
            return (
                f"Returns are large ({number_text(last_return)}), and the value loss ({number_text(vf_loss)}) is much "
                f"larger than the policy loss ({number_text(policy_loss)}). If the policy does not improve, try "
                "connectors=normalize, which scales rewards and observations."
            )
    return None
