"""Folders of sweeps and runs, written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METRIC = "env_runners/episode_return_mean"
EVIL = "</script><script>throw 'it got out'</script><img src=x onerror=alert(1)>"


def progress_line(iteration: int, **more: Any) -> dict[str, Any]:
    """An iteration of a small run; keywords have `__` where metrics have slashes."""
    reached = 20.0 * iteration
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 1000 * iteration,
        "time_this_iter_s": 1.0,
        "time_total_s": 1.0 * iteration,
        "env_steps_per_s": 1000.0 + iteration,
        METRIC: reached,
        "env_runners/episode_return_min": reached - 5,
        "env_runners/episode_return_max": reached + 5,
        "learners/default_policy/total_loss": 1.0 / iteration,
        "learners/default_policy/curr_kl_coeff": 0.2,
        "timers/env_runner_sampling": 0.5,
        "timers/learner_update": 0.4,
        "timers/learner_connector": 0.1,
    } | {name.replace("__", "/"): value for name, value in more.items()}


def replay_line(iteration: int, *buffers: str, capacity: int = 10_000) -> dict[str, Any]:
    """An iteration of a small run with replay buffers, which are full after ten."""
    metrics = {
        "capacity": capacity,
        "num_env_steps": min(capacity, 1000 * iteration),
        "num_bytes": 41 * capacity,
        "age_of_oldest": min(iteration, 10) * 32,
        "mean_priority": 1.0 + 1.0 / iteration,
    }
    of_buffers = {f"replay_buffers/{name}/{metric}": value for name in buffers for metric, value in metrics.items()}
    return progress_line(iteration, training_intensity=8.0 * iteration / (iteration + 1)) | of_buffers


def write_run(
    run_dir: Path, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None = None, overrides: str = "[]"
) -> Path:
    """A run dir; without a result it is going on."""
    (run_dir / ".hydra").mkdir(parents=True, exist_ok=True)
    (run_dir / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run_dir / ".hydra" / "overrides.yaml").write_text(overrides)
    (run_dir / ".hydra" / "config.yaml").write_text("seed: 0\n")
    (run_dir / "environment.json").write_text(json.dumps({"versions": {"torch": "2.9"}, "git": {"revision": None}}))
    if result is not None:
        (run_dir / "result.json").write_text(json.dumps(result))
    return run_dir


def trial_lines(number: int, num_lines: int, factor: float) -> list[dict[str, Any]]:
    """A trial's iterations; some have no return yet."""
    return [
        progress_line(iteration, **{METRIC.replace("/", "__"): None if iteration < 3 else factor * iteration + number})
        for iteration in range(1, num_lines + 1)
    ]


def write_sweep(
    path: Path,
    space: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    objectives: Mapping[str, str] | None = None,
    overrides: Sequence[str] = ("+experiment=ppo_cartpole",),
    mutations: Sequence[Mapping[str, Any]] = (),
    arguments: Sequence[str] = (),
) -> Path:
    """A sweep's folder. A trial says `combination`, and may say `status`, `reason`, `num_lines`, `factor`, `result`,
    `changed`."""
    path.mkdir(parents=True, exist_ok=True)
    described = {
        "version": 1,
        "experiment": "ppo_cartpole",
        "objectives": objectives or {METRIC: "max"},
        "searched": {"overrides": list(overrides), "space": dict(space)},
        "arguments": list(arguments),
    }
    (path / "sweep.json").write_text(json.dumps(described))
    written = []
    for number, trial in enumerate(trials):
        lines = trial_lines(number, trial.get("num_lines", 8), trial.get("factor", 10.0))
        write_run(path / str(number), lines)
        shared = {"number": number, "combination": trial["combination"], "num_failures": 0}
        shared["changed"] = trial.get("changed", {})
        status = trial.get("status", "finished")
        result = trial.get("result", lines[-1] if lines else {})
        ended = {"status": status, "reason": trial.get("reason", "enough"), "result": result, "time": 110.0 + number}
        written.append({**shared, "status": "running", "reason": "", "result": {}, "time": 100.0 + number})
        if status != "running":
            written.append({**shared, **ended})
    (path / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    if mutations:
        (path / "mutations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in mutations))
    return path


def write_everything(path: Path) -> Path:
    """A sweep with all that a page can show: seeds, intervals, two objectives, failures, a population, evil text."""
    space = {
        "algorithm.lr": {"interval": [1e-5, 1e-2], "log": True},
        "algorithm.num_epochs": {"interval": [1, 9], "int": True},
        "module.fcnet_hiddens": ["[64,64]", "[256]", EVIL],
        "seed": ["0", "1", "2"],
    }
    trials: list[dict[str, Any]] = []
    for number in range(36):
        group, seed = divmod(number, 3)
        combination = {
            "algorithm.lr": 10 ** (-5 + group / 4),
            "algorithm.num_epochs": 1 + group % 9,
            "module.fcnet_hiddens": ("[64,64]", "[256]", EVIL)[group % 3],
            "seed": str(seed),
        }
        trial = {"combination": combination, "factor": 10 * math.sin(group), "num_lines": 8 if seed else 5}
        trials.append(trial)
    trials[3] |= {"changed": {"algorithm.lr": 2e-3}}
    trials[4] |= {"status": "failed", "reason": f"RuntimeError: the arm has left its rail {EVIL}\nsecond line"}
    trials[5] |= {"status": "failed", "num_lines": 0, "reason": "it could not begin"}
    trials[7] |= {"status": "running"}
    trials[8] |= {"status": "stopped", "reason": "others were better"}
    mutation = {
        "trial": 3,
        "donor": 1,
        "num_env_steps": 4000,
        "iteration": 4,
        "before": {"algorithm.lr": 1e-3},
        "after": {"algorithm.lr": 2e-3},
        "time": 105.0,
    }
    overrides = ["+experiment=ppo_cartpole", f"env.env_config={EVIL}"]
    return write_sweep(path, space, trials, {METRIC: "max", "time_total_s": "min"}, overrides, [mutation])
