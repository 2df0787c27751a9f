"""Population-based training: what a trial takes over, what survives a kill, and where it is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import PopulationBasedTraining

from runner.checkpoints import load_checkpoint, read_manifest
from runner.checkpoints.folder import list_checkpoints
from runner.sweep.schedulers import Population, coordinates, from_coordinate, make_population
from runner.sweep.space import Interval, SearchSpace, read_search_space
from runner.sweep.trial_settings import METRICS, RUN, TrialSettings, clone_folder
from runner.sweep.trial_trainable import TrialTrainable
from runner.sweep.trials import SweepFolder, Trial
from tests.conftest import QUICK, Run, progress_of, wait_until
from tests.support.configs import config_from
from tests.sweep.test_sweeps import trials_of

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray Tune warns about its own future

STEPS = "num_env_steps_sampled_lifetime"
FIXED = ("+experiment=ppo_cartpole", *QUICK, "sweep=pbt", "sweep.perturbation_interval=512")
SPACE = read_search_space((*FIXED, "algorithm.lr=interval(0,1e-2)", "seed=1,2"), (), np.random.default_rng(0))


@contextmanager
def open_trial(settings: TrialSettings) -> Iterator[TrialTrainable]:
    trial = TrialTrainable(config={RUN: settings})
    try:
        yield trial
    finally:
        trial.stop()


def parameters_of(run_dir: Path) -> dict[str, np.ndarray]:
    state = load_checkpoint(list_checkpoints(run_dir / "checkpoints")[-1])[0]
    parameters: dict[str, np.ndarray] = state["learners"]["learners"]["default_policy"]["module"]
    return parameters


def test_a_population_takes_a_seed_of_any_size(tmp_path: Path) -> None:
    folder = SweepFolder.start_in(tmp_path, "ppo_cartpole", {"m": "max"}, SPACE.to_dict(), may_change=False)
    population = Population(SPACE, folder, STEPS, lambda *_: None)
    config = config_from(*FIXED, f"sweep.seed={2**40}")
    assert isinstance(make_population(config, population, {}), PopulationBasedTraining)


def test_a_trial_takes_over_state_and_values_and_keeps_its_own(tmp_path: Path) -> None:
    folder = SweepFolder.start_in(tmp_path, "ppo_cartpole", {"m": "max"}, SPACE.to_dict(), may_change=False)
    told: list[Trial] = []
    population = Population(SPACE, folder, STEPS, lambda trial, _: told.append(trial))
    combinations = ({"algorithm.lr": 1e-3, "seed": "1"}, {"algorithm.lr": 5e-3, "seed": "2"})
    lagging, donor = (
        TrialSettings(own.number, own.values, FIXED, str(folder.run_dir(own)), None)
        for own in map(folder.add, combinations)
    )
    with open_trial(donor) as trial:
        last = [trial.step()[METRICS] for _ in range(3)][-1]
    with open_trial(lagging) as trial:
        for _ in range(5):
            trial.step()
        changed = population.take_over(lagging, donor, {"algorithm.lr": 0.0}, until=last[STEPS])
        population.recover()
        assert len(told) == 1
        folder.trials[0].changed = {}  # as if it had been killed before it was recorded
        population.recover()
        assert folder.trials[0].values == changed.values
        assert trial.reset_config({RUN: changed})
        assert clone_folder(Path(lagging.run_dir)).exists()
        assert trial.step()[METRICS]["training_iteration"] == 4
        assert not clone_folder(Path(lagging.run_dir)).exists()
        assert changed.values == {"algorithm.lr": 0.0, "seed": "2" if lagging.number else "1"}
        (own,) = list_checkpoints(Path(lagging.run_dir) / "checkpoints")[-1:]
        assert own.name == "iteration_000003"
        assert "algorithm.lr=0.0" in read_manifest(own)["overrides"]
        taken = parameters_of(Path(donor.run_dir))
    np.testing.assert_equal(parameters_of(Path(lagging.run_dir)), taken)  # no step of size 0 moves them
    assert [line["training_iteration"] for line in progress_of(Path(lagging.run_dir))] == [1, 2, 3, 4]
    assert told == [folder.trials[0]] * 2
    row = folder.mutations()[0]
    assert (row["trial"], row["donor"], row["iteration"], row["num_env_steps"]) == (0, 1, 3, last[STEPS])
    assert (row["before"], row["after"]) == ({"algorithm.lr": 1e-3}, {"algorithm.lr": 0.0})
    assert SweepFolder.open(tmp_path).trials[0].values == changed.values


def test_a_process_that_is_not_needed_leaves_the_run_dir_to_the_one_that_is(tmp_path: Path) -> None:
    """Tune asks for a process, and gives the trial to one that has become free while that one starts."""
    settings = TrialSettings(0, {"algorithm.lr": 1e-3, "seed": "1"}, FIXED, str(tmp_path / "0"), None)
    with open_trial(settings) as trial:
        trial.step()
        trial.save_checkpoint("")
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with open_trial(settings) as other:
            other.reset_config({RUN: settings})
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_donor_without_a_checkpoint_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SweepFolder.start_in(tmp_path, "e", {"m": "max"}, SPACE.to_dict(), may_change=False)
    own, other = (
        TrialSettings(one.number, one.values, FIXED, str(folder.run_dir(one)), None)
        for one in (folder.add({"algorithm.lr": 1e-3}), folder.add({"algorithm.lr": 2e-3}))
    )
    assert Population(SPACE, folder, STEPS, lambda *_: None).take_over(own, other, {"algorithm.lr": 0.0}, 1.0) is own
    assert folder.mutations() == []
    assert "trial 0 continues unchanged: trial 1 does not have a checkpoint" in caplog.text


cached_config = cache(config_from)


@given(st.floats(1e-6, 1.0), st.booleans(), st.booleans())
def test_what_pb2_calculates_with_comes_back(value: float, is_log: bool, are_logarithms: bool) -> None:
    domain = Interval("algorithm.lr", 1e-6, 1.0, is_log=is_log)
    scheduler = "pb2" if are_logarithms else "pbt"
    config = cached_config("+experiment=ppo_cartpole", f"sweep={scheduler}")
    (coordinate,) = coordinates(config, SearchSpace((), (domain,)), {domain.key: value}).values()
    assert from_coordinate(domain, coordinate, value, are_logarithms) == pytest.approx(value, rel=1e-9)


def test_small_whole_numbers_change_too() -> None:
    domain = Interval("algorithm.num_epochs", 1, 10, is_integer=True)
    assert [
        from_coordinate(domain, number * factor, number, False) for number in (1, 2, 9) for factor in (0.8, 1.2)
    ] == [
        *(1, 2, 1, 3, 7, 10),
    ]


SWEEP = ("-m", "+experiment=ppo_cartpole", *QUICK[:-1], "tracking.display=plain", "sweep.name=s")


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_population_goes_on(
    start_main: Callable[..., subprocess.Popen[str]], run_main: Run, tmp_path: Path
) -> None:
    command = (
        *(
            *SWEEP,
            "sweep=pbt",
            "sweep.num_samples=4",
            "sweep.perturbation_interval=1024",
            "sweep.quantile_fraction=0.5",
        ),
        *("algorithm.lr=tag(log,interval(1e-5,1e-2))", "stop.training_iteration=48"),
    )
    folder = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s"
    first = start_main(*command)
    wait_until(lambda: (folder / "mutations.jsonl").exists())
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    num_mutations = len(SweepFolder.open(folder).mutations())
    second = run_main(*command)
    assert second.code == 0, second.err
    trials = trials_of(folder)
    assert [trials[number]["status"] for number in range(4)] == ["finished"] * 4
    mutations = SweepFolder.open(folder).mutations()
    assert len(mutations) > num_mutations
    last = mutations[-1]
    assert trials[last["trial"]]["changed"] == last["after"]
    for number in "0123":
        iterations = [line["training_iteration"] for line in progress_of(folder / number)]
        assert iterations == sorted(set(iterations))
        assert iterations[-1] == 48
    check_mlflow(tmp_path, folder, mutations)


def check_mlflow(tmp_path: Path, folder: Path, mutations: list[dict[str, Any]]) -> None:
    """Each mutation is a point of a metric of its trial, and a row of a table of the sweep."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    parent = json.loads((folder / "mlflow_run.json").read_text())["run_id"]
    table = Path(client.download_artifacts(parent, "mutations.csv")).read_text().splitlines()
    assert table[0] == "trial,donor,iteration,num_env_steps,key,before,after"
    assert len(table) - 1 == sum(len(row["after"]) for row in mutations)
    of_this_start = mutations[-1]
    run_id = json.loads((folder / str(of_this_start["trial"]) / "mlflow_run.json").read_text())["run_id"]
    points = client.get_metric_history(run_id, "sweep/algorithm.lr")
    assert of_this_start["after"]["algorithm.lr"] in [point.value for point in points]


@pytest.mark.slow
@pytest.mark.ray
def test_pb2_in_step(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        *(*SWEEP, "tracking.mlflow=false", "sweep=pb2", "sweep.num_samples=4", "sweep.perturbation_interval=1024"),
        *("algorithm.lr=tag(log,interval(1e-5,1e-2))", "algorithm.gamma=interval(0.9,0.99)"),
        *("stop.training_iteration=12", "sweep.synch=true"),
    )
    assert outcome.code == 0, outcome.err
    folder = SweepFolder.open(tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s")
    assert [trial.status for trial in folder.trials] == ["finished"] * 4
    mutations = folder.mutations()
    assert mutations
    for row in mutations:
        # All stop where the last one has come, or an iteration later: iterations have some env steps more or less.
        assert row["iteration"] % 4 <= 1
        assert 1e-5 <= row["after"].get("algorithm.lr", 1e-3) <= 1e-2
        assert 0.9 <= row["after"].get("algorithm.gamma", 0.9) <= 0.99


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep=pbt", "seed=1,2"], "none of them is searched"),
        (["sweep=pb2", "algorithm.lr=1e-3,2e-3"], "pb2 searches intervals"),
        (["sweep=pbt", "algorithm.kl_coeff=interval(0.1,0.3)"], "which training adapts"),
        (["sweep=pbt", "algorithm.lr=1e-3,2e-3", "sweep.max_concurrent_trials=1"], "cannot limit concurrent trials"),
        (["sweep=pbt", "algorithm.lr=1e-3,2e-3"], "more than the number of combinations"),
        (["sweep=pbt", "algorithm.lr=1e-3,2e-3", "sweep.search=tpe"], "has nothing to propose"),
        (["sweep=pbt", "algorithm.lr=1e-3,2e-3", "stop.num_env_steps_sampled_lifetime=null"], "perturbation_interval"),
    ],
)
def test_mistakes(run_main: Run, tmp_path: Path, overrides: list[str], message: str) -> None:
    outcome = run_main(*SWEEP, *overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert not list(tmp_path.rglob("progress.jsonl"))
