"""Checks of runs whose environments step themselves (`env.port`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.composed import Composed
from runner.config.errors import Problem
from runner.config.rllink import parse_records
from runner.config.schemas import ExperimentConfig

_SPACES = ("observation_space", "action_space")


def find_external_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield options that do not go with simulators that connect, and options that go only with them."""
    env = config.env
    declared = [name for name in (*_SPACES, "agents") if getattr(env, name) is not None]
    if not env.is_external:
        for name in declared:
            key = f"env.{name}"
            what = f"{key} is for simulators that connect; an environment that is stepped here has its own"
            yield Problem(what, composed.where(key), None, "env.port: where simulators connect; or leave it out")
        return
    if declared and "agents" not in declared and len(declared) == 1:
        missing = next(name for name in _SPACES if name not in declared)
        where = composed.where(f"env.{declared[0]}")
        yield Problem(f"env.{declared[0]} is set, env.{missing} is not", where, None, "both or neither")
    if "agents" in declared and len(declared) > 1:
        where = composed.where("env.agents")
        yield Problem("env.agents and a space for a single agent are both set", where, None, "one of the two")
    yield from _check_roles(config, composed, bool(declared))
    yield from _check_tls(config, composed)
    yield from _check_memory(config, composed)
    yield from _check_left_out(config, composed)


def _check_roles(config: ExperimentConfig, composed: Composed, is_declared: bool) -> Iterator[Problem]:
    env, runners = config.env, config.env_runners
    if config.evaluation.evaluation_interval is not None and is_declared and not (env.env or env._target_):
        key = "evaluation.evaluation_interval"
        what = "simulators that step themselves cannot be asked to evaluate"
        allowed = "evaluation=none, or env.env or env._target_: an environment to evaluate in"
        yield Problem(what, composed.where(key), str(config.evaluation.evaluation_interval), allowed)
    if runners.num_envs_per_env_runner != 1:
        key = "env_runners.num_envs_per_env_runner"
        what = "simulators step their own environments; as many connect as want to"
        yield Problem(what, composed.where(key), str(runners.num_envs_per_env_runner), "1")


def _check_tls(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    rllink = config.rllink
    if rllink.tls_key is not None and rllink.tls_certificate is None:
        key = "rllink.tls_key"
        yield Problem(f"{key} is set without rllink.tls_certificate", composed.where(key), rllink.tls_key, "both")
    for name in ("tls_certificate", "tls_key"):
        path, key = getattr(rllink, name), f"rllink.{name}"
        if path is not None and not Path(path).expanduser().is_file():
            yield Problem(f"{key}: there is no such file", composed.where(key), path, "a PEM file")


def _check_memory(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    rllink, key = config.rllink, "rllink.max_receiving_bytes"
    if rllink.max_receiving_bytes < 3 * rllink.max_body_bytes:
        what = f"a message of rllink.max_body_bytes={rllink.max_body_bytes} would never get room beside others"
        allowed = f"at least three times as much, {3 * rllink.max_body_bytes}; or a smaller rllink.max_body_bytes"
        yield Problem(what, composed.where(key), str(rllink.max_receiving_bytes), allowed)


def _check_left_out(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    key = "rllink.skip_journal_records"
    for name in config.rllink.skip_journal_records:
        try:
            parse_records(name)
        except ValueError:
            what = f"an entry of {key} names no messages"
            yield Problem(what, composed.where(key), name, "RUNNER:FIRST-LAST, for example 0.0:12-15")
