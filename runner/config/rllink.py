"""The `rllink` block: how simulators that step themselves are served; rules of runs that wait for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.config.blocks import EnvConfig, EnvRunnersConfig, EvaluationConfig
from runner.config.errors import Problem, Where
from runner.config.fields import option

_RECORDS = re.compile(r"(\d+\.\d+):(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class RLlinkConfig:
    """Rules and limits of clients, used where `env.port` is set (docs/guides/external_simulators.md)."""

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


_SPACES = ("observation_space", "action_space")


def find_external_problems(
    env: EnvConfig, rllink: RLlinkConfig, env_runners: EnvRunnersConfig, evaluation: EvaluationConfig, where: Where
) -> Iterator[Problem]:
    """Yield options that do not go with simulators that connect, and options that go only with them."""
    declared = [name for name in (*_SPACES, "agents") if getattr(env, name) is not None]
    if not env.is_external:
        for name in declared:
            key = f"env.{name}"
            what = f"{key} is for simulators that connect; an environment that is stepped here has its own"
            yield Problem(what, where(key), None, "env.port: where simulators connect; or leave it out")
        return
    if declared and "agents" not in declared and len(declared) == 1:
        missing = next(name for name in _SPACES if name not in declared)
        place = where(f"env.{declared[0]}")
        yield Problem(f"env.{declared[0]} is set, env.{missing} is not", place, None, "both or neither")
    if "agents" in declared and len(declared) > 1:
        place = where("env.agents")
        yield Problem("env.agents and a space for a single agent are both set", place, None, "one of the two")
    if evaluation.evaluation_interval is not None and declared and not (env.env or env._target_):
        key = "evaluation.evaluation_interval"
        what = "simulators that step themselves cannot be asked to evaluate"
        expected = "evaluation=none, or env.env or env._target_: an environment to evaluate in"
        yield Problem(what, where(key), str(evaluation.evaluation_interval), expected)
    if env_runners.num_envs_per_env_runner != 1:
        key = "env_runners.num_envs_per_env_runner"
        what = "simulators step their own environments; as many connect as want to"
        yield Problem(what, where(key), str(env_runners.num_envs_per_env_runner), "1")
    yield from _check_limits(rllink, where)


def _check_limits(rllink: RLlinkConfig, where: Where) -> Iterator[Problem]:
    if rllink.tls_key is not None and rllink.tls_certificate is None:
        key = "rllink.tls_key"
        yield Problem(f"{key} is set without rllink.tls_certificate", where(key), rllink.tls_key, "both")
    for name in ("tls_certificate", "tls_key"):
        path, key = getattr(rllink, name), f"rllink.{name}"
        if path is not None and not Path(path).expanduser().is_file():
            yield Problem(f"{key}: there is no such file", where(key), path, "a PEM file")
    key = "rllink.max_receiving_bytes"
    if rllink.max_receiving_bytes < 3 * rllink.max_body_bytes:
        what = f"a message of rllink.max_body_bytes={rllink.max_body_bytes} would never get room beside others"
        expected = f"at least three times as much, {3 * rllink.max_body_bytes}; or a smaller rllink.max_body_bytes"
        yield Problem(what, where(key), str(rllink.max_receiving_bytes), expected)
    key = "rllink.skip_journal_records"
    for name in rllink.skip_journal_records:
        try:
            parse_records(name)
        except ValueError:
            what = f"an entry of {key} names no messages"
            yield Problem(what, where(key), name, "RUNNER:FIRST-LAST, for example 0.0:12-15")
