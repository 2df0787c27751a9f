"""The text that a run prints while it waits for simulators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runner.config.schemas import ExperimentConfig
from runner.module_building import ModuleSpec

_INDENT = " " * 15


def external_text(config: ExperimentConfig, addresses: Sequence[str], specs: Iterable[ModuleSpec]) -> str:
    """Return lines with the addresses, their protection, the spaces, and commands to connect."""
    rllink = config.rllink
    guards = ["TLS" if rllink.tls_certificate else "no TLS", "token" if rllink.token else "no token"]
    policy = "on-policy" if rllink.force_on_policy else "off-policy"
    host, _, port = addresses[0].rpartition(":")
    details = [line for spec in specs for line in _spaces_of(spec)]
    token = " --token TOKEN" if rllink.token else ""
    ca = " --tls-ca FILE" if rllink.tls_certificate else ""
    details.append(f"check:    runner rllink check {addresses[0]}{token}{ca}")
    if config.env.env == "CartPole-v1":
        details.append(f"example:  python examples/external/cartpole_client.py --host {host} --port {port}{token}")
    first = f"  RLlink       listens at {', '.join(addresses)} ({', '.join(guards)}), {policy}; waits for simulators"
    return "\n".join([first, *(f"{_INDENT}{line}" for line in details)])


def _spaces_of(spec: ModuleSpec) -> list[str]:
    agents = [] if spec.agents is None else [f"agents:   {', '.join(spec.agents)} ({spec.module_id})"]
    return [*agents, f"obs:      {_in_a_line(spec.observation_space)}", f"actions:  {_in_a_line(spec.action_space)}"]


def _in_a_line(space: Any) -> str:
    return " ".join(str(space).split())  # numpy pads numbers and wraps lines
