"""The `rllink` block: how simulators that step themselves are served."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.config.fields import option

_RECORDS = re.compile(r"(\d+\.\d+):(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class RLlinkConfig:
    """What clients may do, and how much of it; used where `env.port` is set (docs/external-simulators.md)."""

    force_on_policy: bool = option(
        True, "episodes of weights that are not the newest are refused; clients wait for the next ones"
    )
    env_steps_per_sample: int | str = option(
        "auto",
        "env steps that a client should send at once; auto: an eighth of what a runner samples in a round",
        minimum=1,
        choices=("auto",),
    )
    num_kept_weights: int = option(4, "versions of the weights whose episodes are accepted off-policy", minimum=1)
    token: str | None = option(None, "clients must bring this token; null asks for none")
    tls_certificate: str | None = option(None, "PEM file with the server's certificate chain; null serves without TLS")
    tls_key: str | None = option(None, "PEM file with its private key")
    max_clients: int = option(
        1024, "clients at once; a connection is one with its first request, or its token", minimum=1
    )
    max_unauthenticated: int = option(256, "connections at once that are no clients yet", minimum=1)
    max_unauthenticated_per_s: float = option(
        100.0, "connections of one address a second that become no clients", unit="1/s", above=0
    )
    max_wrong_tokens_per_s: float = option(
        10.0, "tokens of one address that are tried a second, after ten wrong ones", unit="1/s", above=0
    )
    handshake_timeout_s: float = option(
        10.0, "a connection that takes longer to become a client (TLS, token, first request) ends", unit="s", above=0
    )
    max_body_bytes: int = option(99_999_999, "longest body of a message", unit="bytes", minimum=1024)
    max_receiving_bytes: int = option(
        300_000_000,
        "messages of all clients that have arrived in part; at least three of the longest; others wait",
        unit="bytes",
        minimum=3 * 1024,
    )
    max_open_episodes: int = option(1024, "episodes of one client that go on at once", minimum=1)
    max_queued_env_steps: int = option(
        100_000, "env steps that wait to be learned from before clients that send more have to wait", minimum=1
    )
    max_abs_reward: float = option(1e10, "messages with a reward beyond this, of either sign, are refused", above=0)
    leave_out: list[str] = option(
        [],
        "messages before a restart that are not learned from: RUNNER:FIRST-LAST, as the failure of a loss names them",
    )
    idle_timeout_s: float = option(600.0, "a connection without a request for longer is closed", unit="s", above=0)
    frame_timeout_s: float = option(
        30.0, "a message that takes longer to arrive, or to be read, ends its connection", unit="s", above=0
    )
    session_timeout_s: float = option(
        300.0, "open episodes of a session wait so long for its client", unit="s", above=0
    )
    shared_memory_bytes: int = option(
        16_777_216, "memory shared with a client on this machine that asks for it", unit="bytes", minimum=4096
    )


def name_records(runner: str, records: range) -> str:
    """What `leave_out` calls the messages with these numbers: RUNNER:FIRST-LAST."""
    return f"{runner}:{records.start}-{records.stop - 1}"


def parse_records(name: str) -> tuple[str, range]:
    """The runner and the numbers of the messages that an element of `leave_out` names.

    Raises:
        ValueError: it is no RUNNER:FIRST-LAST.
    """
    match = _RECORDS.fullmatch(name)
    records = range(int(match[2]), int(match[3]) + 1) if match else range(0)
    if match is None or not records:
        raise ValueError(f"{name!r} is no RUNNER:FIRST-LAST")
    return match[1], records
