"""MuJoCo's warnings: logged once instead of printed for each environment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runner.config.mujoco_warnings import _log_once, _set_handler, log_mujoco_warnings
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment

pytest.importorskip("mujoco")


def test_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    make_environment(EnvConfig(env="HalfCheetah-v5")).close()
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir()), "MUJOCO_LOG.TXT"
    assert not caplog.records


def test_other_warnings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    import mujoco

    log_mujoco_warnings("HalfCheetah-v5")
    handle = mujoco.get_mju_user_warning()
    _log_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for time in (0.1, 0.2, 0.3):
            handle(f"Nan, Inf or huge value in QPOS at DOF 0. Time = {time}.")
    assert [record.getMessage() for record in caplog.records] == ["MuJoCo: Nan, Inf or huge value in QPOS at DOF 0."]


def test_a_handler_of_the_user_is_kept() -> None:
    import mujoco

    before, texts = mujoco.get_mju_user_warning(), list[str]()
    mujoco.set_mju_user_warning(texts.append)
    try:
        _set_handler.cache_clear()
        log_mujoco_warnings("HalfCheetah-v5")
        mujoco.get_mju_user_warning()("unstable")
    finally:
        mujoco.set_mju_user_warning(before)
    assert texts == ["unstable"]


def test_other_environments_do_not_import_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr("runner.config.mujoco_warnings._set_handler", fail)
    log_mujoco_warnings("CartPole-v1")
    log_mujoco_warnings("minigrid:MiniGrid-Empty-5x5-v0")
