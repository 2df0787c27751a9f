"""`sweep best`: which trial it is, and an experiment file that means the same as its overrides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.schemas import ExperimentConfig
from runner.sweep.space import Combination
from runner.sweep.trials import SweepFolder
from tests.conftest import Run
from tests.support.configs import config_from

RETURN = "env_runners/episode_return_mean"
FIXED = [
    *("+experiment=ppo_cartpole", "evaluation=none", "stop.env_runners.episode_return_mean=300", "sweep=random"),
    *("module.fcnet_hiddens=[64,64]", "sweep.num_samples=2", "algorithm.grad_clip=null"),
]


def make_sweep(path: Path, trials: list[tuple[Combination, float | None]], fixed: list[str] = FIXED) -> SweepFolder:
    folder = SweepFolder.start_in(path, "ppo_cartpole", {RETURN: "max"}, {"overrides": fixed, "space": {}}, False)
    for combination, value in trials:
        trial = folder.add(combination)
        trial.status, trial.result = "finished", {} if value is None else {RETURN: value}
        folder.write(trial)
    return folder


def config_of(overrides: list[str], config_dir: Path | None = None) -> ExperimentConfig:
    config = config_from(*overrides, config_dir=config_dir)
    return replace(config, sweep=config_of_sweep, experiment_name="")


config_of_sweep = config_from("+experiment=ppo_cartpole").sweep


def test_the_best_combination_over_its_seeds(run_main: Run, tmp_path: Path) -> None:
    values = {1e-3: (100.0, 440.0, 120.0, None), 2e-3: (300.0, 310.0, 290.0, 305.0)}
    make_sweep(
        tmp_path / "s",
        [
            ({"algorithm.lr": lr, "seed": str(n)}, value)
            for lr, of_lr in values.items()
            for n, value in enumerate(of_lr)
        ],
    )
    outcome = run_main("sweep", "best", str(tmp_path / "s"))
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"best of 8 trials by {RETURN} (max)"
    assert lines[1].split() == ["trial", "5,", "finished:", "310"]  # not the lucky seed of the other combination
    assert lines[2] == "  because  highest mean return: 302.5 (inter-quartile mean of 4 seeds)"
    assert lines[3].split()[:4] == ["seeds", "4:", "mean", "301.25,"]
    assert "95 % interval" in lines[3]
    assert lines[4].split() == ["values", "algorithm.lr=0.002"]
    file = tmp_path / "conf" / "experiment" / "best.yaml"
    assert run_main("sweep", "best", str(tmp_path / "s"), "-o", str(file)).code == 0
    comment = file.read_text().splitlines()[2]  # says the same as the command, also about the seeds
    reason = "highest mean return: 302.5 (inter-quartile mean of 4 seeds)"
    assert comment == f"# Best values of the sweep {tmp_path / 's'}: trial 5, {reason}"


@pytest.mark.parametrize(
    "combination",
    [
        {"algorithm.lr": 1e-5, "env.env_config": "{sutton_barto_reward:true}", "seed": "2"},
        {"module.fcnet_activation": "relu", "env": "stateless_cartpole"},
        {"experiment": "ppo_dict_cartpole", "algorithm.lr": "[[0,1e-3],[1000,1e-4]]"},
    ],
)
def test_the_experiment_that_is_written_means_the_same(run_main: Run, tmp_path: Path, combination: Combination) -> None:
    fixed = [text for text in FIXED if "experiment" not in combination or "+experiment" not in text]
    folder = make_sweep(tmp_path / "s", [(combination, 1.0)], fixed)
    file = tmp_path / "mine" / "experiment" / "tuned.yaml"
    outcome = run_main("sweep", "best", str(tmp_path / "s"), "-o", str(file))
    assert outcome.code == 0, outcome.err
    assert f"runner train tuned --config-dir {tmp_path / 'mine'}" in outcome.out
    trial_overrides = [text for text in folder.trials[0].overrides if not text.startswith("seed=")]
    assert config_of(["+experiment=tuned"], tmp_path / "mine") == config_of([*fixed, *trial_overrides])
    before = file.read_text()
    assert run_main("sweep", "best", str(tmp_path / "s"), "--emit", str(file)).code == 2
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bets", "x"], "did you mean  sweep best"),
        (["best"], "SWEEP is missing"),
        (["best", "."], "the folder does not contain sweep.json"),
        (["best", "nowhere"], "the folder does not exist\n   where         nowhere"),
        (["best", "s"], "no trial has reported"),
    ],
)
def test_mistakes(run_main: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    make_sweep(tmp_path / "s", [({"seed": "1"}, None)])
    outcome = run_main("sweep", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
