"""`rllink check HOST:PORT`: puts an RLlink server through each rule of the specification."""

from __future__ import annotations

import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.cli.arguments import UsageError, take_options
from runner.config.errors import nearest_match

if TYPE_CHECKING:
    from runner.rllink.check import Result
    from runner.rllink.check_wire import Target

_USAGE = "python -m runner rllink check HOST:PORT [--token T] [--tls-ca FILE] [--timeout SECONDS] [--read-only]"
_COMMANDS = ("check",)
_ALL_PASSED, _SOME_FAILED, _CANNOT_CHECK = 0, 1, 2
_MOST_TIMEOUT_S = 3600.0


def main(argv: Sequence[str]) -> int:
    """Print a line for each rule and a summary; returns 0: all passed, 1: some failed, 2: no server to check."""
    options, words = take_options(argv, ("--token", "--tls-ca", "--timeout"), ("--read-only",))
    _check_words(words)
    target = _target(words[1], options)
    from runner.rllink.check import CannotCheck, check_server

    is_read_only = "--read-only" in options
    print(f"checking {words[1]} against docs/reference/rllink.md", flush=True)
    if is_read_only:
        print("read only: rules that need accepted episodes are left out")
    else:
        print("made-up episodes are sent, and a run that is training learns from them; --read-only leaves them out")
    counts: Counter[str] = Counter()
    try:
        for result in check_server(target, is_read_only):
            counts[result.outcome] += 1
            for line in _lines(result):
                print(line, flush=True)
    except CannotCheck as error:
        print(error, file=sys.stderr)
        return _CANNOT_CHECK
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return _SOME_FAILED if counts["fail"] else _ALL_PASSED


def _lines(result: Result) -> list[str]:
    rule = result.rule
    lines = [f"{rule.number:<18} {rule.what}: {result.outcome}" + (f" ({result.why})" if result.why else "")]
    if result.outcome == "fail":
        told = (("sent", result.sent), ("expected", result.expected), ("got", result.got))
        lines += [f"{'':<18}   {name:<9} {text}" for name, text in told]
    return lines


def _check_words(words: Sequence[str]) -> None:
    if not words or words[0] not in _COMMANDS:
        nearest = nearest_match(words[0], _COMMANDS) if words else None
        hint = f"\n   did you mean  {nearest}" if nearest else ""
        got = f"unknown command rllink {words[0]}" if words else "rllink needs a command"
        raise UsageError(f"{got}\n   expected      {_USAGE}{hint}")
    if len(words) != 2:
        raise UsageError(f"rllink check takes one address, got {len(words) - 1}\n   expected      {_USAGE}")


def _target(address: str, options: dict[str, str]) -> Target:
    from runner.rllink.check_wire import Target

    host, separator, digits = address.rpartition(":")
    if not (separator and host and digits.isascii() and digits.isdigit() and 0 < int(digits) < 1 << 16):
        raise UsageError(
            f"{address} is no address\n   where         rllink check\n   expected      HOST:PORT, as 127.0.0.1:5556"
        )
    return Target(
        host.strip("[]"), int(digits), options.get("--token"), _tls(options.get("--tls-ca")), _seconds(options)
    )


def _tls(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificates cannot be read: {error}"
        raise UsageError(
            f"{problem}\n   where         --tls-ca\n   got           {ca_file}\n   expected      a PEM file"
        ) from error


def _seconds(options: dict[str, str]) -> float:
    text = options.get("--timeout", "10")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise UsageError(
            f"no time in seconds\n   where         --timeout\n   got           {text}\n   expected      up to 3600"
        )
    return seconds
