"""The zoo: its experiments and policies exist."""

from __future__ import annotations

import importlib

import pytest

from runner.config.paths import conf_dir, list_options, zoo_dir
from tests.conftest import ROOT


def test_experiments_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    zoo = importlib.import_module("zoo")
    assert set(zoo.EXPERIMENTS) <= set(list_options([conf_dir()], "experiment"))


def test_every_policy_is_of_an_experiment() -> None:
    policies = [policy.stem for policy in zoo_dir().glob("*.onnx")]
    assert "ppo_sb3_cartpole" in policies
    assert set(policies) <= set(list_options([conf_dir()], "experiment"))
