"""`rllink check HOST:PORT`: puts an RLlink server through each rule of the specification."""

from __future__ import annotations

import ssl
import sys
from collections import Counter
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments, UsageError
from runner.config.errors import Problem

if TYPE_CHECKING:
    from runner.rllink.check import Result
    from runner.rllink.check.wire import Target

_ALL_PASSED, _SOME_FAILED, _CANNOT_CHECK = 0, 1, 2
_MOST_TIMEOUT_S = 3600.0


def main(arguments: Arguments) -> int:
    """Print one line per rule and a summary; return 0 if all passed, 1 if some failed, 2 if no server answers."""
    [address] = arguments.words
    target = _target(address, arguments)
    from runner.rllink.check import CannotCheck, check_server

    is_read_only = arguments.has("--read-only")
    print(f"checking {address} against docs/reference/rllink.md", flush=True)
    if is_read_only:
        print("read-only: rules that need accepted episodes are skipped")
    else:
        print("the check sends made-up episodes, which the server's run learns from; use --read-only to skip them")
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
        details = (("sent", result.sent), ("expected", result.expected), ("got", result.got))
        lines += [f"{'':<18}   {name:<9} {text}" for name, text in details]
    return lines


def _target(address: str, arguments: Arguments) -> Target:
    from runner.rllink.check.wire import Target

    host, separator, digits = address.rpartition(":")
    if not (separator and host and digits.isascii() and digits.isdigit() and 0 < int(digits) < 1 << 16):
        what, expected = f"{address} is not a valid address", "HOST:PORT, such as 127.0.0.1:5556"
        raise UsageError(Problem(what, "rllink check", expected=expected))
    token, tls = arguments.value("--token"), _tls(arguments.value("--tls-ca"))
    return Target(host.strip("[]"), int(digits), token, tls, _seconds(arguments.value("--timeout") or "10"))


def _tls(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        problem = Problem(f"the certificates cannot be read: {error}", "--tls-ca", ca_file, "a PEM file")
        raise UsageError(problem) from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise UsageError(Problem("--timeout is not valid", got=text, expected="seconds, more than 0 and up to 3600"))
    return seconds
