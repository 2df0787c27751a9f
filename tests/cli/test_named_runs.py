"""Runs that the command line names by `latest` or by their experiment, and the link `latest`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from runner.cli.arguments import Arguments
from runner.cli.named_runs import find_newest_run, list_runs, with_local_runs
from runner.config.compose import compose_experiment
from runner.config.errors import UserError
from runner.experiment.run_folder import claim_run_dir, point_latest_at
from tests.conftest import QUICK, Run


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run dirs below `outputs`: of two experiments, one of which is in a folder of experiments."""
    monkeypatch.chdir(tmp_path)
    for run in (
        "ppo_cartpole/2026-01-09/10-00-00",
        "ppo_cartpole/2026-01-10/09-00-00",
        "ppo_cartpole/2026-01-10/09-00-00_2",
        "ppo_cartpole/2026-01-10/09-00-00_10",
        "mine/maze/2026-01-11/08-00-00",
    ):
        (tmp_path / "outputs" / run / ".hydra").mkdir(parents=True)
    (tmp_path / "outputs" / "ppo_cartpole" / "2026-01-12" / "08-00-00").mkdir(parents=True)  # it never began
    (tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s" / "0" / ".hydra").mkdir(parents=True)
    return Path("outputs")


def located(word: str) -> str:
    return with_local_runs(Arguments("evaluate", (word,))).words[0]


def test_names_of_runs(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert located("ppo_cartpole") == "outputs/ppo_cartpole/2026-01-10/09-00-00_10"
    assert located("latest") == located("mine/maze") == "outputs/mine/maze/2026-01-11/08-00-00"
    assert capsys.readouterr().err.splitlines()[0] == "ppo_cartpole is outputs/ppo_cartpole/2026-01-10/09-00-00_10"
    assert [located(word) for word in ("nowhere", "outputs/x", "../x")] == ["nowhere", "outputs/x", "../x"]
    assert list_runs()[:3] == ["mine/maze", "ppo_cartpole", "outputs/mine/maze/2026-01-11/08-00-00"]


def test_the_newest_run_may_be_in_a_named_folder(outputs: Path) -> None:
    run_dir = outputs / "mine_2"
    (run_dir / ".hydra").mkdir(parents=True)
    assert located("latest") == "outputs/mine_2"  # made now, after January
    os.utime(run_dir / ".hydra", (0, 0))
    assert located("latest") == "outputs/mine/maze/2026-01-11/08-00-00"


def test_a_run_dir_that_cannot_be_read_is_left_out(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (outputs / "theirs" / ".hydra").mkdir(parents=True)
    stat = os.stat

    def permitted(path: Any, **options: Any) -> os.stat_result:
        if "theirs/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", permitted)
    assert located("latest") == "outputs/mine/maze/2026-01-11/08-00-00"


def test_a_path_comes_before_a_name(outputs: Path) -> None:
    Path("latest").mkdir()
    Path("ppo_cartpole").mkdir()
    assert (located("latest"), located("ppo_cartpole")) == ("latest", "ppo_cartpole")


def test_no_run_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no run in outputs"):
        located("latest")


def test_the_link_points_at_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    composed = compose_experiment(["experiment=ppo_cartpole"])
    for _ in range(2):
        run_dir = claim_run_dir(composed)
        assert run_dir is not None
        link = Path("outputs/ppo_cartpole/latest")
        assert os.readlink(link) == f"{run_dir.parent.name}/{run_dir.name}"
    assert sorted(path.name for path in link.parent.iterdir()) == [run_dir.parent.name, "latest"]
    assert located(str(link)) == str(link)


def test_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "2026-01-10" / "09-00-00"
    (tmp_path / "latest").mkdir()
    point_latest_at(run_dir)
    assert not (tmp_path / "latest").is_symlink()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no links here")

    (tmp_path / "latest").rmdir()
    monkeypatch.setattr(Path, "symlink_to", fail)
    point_latest_at(run_dir)
    assert not os.path.lexists(tmp_path / "latest")


def test_a_link_out_of_its_folder_is_not_followed(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = outputs / "ppo_cartpole" / "latest"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of its folder"):
        located(str(link))
    assert find_newest_run("ppo_cartpole") == outputs / "ppo_cartpole/2026-01-10/09-00-00_10"


@pytest.mark.slow
def test_a_run_and_its_name(run_main: Run, tmp_path: Path) -> None:
    assert run_main("train", "ppo_cartpole", *QUICK, "stop.training_iteration=1").code == 0
    for name in ("latest", "ppo_cartpole", "outputs/ppo_cartpole/latest"):
        outcome = run_main("evaluate", name, "--episodes", "2", "--json")
        assert outcome.code == 0, outcome.err
        assert '"num_episodes": 2' in outcome.out
    assert run_main("record", "latest", "-o", "data", "--episodes", "2").code == 0
    assert run_main("convert", "data", "table", "offline.output_write_episodes=false").code == 0
    assert run_main("report", "latest").code == 0
