"""Learners and env runners on a GPU, where there is one: they do what they do on the CPU; checkpoints go anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.env_runners.acting_pass import ActingPass
from runner.experiment.env_runner_builder import make_env_runner
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, ROOT, Run, without_times

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]
RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
ONLINE = [
    "ppo_cartpole",
    "ppo_pendulum",
    "ppo_stateless_cartpole_lstm",
    "ppo_masked_cartpole",
    "ppo_dict_cartpole",
    "ppo_catch",
    "ppo_multi_agent_cartpole",
]
FEW = (
    "evaluation.evaluation_interval=null",
    "offline.dataset_num_iters_per_learner=5",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)


def first_result(experiment: str, *overrides: str) -> dict[str, Any]:
    with Trainer.from_experiment(experiment, list(overrides)) as trainer:
        return without_times(trainer.train())


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Sums in another order; what was sampled and counted is equal."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, int | float):
            assert value == pytest.approx(other[name], rel=2e-2, abs=2e-3), name


@pytest.mark.parametrize("experiment", ONLINE)
def test_an_update_is_that_of_the_cpu(experiment: str) -> None:
    torch.cuda.reset_peak_memory_stats()
    on_gpu = first_result(experiment, *QUICK, "learners.device=auto")
    assert torch.cuda.max_memory_allocated() > 0
    assert_close(on_gpu, first_result(experiment, *QUICK, "learners.device=cpu"))


@pytest.mark.parametrize("experiment", ["ppo_cartpole", "dqn_cartpole"])
def test_compiled_updates_are_those_of_the_cpu(experiment: str) -> None:
    short = [*QUICK, "algorithm.minibatch_size=64"] if experiment == "ppo_cartpole" else [*QUICK[3:], *SHORT_DQN]
    on_gpu, on_cpu = (
        results_of(experiment, 3, *short, f"learners.device={device}", f"learners.compile={is_compiled}")
        for device, is_compiled in (("auto", "true"), ("cpu", "false"))
    )
    for one, other in zip(on_gpu, on_cpu, strict=True):
        one.pop("timers/learner_compile", None)
        assert_close(one, other)


def test_priorities_are_those_of_the_cpu() -> None:
    """Only in the first iteration: later ones sample other rows where a priority differs by rounding."""
    prioritised = "algorithm.replay_buffers.replay._target_=runner.replay.PrioritizedReplayBuffer"
    short = [*QUICK[3:], *SHORT_DQN, prioritised]
    on_gpu, on_cpu = (first_result("dqn_cartpole", *short, f"learners.device={device}") for device in ("auto", "cpu"))
    assert_close(on_gpu, on_cpu)


SHORT_DQN = (
    "algorithm.num_steps_sampled_before_learning_starts=64",
    "algorithm.min_sample_timesteps_per_iteration=128",
)


def results_of(experiment: str, num_iterations: int, *overrides: str) -> list[dict[str, Any]]:
    with Trainer.from_experiment(experiment, list(overrides)) as trainer:
        return [without_times(trainer.train()) for _ in range(num_iterations)]


@pytest.fixture
def pendulum(run_main: Run, tmp_path: Path) -> Path:
    """Recorded episodes of Pendulum."""
    outcome = run_main("+experiment=ppo_pendulum", *QUICK, "hydra.run.dir=run", "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    outcome = run_main("record", "run", "offline.output=data", "evaluation.evaluation_duration=5")
    assert outcome.code == 0, outcome.err
    return tmp_path / "data"


@pytest.mark.ray
@pytest.mark.parametrize("experiment", ["bc_cartpole", "marwil_cartpole", "iql_pendulum", "cql_pendulum"])
def test_an_offline_update_is_that_of_the_cpu(
    ray_cluster: None, experiment: str, request: pytest.FixtureRequest
) -> None:
    data = request.getfixturevalue("pendulum") if "pendulum" in experiment else RECORDED
    same = (f"offline.input_={data}", *FEW)
    assert_close(first_result(experiment, *same), first_result(experiment, *same, "learners.device=cpu"))


@pytest.mark.ray
def test_pre_learners_compute_on_their_gpu(ray_cluster: None) -> None:
    same = (f"offline.input_={RECORDED}", *FEW, "learners.device=cpu")
    on_gpu = first_result("marwil_cartpole", *same, "+offline.map_batches_kwargs.num_gpus=0.5")
    assert_close(on_gpu, first_result("marwil_cartpole", *same))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_run_goes_on_from_its_checkpoint(run_main: Run, tmp_path: Path, device: str) -> None:
    train = ("+experiment=ppo_cartpole", *QUICK, "learners.device=cuda")
    assert run_main(*train, "hydra.run.dir=run", "stop.training_iteration=1").code == 0
    outcome = run_main("resume", "run", "stop.training_iteration=3", f"learners.device={device}")
    assert outcome.code == 0, outcome.err
    outcome = run_main("export", "run", "policy.onnx")
    assert (outcome.code, outcome.err) == (0, "")
    outcome = run_main("evaluate", "run", "evaluation.evaluation_duration=2")
    assert outcome.code == 0, outcome.err


def test_interrupted_is_straight() -> None:
    overrides = [*QUICK, "learners.device=cuda"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        results = [without_times(trainer.train())]
        state = trainer.get_state()
        results += [without_times(trainer.train()) for _ in range(2)]
        weights = trainer.learners.get_weights()["default_policy"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        trainer.set_state(state)
        assert [without_times(trainer.train()) for _ in range(2)] == results[1:]
        assert np.array_equal(trainer.learners.get_weights()["default_policy"], weights)


@pytest.mark.ray
def test_a_learner_in_an_actor_has_its_gpu(ray_cluster: None) -> None:
    remote = ("learners.num_learners=1", "learners.num_gpus_per_learner=1")
    assert_close(first_result("ppo_cartpole", *QUICK, *remote), first_result("ppo_cartpole", *QUICK))
    bc = (f"offline.input_={RECORDED}", *FEW)
    assert_close(first_result("bc_cartpole", *bc, *remote), first_result("bc_cartpole", *bc))


@pytest.mark.ray
@pytest.mark.parametrize("experiment", ["ppo_cartpole", "ppo_stateless_cartpole_lstm", "ppo_multi_agent_cartpole"])
def test_env_runners_act_on_their_gpu(ray_cluster: None, experiment: str) -> None:
    remote = ("env_runners.num_env_runners=1", "learners.device=cpu")
    on_gpu = first_result(experiment, *QUICK, *remote, "env_runners.num_gpus_per_env_runner=0.5")
    assert_close(on_gpu, first_result(experiment, *QUICK, *remote))


@pytest.mark.ray
def test_env_runners_compute_gradients_on_their_gpu(ray_cluster: None) -> None:
    remote = ("env_runners.num_env_runners=1", "env_runners.num_gpus_per_env_runner=1")
    result = first_result("a3c_cartpole", *remote, "evaluation.evaluation_interval=null", "tracking=none")
    assert np.isfinite(result["learners/default_policy/total_loss"])


@pytest.mark.parametrize("explore", [True, False])
def test_acting_on_a_gpu_is_acting_on_the_cpu(explore: bool) -> None:
    runner = make_env_runner("ppo_cartpole", ["module.fcnet_hiddens=[8]"])
    batch = {"obs": torch.randn(3, 4)}
    with torch.inference_mode():
        expected = ActingPass(runner.module)(batch, explore)
        got = ActingPass(runner.module.to("cuda"))(batch, explore)
    assert {column: rows.device.type for column, rows in got.items()} == dict.fromkeys(expected, "cpu")
    for column, rows in expected.items():
        torch.testing.assert_close(got[column], rows)
