"""What samplers send to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from runner.rllink.client.answers import ServerConfig, Weights
from runner.rllink.client.sampling import LocalSampler


class Server:
    """Answers requests, and keeps the episodes."""

    def __init__(self) -> None:
        self.extensions: dict[str, dict[str, Any]] = {}
        self.sent: list[Mapping[str, Any]] = []

    def get_config(self) -> ServerConfig:
        """Return a configuration for messages of two steps."""
        return ServerConfig(env_steps_per_sample=2, force_on_policy=False)

    def get_state(self) -> Weights:
        """Return weights."""
        return Weights(1, {None: b""})

    def send_episodes(self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None) -> int:
        """Keep the episodes."""
        self.sent += episodes
        return 1

    def send_episodes_and_get_state(
        self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None
    ) -> Weights:
        """Keep the episodes."""
        self.sent += episodes
        return self.get_state()

    def get_actions(self, episodes: Sequence[Mapping[str, Any]], explore: bool = True) -> list[Any]:
        """Return no actions."""
        return []


class OpaquePolicy:
    """A greedy policy whose distribution the client does not know."""

    def __init__(self, content: bytes) -> None: ...

    def act(self, *_: Any) -> tuple[Any, dict[str, Any]]:
        """Choose action 1."""
        inputs = np.array([0.5, 0.25], np.float32)
        extra = {"action_dist_inputs": inputs, "action_logp": None, "unclipped_actions": np.int64(1), "state_out": {}}
        return 1, extra


def test_the_server_computes_log_probabilities_that_the_client_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.rllink.client.local_policy.LocalPolicy", OpaquePolicy)
    server = Server()
    sampler = LocalSampler(server, np.random.default_rng(0), explore=False)
    assert sampler.begin("a", [0.0]) == 1
    assert sampler.step("a", [1.0], 1.0, False, False) == 1
    assert sampler.step("a", [2.0], 1.0, True, False) is None
    [message] = server.sent
    assert "action_logp" not in message
    assert message["actions"].tolist() == [1, 1]
    assert message["action_dist_inputs"].shape == (2, 2)
