"""The block `metrics`: numbers out of infos as metrics of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, Run, progress_of
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly

# It puts {"episode": {"r": return, "l": length}} into the info of an episode's last step.
WITH_INFOS = "env.wrappers=[{_target_: gymnasium.wrappers.RecordEpisodeStatistics}]"
METRICS = "metrics={env_runners/recorded: {info: episode/r}, env_runners/longest: {info: episode/l, reduce: max}}"
RUN = ("+experiment=ppo_cartpole", *QUICK, WITH_INFOS, METRICS)


def test_infos_become_metrics_of_training_and_evaluation(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*RUN, "hydra.run.dir=run", "stop.env_runners.recorded=15", "evaluation.evaluation_interval=1")
    assert outcome.code == 0
    assert "finished: recorded" in outcome.out
    results = progress_of(tmp_path / "run")
    for result in results:
        for prefix in ("env_runners", "evaluation/env_runners"):
            assert result[f"{prefix}/recorded"] == pytest.approx(result[f"{prefix}/episode_return_mean"])
            assert result[f"{prefix}/longest"] == result[f"{prefix}/episode_len_max"]
    assert results[-1]["env_runners/recorded"] >= 15


@pytest.mark.parametrize("num_runners", [0, 2])
def test_a_run_resumes_exactly(tmp_path: Path, num_runners: int) -> None:
    summed = "{info: episode/l, at: episode_sum}"
    metrics = f"metrics={{env_runners/summed: {summed}, env_runners/low: {{info: episode/r, reduce: p10}}}}"
    overrides = [*QUICK, WITH_INFOS, metrics, f"env_runners.num_env_runners={num_runners}", "engine=inline"]
    make = partial(Trainer.from_experiment, "ppo_cartpole", overrides)
    expected = assert_resumes_exactly(make, tmp_path, cuts=[1])
    assert expected[-1]["env_runners/summed"] == expected[-1]["env_runners/episode_len_mean"]


def test_episodes_are_grouped_by_another_info() -> None:
    """Length groups returns here: every episode of one length returns it."""
    grouped = "metrics={env_runners/recorded: {info: episode/r, by: {episode/l: [11, 12, 13, 14, 15, 16, 17]}}}"
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, WITH_INFOS, grouped]) as trainer:
        results = [trainer.train() for _ in range(4)]
    numbers = {length: results[-1][f"env_runners/recorded/{length}"] for length in range(11, 18)}
    known = {length: number for length, number in numbers.items() if number is not None}
    assert len(known) > 2
    assert known == {length: length for length in known}
    with pytest.raises(ConfigError, match="did you mean  env_runners/recorded/11"):
        config_from("+experiment=ppo_cartpole", WITH_INFOS, grouped, "stop.env_runners.recorded.111=3")


def test_a_histogram_is_the_shares_of_its_bins() -> None:
    binned = "metrics={env_runners/recorded: {info: episode/r, histogram: [15, 20.5, 600, 10000000, 10000001]}}"
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, WITH_INFOS, binned]) as trainer:
        results = [trainer.train() for _ in range(4)]
        returns = np.array(trainer.parts.metrics._recent.returns)
    names = ["below_15", "15_to_20.5", "20.5_to_600", "600_to_10000000"]
    counts, _ = np.histogram(returns, [-np.inf, 15, 20.5, 600, 10_000_000])
    shares = [results[-1][f"env_runners/recorded/{name}"] for name in names]
    assert shares == pytest.approx(counts / len(returns))
    assert (counts[:3] > 0).all()
    far = ["10000000_to_10000001", "from_10000001"]
    assert [shares[3], *(results[-1][f"env_runners/recorded/{name}"] for name in far)] == [0.0] * 3


def test_evaluations_of_env_steps_take_numbers_out_of_infos() -> None:
    recorded = "metrics={env_runners/recorded: {info: episode/r}}"
    steps = ["evaluation.evaluation_duration=300", "evaluation.evaluation_duration_unit=env_steps"]
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, WITH_INFOS, recorded, *steps]) as trainer:
        result = trainer.evaluate()
    assert result["evaluation/env_runners/recorded"] == result["evaluation/env_runners/episode_return_mean"] > 5


def test_a_key_that_no_info_has_is_told(run_main: Run) -> None:
    outcome = run_main(
        "+experiment=ppo_cartpole", *QUICK, "metrics={env_runners/won: {info: won}}", "hydra.run.dir=run",
        "stop.training_iteration=3",
    )  # fmt: skip
    assert outcome.code == 0
    assert outcome.out.count("env_runners/won: no info of the finished episodes has won") == 1


def test_a_key_that_no_info_has_is_told_by_an_evaluation_alone() -> None:
    notes: list[str] = []
    overrides = ["+experiment=ppo_cartpole", *QUICK, "metrics={env_runners/won: {info: wno}}"]
    config = config_from(*overrides, "evaluation.evaluation_interval=1")
    with Trainer(config, note=notes.append) as trainer:
        assert trainer.evaluate(2)["evaluation/env_runners/won"] is None
    assert notes == ["env_runners/won: no info of the finished episodes has wno"]


@pytest.mark.parametrize("metric", ["{info: episode/ret}", "{info: episode/ret, at: episode_mean}"])
def test_the_keys_that_infos_have_are_told(metric: str) -> None:
    notes: list[str] = []
    overrides = ["+experiment=ppo_cartpole", *QUICK, WITH_INFOS, f"metrics={{env_runners/won: {metric}}}"]
    with Trainer(config_from(*overrides), note=notes.append) as trainer:
        trainer.train()
        trainer.train()
    assert notes == [
        "env_runners/won: no info of the finished episodes has episode/ret; it has episode/l, episode/r, episode/t; "
        "nearest: episode/r"
    ]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("{won: {info: won}}", "must begin with env_runners/"),
        (
            "{env_runners/episode_len_mean: {info: won}}",
            "env_runners/episode_len_mean is the name of a built-in metric",
        ),
        ("{env_runners/won: {info: 3}}", "info must be the key of a number in infos"),
        ("{3: {info: won}}", "must begin with env_runners/"),
        ("{env_runners/won: {info: won, at: episode_ends}}", "did you mean  episode_end"),
        ("{env_runners/won: {info: won, reduce: p100}}", "p1 to p99"),
        ("{env_runners/won: {info: won, inf: 3}}", "info, at, reduce, by, histogram"),
        ("{env_runners/won: {info: won, histogram: [3, 1]}}", "ascending numbers"),
        ("{env_runners/won: {info: won, by: {task: [a]}}, env_runners/won/a: {info: w}}", "env_runners/won/a twice"),
        ("{env_runners/won: {info: won, by: {task: [below_3]}, histogram: [3]}}", "env_runners/won/below_3 twice"),
        ("{env_runners/won: {info: won, histogram: [a]}}", "ascending numbers"),
        ("{env_runners/won: {info: won, histogram: 3}}", "ascending numbers"),
        ("{env_runners/won: {info: won, by: [task]}}", "{task: [easy, hard]}"),
        ("{env_runners/won: {info: won, by: {task: []}}}", "{task: [easy, hard]}"),
        ("{env_runners/won: {info: won, by: {task: [a/b]}}}", "letters, digits"),
        ("{env_runners/won: {info: won, by: {task: [1, 2], level: [2]}}}", "2 twice"),
    ],
)
def test_mistakes_are_told(metrics: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_from("+experiment=ppo_cartpole", f"metrics={metrics}")
    assert message in str(raised.value)


def test_a_misspelt_metric_in_stop_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean  env_runners/recorded"):
        config_from(*RUN, "stop.env_runners.recordet=3")


def test_simulators_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"do not work with external simulators \(env\.port\)"):
        config_from("+experiment=ppo_external_cartpole", METRICS)
