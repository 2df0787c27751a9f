"""Small YAML files that expand to huge values are rejected quickly, in little memory, with one message."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.config.documents import TooLargeError, check_expansion, parse_json
from tests.conftest import ROOT, WAIT_S


def aliases() -> str:
    lines = ["x0: &x0 [a, a, a, a, a, a, a, a]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 8)}]" for n in range(1, 12)]
    return "\n".join(lines)


def references() -> str:
    lines = ["env:", "  env_config:", "    a0: [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"    a{n}: [{', '.join([f'{chr(34)}${{env.env_config.a{n - 1}}}{chr(34)}'] * 8)}]" for n in range(1, 14)]
    return "\n".join(lines)


BOMBS: dict[str, tuple[Callable[[], str], str]] = {
    "aliases": (aliases, "its aliases expand to more than 200,000 values"),
    "loop": (lambda: "env: {env_config: &a {b: *a}}", "the alias *a contains itself"),
    "deep": (lambda: "env: {env_config: {a: " + "[" * 100_000, "values are nested deeper than 64"),
    "references": (references, "its references expand to"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_expands_to_too_much(tmp_path: Path, name: str) -> None:
    make, told = BOMBS[name]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bomb.yaml").write_text(f"# @package _global_\n{make()}\n")
    command = [sys.executable, "-m", "runner", "validate", "+experiment=bomb", "--config-dir", str(tmp_path)]
    limit = (2**31, 2**31)  # of the address space
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert result.returncode == 2, result.stderr[-1000:]
    assert "Traceback" not in result.stderr
    assert told in " ".join(result.stderr.split())


def test_json_that_is_too_deep() -> None:
    for text in ("[" * 100_000, "[" * 65 + "]" * 65):
        with pytest.raises(TooLargeError, match="deeper than 64"):
            parse_json(text)
    assert parse_json("[" * 64 + "]" * 64)


def test_references_are_counted_without_being_followed() -> None:
    check_expansion({"a": {"b": 1, "c": "${.b}"}, "d": ["${a.c}", "x${a.b}y", "${nowhere}", "${oc.env:HOME}"]})
    for values in ({"a": "${a}"}, {"a": {"b": "${a}"}}, {"a": "${b}", "b": "${a}"}):
        with pytest.raises(TooLargeError, match="references are circular"):
            check_expansion(values)
    texts = {"t0": "x" * 100} | {f"t{n}": f"${{t{n - 1}}}${{t{n - 1}}}" for n in range(1, 30)}
    with pytest.raises(TooLargeError, match="expand to"):
        check_expansion(texts)
