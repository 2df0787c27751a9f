"""The `rllink` block: how simulators that step themselves are served."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.config.fields import option

_RECORDS = re.compile(r"(\d+\.\d+):(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class RLlinkConfig:
    """Rules and limits of clients, used where `env.port` is set (docs/external-simulators.md)."""

    force_on_policy: bool = option(
        True, "episodes of weights that are not the newest are refused; clients wait for the next ones"
    )
    env_steps_per_sample: int | str = option(
        "auto",
        "env steps that a client should send at once; auto: an eighth of a runner's samples in a round",
        minimum=1,
        choices=("auto",),
    )
    num_kept_weights: int = option(4, "versions of the weights whose episodes are accepted off-policy", minimum=1)
    token: str | None = option(None, "clients must bring this token; null asks for none")
    tls_certificate: str | None = option(
        None, "PEM file with the server's certificate chain; null serves without TLS", is_path=True
    )
    tls_key: str | None = option(None, "PEM file with its private key", is_path=True)
    max_clients: int = option(
        1024, "clients at once; a connection becomes a client with its first request, or with its token", minimum=1
    )
    max_unauthenticated: int = option(256, "connections at once that have not become clients yet", minimum=1)
    max_unauthenticated_per_s: float = option(
        100.0, "connections per second of one address that do not become clients", unit="1/s", above=0
    )
    max_wrong_tokens_per_s: float = option(
        10.0, "tokens per second that one address can try, after ten wrong ones", unit="1/s", above=0
    )
    handshake_timeout_s: float = option(
        10.0, "a connection that takes longer to become a client (TLS, token, first request) ends", unit="s", above=0
    )
    max_body_bytes: int = option(99_999_999, "longest body of a message", unit="bytes", minimum=1024)
    max_receiving_bytes: int = option(
        300_000_000,
        "memory for half-received messages of all clients, at least three times max_body_bytes; further messages wait",
        unit="bytes",
        minimum=3 * 1024,
    )
    max_open_episodes: int = option(1024, "open episodes of one client at once", minimum=1)
    max_queued_env_steps: int = option(
        100_000, "env steps that wait for an update before clients that send more have to wait", minimum=1
    )
    max_abs_reward: float | None = option(
        None,
        "messages with a reward beyond this, of either sign, are refused; null: ten times the environment's reward "
        "threshold, or a bound learned from the first episodes of three clients",
        above=0,
    )
    trusted_clients: list[str] = option(
        [], "clients that are never quarantined, by their names or by patterns; ['*'] trusts all"
    )
    skip_journal_records: list[str] = option(
        [],
        "earlier messages that are left out of learning: RUNNER:FIRST-LAST, as the failure of a loss names them",
        renamed_from="leave_out",
    )
    idle_timeout_s: float = option(600.0, "a connection without a request for longer is closed", unit="s", above=0)
    frame_timeout_s: float = option(
        30.0, "a message that takes longer to be received or sent ends its connection", unit="s", above=0
    )
    session_timeout_s: float = option(
        300.0, "time that the open episodes of a session wait for its client", unit="s", above=0
    )
    shared_memory_bytes: int = option(
        16_777_216, "memory shared with a client on this machine that asks for it", unit="bytes", minimum=4096
    )


def name_records(runner: str, records: range) -> str:
    """Return the name of the messages with these numbers in `skip_journal_records`: RUNNER:FIRST-LAST."""
    return f"{runner}:{records.start}-{records.stop - 1}"


def parse_records(name: str) -> tuple[str, range]:
    """Parse an element of `skip_journal_records` into the runner and the numbers of its messages.

    Raises:
        ValueError: the name is no RUNNER:FIRST-LAST.
    """
    match = _RECORDS.fullmatch(name)
    records = range(int(match[2]), int(match[3]) + 1) if match else range(0)
    if match is None or not records:
        raise ValueError(f"{name!r} is no RUNNER:FIRST-LAST")
    return match[1], records
