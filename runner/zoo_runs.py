"""Runs of the zoo: `make zoo` trains and stores them, `zoo verify` repeats them.

`zoo/runs.jsonl` has a line for each run; the newest line of an experiment and a seed counts.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.config.compose import compose_experiment
from runner.config.paths import zoo_dir
from runner.config.validation import build_experiment_config

ENV_STEPS, SECONDS, RETURN = "num_env_steps_sampled_lifetime", "time_total_s", "env_runners/episode_return_mean"
EVALUATION_RETURN = f"evaluation/{RETURN}"
# Beginnings of the names of metrics in which equal runs differ.
TIMES = (
    *("timers/", "system/", "time_this_iter_s", SECONDS, "env_steps_per_s", "offline_data/"),
    *("env_runners/num_samples_ready", "env_runners/sample_bytes_per_env_step"),
)
# Options that are newer than stored runs: block -> option -> the value that stored runs have.
_NEWER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "module": {
        **{"initial_log_std": 0.0, "action_distribution": "gaussian", "use_sde": False, "sde_sample_freq": 4},
        **{
            "architecture": "mlp",
            "critic_use_batchnorm": False,
            "vf_normalization": "none",
            "conv_use_layernorm": False,
            "image_min": 0.0,
        },
    },
    "algorithm": {"reset_interval": None, "target_kl": None, "value_rescaling": False},
}
_NOT_IN_DIGEST = {"algorithm": "name"}  # block -> option that does not change numbers
# Packages of `environment.json` that do not change numbers.
_NOT_IN_NUMBERS = {"runner", "mlflow", "hydra-core", "omegaconf"}


@dataclass(frozen=True, kw_only=True)
class ZooRun:
    """A finished run.

    Attributes:
        num_env_steps: env steps of training.
        seconds: training time.
        episode_return_mean: the return that `stop` names, otherwise of the last evaluation, otherwise of training.
        target: the return in `stop`, None if training has a fixed number of env steps.
        max_env_steps: limit of env steps.
        configuration: digest of the experiment, see `Experiment`.
        machine: cores and processor.
        cpu: name of the processor.
        versions: package -> version, and python.
        progress: digest of progress.jsonl without times, see `digest_of`. Empty in runs that were stored without it.
    """

    experiment: str
    seed: int
    num_env_steps: int
    seconds: float
    episode_return_mean: float
    target: float | None
    max_env_steps: int
    configuration: str
    machine: str = ""
    cpu: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    progress: str = ""

    def to_line(self) -> str:
        """Return the line of `zoo/runs.jsonl`."""
        return json.dumps(asdict(self)) + "\n"

    def has_same_platform_as(self, other: ZooRun) -> bool:
        """Return whether both runs used the same kind of processor and the same versions, and so have equal numbers."""
        ours, theirs = (
            {name: version for name, version in run.versions.items() if name not in _NOT_IN_NUMBERS}
            for run in (self, other)
        )
        return (self.cpu, ours) == (other.cpu, theirs)


@dataclass(frozen=True)
class Experiment:
    """An experiment of the zoo, and how its runs are rated.

    Attributes:
        metric: metric that rates a run.
        target: value of the metric at which runs stop, or None.
        max_env_steps: limit of env steps.
        digest: digest of the configuration; a seed on the command line does not change it.
    """

    name: str
    metric: str
    target: float | None
    max_env_steps: int
    digest: str

    @classmethod
    def read(cls, name: str) -> Experiment:
        """Compose an experiment.

        Raises:
            ConfigError: the experiment does not exist, or is not valid.
        """
        composed = compose_experiment([f"experiment={name}"])
        config = build_experiment_config(composed)
        target = next((metric for metric in config.stop if metric != ENV_STEPS), None)
        metric = target or (EVALUATION_RETURN if config.evaluation.evaluation_interval else RETURN)
        text = json.dumps(_without_newer_options(composed.values), sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        goal = None if target is None else config.stop[target]
        return cls(name, metric, goal, int(config.stop[ENV_STEPS]), digest)

    def train(self, seed: int, run_dir: Path, *arguments: str) -> ZooRun:
        """Train in another process, or continue from the last checkpoint in `run_dir`, and return the finished run.

        Args:
            seed: seed of the run.
            run_dir: run dir, which may contain an unfinished run of this experiment and seed.
            arguments: further arguments for the command line.

        Raises:
            subprocess.CalledProcessError: training failed, or was interrupted.
        """
        command = [sys.executable, "-m", "runner"]
        if any(run_dir.glob("checkpoints/iteration_*")):
            command += ["resume", str(run_dir)]
        else:
            command += ["train", self.name, f"seed={seed}", "tracking=none", f"hydra.run.dir={run_dir}"]
        _run([*command, *arguments])
        files = [run_dir / name for name in ("result.json", "environment.json")]
        result, facts = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        return ZooRun(
            experiment=self.name,
            seed=seed,
            num_env_steps=result[ENV_STEPS],
            seconds=round(result[SECONDS], 1),
            episode_return_mean=result[self.metric],
            target=self.target,
            max_env_steps=self.max_env_steps,
            configuration=self.digest,
            machine=f"{facts['cpus_available']} cores, {facts['cpu']}",
            cpu=facts["cpu"],
            versions=facts["versions"] | {"python": facts["python"]},
            progress=digest_of(run_dir),
        )


def stored_runs(path: Path | None = None) -> dict[str, dict[int, ZooRun]]:
    """Return experiment -> seed -> its newest run."""
    path = zoo_dir() / "runs.jsonl" if path is None else path
    runs: dict[str, dict[int, ZooRun]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        run = ZooRun(**json.loads(line))
        runs.setdefault(run.experiment, {})[run.seed] = run
    return {experiment: dict(sorted(runs[experiment].items())) for experiment in sorted(runs)}


def without_times(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that two equal runs share."""
    return {name: value for name, value in result.items() if not name.startswith(TIMES)}


def _without_newer_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it was before its newer options, where these have the values of stored runs."""
    return {
        block: {
            key: value
            for key, value in options.items()
            if _NEWER_OPTIONS[block].get(key, ...) != value and _NOT_IN_DIGEST.get(block) != key
        }
        if block in _NEWER_OPTIONS
        else options
        for block, options in values.items()
    }


def digest_of(run_dir: Path) -> str:
    """Return a digest of all lines of progress.jsonl without times."""
    digest = hashlib.sha256()
    for line in (run_dir / "progress.jsonl").read_text(encoding="utf-8").splitlines():
        digest.update(json.dumps(without_times(json.loads(line)), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


def _run(command: list[str]) -> None:
    """Run a command. After Ctrl-C, which the command also gets, wait until it has written its checkpoint."""
    with subprocess.Popen(command) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    if code != 0:
        raise subprocess.CalledProcessError(code, command)
