"""Auxiliary modules: modules that act for no agent and learn from the experiences of another module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from runner import Trainer
from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.errors import ConfigError
from runner.config.fields import option
from runner.config.schemas import ModuleConfig
from runner.episodes.columns import Rollout
from runner.experiment.replay_builder import _lookbacks
from runner.learners.loss import Loss
from runner.modules import RLModule
from runner.pipelines.raw_observations import Standardisation
from runner.plans import Experiences, PlanContext
from runner.testing import check_loss, check_module
from tests.conftest import ROOT
from tests.support.resuming import assert_resumes_exactly, train

HERE = "tests.plans.test_auxiliary_modules"


class RewardModel(RLModule):
    """Predicts the reward of an observation."""

    train_outputs = ("predictions",)

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], config.fcnet_hiddens[0]), nn.Tanh())
        self.head = nn.Linear(config.fcnet_hiddens[0], 1)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"predictions": self.head(self.layers(batch["obs"])).squeeze(-1)}


class RememberingRewardModel(RewardModel):
    """Predicts the sum of the rewards in the sequence so far, from its observations."""

    is_stateful = True
    inputs = ("obs", "state_in")

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.memory = nn.GRU(config.fcnet_hiddens[0], config.fcnet_hiddens[0], batch_first=True)

    def get_initial_state(self) -> dict[str, Any]:
        return {"h": torch.zeros(self.memory.hidden_size)}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        assert not batch["state_in"]["h"].any(), "a sequence begins with the initial state"
        features, _ = self.memory(self.layers(batch["obs"]), batch["state_in"]["h"].unsqueeze(0))
        return {"predictions": self.head(features).squeeze(-1)}


@dataclass(frozen=True)
class RewardModelConfig(AlgorithmConfig):
    lr: float = option(1e-2, "learning rate", above=0)

    metrics: ClassVar[type[LossMetrics]] = LossMetrics


class RewardModelLoss(Loss):
    """The squared error of the predictions."""

    reads = ("obs", "rewards")
    needs = ("predictions",)

    def __init__(self, config: RewardModelConfig) -> None:
        pass

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        return LossMetrics((module.outputs_at_steps(batch)["predictions"] - batch["rewards"]).square().mean())


class WeightedLoss(RewardModelLoss):
    """Reads a column that only replayed steps have."""

    reads = ("obs", "rewards", "weights")

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        assert batch["weights"].shape == batch["rewards"].shape
        return super().__call__(module, batch, is_reporting)


MODEL = (
    "+multi_agent.modules.model={"
    + f"trains_on: default_policy, _target_: {HERE}.RewardModel, fcnet_hiddens: [8], "
    + f"algorithm: {{schema: {HERE}.RewardModelConfig, loss: {HERE}.RewardModelLoss}}}}"
)
SMALL = ("tracking=none", "module.fcnet_hiddens=[8]", "algorithm.train_batch_size_per_learner=64")
MINIBATCHES = (*SMALL, "algorithm.minibatch_size=32", "algorithm.num_epochs=2", "evaluation=none")
PPO = (*MINIBATCHES, MODEL)
DQN = (*SMALL, MODEL, "evaluation=none", "algorithm.min_sample_timesteps_per_iteration=64")


def plan_of_dqn(model: str, policy: str) -> str:
    """Return a plan that trains on replayed steps with two operators."""
    return (
        "algorithm.plan=[{Concurrently: {output_indexes: [1, 2], plans: [[ParallelRollouts, StoreToReplayBuffer], "
        f"[{{Replay: {{learning_starts: 64}}}}, {model}], [{{Replay: {{learning_starts: 64}}}}, {policy}]]}}}}]"
    )


MODEL_ONLY, POLICY_ONLY = (f"{{TrainOneStep: {{modules: [{id_}]}}}}" for id_ in ("model", "default_policy"))
IN_TURN = ("algorithm.training_intensity=null", plan_of_dqn(MODEL_ONLY, POLICY_ONLY))


def parameters_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    modules = trainer.learners.modules
    return {id_: nn.utils.parameters_to_vector(modules[id_].parameters()).detach().clone() for id_ in modules}


def test_a_plan_without_names_trains_all_modules() -> None:
    with Trainer.from_experiment("ppo_cartpole", PPO) as trainer:
        before = parameters_of(trainer)
        result = trainer.train()
        after = parameters_of(trainer)
        assert list(trainer.learners.get_weights()) == ["default_policy"], "env runners do not need the model"
    assert set(before) == {"default_policy", "model"}
    assert all(not torch.equal(before[id_], after[id_]) for id_ in before)
    assert result["learners/model/total_loss"] > 0
    assert result["learners/model/default_optimizer_learning_rate"] == 1e-2
    assert result["learners/default_policy/policy_loss"] is not None


@pytest.mark.parametrize("trained", ["model", "default_policy"])
def test_an_operator_trains_the_named_modules(trained: str) -> None:
    plan = f"algorithm.plan=[ParallelRollouts, ConcatBatches, {{TrainOneStep: {{modules: [{trained}]}}}}]"
    overrides = [plan] if trained == "model" else [plan, "multi_agent.modules_to_train=[default_policy]"]
    with Trainer.from_experiment("ppo_cartpole", [*PPO, *overrides]) as trainer:
        before, seq_no = parameters_of(trainer), trainer.env_runners.weights_seq_no
        result = trainer.train()
        after = parameters_of(trainer)
        changed = [id_ for id_ in before if not torch.equal(before[id_], after[id_])]
        assert changed == [trained]
        assert (trainer.env_runners.weights_seq_no > seq_no) == (trained == "default_policy")
    assert {name.split("/")[1] for name in result if name.startswith("learners/")} == {trained}


def test_the_model_learns_the_reward() -> None:
    """CartPole's reward is 1 in each step."""
    with Trainer.from_experiment("ppo_cartpole", PPO) as trainer:
        losses = [result["learners/model/total_loss"] for result in train(trainer, 40)]
    assert losses[0] > 0.3
    assert losses[-1] < 1e-2


@pytest.mark.parametrize("memory", [[], ["module.use_gru=true", "module.lstm_cell_size=4"]])
def test_a_model_with_memory(memory: list[str]) -> None:
    """It does not get the states of the policy, which may be recurrent as well."""
    model = MODEL.replace("RewardModel,", "RememberingRewardModel,")
    overrides = [*MINIBATCHES, model, "module.max_seq_len=8", *memory]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        losses = [result["learners/model/total_loss"] for result in train(trainer, 20)]
    assert losses[-1] < 0.2 * losses[0]


def test_replayed_sequences_of_a_model_with_memory(tmp_path: Path) -> None:
    model = MODEL.replace("RewardModel,", "RememberingRewardModel,")
    overrides = [*(one for one in DQN if one != MODEL), model, *IN_TURN, "algorithm.n_step=1"]
    overrides += ["algorithm.replay_buffers.replay.batch_length_T=6"]
    results = assert_resumes_exactly(lambda: Trainer.from_experiment("dqn_cartpole", overrides), tmp_path)
    assert results[-1]["learners/model/total_loss"] is not None


def test_separate_updates_equal_joint_updates() -> None:
    """PPO is not changed by a model that another operator trains before it."""
    in_turn = f"{{Duplicate: {{output_indexes: [1], plans: [[{MODEL_ONLY}], [{POLICY_ONLY}]]}}}}"
    plan = f"algorithm.plan=[ParallelRollouts, ConcatBatches, {in_turn}]"
    with Trainer.from_experiment("ppo_cartpole", PPO) as trainer:
        joint = train(trainer, 3)
        expected = parameters_of(trainer)
    with Trainer.from_experiment("ppo_cartpole", [*PPO, plan]) as trainer:
        separate = train(trainer, 3)
        for module_id, parameters in parameters_of(trainer).items():
            torch.testing.assert_close(parameters, expected[module_id], rtol=0, atol=0)
    name = "env_runners/episode_return_mean"
    assert [result[name] for result in separate] == [result[name] for result in joint]


def test_several_agents_and_shared_parameters() -> None:
    model = MODEL.replace("default_policy", "p1")
    for joint in ([], ["multi_agent.multi_rl_module={_target_: runner.modules.SharedEncoders}"]):
        overrides = [*(one for one in PPO if one != MODEL), model, *joint]
        with Trainer.from_experiment("ppo_multi_agent_cartpole", overrides) as trainer:
            result = train(trainer, 2)[-1]
            assert "model" not in trainer.learners.get_weights()
        assert result["learners/model/total_loss"] > 0
        assert np.isfinite(result["learners/p1/policy_loss"])


# -- resume, and learners in other processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [PPO, (*DQN, *IN_TURN)], ids=["ppo", "dqn"])
def test_resumes_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    experiment = "ppo_cartpole" if overrides is PPO else "dqn_cartpole"
    results = assert_resumes_exactly(lambda: Trainer.from_experiment(experiment, overrides), tmp_path)
    assert results[-1]["learners/model/total_loss"] is not None


def test_a_remote_learner_gives_the_same_numbers(ray_cluster: None) -> None:
    results, modules = [], []
    for remote in ([], ["learners.num_learners=1", "env_runners.num_env_runners=1"]):
        with Trainer.from_experiment("dqn_cartpole", [*DQN, *IN_TURN, *remote]) as trainer:
            results.append([result["learners/model/total_loss"] for result in train(trainer, 3)])
            modules.append(parameters_of(trainer))
            assert list(trainer.learners.get_weights()) == ["default_policy"]
    assert results[0] == results[1]
    for module_id, parameters in modules[0].items():
        torch.testing.assert_close(modules[1][module_id], parameters, rtol=0, atol=0)


# -- errors ------------------------------------------------------------------------------------------------------------

PLANS = "algorithm.plan=[ParallelRollouts, ConcatBatches, "


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [MODEL.replace("on: default_policy", "on: defualt_policy")],
            "trains_on: module defualt_policy does not exist",
        ),
        ([MODEL.replace("modules.model=", "modules.default_policy=")], "default_policy already acts for agents"),
        ([MODEL, f"{PLANS}{{TrainOneStep: {{modules: [modle]}}}}]"], "TrainOneStep contains an unknown module"),
        ([MODEL, f"{PLANS}{{TrainOneStep: {{modules: [default_policy]}}}}]"], "the plan does not train this module"),
        ([MODEL, "algorithm.plan=[AsyncGradients, ApplyGradients]"], "the plan does not train this module"),
        ([MODEL, "multi_agent.agent_to_module={a: b}"], "CartPole-v1 has a single agent"),
        (["multi_agent.modules.model={fcnet_hiddens: [8]}"], "multi_agent.modules.model.trains_on=default_policy if"),
        (["multi_agent.modules.default_policy={fcnet_hiddens: [8]}"], "set the keys of default_policy under `module`"),
        ([MODEL, "connectors.modules={model: {env_to_module: []}}"], "model does not choose actions"),
        ([MODEL.replace("fcnet_hiddens", "fcnet_hidens")], "unknown key multi_agent.modules.model.fcnet_hidens"),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("ppo_cartpole", [*MINIBATCHES, *overrides]).close()
    assert message in str(caught.value), str(caught.value)


def test_an_auxiliary_module_of_an_auxiliary_module() -> None:
    second = MODEL.replace("modules.model=", "modules.second=").replace("default_policy", "model")
    with pytest.raises(ConfigError, match="model is an auxiliary module and does not have experiences"):
        Trainer.from_experiment("ppo_cartpole", [*PPO, second]).close()


def test_a_removed_module_is_reported(tmp_path: Path) -> None:
    with Trainer.from_experiment("ppo_cartpole", PPO) as trainer:
        state = trainer.get_state()
    with (
        Trainer.from_experiment("ppo_cartpole", MINIBATCHES) as trainer,
        pytest.raises(ConfigError, match="contains a module model, which does not exist in this configuration"),
    ):
        trainer.set_state(state)


@pytest.mark.parametrize(("module_id", "source"), [("q_agent_0", "q_agent_1"), ("model", "q_agent_7")])
def test_ids_that_only_the_environment_shows(module_id: str, source: str) -> None:
    model = MODEL.replace("modules.model=", f"modules.{module_id}=").replace("default_policy", source)
    overrides = [*MINIBATCHES, "multi_agent.agent_to_module={agent_0: 'q_{agent}', agent_1: 'q_{agent}'}", model]
    with pytest.raises(ConfigError, match=r"q_agent_0 already acts for agents|the module q_agent_7 does not exist"):
        Trainer.from_experiment("ppo_multi_agent_cartpole", overrides).close()


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.plan=[ParallelRollouts, ConcatBatches, ComputeGradients, ApplyGradients]"],
        ["connectors.learner=[{replace: GeneralAdvantageEstimation, connector: "
         "{_target_: runner.pipelines.GeneralAdvantageEstimation, gamma: 0.9, lambda_: 1}}]"],
    ],
    ids=["gradients", "edits of all modules"],
)  # fmt: skip
def test_what_works_with_a_model(overrides: list[str]) -> None:
    with Trainer.from_experiment("ppo_cartpole", [*PPO, *overrides]) as trainer:
        assert train(trainer, 1)[0]["learners/model/total_loss"] > 0


def test_burn_in_is_for_the_policy() -> None:
    small = ["tracking=none", "evaluation=none", "module.fcnet_hiddens=[8]", "module.lstm_cell_size=8", MODEL]
    buffer = ["algorithm.replay_buffers.replay.burn_in_len=4", "module.max_seq_len=24"]
    overrides = [*small, *buffer, "algorithm.train_batch_size_per_learner=80", "algorithm.training_intensity=20"]
    overrides += ["algorithm.num_steps_sampled_before_learning_starts=100"]
    with Trainer.from_experiment("dqn_stateless_cartpole_lstm", overrides) as trainer:
        assert train(trainer, 1)[0]["learners/model/total_loss"] > 0


# -- a buffer of its own -----------------------------------------------------------------------------------------------

OWN_BUFFER = (
    "algorithm.plan=[{Concurrently: {output_indexes: [0, 1], plans: [[ParallelRollouts, {Duplicate: {plans: ["
    "[ConcatBatches, {TrainOneStep: {modules: [default_policy]}}], [{SelectExperiences: {modules: [model]}}, "
    "StoreToReplayBuffer]]}}], [{Replay: {num_env_steps: 16}}, TrainOneStep]]}}]",
    "algorithm.replay_buffers={replay: {_target_: runner.replay.ReplayBuffer, capacity: 1000}}",
)


def test_a_buffer_of_its_own() -> None:
    """It has the weights, the lookback and the memory of the model's experiences."""
    lookback = (
        "{trains_on: default_policy, fcnet_hiddens: [8], "
        f"_target_: {HERE}.RewardModel, algorithm: {{schema: {HERE}.RewardModelConfig, loss: {HERE}.WeightedLoss}}}}"
    )
    overrides = [*MINIBATCHES, f"+multi_agent.modules.model={lookback}", *OWN_BUFFER]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        [memory] = trainer.replay_memory
        assert memory.row_bytes >= 4 * 4 + 4 + 8, "obs, rewards and actions"
        results = train(trainer, 4)
        [replay] = trainer.parts.replay_buffers
        assert list(replay.buffer.module_ids) == ["model"]
    assert any(result.get("learners/model/total_loss", 0) > 0 for result in results)


def test_lookback_of_both_buffers() -> None:
    """A buffer keeps the past steps that the model's pipeline reads, of its own rows and of the policy's."""
    policy = SimpleNamespace(spec=SimpleNamespace(trains_on=None), learner=_pipeline_with_lookback(1))
    model = SimpleNamespace(spec=SimpleNamespace(trains_on="default_policy"), learner=_pipeline_with_lookback(3))
    built: Any = {"default_policy": policy, "model": model}
    assert _lookbacks(built) == {"default_policy": 3, "model": 3}


def _pipeline_with_lookback(num_lookback: int) -> SimpleNamespace:
    return SimpleNamespace(requires=SimpleNamespace(num_lookback=num_lookback))


def test_observations_of_the_buffer_are_standardised() -> None:
    """Its observations get the statistics of the module whose experiences they are."""
    filters = ["connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, connector: "
               "{_target_: runner.pipelines.MeanStdFilter}}]"]  # fmt: skip
    overrides = [*(one for one in DQN if one != MODEL), MODEL, *IN_TURN, *filters]
    with Trainer.from_experiment("dqn_cartpole", overrides) as trainer:
        trainer.train()
        pipelines = {id_: built.env_to_module for id_, built in trainer._built_modules.items()}
        shared = trainer.parts.shared_state
        [sampled] = [part.buffer.sample(32).rollout for part in trainer.parts.replay_buffers]
    of_model = sampled.of_modules(["model"], {"model": "default_policy"})
    standardised = Standardisation(pipelines, {"model": "default_policy"})(of_model, shared).blocks["model"]
    expected = Standardisation(pipelines)(sampled, shared).blocks["default_policy"]
    assert not np.allclose(expected.columns["obs"], sampled.blocks["default_policy"].columns["obs"])
    np.testing.assert_array_equal(standardised.columns["obs"], expected.columns["obs"])


# -- experiences -------------------------------------------------------------------------------------------------------


def test_experiences_of_modules() -> None:
    steps: dict[str, Any] = {name: np.zeros((2, 1), np.float32) for name in ("obs", "new_obs", "actions")}
    steps["rewards"] = np.zeros(2, np.float32)
    rollout = Experiences.from_columns(steps, np.zeros(2, np.bool_), module_id="a").rollout
    assert rollout.of_modules(None, {}) is rollout
    of_all = rollout.of_modules(None, {"model": "a", "other": "b"})
    assert {id_: block.module_id for id_, block in of_all.blocks.items()} == {"model": "model", "a": "a"}
    assert of_all.blocks["model"].columns["obs"] is rollout.blocks["a"].columns["obs"]
    assert list(rollout.of_modules(["model"], {"model": "a"}).blocks) == ["model"]
    multi_agent = SimpleNamespace(auxiliary_modules={"model": "a"})
    context: Any = SimpleNamespace(config=SimpleNamespace(multi_agent=multi_agent))
    both = Experiences(Rollout({"a": rollout.blocks["a"], "b": rollout.blocks["a"]}, 2))
    selected = PlanContext.experiences_of(context, both, ["a", "model"]).rollout
    assert list(selected.blocks) == ["model", "a"]
    assert list(selected.unsplit or ()) == ["a", "b"], "connectors may read the rows of all agents"
    own = Rollout({**rollout.blocks, "model": rollout.blocks["a"]}, 2)
    assert own.of_modules(None, {"model": "a"}).blocks["model"] is rollout.blocks["a"]


STEPS: dict[str, Any] = {
    "obs": np.zeros((2, 2), np.float32),
    "new_obs": np.array([[0.5, -0.5], [1.0, 0.0]], np.float32),
    "actions": np.array([0, 2]),
    "rewards": np.ones(2, np.float32),
}


# -- the examples ------------------------------------------------------------------------------------------------------


def test_a_curiosity_bonus_is_added_to_the_rewards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "curiosity"
    monkeypatch.syspath_prepend(folder)
    example = importlib.import_module("curiosity")
    spaces = Box(-1.0, 1.0, (2,), np.float32), Discrete(3)
    make_module = partial(example.Curiosity, *spaces, ModuleConfig(fcnet_hiddens=[8]))
    check_module(make_module)
    check_loss(example.CuriosityLoss, example.CuriosityConfig(), make_module)
    overrides = ["tracking=none", "algorithm.train_batch_size_per_learner=128", "algorithm.num_epochs=1"]

    def make() -> Trainer:
        return Trainer.from_experiment("curious_mountain_car", overrides, config_dir=folder)

    results = assert_resumes_exactly(make, tmp_path, cuts=(1,))
    assert results[-1]["plan/AddCuriosity/bonus"] > 0
    with make() as trainer:
        steps = {name: STEPS[name] for name in ("obs", "new_obs", "actions", "rewards")}
        item = Experiences.from_columns(steps, np.zeros(2, np.bool_))
        [changed] = example.AddCuriosity(trainer.context, scale=2.0).transform(item)
        module = trainer.context.learners.modules["curiosity"]
        errors = module.forward_train({"obs": torch.from_numpy(steps["new_obs"])})["errors"].detach().numpy()
    np.testing.assert_allclose(changed.rollout.blocks["default_policy"].columns["rewards"], 1.0 + 2.0 * errors)


def test_the_example_keeps_the_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "world_model")
    example = importlib.import_module("world_model")
    spaces = Box(-1.0, 1.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32)
    config = ModuleConfig(fcnet_hiddens=[8], model_config={"num_members": 2})
    make = partial(example.WorldModel, *spaces, config)
    check_module(make)
    check_loss(example.WorldModelLoss, example.WorldModelConfig(), make)


@pytest.mark.slow
def test_the_example_learns_from_imagined_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "world_model"
    monkeypatch.syspath_prepend(folder)
    overrides = ["tracking=none", "module.fcnet_hiddens=[8]", "algorithm.min_sample_timesteps_per_iteration=50"]
    overrides += ["algorithm.train_batch_size_per_learner=16", "evaluation=none"]

    def make() -> Trainer:
        return Trainer.from_experiment("imagined_pendulum", overrides, config_dir=folder)

    results = assert_resumes_exactly(make, tmp_path, cuts=(5, 6))
    assert results[-1]["learners/world_model/reward_error"] > 0
    num_updates = [results[-1][f"learners/{id_}/num_minibatch_updates"] for id_ in ("world_model", "default_policy")]
    assert num_updates[1] == 2 * num_updates[0], "one update on replayed steps and one on imagined steps"
