"""`zoo verify NAME`: repeat a stored run of the zoo, and compare it with the stored one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from runner.cli.arguments import Arguments
from runner.cli.conditions import AssertionNotMet
from runner.config.errors import Problem, RunFailure, UserError, list_names, nearest_match
from runner.zoo_runs import Experiment, ZooRun, stored_runs


def main(arguments: Arguments) -> int:
    """Train a stored run again; raise an error if its numbers differ."""
    [name] = arguments.words
    stored = _stored(name)
    seed = arguments.integer("--seed", min(stored), least=0)
    if seed not in stored:
        what, expected = f"the zoo does not contain a run of {name} with this seed", list_names(map(str, stored))
        raise UserError(Problem(what, "--seed", str(seed), expected))
    run_dir = arguments.path("--output") or Path("outputs", "zoo_verify", f"{name}_{seed}")
    is_json, num_bytes = arguments.has("--json"), _size(run_dir)
    try:
        repeated = Experiment.read(name).train(seed, run_dir, *(["--quiet"] if is_json else []))
    except subprocess.CalledProcessError as error:
        what = f"training ended with exit code {error.returncode}"
        fix = "see the messages above; the same command continues the run"
        raise RunFailure(Problem(what, str(run_dir), fix=fix)) from None
    if _size(run_dir) == num_bytes:
        fix = "delete the folder, or choose another one with -o"
        raise UserError(Problem("this run has ended before, so nothing was repeated", str(run_dir), fix=fix))
    verdict = _verdict(repeated, stored)
    if is_json:
        runs = {"repeated": asdict(repeated), "stored": asdict(stored[seed])}
        print(json.dumps({"verdict": verdict, "run_dir": str(run_dir), **runs}, indent=2))
    else:
        print(f"verified {name}, seed {seed}: {verdict}\n  return   {repeated.episode_return_mean:.6g}")
        print(f"  run dir  {run_dir}")
    return 0


def _size(run_dir: Path) -> int:
    """Return the bytes of a run's progress.jsonl, 0 if there is none."""
    path = run_dir / "progress.jsonl"
    return path.stat().st_size if path.is_file() else 0


def _stored(name: str) -> dict[int, ZooRun]:
    """Return seed -> stored run, without the runs that lack a digest."""
    comparable = {
        experiment: with_digest
        for experiment, runs in stored_runs().items()
        if (with_digest := {seed: run for seed, run in runs.items() if run.progress})
    }
    if name not in comparable:
        what = f"the zoo does not contain a run of {name} to compare with"
        raise UserError(Problem(what, expected=list_names(comparable, name), nearest=nearest_match(name, comparable)))
    return comparable[name]


def _verdict(repeated: ZooRun, runs: dict[int, ZooRun]) -> str:
    """Compare a run with the stored one of its seed, or with the range of all seeds on another machine.

    Raises:
        AssertionNotMet: the run differs.
    """
    stored = runs[repeated.seed]
    if repeated.progress == stored.progress:
        return "all lines of progress.jsonl are equal to the stored run's, apart from times"
    returns = [run.episode_return_mean for run in runs.values()]
    within = f"{min(returns):.6g} to {max(returns):.6g}, the returns of {len(runs)} seeds"
    got = f"a return of {repeated.episode_return_mean:.6g}"
    if repeated.configuration != stored.configuration:
        fix = "verify with the version of runner that stored it, or store it again with `make zoo`"
        raise AssertionNotMet(Problem("the experiment has changed since this run was stored", got=got, fix=fix))
    if repeated.has_same_platform_as(stored):
        raise AssertionNotMet(Problem("the run differs on the same kind of machine", got=got, expected="equal numbers"))
    if not min(returns) <= repeated.episode_return_mean <= max(returns):
        raise AssertionNotMet(
            Problem("the return is not within the range of the stored seeds", got=got, expected=within)
        )
    return f"trained on another machine or with other versions; the return is within {within}"
