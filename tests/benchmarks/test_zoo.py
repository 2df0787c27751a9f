"""The zoo: its experiments and policies exist."""

from __future__ import annotations

import importlib

import pytest

from runner.config.paths import conf_dir, list_options, zoo_dir
from runner.zoo_runs import Experiment
from tests.conftest import ROOT


def test_experiments_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    zoo = importlib.import_module("zoo")
    assert set(zoo.EXPERIMENTS) <= set(list_options([conf_dir()], "experiment"))


def test_every_policy_is_of_an_experiment() -> None:
    policies = [policy.stem for policy in zoo_dir().glob("*.onnx")]
    assert "ppo_sb3_cartpole" in policies
    assert set(policies) <= set(list_options([conf_dir()], "experiment"))


def test_newer_options_change_the_digest_only_if_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for newer in ({"module": {"initial_log_std": 0.0}}, {"module": {"initial_log_std": -2.0}}, {}):
        monkeypatch.setattr("runner.zoo_runs._NEWER_OPTIONS", newer)
        digests.append([Experiment.read(name).digest for name in ("ppo_hopper", "ppo_half_cheetah_tuned")])
    assert digests[0][0] != digests[2][0] == digests[1][0]  # ppo_hopper has 0.0
    assert digests[1][1] != digests[2][1] == digests[0][1]  # ppo_half_cheetah_tuned has -2.0


def test_the_name_of_an_algorithm_does_not_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = Experiment.read("ddpg_pendulum").digest
    monkeypatch.setattr("runner.zoo_runs._NOT_IN_DIGEST", {})
    assert Experiment.read("ddpg_pendulum").digest != digest
