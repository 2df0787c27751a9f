"""Compiled learners: equal to eager ones, exact from run to run, and clear about what cannot be compiled."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import A2CConfig, CQLConfig, PPOConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.fast.compiled_loss import _MOST_FUNCTIONS
from runner.learners.a2c import A2CLoss
from runner.learners.collective import Collective
from runner.learners.compiled_gradient import CompiledGradient
from runner.learners.cql import CQLLoss
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule, SACModule
from runner.testing.module_learner import ModuleLearner
from tests.conftest import QUICK, ROOT, Run, run_process
from tests.learners.loss_contract import DISCRETE, make_batch, make_module
from tests.learners.offline_modules import make, recorded_rows
from tests.support.resuming import assert_resumes_exactly

# Torch's code generator imports what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

CONFIG = A2CConfig(entropy_coeff=[[0, 0.1], [1000, 0.0]])
OTHER_CUT = replace(CONFIG, train_batch_size_per_learner=64)
SPACE = gym.spaces.Box(-5, 5, (3,), np.float32)


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace functions without making code of them, which takes seconds."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


class Branching(ActorCriticModule):
    """Looks at a value to decide what to compute."""

    def forward_train(self, batch: Any) -> dict[str, Any]:
        outputs = super().forward_train(batch)
        if outputs["vf_preds"].mean() > 0:
            return outputs
        return {**outputs, "vf_preds": -outputs["vf_preds"]}


class Failing(ActorCriticModule):
    """Multiplies what does not fit."""

    def forward_train(self, batch: Any) -> dict[str, Any]:
        return {"vf_preds": super().forward_train(batch)["vf_preds"] @ torch.ones(7)}


class Counting(ActorCriticModule):
    """Computes something else at every call."""

    num_calls = 0

    def forward_train(self, batch: Any) -> dict[str, Any]:
        self.num_calls += 1
        outputs = super().forward_train(batch)
        return {**outputs, "vf_preds": outputs["vf_preds"] * self.num_calls}


class Scaled(ActorCriticModule):
    """Has a setting that somebody changes now and then."""

    scale = 1.0

    def forward_train(self, batch: Any) -> dict[str, Any]:
        outputs = super().forward_train(batch)
        return {**outputs, "vf_preds": outputs["vf_preds"] * self.scale}


def learner_of(module_class: type[ActorCriticModule] = ActorCriticModule, is_compiled: bool = False) -> ModuleLearner:
    torch.manual_seed(0)
    module = module_class(SPACE, DISCRETE, ModuleConfig(fcnet_hiddens=[8]))
    return ModuleLearner(module, A2CLoss(CONFIG), CONFIG, np.random.default_rng(0), is_compiled=is_compiled)


def rows_of(num_rows: int, seed: int = 0) -> dict[str, Tensor]:
    return make_batch(make_module(DISCRETE), num_rows, seed)


def sizes_of(state: dict[str, Any]) -> list[int]:
    [network] = state["learners"].values()
    return list(network["compiled"]["sizes"])


def update_often(learner: ModuleLearner) -> None:
    for _ in range(20):
        learner.update(rows_of(12), 0)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiled_code_computes_what_torch_does() -> None:
    config = PPOConfig(num_epochs=1, minibatch_size=20, entropy_coeff=[[0, 0.1], [100, 0.0]], grad_clip=0.1)
    eager, compiled = (
        ModuleLearner(make_module(DISCRETE), PPOLoss(config), config, np.random.default_rng(0), is_compiled=is_compiled)
        for is_compiled in (False, True)
    )
    for number in range(4):
        expected, update = (one.update(rows_of(59, number), 50 * number) for one in (eager, compiled))
        assert update.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
        assert (update.compile_s > 0) == (number == 0), "both sizes, 19 and 20, are compiled in the first update"
    np.testing.assert_allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)
    again = ModuleLearner(make_module(DISCRETE), PPOLoss(config), config, np.random.default_rng(0), is_compiled=True)
    for number in range(4):
        again.update(rows_of(59, number), 50 * number)
    assert np.array_equal(again.get_weights(), compiled.get_weights())


@pytest.mark.usefixtures("traced_only")
def test_it_goes_on_exactly_after_a_resume() -> None:
    sizes = (12, 11, 10, 12, 10)  # the third size is not compiled, before the resume and after it
    learner = learner_of(is_compiled=True)
    for size in sizes[:2]:
        learner.update(rows_of(size), 0)
    state = learner.get_state()
    assert sizes_of(state) == [12, 11]
    resumed = learner_of(is_compiled=True)
    resumed.set_state(state)
    for size in sizes[2:]:
        learner.update(rows_of(size), 0)
        resumed.update(rows_of(size), 0)
    assert np.array_equal(resumed.get_weights(), learner.get_weights())
    assert sizes_of(resumed.get_state()) == [12, 11]
    learner_of().set_state(state)
    other = ModuleLearner(make_module(DISCRETE), A2CLoss(CONFIG), OTHER_CUT, np.random.default_rng(0), is_compiled=True)
    other.set_state(state)
    assert sizes_of(other.get_state()) == []


@pytest.mark.usefixtures("traced_only")
def test_other_sizes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    learner, eager = learner_of(is_compiled=True), learner_of()
    with caplog.at_level(logging.WARNING):
        for size in (12, 11, 10, 9):
            learner.update(rows_of(size), 0)
            eager.update(rows_of(size), 0)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("runner.")]
    assert told == ["minibatches of 10 rows are not compiled, only minibatches of 12 and 11 rows"]
    np.testing.assert_allclose(learner.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("traced_only")
def test_a_changed_setting_is_seen() -> None:
    learner, eager = learner_of(Scaled, is_compiled=True), learner_of(Scaled)
    for scale in (1.0, 1.0, 3.0, 3.0, 1.0):
        for one in (learner, eager):
            one.module.scale = scale  # type: ignore[assignment]
            one.update(rows_of(12), 0)
    np.testing.assert_allclose(learner.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


class CountingLoss(A2CLoss):
    """Keeps what it saw, and what its attributes say."""

    num_calls = 0
    newest = 0.0

    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        metrics = super().__call__(module, batch, is_reporting)
        self.newest = metrics.vf_loss.detach()
        return metrics


@pytest.mark.usefixtures("traced_only")
def test_what_a_loss_keeps_is_kept() -> None:
    loss = CountingLoss(CONFIG)
    learner = ModuleLearner(make_module(DISCRETE), loss, CONFIG, np.random.default_rng(0), is_compiled=True)
    update = learner.update(rows_of(12), 500)
    assert float(loss.newest) == pytest.approx(update.metrics["vf_loss"])
    assert loss.entropy_coeff == 0.05


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_a_phase_of_a_loss_is_compiled_once_more() -> None:
    config = CQLConfig(bc_iters=3)
    space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    learners = []
    for is_compiled in (False, True):
        loss = CQLLoss(config)
        loss.use_stream(np.random.default_rng(0))
        module = make(SACModule, space)
        learners.append(ModuleLearner(module, loss, config, np.random.default_rng(0), is_compiled=is_compiled))
    batch = recorded_rows(space)
    compiled = []
    for _ in range(12):
        expected, update = (learner.update(batch, 0) for learner in learners)
        assert update.metrics == pytest.approx(expected.metrics, rel=1e-3, abs=1e-5)
        compiled.append(update.compile_s > 0)
    assert [number for number, is_new in enumerate(compiled) if is_new] == [0, 3]
    np.testing.assert_allclose(learners[1].get_weights(), learners[0].get_weights(), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("traced_only")
def test_a_frozen_part_is_seen() -> None:
    learner, eager = learner_of(is_compiled=True), learner_of()
    for is_frozen in (False, True, False):
        for one in (learner, eager):
            one.module.pi.requires_grad_(not is_frozen)  # type: ignore[union-attr]
            one.update(rows_of(12), 0)
    np.testing.assert_allclose(learner.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize(
    ("module_class", "reason", "has_line"),
    [
        (Branching, "Data-dependent branching", True),
        (Failing, "RuntimeError('inconsistent tensor size", True),
        (Counting, "module.num_calls changes from update to update", False),
    ],
)
def test_what_cannot_be_compiled_is_told_with_its_line(module_class: Any, reason: str, has_line: bool) -> None:
    learner = learner_of(module_class, is_compiled=True)
    with pytest.raises(ConfigError) as raised:
        update_often(learner)
    [problem] = raised.value.problems
    assert problem.what.startswith(f"A2CLoss with {module_class.__name__} cannot be compiled: {reason}")
    assert problem.where.startswith("learners.compile")
    assert (__file__ in problem.where) == has_line


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("module_class", [Branching, Counting])
def test_updates_become_eager_if_they_may(module_class: Any, caplog: pytest.LogCaptureFixture) -> None:
    learners = [learner_of(module_class), *(learner_of(module_class) for _ in range(2))]
    for learner in learners[1:]:
        network = learner.network
        network.gradient = CompiledGradient(
            learner.trained, network.eager, network.updater, Collective(), falls_back=True
        )
    for learner in learners[:2]:
        update_often(learner)
    assert caplog.text.count("updates are no longer compiled: A2CLoss with") == 1
    np.testing.assert_allclose(learners[0].get_weights(), learners[1].get_weights(), rtol=1e-4, atol=1e-6)
    learners[2].learner.set_state(learners[1].learner.get_state())
    learners[2].update(rows_of(12), 0)
    assert caplog.text.count("updates are no longer compiled") == 1  # a resumed run is eager at once


def test_memory_is_refused() -> None:
    module = ActorCriticModule(SPACE, DISCRETE, ModuleConfig(fcnet_hiddens=[8], use_lstm=True))
    with pytest.raises(ConfigError, match=r"learners\.compile does not support stateful modules"):
        ModuleLearner(module, A2CLoss(CONFIG), CONFIG, np.random.default_rng(0), is_compiled=True)


# -- runs --------------------------------------------------------------------------------------------------------------

COMPILED = [*QUICK, "algorithm.num_epochs=1", "learners.compile=true", "stop.training_iteration=2", "tracking=none"]


@pytest.mark.slow
def test_a_run_tells_how_long_it_compiled(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main("+experiment=ppo_cartpole", *COMPILED, "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert "the first update compiles" in outcome.out
    assert "compiled the updates in " in outcome.out
    first, second = map(json.loads, (tmp_path / "run" / "progress.jsonl").read_text().splitlines())
    assert first["timers/learner_compile"] > 0
    assert "timers/learner_compile" not in second


@pytest.mark.slow
def test_a_run_of_many_updates_is_compiled(run_main: Run, tmp_path: Path) -> None:
    settings = [one for one in COMPILED if not one.startswith(("learners.compile", "stop.training_iteration"))]
    stop = ["stop.num_gradient_steps_lifetime=100000", "stop.num_env_steps_sampled_lifetime=10000000"]
    outcome = run_main("+experiment=ppo_cartpole", *settings, *stop, "hydra.run.dir=run", "--budget", "40s")
    assert outcome.code in (0, 4), outcome.err
    assert "the first update compiles" in outcome.out
    assert json.loads((tmp_path / "run" / "progress.jsonl").read_text().splitlines()[0])["timers/learner_compile"] > 0


@pytest.mark.slow
def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    make = partial(Trainer.from_experiment, "ppo_cartpole", COMPILED)
    assert_resumes_exactly(make, tmp_path, cuts=[1], num_after=1)


def test_a_run_that_cannot_be_compiled_ends_with_code_2(run_main: Run) -> None:
    outcome = run_main("+experiment=ppo_cartpole", *COMPILED, f"module._target_={__name__}.Branching")
    assert outcome.code == 2
    assert "cannot be compiled: Data-dependent branching" in outcome.err


@pytest.mark.slow
def test_a_missing_compiler_is_told(tmp_path: Path) -> None:
    settings = {
        "CXX": str(tmp_path / "none"),
        "PATH": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    train = ("+experiment=ppo_cartpole", *COMPILED, f"hydra.run.dir={tmp_path / 'run'}")
    ended = run_process(ROOT, *train, exit_code=2, env=settings)
    assert "torch cannot find a C++ compiler" in ended.stderr
    assert "set CXX to another compiler" in ended.stderr
    auto = [one for one in COMPILED if not one.startswith(("learners.compile", "stop.training_iteration"))]
    stop = ["stop.num_env_steps_sampled_lifetime=100000000", "--budget", "1s"]
    run_dir = f"hydra.run.dir={tmp_path / 'eager'}"
    eager = run_process(ROOT, "+experiment=ppo_cartpole", *auto, *stop, run_dir, exit_code=4, env=settings)
    assert "updates are not compiled: torch cannot find a C++ compiler" in eager.stdout
    assert "the first update compiles" not in eager.stdout


# -- calls of compiled code --------------------------------------------------------------------------------------------


def test_compiled_code_is_called_without_torch_looking_for_it() -> None:
    learner = learner_of(is_compiled=True)
    learner.update(rows_of(12), 0)
    compiled: Any = learner.network.gradient.compiled
    compiled._function = None  # a call of what torch.compile returned would fail
    learner.update(rows_of(12), 0)
    with pytest.raises(TypeError):
        learner.update(rows_of(11), 0)


@pytest.mark.usefixtures("traced_only")
def test_code_that_torch_has_dropped_is_not_called() -> None:
    learner = learner_of(is_compiled=True)
    learner.update(rows_of(12), 0)
    compiled: Any = learner.network.gradient.compiled
    asked, function = [], compiled._function

    def ask(*arguments: Any) -> Any:
        asked.append(arguments)
        return function(*arguments)

    compiled._function = ask
    learner.update(rows_of(12), 0)
    assert not asked
    torch._dynamo.reset()
    for _ in range(2):
        learner.update(rows_of(12), 0)
    assert len(asked) == 1, "torch has forgotten the code, and makes it again"


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_functions_are_counted_for_each_learner() -> None:
    learners = [learner_of(is_compiled=True) for _ in range(_MOST_FUNCTIONS + 1)]
    for learner in learners:
        learner.update(rows_of(12), 0)
    codes: list[Any] = [learner.network.gradient.compiled._traced.__code__ for learner in learners]  # type: ignore[union-attr]
    assert len({id(code) for code in codes}) == len(learners)


def test_a_torch_that_cannot_trace_gradients_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo, "config", object())
    with pytest.raises(ConfigError, match="cannot trace gradients"):
        learner_of(is_compiled=True)


@pytest.mark.usefixtures("traced_only")
def test_learners_with_other_settings_call_other_code() -> None:
    learners, eager = [learner_of(Scaled, is_compiled=True) for _ in range(2)], learner_of(Scaled)
    for number, learner in enumerate(learners):
        learner.module.scale = 1.0 + number  # type: ignore[assignment]
    for _ in range(3):
        for learner in learners:
            learner.update(rows_of(12), 0)
    eager.module.scale = 2.0  # type: ignore[assignment]
    for _ in range(3):
        eager.update(rows_of(12), 0)
    assert not np.allclose(learners[0].get_weights(), learners[1].get_weights())
    np.testing.assert_allclose(learners[1].get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


def test_what_torch_has_forgotten_is_compiled_again() -> None:
    learner, other = learner_of(is_compiled=True), learner_of(is_compiled=True)
    for one in (learner, other):
        one.update(rows_of(12), 0)
    torch._dynamo.reset()
    for one in (learner, other):
        one.update(rows_of(12), 0)
    assert np.array_equal(learner.get_weights(), other.get_weights())
