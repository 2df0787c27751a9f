"""Whole runs with a league: exact resume, Ray, odds, files, errors."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.cli.evaluate import naming_opponent, naming_run
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.league import LeagueConfig
from runner.config.validation import build_experiment_config
from runner.environments.games import TicTacToe, best_moves, value, winner
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.league.league import League
from runner.league.matches import Match
from runner.league.opponent_environments import ITSELF
from runner.league.players import PerfectTicTacToePlayer, RandomPlayer, Seat, find_misfits
from tests.conftest import MakeRun, Run, marked_but
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray, train
from tests.support.run_views import RunAt, feature_of

SMALL = [
    "tracking=none",
    "algorithm.train_batch_size_per_learner=200",
    "algorithm.minibatch_size=100",
    "algorithm.num_epochs=1",
    "module.fcnet_hiddens=[16]",
    "env_runners.num_envs_per_env_runner=4",
    "league.snapshot_every=300",
    "evaluation.evaluation_interval=2",
    "evaluation.evaluation_duration=10",
    "league.opponents={latest: 0.4, prioritised: 0.3, uniform: 0.2, fixed: 0.1}",
]


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_league_tictactoe", [*SMALL, *overrides])


LSTM = ["module.use_lstm=true", "module.lstm_cell_size=8"]


@pytest.mark.parametrize("overrides", marked_but(pytest.mark.slow, [[], LSTM], []), ids=["mlp", "lstm"])
def test_a_run_resumes_exactly(overrides: list[str], tmp_path: Path) -> None:
    expected = assert_resumes_exactly(partial(trainer_of, *overrides), tmp_path, cuts=[3, 4])
    assert expected[-1]["league/num_players"] >= 5
    assert expected[1]["evaluation/league/perfect/loss_rate"] > 0
    linked = [path for path in (tmp_path / "iteration_4").glob("league.*.segment") if path.stat().st_nlink > 1]
    assert linked, "a later checkpoint links to the files of older snapshots"


@pytest.mark.slow
def test_ray_actors_give_the_numbers_of_one_process(ray_cluster: None) -> None:
    expected = assert_same_on_ray(partial(trainer_of, "env_runners.num_env_runners=2"), 4)
    assert expected[-1]["league/num_players"] >= 4


def test_a_run_leaves_ratings_and_policies_that_play(run_main: Run, tmp_path: Path) -> None:
    arguments = ("+experiment=ppo_league_tictactoe", *SMALL, "hydra.run.dir=run", "stop.training_iteration=4")
    outcome = run_main(*arguments)
    assert outcome.code == 0, outcome.err
    assert "ratings" in outcome.out
    assert f"-m runner report {tmp_path / 'run'}\n" in outcome.out
    rows = json.loads((tmp_path / "run/league/standings.json").read_text())
    assert {"main", "main-0", "random"} <= {row["player"] for row in rows}
    assert [row["elo"]["value"] for row in rows] == sorted((row["elo"]["value"] for row in rows), reverse=True)
    (policy,) = (tmp_path / "run/league").glob("main-0-*.onnx")
    old = (f"league.fixed.old={policy}", "league.train_against=[old]")
    outcome = run_main(*arguments, *old, "hydra.run.dir=other")
    assert outcome.code == 0, outcome.err
    assert "old" in {row["player"] for row in json.loads((tmp_path / "other/league/standings.json").read_text())}
    assert run_main("report", "run", "--output", "page.html").code == 0
    assert "scores between players" in (tmp_path / "page.html").read_text()


def test_a_run_is_evaluated_against_another_run_and_a_policy_file(run_main: Run, tmp_path: Path) -> None:
    arguments = ("+experiment=ppo_league_tictactoe", *SMALL)
    assert run_main(*arguments, "hydra.run.dir=one", "stop.training_iteration=1").code == 0
    assert run_main(*arguments, "hydra.run.dir=two", "stop.training_iteration=2", "seed=5").code == 0
    (policy,) = (tmp_path / "one/league").glob("main-0-*.onnx")
    for opponent in ("two", str(policy)):
        outcome = run_main("evaluate", "one", "--against", opponent, "evaluation.evaluation_duration=20")
        assert outcome.code == 0, outcome.err
        record = json.loads((tmp_path / "one/evaluations.jsonl").read_text().splitlines()[-1])
        rates = [record[f"other/{rate}"] for rate in ("win_rate", "draw_rate", "loss_rate")]
        assert sum(rates) == pytest.approx(1)
        assert record["against"] == opponent
    outcome = run_main("evaluate", "one", "--against", "nowhere.onnx")
    assert outcome.code == 2
    assert "the policy file does not exist" in outcome.err


@pytest.mark.parametrize(
    ("where", "told"),
    [("--module", "--against two"), (None, "--against two"), ("algorithm.lr", "--against two: algorithm.lr")],
)
def test_what_is_wrong_with_the_other_run_names_it(where: str | None, told: str) -> None:
    with pytest.raises(ConfigError) as caught, naming_opponent("two"), naming_run(Path("two")):
        raise ConfigError([Problem("it does not fit", where)])
    assert [problem.where for problem in caught.value.problems] == [told]


PURSUIT = (
    "+experiment=ppo_league_pursuit",
    *(override for override in SMALL if "opponents" not in override),
    "env.env_config.max_steps=20",
)


@pytest.mark.slow
def test_several_modules_meet_the_ones_of_another_run_and_policy_files_of_theirs(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*PURSUIT, "hydra.run.dir=one", "stop.training_iteration=1").code == 0
    assert run_main(*PURSUIT, "hydra.run.dir=two", "stop.training_iteration=2", "seed=5").code == 0
    outcome = run_main("evaluate", "one", "--against", "two", "evaluation.evaluation_duration=20")
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "one/evaluations.jsonl").read_text())
    assert sum(record[f"other/{rate}"] for rate in ("win_rate", "draw_rate", "loss_rate")) == pytest.approx(1)
    (policy,) = (tmp_path / "one/league").glob("chaser-0-*.onnx")
    outcome = run_main("evaluate", "one", "--against", str(policy))
    assert outcome.code == 2
    assert "a policy file replaces one module, and this run has several modules" in outcome.err
    old = f"league.fixed={{old: {{chaser: {policy}}}}}"
    outcome = run_main("evaluate", "one", old, "league.evaluate_against=[old]", "evaluation.evaluation_duration=20")
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "one/evaluations.jsonl").read_text().splitlines()[-1])
    assert record["old/win_rate"] is not None


@pytest.mark.slow
def test_a_policy_file_plays_the_seats_of_its_module_alone(tmp_path: Path) -> None:
    with Trainer.from_experiment("ppo_league_pursuit", PURSUIT[1:]) as trainer:
        league = feature_of(trainer, "league")
        assert league is not None
        path = tmp_path / "old.onnx"
        path.write_bytes(league.policy_files("chaser-0")["chaser"])
    fixed = [f"league.fixed.old={{chaser: {path}}}", "league.opponents={fixed: 1}", "league.train_against=[old]"]
    with Trainer.from_experiment("ppo_league_pursuit", [*PURSUIT[1:], *fixed]) as trainer:
        league = feature_of(trainer, "league")
        assert league is not None
        odds = league.lineup().odds
        assert "old" in odds["evader"]["chaser"]
        assert "old" not in odds["chaser"]["evader"]
        assert train(trainer, 1)[0]["league/num_players"] == 4


@pytest.mark.parametrize(
    ("given", "what", "nearest"),
    [
        ("old.onnx", "a single policy file cannot play several modules", None),
        ("{chasr: old.onnx}", "a policy file for a module that is not in league.modules", "chaser"),
        ("{chaser: 3}", "is not a valid player", None),
    ],
)
def test_files_of_several_modules_are_checked(given: str, what: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        config_from("+experiment=ppo_league_pursuit", f"league.fixed.old={given}")
    (problem,) = raised.value.problems
    assert what in problem.what
    assert (problem.nearest, problem.where) == (nearest, f"override league.fixed.old={given}")


def test_a_restored_league_plays_the_snapshots_that_it_had(tmp_path: Path) -> None:
    """Also in a run with another seed, whose own first snapshot is another policy."""
    with trainer_of() as trainer:
        train(trainer, 3)
        save_checkpoint(tmp_path / "one", trainer.get_state(), {})
        expected = feature_of(trainer, "league").policy_files("main-0")
    with trainer_of("seed=7", "league.opponents={latest: 0, prioritised: 0, uniform: 1, fixed: 0}") as trainer:
        assert feature_of(trainer, "league").policy_files("main-0") != expected
        trainer.set_state(load_checkpoint(tmp_path / "one")[0])
        trainer.train()
        [caller] = trainer.env_runners.actors.callers
        seated = caller.held.env  # type: ignore[attr-defined]
        assert seated._policies["main-0"] == expected
        assert any(player_id.startswith("main-") for player_id, _ in seated._players)


@pytest.mark.slow
def test_a_changed_policy_file_of_a_fixed_player_is_refused(tmp_path: Path) -> None:
    with trainer_of() as trainer:
        league = feature_of(trainer, "league")
        assert league is not None
        train(trainer, 1)
        league.end_iteration(RunAt(10**6, trainer.learners.get_weights(), trainer.parts.shared_state))
        files = [league.policy_files("main-0"), league.policy_files("main-1")]
    path = tmp_path / "old.onnx"
    path.write_bytes(files[0]["main"])
    old = f"league.fixed.old={path}"
    with trainer_of(old) as trainer:
        state = trainer.get_state()
    path.write_bytes(files[1]["main"])
    with trainer_of(old) as trainer, pytest.raises(ConfigError, match="has changed since the checkpoint"):
        trainer.set_state(state)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("league.fixed.old=nowhere.onnx", "the policy file of player old cannot be read"),
        ("league.fixed.old=README.md", "player old cannot be created"),
        ("league.modules=[main, mian]", "but no agent uses this module"),
    ],
)
def test_what_cannot_play_is_told_at_the_start(override: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        trainer_of(override).close()


def test_a_file_that_export_did_not_write_is_told_by_building(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "same", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)])
    path = tmp_path / "plain.onnx"
    onnx.save(model, path)
    config = build_experiment_config(
        compose_experiment(["+experiment=ppo_league_tictactoe", *SMALL, f"league.fixed.old={path}"])
    )
    with pytest.raises(ConfigError) as raised:
        rehearse(config)
    (problem,) = raised.value.problems
    assert "does not contain runner_manifest" in problem.what
    assert problem.where == "league.fixed.old"
    assert problem.got == str(path)
    assert "`runner export`" in (problem.expected or "")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("league.opponents.uniform=abc", "a number"),
        ("league.opponents.latest=-1", "a number of at least 0"),
        ("league.opponents.lattest=1", "latest, uniform, prioritised, fixed"),
    ],
)
def test_a_wrong_share_is_told_by_its_override(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_from("+experiment=ppo_league_tictactoe", override)
    (problem,) = raised.value.problems
    assert (problem.where, problem.expected) == (f"override {override}", expected)


@pytest.fixture(scope="module")
def policy_of_a_pole(finished_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy file for agents that observe four numbers and push left or right."""
    from runner.cli.main import main

    run_dir = finished_run(
        "+experiment=ppo_cartpole",
        "tracking=none",
        "stop.training_iteration=1",
        "module.fcnet_hiddens=[8]",
        "algorithm.train_batch_size_per_learner=64",
        "algorithm.minibatch_size=null",
    )
    path = tmp_path_factory.mktemp("pole") / "pole.onnx"
    assert main(["export", str(run_dir), "--format", "onnx", str(path)]) == 0
    return path


def test_a_policy_file_for_other_agents_is_refused_at_the_start(
    run_main: Run, policy_of_a_pole: Path, tmp_path: Path
) -> None:
    small = [*SMALL, f"league.fixed.old={policy_of_a_pole}", f"hydra.run.dir={tmp_path / 'run'}"]
    outcome = run_main("+experiment=ppo_league_tictactoe", *small)
    assert outcome.code == 2
    assert "2 problems" in outcome.err
    said = " ".join(outcome.err.split())
    for what in (
        "the policy file of player old does not fit observation_space of module main where league.fixed.old",
        "got Box((4,), float32) expected Dict(observations: Box(0.0, 1.0, (18,), float32), "
        "action_mask: MultiBinary(9))",
        "the policy file of player old does not fit action_space of module main where league.fixed.old",
        "got Discrete(2) expected Discrete(9) of player_0, player_1",
    ):
        assert what in said, outcome.err
    assert not list(tmp_path.rglob("progress.jsonl"))


def test_an_opponent_for_other_agents_is_told_by_its_option(
    run_main: Run, policy_of_a_pole: Path, tmp_path: Path
) -> None:
    small = [*SMALL, "hydra.run.dir=run", "stop.training_iteration=1"]
    assert run_main("+experiment=ppo_league_tictactoe", *small).code == 0
    outcome = run_main("evaluate", "run", "--against", str(policy_of_a_pole))
    assert outcome.code == 2
    assert f"--against {policy_of_a_pole}" in " ".join(outcome.err.split())
    assert "league.fixed" not in outcome.err


def test_bounds_and_widths_of_observations_do_not_matter_and_those_of_actions_do() -> None:
    narrow, wide = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(-9, 9, (3,), np.float64)
    pairs = [(narrow, wide), (gym.spaces.Discrete(4), gym.spaces.Discrete(4))]
    policy, agents = (gym.spaces.Dict({"a": gym.spaces.Tuple(one)}) for one in zip(*pairs, strict=True))
    assert list(find_misfits(policy, agents, is_of_actions=False)) == []
    assert list(find_misfits(policy, agents, is_of_actions=True)) == [("/a/0", narrow, wide)]
    for other in (gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 9, (3,), np.uint8), gym.spaces.Discrete(3)):
        assert list(find_misfits(narrow, other, is_of_actions=False)) == [("", narrow, other)]


def test_one_side_of_a_game_alone_is_no_league() -> None:
    with pytest.raises(ConfigError, match="the modules of the league do not have opponents"):
        Trainer.from_experiment("ppo_league_pursuit", ["league.modules=[chaser]"]).close()


# -- who plays ---------------------------------------------------------------------------------------------------------


class _Template:
    """Makes policy files of nothing but a number."""

    def to_bytes(self, weights: Any, shared_state: Any) -> bytes:
        return bytes(weights)


def league_of(**fields: Any) -> League:
    config = LeagueConfig(modules=["main"], **fields)
    fixed: dict[str, Any] = {one: {} for one in config.fixed}
    league = League(config, {"main": _Template()}, fixed, lambda weights: weights)  # type: ignore[dict-item]
    league.begin(RunAt(0, {"main": np.zeros(1)}))  # type: ignore[dict-item, return-value]
    return league


def skill_after(one: tuple[float, float], other: tuple[float, float], score: float) -> tuple[float, float]:
    """Return mean and deviation of a player after a game, by Weng and Lin (2011), algorithm 3, with a draw margin."""
    beta, tau, margin, least = 25 / 6, 25 / 300, 0.1, 1e-4
    normal = NormalDist()
    variance, other_variance = one[1] ** 2 + tau**2, other[1] ** 2 + tau**2
    c = math.sqrt(variance + other_variance + 2 * beta**2)
    t, e = (one[0] - other[0]) / c, margin / c
    if score == 0.5:
        z = normal.cdf(e - t) - normal.cdf(-e - t)
        v = (normal.pdf(-e - t) - normal.pdf(e - t)) / z
        w = v * v + ((e - t) * normal.pdf(e - t) + (e + t) * normal.pdf(e + t)) / z
    else:
        sign = 2 * score - 1
        v = sign * normal.pdf(sign * t - e) / normal.cdf(sign * t - e)
        w = v * (v + t - sign * e)
    shrink = math.sqrt(variance) / c * variance / c**2 * w
    return one[0] + variance / c * v, math.sqrt(variance * max(1 - shrink, least))


@pytest.mark.parametrize("score", [1.0, 0.5, 0.0])
def test_skills_are_those_of_the_closed_form(score: float) -> None:
    league = league_of(opponents={"uniform": 1.0})
    games = [Match("main", "main-0", 1.0), Match("main", "main-0", score)]
    league.add_matches(games)
    main = opponent = (25.0, 25 / 3)
    for game in games:
        main, opponent = skill_after(main, opponent, game.score), skill_after(opponent, main, 1 - game.score)
    skills = {row["player"]: (row["skill"]["mu"], row["skill"]["sigma"]) for row in league.standings()}
    assert skills["main"] == pytest.approx(main)
    assert skills["main-0"] == pytest.approx(opponent)


def test_opponents_that_are_hard_to_beat_are_drawn_more_often() -> None:
    league = league_of(opponents={"prioritised": 1.0}, snapshot_every=10)
    for steps in (10, 20):
        league.end_iteration(RunAt(steps, {"main": np.zeros(1)}))
    league.add_matches([Match("main", "main-0", 1.0)] * 40 + [Match("main", "main-1", 0.0)] * 40)
    odds = league.lineup().odds["main"]["main"]
    assert odds["main-1"] > odds["main-2"] > odds["main-0"] > 0
    fade = sum(0.99**k for k in range(40))
    scores = {"main-0": (fade + 0.5) / (fade + 1), "main-1": 0.5 / (fade + 1), "main-2": 0.5}
    total = sum((1 - score) ** 2 for score in scores.values())
    assert odds == pytest.approx({player: (1 - score) ** 2 / total for player, score in scores.items()})


def test_shares_of_kinds_are_kept_and_missing_kinds_fall_to_the_others() -> None:
    fixed = {"x": {"_target_": "a.B"}, "y": {"_target_": "a.B"}}
    league = league_of(opponents={"latest": 2.0, "uniform": 1.0, "fixed": 1.0}, fixed=fixed)
    odds = league.lineup().odds["main"]["main"]
    assert odds == pytest.approx({ITSELF: 0.5, "main-0": 0.25, "x": 0.125, "y": 0.125})
    assert league_of(opponents={"latest": 1.0, "fixed": 1.0}).lineup().odds["main"]["main"] == {ITSELF: 1.0}


def test_a_snapshot_is_made_by_wins_once_there_are_enough_games() -> None:
    league = league_of(snapshot_win_rate=0.7, snapshot_min_games=10)

    def num_players() -> float | int | None:
        league.end_iteration(RunAt(1, {"main": np.zeros(1)}))
        return league.num_players

    league.add_matches([Match("main", "main-0", 1.0)] * 9)
    assert num_players() == 1
    league.add_matches([Match("main", "main-0", 0.5)] * 4)
    assert num_players() == 1, "9 of 13 is below 0.7"
    league.add_matches([Match("main", "main-0", 1.0)])
    assert num_players() == 2
    assert num_players() == 2, "the count begins anew"


# -- tic-tac-toe -------------------------------------------------------------------------------------------------------


def test_the_perfect_player_never_loses_and_the_game_is_a_draw() -> None:
    assert value((0,) * 9) == 0
    env = TicTacToe()
    space = env.action_spaces["player_0"]
    rng = np.random.default_rng(0)
    outcomes = []
    for game in range(200):
        players = [PerfectTicTacToePlayer(space), RandomPlayer(space)][:: 1 if game % 2 else -1]
        obs, _ = env.reset()
        is_over = False
        while not is_over:
            (agent,) = obs
            batch = {name: value[None] for name, value in obs[agent].items()}
            [action] = players[int(agent[-1])].act(batch, [Seat(agent)], rng)
            obs, rewards, terminateds, _, _ = env.step({agent: action})
            is_over = terminateds["__all__"]
        outcomes.append(rewards[f"player_{0 if game % 2 else 1}"])
    assert min(outcomes) == 0
    assert np.mean(outcomes) > 0.8


def test_best_moves_win_where_a_win_is_there() -> None:
    board = (1, 1, 0, -1, -1, 0, 0, 0, 0)
    assert best_moves(board) == (2,)
    assert winner((1, 1, 1, -1, -1, 0, 0, 0, 0)) == 1
