"""Evaluation on held-out recorded data: what it says, what it refuses, and that training does not notice it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.cli.evaluate import held_out_lines
from runner.config.errors import ConfigError, Problem
from runner.config.metrics import producible_metrics
from runner.config.offline import OfflineConfig
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import ColumnBlock, block_from_episodes
from runner.experiment.learner_builder import build_learner_group
from runner.experiment.recorded_data_builder import build_held_out_evaluation
from runner.experiment.trainer import Trainer
from runner.module_building import build_modules
from runner.modules import ActorCriticModule
from runner.offline.evaluation import held_out_loss
from runner.offline.evaluation.held_out import HeldOutEvaluation
from runner.offline.evaluation.policy_evaluation import METHODS, evaluate_policy
from runner.offline.reading.source import open_source
from runner.offline.writing.writer import EpisodeWriter
from runner.pipelines import SingleAgentObservationPreprocessor
from runner.pipelines.recorded_episodes import ObservationRows
from runner.streams import random_stream
from tests.conftest import QUICK, ROOT, AssertGolden, Run, progress_of, result_of, without_times
from tests.offline.problems import config_error, data_error, does_not_fit, no_path, no_trajectories
from tests.support.configs import config_from
from tests.support.problems import assert_error

KEY = "evaluation.offline_evaluation_"
EVERY_TYPE = f"{KEY}type=[eval_loss,{','.join(METHODS)}]"
SMALL_Q = f"{KEY}q_model_config={{num_updates: 20, network: {{fcnet_hiddens: [8]}}}}"
DATA = ROOT / "tests" / "data"
RECORDED = DATA / "rllib_episodes"  # five episodes of RLlib's, with action_logp
PPO = ("+experiment=ppo_cartpole", *QUICK)
BC = ("+experiment=bc_cartpole", "offline.input_=none", "module.fcnet_hiddens=[16]")


def held_out_of(*overrides: str) -> HeldOutEvaluation:
    config = config_from(*overrides)
    evaluation = build_held_out_evaluation(config, build_modules(config))
    assert evaluation is not None
    return evaluation


def evaluated(*overrides: str, num_env_steps: int = 0) -> dict[str, Any]:
    """Of an untrained policy."""
    config = config_from(*overrides)
    parts = build_modules(config)
    evaluation = build_held_out_evaluation(config, parts)
    assert evaluation is not None
    return evaluation.evaluate(build_learner_group(config, parts).get_state(), {}, num_env_steps)


def blocks_of(folder: Path) -> list[ColumnBlock]:
    return list(open_source(OfflineConfig(input_=str(folder))).blocks())


def offline_metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name.startswith("evaluation/offline/")}


class NoisyModule(ActorCriticModule):
    """Draws from torch's own stream wherever it can, as dropout does."""

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = super().forward_train(batch)
        noise = torch.randn_like(outputs["vf_preds"])
        return outputs | {"vf_preds": outputs["vf_preds"] + 0.1 * noise * self.training}


class NoDistribution(ActorCriticModule):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.action_dist = object()  # type: ignore[assignment]


class Doubled(SingleAgentObservationPreprocessor):
    """Looks at the episode, too: the time step becomes the last component."""

    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        return np.append(observation[:3] * 2, np.float32(episode.t / 100)).astype(np.float32)


# --- what it says -------------------------------------------------------------------------------------


def test_a_run_reports_what_a_direct_call_says(run_main: Run, tmp_path: Path) -> None:
    types = f"{KEY}type=[eval_loss,pdis,wis,dr]"
    held_out = (f"{KEY}input_={RECORDED}", f"{KEY}interval=2", types, SMALL_Q, f"{KEY}level=0.8")
    stop = ("stop.training_iteration=3", "stop.evaluation.offline.wis=1e9")
    outcome = run_main(*PPO, *held_out, *stop, "checkpoint.metric=evaluation/offline/wis", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    lines = progress_of(tmp_path / "run")
    assert [bool(offline_metrics(line)) for line in lines] == [False, True, True]  # the last: at the end
    assert offline_metrics(result_of(tmp_path / "run")) == offline_metrics(lines[-1])
    with Trainer.from_checkpoint(tmp_path / "run" / "checkpoints" / "iteration_000003") as trainer:
        assert set(lines[-1]) <= set(producible_metrics(trainer.config))
        module = trainer._built_modules["default_policy"].module
        estimates = evaluate_policy(
            blocks_of(RECORDED),
            module,
            trainer.config.algorithm.gamma,
            random_stream(0, "offline_evaluation", 0),
            ("pdis", "wis", "dr"),
            0.8,
            1000,
            held_out_of(*PPO, *held_out)._fitted_q,
            lambda block: {"obs": block.columns["obs"]},
        )
        again = without_times(trainer.evaluator.evaluate_offline(trainer.parts))
    result = lines[-1]
    for name, one in estimates.items():
        prefix = f"evaluation/offline/{name}"
        numbers = {"": one.estimate, "_low": one.low, "_high": one.high}
        numbers["_effective_sample_size"] = one.effective_sample_size
        assert {part: result[f"{prefix}{part}"] for part in numbers} == pytest.approx(numbers, rel=1e-6)
    assert result["evaluation/offline/num_episodes"] == 5
    assert result["evaluation/offline/num_env_steps"] == sum(block.num_rows for block in blocks_of(RECORDED))
    assert offline_metrics(again) == offline_metrics(result)


def test_the_loss_of_behaviour_cloning_is_the_mean_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (*BC, f"{KEY}input_={DATA / 'rllib_cartpole_episodes'}")
    metrics = evaluated(*overrides)
    parts = build_modules(config_from(*overrides))["default_policy"]
    log_probs = []
    for block in blocks_of(DATA / "rllib_cartpole_episodes"):
        for episode in block:
            obs, actions = episode.get_observations()[:-1], episode.get_actions()
            theta = parts.module.forward_train({"obs": torch.from_numpy(obs.copy())})["action_dist_inputs"]
            log_probs += parts.module.action_dist.log_prob(theta, torch.from_numpy(actions.copy())).tolist()
    assert metrics == {
        "evaluation/offline/eval_loss": pytest.approx(-np.mean(log_probs), rel=1e-6),
        "evaluation/offline/num_episodes": 10,
        "evaluation/offline/num_env_steps": len(log_probs),
    }
    monkeypatch.setattr(held_out_loss, "_MAX_ROWS_PER_PASS", 7)
    assert evaluated(*overrides) == pytest.approx(metrics)


@pytest.mark.parametrize(
    "overrides",
    [
        ("+experiment=marwil_cartpole", "offline.input_=none"),
        (*BC, "algorithm=cql_discrete", "module=double_q"),
        ("+experiment=iql_pendulum", "env=cartpole", "offline.input_=none"),
        (*PPO,),
    ],
)
def test_losses_do_not_depend_on_how_rows_are_parted(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = (*overrides, f"{KEY}input_={RECORDED}", "checkpoint.metric=training_iteration")
    whole = evaluated(*overrides)
    monkeypatch.setattr(held_out_loss, "_MAX_ROWS_PER_PASS", 100)
    assert evaluated(*overrides) == pytest.approx(whole, rel=1e-4)


def test_the_module_is_in_eval_mode() -> None:
    noisy = "module._target_=tests.offline.evaluation.test_held_out.NoisyModule"
    overrides = ("+experiment=marwil_cartpole", "offline.input_=none", f"{KEY}input_={RECORDED}")
    assert evaluated(*overrides, noisy) == evaluated(*overrides)


def test_the_loss_has_the_coefficients_of_training() -> None:
    overrides = (*PPO, f"{KEY}input_={RECORDED}")
    plain = evaluated(*overrides)["evaluation/offline/eval_loss"]
    schedule = (*overrides, "algorithm.entropy_coeff=[[0,0.0],[1000,1.0]]")
    assert evaluated(*schedule, num_env_steps=0)["evaluation/offline/eval_loss"] == plain
    half, whole = (evaluated(*schedule, num_env_steps=n)["evaluation/offline/eval_loss"] for n in (500, 1000))
    assert plain - half == pytest.approx(half - whole)
    assert plain - whole == pytest.approx(np.log(2), abs=0.05)  # the entropy of an untrained policy, nearly


def test_the_loss_has_the_state_of_training() -> None:
    overrides = ("+experiment=marwil_cartpole", "offline.input_=none", f"{KEY}input_={RECORDED}")
    config = config_from(*overrides)
    parts = build_modules(config)
    state, evaluation = build_learner_group(config, parts).get_state(), held_out_of(*overrides)
    first = evaluation.evaluate(state, {}, 0)
    loss_state = state["learners"]["default_policy"]["modules"]["default_policy"]["loss"]
    loss_state["c_squared"] *= 4
    assert evaluation.evaluate(state, {}, 0) != first
    loss_state["c_squared"] /= 4
    assert evaluation.evaluate(state, {}, 0) == first


_FRAMES = (
    "{insert_before: AddObservationsFromEpisodesToBatch, "
    "connector: {_target_: runner.pipelines.FrameStacking, num_frames: 3}}"
)
_PREVIOUS = (
    "{insert_after: AddObservationsFromEpisodesToBatch, connector: {_target_: runner.pipelines.PrevActionsPrevRewards}}"
)
_HERE = "tests.offline.evaluation.test_held_out"
_DOUBLED = f"{{insert_after: AddObservationsFromEpisodesToBatch, connector: {{_target_: {_HERE}.Doubled}}}}"
_WRITE = "{insert_before: BatchIndividualItems, connector: {_target_: runner.pipelines.WriteObservationsToEpisodes}}"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("connectors=mean_std_filter",),
        (f"connectors.env_to_module=[{_FRAMES}]", f"connectors.learner=[{_FRAMES}]"),
        (f"connectors.env_to_module=[{_FRAMES}, {_WRITE}]",),
        (f"connectors.env_to_module=[{_PREVIOUS}]", f"connectors.learner=[{_PREVIOUS}]"),
        (f"connectors.env_to_module=[{_DOUBLED}]",),
        ("module.use_lstm=true", "module.lstm_cell_size=8", "module.max_seq_len=5"),
        ("connectors=mean_std_filter", "module.use_gru=true", "module.lstm_cell_size=8"),
    ],
    ids=["plain", "filter", "frames", "written_frames", "previous", "preprocessor", "lstm", "gru_and_filter"],
)
def test_the_policy_that_recorded_has_ratios_of_one(
    run_main: Run, tmp_path: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands between environment and module, it reads of recorded episodes what it read when it acted."""
    outcome = run_main(*PPO, *overrides, "hydra.run.dir=run", "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    outcome = run_main("record", "run", "offline.output=data", "evaluation.explore=true")
    assert outcome.code == 0, outcome.err
    outcome = run_main("evaluate", "run", f"{KEY}input_=data", f"{KEY}type=[eval_loss,is,wpdis]")
    assert outcome.code == 0, outcome.err
    (line,) = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    result = json.loads(line)
    assert result["offline/num_episodes"] == 10
    for name in ("is", "wpdis"):
        assert result[f"offline/{name}"] == pytest.approx(result["offline/discounted_return_mean"], rel=1e-3)
        assert result[f"offline/{name}_effective_sample_size"] == pytest.approx(10, rel=1e-3)
    assert np.isfinite(result["offline/eval_loss"])


def test_observation_rows_are_running_episodes() -> None:
    block = blocks_of(RECORDED)[0]
    rows = ObservationRows(block)
    assert len(rows) == len(block.columns["obs"])
    for number, episode in enumerate(rows):
        assert np.array_equal(episode.get_observations(-1), block.columns["obs"][number])
        if number % 100 == 0:
            assert len(rows[number]) == len(episode)
            assert np.array_equal(rows[number].get_observations(-1), block.columns["obs"][number])


# --- that training does not notice --------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [(), ("module._target_=tests.offline.evaluation.test_held_out.NoisyModule", "connectors=mean_std_filter")],
    ids=["plain", "noisy_module_and_filter"],
)
def test_training_goes_on_to_the_same_digits(overrides: tuple[str, ...]) -> None:
    held_out = [f"{KEY}input_={RECORDED}", f"{KEY}interval=1", EVERY_TYPE, SMALL_Q]
    lines: list[list[dict[str, Any]]] = []
    for more in ([], held_out):
        torch.manual_seed(0)
        with Trainer.from_experiment("ppo_cartpole", [*QUICK, *overrides, *more]) as trainer:
            lines.append([without_times(trainer.train()) for _ in range(3)])
    plain, evaluated_too = lines
    seen = [offline_metrics(line) for line in evaluated_too]
    assert all(len(metrics) == 4 + 4 * len(METHODS) for metrics in seen)
    assert seen[0] != seen[1] != seen[2]
    for line in evaluated_too:
        for name in offline_metrics(line):
            del line[name]
    assert evaluated_too == plain


# --- what it refuses ----------------------------------------------------------------------------------


def test_actions_in_the_units_of_the_environment_are_refused(tmp_path: Path) -> None:
    """The module acts in [-1, 1], Pendulum in [-2, 2]."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "pendulum.hdf5", "w") as file:
        file["observations"] = np.zeros((6, 3), np.float32)
        file["actions"] = np.full((6, 1), 1.5, np.float32)
        file["rewards"] = np.zeros(6, np.float32)
        file["terminals"] = np.zeros(6, np.bool_)
        file["timeouts"] = np.array([False, False, True] * 2)
    held_out = f"{KEY}input_={tmp_path / 'pendulum.hdf5'}"
    overrides = ("+experiment=iql_pendulum", "offline.input_=none", held_out, "checkpoint.metric=training_iteration")
    with pytest.raises(ConfigError, match="these actions are in the environment's units"):
        held_out_of(*overrides)
    held_out_of(*overrides, "env.normalize_actions=false", "env.clip_actions=true")


def _without(block: ColumnBlock, name: str) -> ColumnBlock:
    return replace(block, columns={key: column for key, column in block.columns.items() if key != name})


def _written(folder: Path, block: ColumnBlock) -> Path:
    writer = EpisodeWriter(OfflineConfig(output=str(folder)))
    writer.add(block)
    writer.close()
    return folder


def _late(block: ColumnBlock) -> ColumnBlock:
    return block_from_episodes([episode[3:] if number == 1 else episode for number, episode in enumerate(block)])


def _ungrouped(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"obs": [0.0] * 4, "actions": 0, "rewards": 1.0, "action_logp": -0.5, "new_obs": [0.0] * 4}] * 3
    (folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


_FILE = "REPOSITORY/tests/data/rllib_episodes/part-00000.parquet"
MISTAKES: Mapping[str, tuple[tuple[str, ...], ConfigError]] = {
    "no_logp": (
        (*BC, f"{KEY}type=[eval_loss,dm,wis,dr]", f"{KEY}input_=no_logp"),
        config_error(
            Problem(
                "the held-out data lack action_logp, the log probability of each action, which ratios need",
                f"{KEY}input_",
                "wis, dr, and columns action_dist_inputs, actions, obs, rewards, weights_seq_no",
                fix="record episodes with evaluation.explore=true, or use only dm and eval_loss",
            )
        ),
    ),
    "loss_without_logp": (
        (*PPO, f"{KEY}input_=no_logp"),
        config_error(
            Problem(
                "the held-out data lack action_logp, which runner.learners.ppo.PPOLoss needs",
                f"{KEY}input_",
                "columns action_dist_inputs, actions, obs, rewards, weights_seq_no",
                fix="record episodes with evaluation.explore=true, or remove eval_loss from "
                "evaluation.offline_evaluation_type",
            )
        ),
    ),
    "late_start": (
        (*BC, f"{KEY}type=wis", f"{KEY}input_=late"),
        config_error(
            Problem(
                "off-policy estimates need complete episodes, with the ratios of all actions from the first one on",
                f"{KEY}input_",
                "1 of 5 chunks start later, the first of them e21d791a636a4c269ab4059cedb90c71 at time step 3",
                "episodes that start at time step 0",
            )
        ),
    ),
    "no_trajectories": (
        (*BC, f"{KEY}type=[eval_loss,wis,dm]", f"{KEY}input_=ungrouped"),
        config_error(
            Problem(
                "off-policy estimates need complete episodes, but these rows do not form trajectories",
                f"{KEY}input_",
                "wis, dm from TMP/ungrouped/rows.json",
                fix="use a table with eps_id and t, or with end flags; or set "
                "evaluation.offline_evaluation_type=eval_loss",
            )
        ),
    ),
    "loss_without_trajectories": (
        (
            "+experiment=marwil_cartpole",
            "offline.input_=none",
            f"{KEY}input_=ungrouped",
        ),
        data_error(no_trajectories("GeneralAdvantageEstimation", "TMP/ungrouped/rows.json")),
    ),
    "several_agents": (
        ("+experiment=ppo_multi_agent_cartpole", f"{KEY}type=[wis,dm,dr]", f"{KEY}input_=no_logp"),
        config_error(
            Problem(
                "a single agent's observations do not determine its action values: they lack the other agents' actions",
                f"{KEY}type",
                "dm, dr",
                "is, wis, pdis, wpdis, eval_loss",
            )
        ),
    ),
    "no_distribution": (
        (
            *BC,
            f"module._target_={_HERE}.NoDistribution",
            f"{KEY}type=dm",
            RECORDED,
        ),
        config_error(
            Problem(
                "off-policy estimates need the probabilities of recorded actions, which this module cannot compute",
                f"{KEY}type",
                "NoDistribution",
                fix="use a module with action_dist_inputs among its outputs, or set "
                "evaluation.offline_evaluation_type=eval_loss",
            )
        ),
    ),
    "model_for_memory": (
        (*BC, "module.use_lstm=true", f"{KEY}type=[wis,dr]", RECORDED),
        config_error(
            Problem(
                "methods with fitted action values do not support recurrent modules",
                f"{KEY}type",
                "dr",
                "is, wis, pdis, wpdis",
            )
        ),
    ),
    "loss_without_states": (
        (*BC, "module.use_lstm=true", RECORDED),
        config_error(
            Problem(
                "the held-out data lack state_out, the recurrent states with which the loss starts its sequences",
                f"{KEY}input_",
                "columns action_dist_inputs, action_logp, actions, obs, rewards, weights_seq_no",
                fix="record episodes of a module with these states, or remove eval_loss from "
                "evaluation.offline_evaluation_type",
            )
        ),
    ),
    "missing": ((*BC, f"{KEY}input_=nowhere"), data_error(no_path("TMP/nowhere", where=f"{KEY}input_"))),
    "other_environment": (
        ("+experiment=ppo_pendulum", RECORDED),
        data_error(
            does_not_fit("obs", _FILE, "float32[4]", "Box([3], float32)"),
            does_not_fit("actions", _FILE, "int32", "Box(-2, 2, [1], float32)"),
        ),
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_message(
    overrides: tuple[str, ...], expected: ConfigError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = blocks_of(RECORDED)[0]
    _written(tmp_path / "no_logp", _without(block, "action_logp"))
    _written(tmp_path / "late", _late(block))
    _ungrouped(tmp_path / "ungrouped")
    config = config_from(*(f"{KEY}input_={text}" if text == RECORDED else text for text in overrides))
    with pytest.raises(ConfigError) as caught:
        build_held_out_evaluation(config, build_modules(config))
    assert_error(caught.value, expected, tmp_path)


def test_data_without_what_estimates_need_are_good_for_the_loss(tmp_path: Path) -> None:
    metrics = evaluated(*BC, f"{KEY}input_={_ungrouped(tmp_path / 'rows')}")
    assert metrics["evaluation/offline/num_episodes"] == metrics["evaluation/offline/num_env_steps"] == 3
    folder = _written(tmp_path / "no_logp", _without(blocks_of(RECORDED)[0], "action_logp"))
    direct = evaluated(*BC, f"{KEY}input_={folder}", f"{KEY}type=[dm]", SMALL_Q)
    assert direct["evaluation/offline/dm_effective_sample_size"] == 5


# --- at the terminal, and in runs that learn offline --------------------------------------------------


def test_what_evaluate_prints(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*PPO, "hydra.run.dir=run", "stop.training_iteration=1").code == 0
    assert run_main("record", "run", "offline.output=data", "evaluation.explore=true").code == 0
    outcome = run_main("evaluate", "run", f"{KEY}input_=data", EVERY_TYPE, SMALL_Q)
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads((tmp_path / "run" / "evaluations.jsonl").read_text())
    config = config_from(*PPO, f"{KEY}input_=data", EVERY_TYPE)
    held_out = {name.removeprefix("offline/"): value for name, value in result.items() if name.startswith("offline/")}
    lines = list(held_out_lines(config, held_out))
    assert "\n".join(lines) in outcome.out
    assert len(lines) == 5 + len(METHODS)


def test_table(assert_golden: AssertGolden) -> None:
    config = config_from(*PPO, f"{KEY}input_=[a,b]", f"{KEY}type=[eval_loss,wis,dr]", f"{KEY}level=0.9")
    metrics = {"eval_loss": -0.123456, "num_episodes": 1234, "num_env_steps": 56789, "discounted_return_mean": 71.5}
    metrics |= {"wis": 8.0, "wis_low": -2.5, "wis_high": 123456.7, "wis_effective_sample_size": 3.04}
    none = dict.fromkeys(("dr", "dr_low", "dr_high"))
    metrics |= none | {"dr_effective_sample_size": 0.0}
    assert_golden("held_out_table", "\n".join(held_out_lines(config, metrics)))
    only_loss = config_from(*PPO, f"{KEY}input_=a")
    assert list(held_out_lines(only_loss, metrics))[1:] == ["  loss             -0.12346"]


SMALL_OFFLINE = (
    f"offline.input_={DATA / 'rllib_cartpole_episodes'}",
    "module.fcnet_hiddens=[16]",
    "algorithm.train_batch_size_per_learner=512",
    "offline.dataset_num_iters_per_learner=3",
    "checkpoint.metric=training_iteration",
    "evaluation.evaluation_interval=1",
    "evaluation.evaluation_duration=2",
)
PARALLEL = (
    "evaluation.evaluation_parallel_to_training=true",
    "evaluation.evaluation_num_env_runners=1",
    "env_runners.num_cpus_per_env_runner=0.5",
    "offline.map_batches_kwargs={concurrency: 1, num_cpus: 0.5}",
)


@pytest.fixture
def two_cpus(ray_cluster: None) -> Any:
    """Two of the cluster's four CPUs are taken."""
    import ray

    holder = ray.remote(_Holder).options(num_cpus=2).remote()
    ray.get(holder.is_there.remote())
    yield
    ray.kill(holder)


class _Holder:
    def is_there(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
@pytest.mark.parametrize("materialize", ["true", "false"])
def test_an_offline_run_with_both_evaluations_on_two_cpus(two_cpus: None, materialize: str) -> None:
    overrides = [*SMALL_OFFLINE, *PARALLEL, f"offline.materialize_mapped_data={materialize}"]
    overrides += [f"{KEY}input_={RECORDED}", f"{KEY}interval=2", f"{KEY}type=[eval_loss,wis]"]
    with Trainer.from_experiment("bc_cartpole", overrides) as trainer:
        lines = [trainer.train() for _ in range(4)]
        assert set(lines[3]) <= set(producible_metrics(trainer.config))
    assert [line["evaluation/env_runners/num_episodes"] for line in lines] == [2, 2, 2, 2]
    assert [bool(offline_metrics(line)) for line in lines] == [False, True, False, True]
    assert lines[3]["evaluation/offline/eval_loss"] < lines[1]["evaluation/offline/eval_loss"]


@pytest.mark.ray
def test_more_than_the_cluster_has_is_refused_at_once(ray_cluster: None, tmp_path: Path) -> None:
    overrides = [*SMALL_OFFLINE, "evaluation.evaluation_parallel_to_training=true"]
    overrides += ["evaluation.evaluation_num_env_runners=2", "offline.map_batches_kwargs={concurrency: 2}"]
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("bc_cartpole", overrides)
    problem = Problem(
        "the Ray cluster does not have the resources that this run needs",
        "evaluation.evaluation_num_env_runners, env_runners.num_cpus_per_env_runner, num_gpus_per_env_runner, "
        "offline.map_batches_kwargs (pre-learners, and one CPU to read)",
        "CPU 5",
        "CPU 4",
    )
    assert_error(caught.value, config_error(problem), tmp_path)
