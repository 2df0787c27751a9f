"""What is told at the start of a run that waits for simulators."""

from __future__ import annotations

from collections.abc import Sequence

from runner.config.schemas import ExperimentConfig


def external_text(config: ExperimentConfig, addresses: Sequence[str]) -> str:
    """Addresses, protection and how to connect, in lines."""
    rllink = config.rllink
    guards = ["TLS" if rllink.tls_certificate else "no TLS", "token" if rllink.token else "no token"]
    policy = "on-policy" if rllink.force_on_policy else "off-policy"
    host, _, port = addresses[0].rpartition(":")
    lines = [
        f"RLlink     listens at {', '.join(addresses)} ({', '.join(guards)}), {policy}; waits for simulators",
        f"           check it:  python -m runner rllink check {addresses[0]}",
    ]
    if config.env.env == "CartPole-v1":
        lines.append(f"           example:   python examples/external/cartpole_client.py --host {host} --port {port}")
    return "\n".join(lines)
