"""The zoo: which experiments it has, and what a row says."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.learning_table import row_of as table_row
from runner.config.paths import conf_dir, list_options, zoo_dir
from tests.benchmarks.test_learning_table import mean_and_ends, run
from tests.conftest import ROOT


def test_rows_and_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    zoo = importlib.import_module("zoo")
    experiments = list_options([conf_dir()], "experiment")
    assert set(zoo.EXPERIMENTS) <= set(experiments)
    assert set(zoo.OTHERS) <= set(zoo.EXPERIMENTS)
    runs = [run(seed, 1000 * seed, 460.0) | {"configuration": "abc"} for seed in (1, 2, 400)]
    row = zoo.row_of("ppo_cartpole", runs, mean_and_ends)
    assert row.startswith(table_row("ppo_cartpole", runs, mean_and_ends))
    assert row.endswith(f"`abc` | {zoo.OTHERS['ppo_cartpole']} |")
    assert [line.count("|") for line in zoo.HEAD] == [row.count("|")] * 2


def test_every_policy_is_of_an_experiment() -> None:
    policies = [policy.stem for policy in zoo_dir().glob("*.onnx")]
    assert "ppo_sb3_cartpole" in policies
    assert set(policies) <= set(list_options([conf_dir()], "experiment"))
