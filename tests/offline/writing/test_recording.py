"""Episodes that runners record are whole, complete in number, and those that were sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.config.offline import OfflineConfig
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.episodes.columns import ColumnBlock, ListedInfos
from runner.experiment.env_runner_builder import EVALUATION, TRAINING, build_env_runner
from runner.experiment.trainer import Trainer
from runner.module_building import build_acting_module, make_module_specs
from runner.modules.flat_parameters import FlatParameters
from runner.offline.reading.source import open_source
from runner.offline.writing.recorder import EpisodeRecorder
from runner.offline.writing.writer import EpisodeWriter
from tests.conftest import QUICK, Run
from tests.support.configs import config_from


def config_of(*overrides: str) -> ExperimentConfig:
    return config_from("+experiment=ppo_cartpole", *overrides)


def recording_runner(config: ExperimentConfig, role: str) -> tuple[SingleAgentEnvRunner, dict[str, np.ndarray]]:
    plans = make_module_specs(config)
    runner = build_env_runner(config, plans, role, 0, 0, is_recording=True)
    assert isinstance(runner, SingleAgentEnvRunner)
    weights = {
        name: FlatParameters(build_acting_module(config, plan).module).to_numpy() for name, plan in plans.items()
    }
    return runner, weights


def recorded_in(folder: Path) -> list[ColumnBlock]:
    return list(open_source(OfflineConfig(input_=str(folder))).blocks())


@pytest.mark.parametrize("fragment", [1, 7, 64])
def test_what_ends_over_fragments_is_recorded_whole(tmp_path: Path, fragment: int) -> None:
    config = config_of(f"offline.output={tmp_path}", "env_runners.num_envs_per_env_runner=3")
    runner, weights = recording_runner(config, TRAINING)
    chunks: dict[str, list[ColumnBlock]] = {}
    returns: list[float] = []
    for _ in range(200 // fragment):
        sample = runner.sample(fragment * 3, True, weights, {})
        returns += sample.finished.returns.tolist()
        for episode in sample.rollout.blocks["default_policy"]:
            chunks.setdefault(episode.id_, []).append(episode)
    recorded = runner.finish_recording()
    runner.close()
    assert recorded.report.episodes == len(returns) > 5
    assert recorded.num_unfinished == 3
    episodes = {episode.id_: episode for block in recorded_in(tmp_path) for episode in block}
    assert sorted(episode.get_return() for episode in episodes.values()) == sorted(returns)
    for id_, episode in episodes.items():
        parts = chunks[id_]
        assert episode.is_terminated == parts[-1].is_terminated
        assert np.array_equal(episode.get_actions(), np.concatenate([part.get_actions() for part in parts]))
        obs = [part.get_observations()[: -1 if part is not parts[-1] else None] for part in parts]
        assert np.array_equal(episode.get_observations(), np.concatenate(obs))
        logp = [part.get_extra_model_outputs("action_logp") for part in parts]
        assert np.array_equal(episode.get_extra_model_outputs("action_logp"), np.concatenate(logp))


def test_observations_are_recorded_as_the_environment_made_them(tmp_path: Path) -> None:
    config = config_of(f"offline.output={tmp_path}", "connectors=mean_std_filter")
    runner, weights = recording_runner(config, TRAINING)
    written = np.concatenate([runner.sample(300, True, weights, {}).rollout.blocks["default_policy"].columns["obs"]])
    runner.finish_recording()
    (block,) = recorded_in(tmp_path)
    first_angles = block.columns["obs"][block.first_obs_rows]
    assert np.abs(first_angles).max() <= 0.05  # CartPole's own initial states
    assert np.abs(written).max() > 0.5  # standardised
    runner.close()


def test_an_evaluation_records_exactly_its_episodes(tmp_path: Path) -> None:
    config = config_of(f"offline.output={tmp_path}", "evaluation.num_envs_per_env_runner=4")
    runner, weights = recording_runner(config, EVALUATION)
    finished = runner.evaluate(10, False, weights, {})
    recorded = runner.finish_recording()
    runner.close()
    assert (recorded.report.episodes, recorded.report.steps) == (10, finished.lengths.sum())
    blocks = recorded_in(tmp_path)
    assert sorted(e.get_return() for block in blocks for e in block) == sorted(finished.returns.tolist())
    assert all("action_logp" not in block.columns for block in blocks)  # greedy actions have none that means anything


def test_an_evaluation_of_env_steps_records_the_episodes_that_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.env_runners.stepping_env_runner.EVALUATION_FRAGMENT", 9)
    config = config_of(f"offline.output={tmp_path}", "evaluation.num_envs_per_env_runner=4")
    runner, weights = recording_runner(config, EVALUATION)
    finished = runner.evaluate(900, True, weights, {}, unit="env_steps")
    recorded = runner.finish_recording()
    runner.close()
    assert len(finished.returns) > 4
    assert (recorded.report.episodes, recorded.report.steps) == (len(finished.returns), finished.lengths.sum())
    assert (recorded.num_unfinished, recorded.num_incomplete) == (0, 0)
    returns = [e.get_return() for block in recorded_in(tmp_path) for e in block]
    assert sorted(returns) == sorted(finished.returns.tolist())


def step_with_infos(t: int, is_over: bool) -> ColumnBlock:
    """A chunk of step t of an episode."""
    return ColumnBlock(
        {"obs": np.full((2, 1), t, np.float32), "actions": np.zeros(1, np.int64), "rewards": np.ones(1, np.float32)},
        np.ones(1, np.int64),
        np.array([is_over]),
        np.array([False]),
        np.array([t]),
        ["e"],
        infos=ListedInfos([[{"t": t}, {"t": t + 1}]]),
    )


def test_a_checkpoint_keeps_the_infos_of_unfinished_episodes(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(EpisodeWriter(OfflineConfig(output=str(tmp_path))))
    for t in range(3):
        recorder.add(step_with_infos(t, is_over=t == 2))
        recorder.get_open()  # as a checkpoint does
    recorder.close()
    (block,) = recorded_in(tmp_path)
    assert [dict(info) for info in block[0].get_infos()] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 3}]


def test_record_verb(run_main: Run, tmp_path: Path) -> None:
    run_dir, data = tmp_path / "run", tmp_path / "data"
    trained = run_main("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", f"hydra.run.dir={run_dir}")
    assert trained.code == 0, trained.err
    arguments = ("record", str(run_dir), f"offline.output={data}", "evaluation.evaluation_duration=12")
    outcome = run_main(*arguments)
    assert outcome.code == 0, outcome.err
    assert "  12 episodes, " in outcome.out
    assert sum(len(block) for block in recorded_in(data)) == 12
    again = run_main(*arguments)
    assert again.code == 2
    assert "the folder already contains data" in again.err
    more = run_main(*arguments, "offline.output_append=true", "offline.output_write_episodes=true")
    assert more.code == 0, more.err
    assert sum(len(block) for block in recorded_in(data)) == 24
    assert run_main("record", str(run_dir)).code == 2
    steps = (
        "record",
        str(run_dir),
        f"offline.output={tmp_path / 'steps'}",
        "evaluation.evaluation_duration_unit=env_steps",
    )
    outcome = run_main(*steps, "evaluation.evaluation_duration=400", "evaluation.num_envs_per_env_runner=2")
    assert outcome.code == 0, outcome.err
    num_steps = sum(block.num_rows for block in recorded_in(tmp_path / "steps"))
    assert 0 < num_steps <= 400
    assert f"episodes, {num_steps} steps in 1 file" in outcome.out
    short = run_main(*steps[:2], f"offline.output={tmp_path / 'short'}", *steps[3:], "evaluation.evaluation_duration=8")
    assert short.code == 1
    assert "no episode ended within 8 env steps of 8 sub-environments, so none is recorded" in short.err


def test_training_records_what_it_samples(tmp_path: Path) -> None:
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, f"offline.output={tmp_path}"]) as trainer:
        finished = sum(int(trainer.train()["env_runners/num_episodes"] or 0) for _ in range(2))
        recorded = trainer.finish_recording()
    assert recorded is not None
    assert recorded.report.episodes == finished == sum(len(block) for block in recorded_in(tmp_path))


def test_recorded_steps_say_which_weights_acted(tmp_path: Path) -> None:
    config = config_of(f"offline.output={tmp_path}", "env_runners.num_envs_per_env_runner=3")
    runner, weights = recording_runner(config, TRAINING)
    acted: dict[str, list[int]] = {}
    for weights_seq_no in (4, 5, 9):
        for episode in runner.sample(60, True, weights, {}, weights_seq_no).rollout.blocks["default_policy"]:
            acted.setdefault(episode.id_, []).extend([weights_seq_no] * len(episode))
    runner.finish_recording()
    runner.close()
    numbers = {e.id_: e.get_extra_model_outputs("weights_seq_no") for block in recorded_in(tmp_path) for e in block}
    assert {id_: column.tolist() for id_, column in numbers.items()} == {id_: acted[id_] for id_ in numbers}
    assert any(len(set(column.tolist())) > 1 for column in numbers.values()), "an episode that two weights acted in"
    assert all(column.dtype == np.int64 for column in numbers.values())
