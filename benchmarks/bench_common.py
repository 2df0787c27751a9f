"""Shared code of the benchmark drivers: peers, subprocesses, machine facts, tables."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.tracking.run_info import cpu_model

ROOT = Path(__file__).resolve().parent.parent
PEERS_DIR = ROOT / "benchmarks" / "peers"
RESULTS_DIR = ROOT / "benchmarks" / "runs"
OURS = "ours"
OURS_COMPILED = "ours-compiled"
COMPILED = ("--learner", "compiled")  # flags of our own peers
DEFAULT_PEERS = "ours,bare,sb3,rllib"
LIBRARIES = ("sb3", "rllib", "d3rlpy")  # each in a separate environment; `named_peers` selects its interpreter
TIMEOUT_S = 1800.0  # per measurement

Result = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A system to measure: its script, flags and interpreter. A script of a library begins with the library's name."""

    name: str
    script: str
    args: tuple[str, ...] = ()
    python: str = sys.executable


# Systems on CartPole.
CARTPOLE_PEERS = (
    Peer(OURS, "ours.py"),
    Peer(OURS_COMPILED, "ours.py", COMPILED),
    Peer("bare", "bare_loop.py"),
    Peer("sb3", "sb3.py"),
    Peer("rllib", "rllib.py"),
    Peer("rllib-sync", "rllib.py", ("--vectorize-mode", "sync")),
)


def python_of(library: str) -> str:
    """Return the interpreter with a library that `make peers` installs."""
    return str(ROOT / ".peers" / library / "bin" / "python")


class Parser(argparse.ArgumentParser):
    """A command line with `--out` and `--quick`.

    Args:
        out: name of the file with the raw results.
        epilog: text below the flags.
    """

    def __init__(self, description: str | None, out: str, epilog: str | None = None) -> None:
        super().__init__(description=description, epilog=epilog, allow_abbrev=False)
        self._numbers: dict[str, tuple[float, float]] = {}
        self.add_argument("--out", type=Path, default=RESULTS_DIR / out)
        self.add_argument("--quick", action="store_true", help="smoke test; the numbers are meaningless")

    def add_number(self, flag: str, full: float, quick: float, what: str = "") -> None:
        """Add a flag whose default is smaller with `--quick`."""
        help_ = f"{what}default: {full:,}, or {quick:,} with --quick"
        self._numbers[self.add_argument(flag, type=type(full), help=help_).dest] = (full, quick)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Set the numbers that are not given; also called by `parse_args`."""
        parsed, extra = super().parse_known_args(args, namespace)
        for name, (full, quick) in self._numbers.items():
            if getattr(parsed, name) is None:
                setattr(parsed, name, quick if parsed.quick else full)
        return parsed, extra


def parser(description: str | None, out: str, peers: str = DEFAULT_PEERS) -> Parser:
    """Return the command line of drivers that run peers; unknown flags are passed to the peers.

    Args:
        out: name of the file with the raw results.
        peers: default of `--peers`.
    """
    p = Parser(description, out, "Other flags (--lr, --num-epochs, --iterations, ...) are passed to every peer.")
    p.add_argument(
        "--peers",
        default=peers,
        help=f"systems to run (default: {peers}); rllib-sync is RLlib with its default vectorisation",
    )
    for library in LIBRARIES:
        p.add_argument(f"--python-{library}", default=python_of(library))
    return p


def add_repeats(p: Parser) -> None:
    """Add the flags of drivers that time complete iterations."""
    for flag, full, quick in (("--repeats", 3, 1), ("--iterations", 20, 2), ("--warmup", 3, 1)):
        p.add_number(flag, full, quick)


def named_peers(args: argparse.Namespace, known: Iterable[Peer]) -> list[Peer]:
    """Return the systems of `known` named by `--peers`, in that order, with the interpreters of the flags."""
    by_name = {peer.name: peer for peer in known}
    names = args.peers.split(",")
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"unknown peers: {', '.join(unknown)} (known: {', '.join(by_name)})")
    return [with_python(by_name[name], args) for name in names]


def with_python(peer: Peer, args: argparse.Namespace) -> Peer:
    """Return a system with the interpreter of its library, as the flags select it."""
    library = next((name for name in LIBRARIES if peer.script.startswith(name)), None)
    return peer if library is None else replace(peer, python=getattr(args, f"python_{library}"))


def run_peer(peer: Peer, flags: Sequence[str], timeout_s: float = TIMEOUT_S) -> Result:
    """Run one peer in a separate process."""
    command = [peer.python, str(PEERS_DIR / peer.script), *flags, *peer.args]
    result = run_system(peer.name, command, timeout_s=timeout_s)
    return {**result, "peer": peer.name}


def run_system(name: str, command: Sequence[str], is_result: bool = True, timeout_s: float = TIMEOUT_S) -> Result:
    """Run a system's process and return its result: the last line of stdout that starts with {, if `is_result`."""
    env = one_thread_env()
    if name.startswith(OURS):  # measure this checkout even if another one is installed; Ray's workers inherit the path
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except OSError as error:
        raise SystemExit(
            f"cannot start {name}: {error}; run `make peers`, or set its interpreter (see --help)"
        ) from None
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name} has not finished after {timeout_s:.0f} s:\n  {shown}") from None
    if done.returncode != 0:
        raise SystemExit(f"{name} failed, exit code {done.returncode}:\n  {shown}\n{done.stderr[-4000:]}")
    if not is_result:
        return {}
    try:
        return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    except (IndexError, ValueError):
        raise SystemExit(f"{name} ended without a result:\n  {shown}\n{done.stdout[-2000:]}") from None


def one_thread_env() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def machine_facts(peers: Iterable[Peer]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": cpu_model(),
    }
    facts["versions"] = {peer.name: versions(peer) for peer in peers}
    return facts


def versions(peer: Peer) -> dict[str, str]:
    """Return the relevant versions in the interpreter of a peer."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "v = {'python': platform.python_version()}\n"
        "for n in ('torch', 'gymnasium', 'numpy', 'ray', 'stable-baselines3', 'd3rlpy'):\n"
        "    try: v[n] = m.version(n)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(v))"
    )
    return run_system(peer.name, [peer.python, "-c", code])


def machine_text(facts: dict[str, Any]) -> str:
    lines = [f"Machine: {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['cpu']}", ""]
    for name, found in facts["versions"].items():
        lines.append(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median with the smallest and the largest value."""
    if not values:
        return "-"
    low, middle, high = (f"{x:,.{digits}f}" for x in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}-{high})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the ratio of medians; a dash if one of them was not measured."""
    if not ours or not theirs:
        return "-"
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    log(f"raw results: {path}")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
