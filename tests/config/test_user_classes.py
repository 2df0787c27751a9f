"""Mistakes in the user's losses, modules and edits that `validate` finds in their source files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.stored import compose_stored
from runner.config.user_classes import DEFAULT_COLUMNS, DEFAULT_CONNECTORS
from runner.config.validation import build_experiment_config
from tests.config.conftest import ProblemsOf
from tests.conftest import ROOT, run_process
from tests.support.configs import config_from

SOURCE = """
from dataclasses import replace
import torch
from runner.learners.loss import Loss
from runner.modules import RLModule, ActorCriticModule
from runner.pipelines import Connector, ConnectorPiece, Requirements

EXTRA = "curiosity"
FIRST, SECOND = "curiosity", "other"
HEADS = ("action_dist_inputs", "curiosity_head")

class MyLoss(Loss):
    reads = ("obs", "actions", "curiosity", "advantages")
    needs = ("compute_values", "curiosity_head")

class MyModule(RLModule):
    train_outputs = ("action_dist_inputs", "curiosity_head")

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.net = torch.nn.Linear(4, config.fcnet_hiddens[0])
        self.size = config.model_config["size"]
        self.depth = config.model_config.get("depth", 2)

    def compute_values(self, batch):
        return None

class Slashed(RLModule):
    train_outputs = ("action_dist_inputs", "head/height")

class ReadsSlashed(Loss):
    reads = ("obs", "actions", "head/height")

class Named(RLModule):
    train_outputs = HEADS

    def compute_values(self, batch):
        return None

class Passing(MyModule):
    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.rest = build(config)

class Encoder(MyModule):
    def __init__(self, observation_space, action_space, settings):
        super().__init__(observation_space, action_space, settings)
        self.encoder = encoders.build(settings)

class Small(ActorCriticModule):
    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.size = config.model_config["size"]

class MyConnector(Connector):
    requires = Requirements(reads=("obs",), writes=(EXTRA,))

    def __call__(self, *, batch, **kwargs):
        return batch

class Longer(MyConnector):
    def __init__(self):
        self.requires = replace(self.requires, num_lookback=2)

class Unpacked(MyConnector):
    requires = Requirements(writes=(FIRST, SECOND))

class Earlier(ConnectorPiece):
    writes = (EXTRA,)

    def __call__(self, *, batch, **kwargs):
        return batch
"""
CONNECTOR = "connectors.learner=[{append: {_target_: own_classes.MyConnector}}"


@pytest.fixture
def problems_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Problem]]:
    (tmp_path / "own_classes.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def find(*overrides: str) -> list[Problem]:
        try:
            config_from("env=cartpole", "stop.training_iteration=1", *overrides)
        except ConfigError as error:
            return list(error.problems)
        return []

    return find


MINE = "module._target_=own_classes.MyModule"
NO_GAE = "algorithm.learner_pipeline=[{discard: earlier_edits}]"
LOSS = "algorithm.loss=own_classes.MyLoss"


@pytest.mark.parametrize(
    ("overrides", "what", "nearest"),
    [
        ([LOSS, MINE], "MyLoss reads curiosity, but no connector of the learner pipeline writes it", None),
        ([LOSS, NO_GAE, MINE, f"{CONNECTOR}]"], "MyLoss reads advantages", None),
        ([LOSS, f"{CONNECTOR}]"], "MyLoss needs curiosity_head, which ActorCriticModule does not provide", None),
        (
            ["connectors.learner=[{remove: GeneralAdvantageEstimations}]"],
            "the learner pipeline does not contain a connector GeneralAdvantageEstimations",
            "GeneralAdvantageEstimation",
        ),
        (["connectors.env_to_module=[{remove: NumpyToTensors}]"],
         "does not contain a connector NumpyToTensors", "NumpyToTensor"),
        (["connectors.module_to_env=[{remove: GetAction}]"], "does not contain a connector GetAction", "GetActions"),
        ([MINE, "module.model_config={sise: 1}"], "MyModule does not use module.model_config.sise", "size"),
        (["module._target_=own_classes.Small", "module.model_config={dept: 1}"],
         "Small does not use module.model_config.dept", "depth"),
        (["module.model_config={size: 1}"], "ActorCriticModule does not use module.model_config.size", None),
        ([MINE, "module.use_lstm=true"], "MyModule does not use module.use_lstm", None),
        ([MINE, "module.head_fcnet_hiddens=[3]"], "MyModule does not use module.head_fcnet_hiddens", None),
    ],
)  # fmt: skip
def test_what_is_found(overrides: list[str], what: str, nearest: str | None, problems_of: ProblemsOf) -> None:
    found = [problem for problem in problems_of(*overrides) if what in problem.what]
    assert len(found) == 1, [problem.what for problem in problems_of(*overrides)]
    assert nearest is None or found[0].nearest == nearest


def test_the_expected_columns_contain_no_other_text_of_the_module(problems_of: ProblemsOf) -> None:
    [found] = [problem for problem in problems_of(LOSS) if "reads curiosity" in problem.what]
    assert found.expected is not None
    assert " does not implement " not in found.expected


@pytest.mark.parametrize(
    "overrides",
    [
        [LOSS, MINE, f"{CONNECTOR}]"],
        [LOSS, MINE, f"{CONNECTOR}]".replace("MyConnector", "Longer")],
        [LOSS, MINE, f"{CONNECTOR}]".replace("MyConnector", "Earlier")],
        [LOSS, MINE, f"{CONNECTOR}]".replace("MyConnector", "Unpacked")],
        [LOSS, "module._target_=own_classes.Named", f"{CONNECTOR}]"],
        ["algorithm.loss=own_classes.ReadsSlashed", "module._target_=own_classes.Slashed"],
        [f"{CONNECTOR}, {{insert_before: MyConnector, connector: {{_target_: own_classes.MyConnector}}}}]"],
        [MINE, "module.model_config={size: 1, depth: 3}", "module.fcnet_hiddens=[8]"],
        ["module._target_=own_classes.Passing", "module.use_lstm=true"],
        ["module._target_=own_classes.Encoder", "module.use_lstm=true", "module.model_config={size: 1, width: 3}"],
        ["module._target_=own_classes.Small", "module.use_lstm=true", "module.model_config={size: 1}"],
        [MINE, "module.max_seq_len=3"],
    ],
)
def test_what_is_right(overrides: list[str], problems_of: ProblemsOf) -> None:
    assert problems_of(*overrides) == []


def test_values_of_a_checkpoint_are_not_reported_again(problems_of: ProblemsOf) -> None:
    overrides = ["experiment=ppo_stateless_cartpole_lstm", MINE, "module.model_config={size: 1}"]
    assert problems_of(*overrides) == []
    composed = compose_experiment(overrides)
    build_experiment_config(compose_stored(composed.unresolved, [], overrides, None))
    again = compose_stored(composed.unresolved, ["module.lstm_cell_size=7"], overrides, None)
    with pytest.raises(ConfigError, match=r"MyModule does not use module\.lstm_cell_size"):
        build_experiment_config(again)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "own_classes.py").write_text(SOURCE)
    code = (
        "import sys; from runner.cli.main import main; "
        f"code = main(['validate', 'env=cartpole', 'stop.training_iteration=1', '{LOSS}', '{MINE}']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = run_process(tmp_path, program=("-c", code), exit_code=2, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert "MyLoss reads curiosity" in done.stderr


def test_all_default_connectors_and_columns_are_known() -> None:
    import torch
    from gymnasium.spaces import Box, Discrete

    from runner.pipelines import defaults

    space, actions, device = Box(-1, 1, (2,)), Discrete(2), torch.device("cpu")
    made = {
        "env_to_module": defaults.env_to_module_pipeline(space, actions, device, [], None, 2, True),  # type: ignore[arg-type]
        "module_to_env": defaults.module_to_env_pipeline(space, actions, True, True, [], None, True, True),  # type: ignore[arg-type]
        "learner": defaults.learner_pipeline(space, actions, device, [], None, (), 2),  # type: ignore[arg-type]
    }
    assert {
        name: {type(connector).__name__ for connector in pipeline.every_connector()} for name, pipeline in made.items()
    } == {name: set(names) for name, names in DEFAULT_CONNECTORS.items()}
    written = {column for connector in made["learner"].every_connector() for column in connector.requires.writes}
    assert written <= set(DEFAULT_COLUMNS)
