"""Answers of a server to a client, and the errors that a client raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class RLlinkError(RuntimeError):
    """The server rejected a request.

    Attributes:
        code: error code of the specification, section 7.
        path: location of the mistake in the message, or None.
    """

    def __init__(self, code: str, message: str, path: str | None = None) -> None:
        self.code, self.path = code, path
        super().__init__(f"{code}: {message}" + (f" (at {path})" if path else ""))


class ServerGone(ConnectionError):
    """The server cannot be reached, or the run is over."""


@dataclass(frozen=True)
class ServerConfig:
    """The answer to GET_CONFIG.

    Attributes:
        env_steps_per_sample: number of env steps to send per message.
        force_on_policy: whether sampling waits for new weights after each message.
        observation_space, action_space: spaces as in the specification, section 4; None with several agents.
        agents: agent id -> its `module` and spaces, or None with a single agent.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    observation_space: Mapping[str, Any] | None = None
    action_space: Mapping[str, Any] | None = None
    agents: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Task:
    """A task of the run, to which an episode belongs.

    Attributes:
        name: name to pass to the sampler's `begin`.
        options: options for the simulator's reset.
        env_config: configuration for a separate simulator; if empty, any simulator can be used.
    """

    name: str
    options: Mapping[str, Any]
    env_config: Mapping[str, Any]


@dataclass(frozen=True)
class Weights:
    """Weights of the server.

    Attributes:
        seq_no: number of the weights.
        files: module id (None with a single agent) -> content of an ONNX or safetensors file.
    """

    seq_no: int
    files: Mapping[str | None, bytes]
