"""What the benchmark drivers share: peers, subprocesses, machine facts, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS_DIR = ROOT / "benchmarks" / "peers"
RESULTS_DIR = ROOT / "benchmarks" / "runs"
OURS = "ours"
OURS_COMPILED = "ours-compiled"
COMPILED = ("--learner", "compiled")  # flags of our own peers
DEFAULT_PEERS = "ours,bare,sb3,rllib"
TIMEOUT_S = 1800.0  # of one measurement

Result = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A system under measurement: its script, its interpreter, its own flags."""

    name: str
    script: str
    python: str
    args: tuple[str, ...] = ()


def parser(description: str | None, out: str, peers: str = DEFAULT_PEERS) -> argparse.ArgumentParser:
    """Return the flags all drivers that run peers have; unknown ones go to the peers.

    Args:
        out: name of the file with the raw results.
        peers: what `--peers` is without being given.
    """
    p = argparse.ArgumentParser(
        description=description,
        epilog="Other flags (--lr, --num-epochs, --iterations, ...) are handed to every peer.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--peers",
        default=peers,
        help=f"systems to run, here usually {peers}; rllib-sync is RLlib with its default vectorisation",
    )
    p.add_argument("--python-sb3", default=str(ROOT / ".peers" / "sb3" / "bin" / "python"))
    p.add_argument("--python-rllib", default=str(ROOT / ".peers" / "rllib" / "bin" / "python"))
    p.add_argument("--python-d3rlpy", default=str(ROOT / ".peers" / "d3rlpy" / "bin" / "python"))
    p.add_argument("--out", type=Path, default=RESULTS_DIR / out)
    p.add_argument("--quick", action="store_true", help="a smoke run: the numbers mean nothing")
    return p


def add_repeats(p: argparse.ArgumentParser) -> None:
    """The flags of the drivers that time whole iterations; `repeats_of` reads them."""
    p.add_argument("--repeats", type=int, default=None, help="3, or 1 with --quick")
    p.add_argument("--iterations", type=int, default=None, help="20, or 2 with --quick")
    p.add_argument("--warmup", type=int, default=None, help="3, or 1 with --quick")


def repeats_of(args: argparse.Namespace) -> tuple[int, int, int]:
    """Return repeats, iterations and iterations of warm-up."""
    repeats, iterations, warmup = (
        small if given is None and args.quick else full if given is None else given
        for given, full, small in ((args.repeats, 3, 1), (args.iterations, 20, 2), (args.warmup, 3, 1))
    )
    return repeats, iterations, warmup


def select_peers(args: argparse.Namespace) -> list[Peer]:
    """Return the systems that `--peers` names, on CartPole."""
    return named_peers(
        args,
        [
            Peer(OURS, "ours.py", sys.executable),
            Peer(OURS_COMPILED, "ours.py", sys.executable, COMPILED),
            Peer("bare", "bare_loop.py", sys.executable),
            Peer("sb3", "sb3.py", args.python_sb3),
            Peer("rllib", "rllib.py", args.python_rllib),
            Peer("rllib-sync", "rllib.py", args.python_rllib, ("--vectorize-mode", "sync")),
        ],
    )


def named_peers(args: argparse.Namespace, known: Iterable[Peer]) -> list[Peer]:
    """Return the systems of `known` that `--peers` names, in that order."""
    by_name = {peer.name: peer for peer in known}
    names = args.peers.split(",")
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"unknown peers: {', '.join(unknown)} (known: {', '.join(by_name)})")
    return [by_name[name] for name in names]


def run_peer(peer: Peer, flags: Sequence[str]) -> Result:
    """Run one peer in its own process."""
    result = run_system(peer.name, [peer.python, str(PEERS_DIR / peer.script), *flags, *peer.args])
    return {**result, "peer": peer.name}


def run_system(name: str, command: Sequence[str], is_result: bool = True) -> Result:
    """Run a system's process; the last line of its stdout that begins with { is its result, unless it has none."""
    env = one_thread_env()
    if name.startswith(OURS):  # measures this checkout, installed or not; Ray's workers inherit it
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except OSError as error:
        raise SystemExit(f"{name} cannot be started: {error}; `make peers`, or name its python (--help)") from None
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name} is not done after {TIMEOUT_S:.0f} s:\n  {shown}") from None
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


def machine_facts(peers: Iterable[Peer]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": cpu_model(),
    }
    facts["versions"] = {peer.name: versions(peer) for peer in peers}
    return facts


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(peer: Peer) -> dict[str, str]:
    """Return the versions that matter, as the interpreter of a peer sees them."""
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
    """Return the ratio of medians; a dash where one of them was not run."""
    if not ours or not theirs:
        return "-"
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    log(f"raw results: {path}")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
