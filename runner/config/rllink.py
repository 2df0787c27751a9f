"""The `rllink` block (serving external simulators), and its rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.config.blocks import EnvConfig, EnvRunnersConfig, EvaluationConfig
from runner.config.errors import Problem
from runner.config.fields import option

_RECORDS = re.compile(r"(\d+\.\d+):(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class RLlinkConfig:
    """Rules and limits of clients, used if `env.port` is set (docs/guides/external_simulators.md)."""

    force_on_policy: bool = option(
        True, "reject episodes that were not sampled with the newest weights; clients wait for new weights"
    )
    env_steps_per_sample: int | str = option(
        "auto",
        "env steps per message that clients should send; auto: an eighth of a runner's samples per round",
        minimum=1,
        choices=("auto",),
    )
    num_kept_weights: int = option(4, "number of weight versions whose episodes are accepted off-policy", minimum=1)
    token: str | None = option(None, "token that clients must send; null: no token")
    tls_certificate: str | None = option(
        None, "PEM file with the server's certificate chain; null: no TLS", is_path=True
    )
    tls_key: str | None = option(None, "PEM file with the server's private key", is_path=True)
    max_clients: int = option(
        1024, "maximum clients; a connection becomes a client with its first request, or with its token", minimum=1
    )
    max_unauthenticated: int = option(256, "maximum connections that are not yet clients", minimum=1)
    max_unauthenticated_per_s: float = option(
        100.0, "maximum rate of connections per address that do not become clients", unit="1/s", above=0
    )
    max_wrong_tokens_per_s: float = option(
        10.0, "maximum rate of tokens per address after ten wrong tokens", unit="1/s", above=0
    )
    handshake_timeout_s: float = option(
        10.0, "time limit for a connection to become a client (TLS, token, first request)", unit="s", above=0
    )
    max_body_bytes: int = option(99_999_999, "maximum length of a message body", unit="bytes", minimum=1024)
    max_receiving_bytes: int = option(
        300_000_000,
        "memory for partially received messages of all clients, at least three times max_body_bytes; others wait",
        unit="bytes",
        minimum=3 * 1024,
    )
    max_open_episodes: int = option(1024, "maximum open episodes per client", minimum=1)
    max_queued_env_steps: int = option(
        100_000, "env steps waiting for an update above which clients must wait", minimum=1
    )
    max_abs_reward: float | None = option(
        None,
        "largest absolute reward; messages beyond it are rejected; null: ten times the environment's reward threshold, "
        "or a bound learned from the first episodes of three clients",
        above=0,
    )
    trusted_clients: list[str] = option([], "names or patterns of clients that are never quarantined; ['*']: all")
    skip_journal_records: list[str] = option(
        [],
        "earlier messages to exclude from training: RUNNER:FIRST-LAST, as shown in the error message of a loss",
        renamed_from="leave_out",
    )
    idle_timeout_s: float = option(
        600.0, "time without a request after which a connection is closed", unit="s", above=0
    )
    frame_timeout_s: float = option(30.0, "time limit for receiving or sending a message", unit="s", above=0)
    session_timeout_s: float = option(
        300.0, "time for which the open episodes of a disconnected session are kept", unit="s", above=0
    )
    shared_memory_bytes: int = option(
        16_777_216, "shared memory per client on this machine that requests it", unit="bytes", minimum=4096
    )


def name_records(runner: str, records: range) -> str:
    """Return the element of `skip_journal_records` for these messages: RUNNER:FIRST-LAST."""
    return f"{runner}:{records.start}-{records.stop - 1}"


def parse_records(name: str) -> tuple[str, range]:
    """Parse an element of `skip_journal_records` into the runner and the numbers of its messages.

    Raises:
        ValueError: the name does not have the form RUNNER:FIRST-LAST.
    """
    match = _RECORDS.fullmatch(name)
    records = range(int(match[2]), int(match[3]) + 1) if match else range(0)
    if match is None or not records:
        raise ValueError(f"expected RUNNER:FIRST-LAST, got {name!r}")
    return match[1], records


_SPACES = ("observation_space", "action_space")


def find_external_problems(
    env: EnvConfig, rllink: RLlinkConfig, env_runners: EnvRunnersConfig, evaluation: EvaluationConfig
) -> Iterator[Problem]:
    """Yield options that do not work with external simulators, and options that need them."""
    declared = [name for name in (*_SPACES, "agents") if getattr(env, name) is not None]
    if not env.is_external:
        for name in declared:
            key = f"env.{name}"
            what = f"{key} applies to external simulators only"
            yield Problem(what, key, fix=f"set env.port, or remove {key}")
        return
    if declared and "agents" not in declared and len(declared) == 1:
        missing = next(name for name in _SPACES if name not in declared)
        key = f"env.{declared[0]}"
        yield Problem(f"{key} is set without env.{missing}", key, None, "both or neither")
    if "agents" in declared and len(declared) > 1:
        key = "env.agents"
        yield Problem(f"{key} and a space for a single agent are both set", key, None, "only one of them")
    if evaluation.evaluation_interval is not None and declared and not (env.env or env._target_):
        key = "evaluation.evaluation_interval"
        what = "external simulators cannot run evaluations"
        expected = "evaluation=none, or an environment for evaluations: env.env or env._target_"
        yield Problem(what, key, str(evaluation.evaluation_interval), expected)
    if env_runners.num_envs_per_env_runner != 1:
        key = "env_runners.num_envs_per_env_runner"
        what = f"{key} has no effect on external simulators: any number can connect"
        yield Problem(what, key, str(env_runners.num_envs_per_env_runner), "1")
    yield from _check_limits(rllink)


def _check_limits(rllink: RLlinkConfig) -> Iterator[Problem]:
    if rllink.tls_key is not None and rllink.tls_certificate is None:
        key = "rllink.tls_key"
        yield Problem(f"{key} is set without rllink.tls_certificate", key, rllink.tls_key, "both or neither")
    for name in ("tls_certificate", "tls_key"):
        path, key = getattr(rllink, name), f"rllink.{name}"
        if path is not None and not os.path.isfile(os.path.expanduser(path)):
            yield Problem(f"{key}: the file does not exist", key, path, "a PEM file")
    key = "rllink.max_receiving_bytes"
    if rllink.max_receiving_bytes < 3 * rllink.max_body_bytes:
        what = f"{key} is too small for messages of rllink.max_body_bytes={rllink.max_body_bytes}"
        expected = f"at least 3 * rllink.max_body_bytes = {3 * rllink.max_body_bytes}"
        yield Problem(what, key, str(rllink.max_receiving_bytes), expected)
    key = "rllink.skip_journal_records"
    for name in rllink.skip_journal_records:
        try:
            parse_records(name)
        except ValueError:
            what = f"an entry of {key} has the wrong form"
            yield Problem(what, key, name, "RUNNER:FIRST-LAST, for example 0.0:12-15")
