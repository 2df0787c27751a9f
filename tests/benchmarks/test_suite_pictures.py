"""Pictures of learning curves and GIFs of policies on the page of results."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.conftest import ROOT


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("suite_pictures")
    published = ("ppo_hopper", "1800 ± 90", 1_000_000, "[Library](https://example.org)")
    monkeypatch.setattr("learning_table.OTHERS", (published, ("ppo_swimmer", "111", 3, "[Other](https://example.org)")))
    return module


@pytest.fixture
def gifs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("policy_gifs")


def test_a_suite_has_a_panel_for_each_experiment_with_curves(pictures: ModuleType, tmp_path: Path) -> None:
    curve = [[2048, 10.0], [500_000, 900.0], [1_000_000, 2000.0]]
    curves = {"ppo_hopper": [curve] * 3, "ppo_ant": [curve], "bc_cartpole": [curve], "qmix_two_step_game": [curve[:1]]}
    runs = {"ppo_hopper": [{"target": None, "max_env_steps": 1_000_000}]}  # ppo_ant has no run yet
    files = pictures.draw(curves, runs, tmp_path)
    assert [file.name for file in files] == ["mujoco.svg", "recorded_data.svg"]
    mujoco, recorded = (file.read_text(encoding="utf-8") for file in files)
    assert ">ppo_hopper<" in mujoco
    assert ">3 seeds, dashed: Library 1,800<" in mujoco
    assert ">ppo_ant<" in mujoco
    assert ">1 seed<" in mujoco
    assert mujoco.count("stroke-dasharray") == 1
    assert ">1 seed, dashed: target 450<" in recorded
    assert "Return over rows learned from" in recorded


def test_the_dashed_line_is_the_published_return_or_the_target(pictures: ModuleType) -> None:
    assert pictures.reference_of("ppo_cartpole", [{"target": 450, "max_env_steps": 300_000}]) == (450, "target 450")
    fixed = [{"target": None, "max_env_steps": 1_000_000}]
    assert pictures.reference_of("ppo_hopper", fixed) == (1800.0, "Library 1,800")
    assert pictures.reference_of("ppo_swimmer", fixed) is None  # published after other env steps


def test_quartiles_of_runs_that_stop_early(pictures: ModuleType) -> None:
    curves = [[[0, 0.0], [100, value]] for value in (1.0, 2.0, 3.0)] + [[[0, 0.0], [1000, 10.0]]]
    rows = pictures.quartiles_of(curves)
    assert rows[0] == [0, 0, 0, 0]
    assert rows[-1][0] == 100  # half of the seeds have stopped
    assert rows[-1][1:] == [1.0, 1.5, 2.25]


def test_the_pictures_of_the_docs_are_small() -> None:
    files = [*(ROOT / "docs/pictures/results").iterdir(), *(ROOT / "docs/pictures/policies").iterdir()]
    assert max(file.stat().st_size for file in files if file.suffix == ".svg") < 150_000
    assert max(file.stat().st_size for file in files if file.suffix == ".gif") <= 500_000


def test_gifs_older_than_their_policy_are_missing(gifs: ModuleType, tmp_path: Path) -> None:
    for name, time in (("old.gif", 1), ("old.onnx", 2), ("new.onnx", 1), ("new.gif", 2), ("none.onnx", 1)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))
    assert list(gifs.missing(["old", "new", "none", "no_policy"], tmp_path, tmp_path)) == ["old", "none"]


def test_a_smaller_gif_has_fewer_and_smaller_frames_and_their_times(gifs: ModuleType, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (320, 200), (30 * number, 0, 90)) for number in range(6)]
    path = tmp_path / "policy.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[80, 160, 80, 80, 80, 80], loop=0)
    gifs.shrink(path, 160, 4)
    with Image.open(path) as image:
        assert (image.size, image.n_frames, image.info["loop"]) == ((160, 100), 4, 0)
        image.seek(1)
        assert image.info["duration"] == 160
