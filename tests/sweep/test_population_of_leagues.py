"""Population-based training over leagues: ratings rank the trials, and a killed sweep goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import list_checkpoints
from runner.sweep.trials import SweepFolder
from tests.conftest import Run, progress_of, wait_until
from tests.league.test_league_runs import SMALL
from tests.sweep.test_sweeps import trials_of

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

COMMAND = (
    *("-m", "+experiment=ppo_league_tictactoe", *SMALL, "tracking.display=plain", "sweep.name=s", "sweep=pbt"),
    *("league.opponents.fixed=0.3", "sweep.metric=league/main/elo", "sweep.num_samples=2"),
    *(
        "sweep.synch=true",
        "sweep.perturbation_interval=400",
        "sweep.quantile_fraction=0.5",
        "stop.training_iteration=40",
    ),
    "algorithm.lr=tag(log,interval(1e-4,1e-2))",
)


@pytest.mark.slow
def test_trials_take_over_leagues_and_survive_a_kill(
    start_main: Callable[..., subprocess.Popen[str]], run_main: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "outputs" / "ppo_league_tictactoe" / "sweeps" / "s"
    first = start_main(*COMMAND)
    wait_until(lambda: (folder / "mutations.jsonl").exists(), first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    outcome = run_main(*COMMAND)
    assert outcome.code == 0, outcome.err
    trials = trials_of(folder)
    assert [trials[number]["status"] for number in range(2)] == ["finished"] * 2
    assert SweepFolder.open(folder).mutations()
    for number in "01":
        iterations = [line["training_iteration"] for line in progress_of(folder / number)]
        assert iterations == sorted(set(iterations))
        assert iterations[-1] == 40
        last = progress_of(folder / number)[-1]
        state = load_checkpoint(list_checkpoints(folder / number / "checkpoints")[-1])[0]
        assert len(state["league"]["players"]) == last["league/num_players"] - 2 + _has_new(state, last)


def _has_new(state: dict[str, object], last: dict[str, float]) -> int:
    """Whether the last iteration has ended with a snapshot, which its metrics do not count yet."""
    players = state["league"]["players"]  # type: ignore[index]
    newest = max(player["num_env_steps"] for player in players.values())
    return int(newest == last["num_env_steps_sampled_lifetime"])
