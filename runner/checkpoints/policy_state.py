"""What makes the policy in the state of a checkpoint, beside the learners' parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.operators import ENV_RUNNERS, RECORDED_DATA


def shared_state_in(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return module id -> merged state of connectors that runners share.

    Raises:
        KeyError: the state has neither env runners nor recorded data.
    """
    source = ENV_RUNNERS if ENV_RUNNERS in state else RECORDED_DATA
    shared: Mapping[str, Any] = state[source]["shared"]
    return shared
