"""Connectors in a wrong place, with a wrong number of rows, or that would spoil an action mask: errors that teach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.episodes import nested
from runner.experiment.trainer import Trainer
from runner.pipelines import FrameStacking, LearnerConnectorPipeline, MeanStdFilter
from runner.pipelines.connector import Batch, Connector
from tests.conftest import QUICK
from tests.modules.random_spaces import RandomSpaces
from tests.pipelines.fixed_episodes import FixedEpisodes

TINY = (*QUICK, "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=32")
CONNECTORS = "runner.pipelines"
HERE = "tests.pipelines.test_misplaced_connectors"


def added(pipeline: str, *connectors: str, after: str = "AddObservationsFromEpisodesToBatch") -> str:
    """The override that puts connectors, written as YAML, one after the other behind `after`."""
    edits = ", ".join(
        f"{{insert_after: {after}, connector: {{_target_: {connector}}}}}" for connector in reversed(connectors)
    )
    return f"connectors.{pipeline}=[{edits}]"


def misplaced(connector: str, pipeline: str, right: str, got: str) -> Problem:
    return Problem(
        f"{connector} does not belong in the {pipeline} pipeline",
        where=f"connectors.{pipeline}",
        got=got,
        fix=f"move it to connectors.{right}",
    )


def stacked_too_late(connector: str, got: str) -> Problem:
    return Problem(
        f"FrameStacking reads observations from the episodes, but the earlier {connector} changes column 'obs'",
        where="connectors.env_to_module",
        got=got,
        fix="put FrameStacking before the connectors that change observations",
    )


MISPLACED = [
    pytest.param(
        [added("env_to_module", f"{CONNECTORS}.FlattenObservations", f"{CONNECTORS}.FrameStacking, num_frames: 2")],
        stacked_too_late(
            "FlattenObservations",
            "AddObservationsFromEpisodesToBatch -> FlattenObservations -> FrameStacking -> "
            "BatchIndividualItems -> NumpyToTensor",
        ),
        id="stacking_of_changed_observations",
    ),
    pytest.param(
        [added("env_to_module", f"{CONNECTORS}.MeanStdFilter", f"{CONNECTORS}.FrameStacking, num_frames: 2")],
        stacked_too_late(
            "MeanStdFilter",
            "AddObservationsFromEpisodesToBatch -> MeanStdFilter -> FrameStacking -> "
            "BatchIndividualItems -> NumpyToTensor",
        ),
        id="stacking_of_filtered_observations",
    ),
    pytest.param(
        [added("env_to_module", f"{CONNECTORS}.FrameStacking, num_frames: 2, as_learner_connector: true")],
        misplaced(
            "FrameStacking",
            "env_to_module",
            "learner",
            "AddObservationsFromEpisodesToBatch -> FrameStacking -> BatchIndividualItems -> NumpyToTensor",
        ),
        id="stacking_for_learners_in_env_to_module",
    ),
    pytest.param(
        [  # would filter twice what is learned from
            added("env_to_module", f"{CONNECTORS}.MeanStdFilter"),
            added("learner", f"{CONNECTORS}.MeanStdFilter"),
        ],
        misplaced(
            "MeanStdFilter",
            "learner",
            "env_to_module",
            "AddOneTsToEpisodesAndTruncate -> AddObservationsFromEpisodesToBatch -> MeanStdFilter "
            "-> AddColumnsFromEpisodesToTrainBatch -> AgentToModuleMapping -> "
            "BatchIndividualItems -> NumpyToTensor -> GeneralAdvantageEstimation",
        ),
        id="filter_in_both_pipelines",
    ),
    pytest.param(
        [added("learner", f"{CONNECTORS}.WriteObservationsToEpisodes")],
        misplaced(
            "WriteObservationsToEpisodes",
            "learner",
            "env_to_module",
            "AddOneTsToEpisodesAndTruncate -> AddObservationsFromEpisodesToBatch -> "
            "WriteObservationsToEpisodes -> AddColumnsFromEpisodesToTrainBatch -> "
            "AgentToModuleMapping -> BatchIndividualItems -> NumpyToTensor -> "
            "GeneralAdvantageEstimation",
        ),
        id="written_observations_in_the_learner_pipeline",
    ),
    pytest.param(
        [added("env_to_module", f"{CONNECTORS}.ClipRewards")],
        misplaced(
            "ClipRewards",
            "env_to_module",
            "learner",
            "AddObservationsFromEpisodesToBatch -> ClipRewards -> BatchIndividualItems -> NumpyToTensor",
        ),
        id="rewards_in_env_to_module",
    ),
    pytest.param(
        ["env.env=null", f"env._target_={HERE}.Texts"],
        Problem(
            (
                "cannot encode observations['said']: got Text(1, 3, charset=ab); expected: Box, "
                "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
            ),
            where="module",
            got="runner.modules.ActorCriticModule",
        ),
        id="unencodable_observations",
    ),
]


class Texts(gym.Env[Any, Any]):
    """An environment that says something."""

    observation_space = gym.spaces.Dict({"seen": gym.spaces.Box(-1, 1, (2,)), "said": gym.spaces.Text(3, charset="ab")})
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize(("overrides", "expected"), MISPLACED)
def test_what_is_refused_when_it_is_built(overrides: list[str], expected: Problem) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("ppo_cartpole", [*TINY, *overrides])
    assert list(caught.value.problems) == [expected]


def test_nested_connectors_are_checked_in_their_places() -> None:
    space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    inner = LearnerConnectorPipeline([MeanStdFilter()], *space)
    with pytest.raises(ConfigError, match="MeanStdFilter does not belong in the learner pipeline"):
        LearnerConnectorPipeline([inner], *space).check_order(("obs",))


def test_stacking_before_other_connectors_is_fine() -> None:
    connectors = (f"{CONNECTORS}.FrameStacking, num_frames: 2", f"{CONNECTORS}.MeanStdFilter")
    with Trainer.from_experiment("ppo_cartpole", [*TINY, added("env_to_module", *connectors)]) as trainer:
        trainer.train()


# -- rows --------------------------------------------------------------------------------------------------------------


class DropsARow(Connector):
    """Leaves the last row of a column out."""

    def __init__(self, column: str = "obs") -> None:
        self.reads = (column,)
        self._column = column

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        columns = batch.get("default_policy", batch)
        columns[self._column] = nested.take(columns[self._column], slice(-1))
        return batch


@pytest.mark.parametrize(
    ("column", "overrides", "where"),
    [
        ("obs", [added("env_to_module", f"{HERE}.DropsARow")], "env runner 0, connectors.env_to_module"),
        (
            "rewards",
            [added("learner", f"{HERE}.DropsARow, column: rewards", after="NumpyToTensor")],
            "connectors.learner",
        ),
        (
            "state_in",
            [
                "module.use_lstm=true",
                added("learner", f"{HERE}.DropsARow, column: state_in", after="AddStatesFromEpisodesToBatch"),
            ],
            "connectors.learner",
        ),
    ],
)
def test_a_connector_that_changes_the_number_of_rows(column: str, overrides: list[str], where: str) -> None:
    with Trainer.from_experiment("ppo_cartpole", [*TINY, *overrides]) as trainer, pytest.raises(RunFailure) as caught:
        trainer.train()
    # How many rows there are depends on where episodes end.
    line = DropsARow.__call__.__code__.co_firstlineno
    assert replace(caught.value.problem, got=None, expected=None) == Problem(
        f"DropsARow returns column '{column}' with a wrong number of rows",
        where=f"{where}, {__file__}:{line}, DropsARow.__call__",
    )


# -- action masks ------------------------------------------------------------------------------------------------------


MASKED = (
    *TINY,
    "env.env=null",
    "env._target_=tests.modules.random_spaces.RandomSpaces",
    "env.env_config={obs: box, actions: discrete, mask: 3}",  # a mask of floats
    "module.action_mask_key=mask",
)


@pytest.mark.parametrize(
    ("connector", "what"),
    [
        (
            "MeanStdFilter",
            (
                "the mask of actions does not match: got Box(-10.0, 10.0, (4,), float32); expected: a "
                "Box of shape (4,) without negative numbers, as returned by the environment "
                "(exclude the mask from MeanStdFilter with keys_to_leave)"
            ),
        ),
        (
            "FrameStacking, num_frames: 2",
            (
                "the mask of actions does not match: got Box(0.0, 1.0, (8,), float32); expected: a Box, "
                "MultiBinary or MultiDiscrete of shape (4,)"
            ),
        ),
    ],
)
def test_a_mask_that_a_connector_would_change(connector: str, what: str) -> None:
    overrides = [*MASKED, added("env_to_module", f"{CONNECTORS}.{connector}")]
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("ppo_cartpole", overrides)
    assert list(caught.value.problems) == [Problem(what, where="module", got="runner.modules.ActorCriticModule")]


def test_connectors_that_leave_the_mask_alone() -> None:
    connectors = (
        f"{CONNECTORS}.FrameStacking, num_frames: 2, keys_to_leave: [mask]",
        f"{CONNECTORS}.MeanStdFilter, keys_to_leave: [mask]",
    )
    with Trainer.from_experiment("ppo_cartpole", [*MASKED, added("env_to_module", *connectors)]) as trainer:
        for _ in range(2):
            trainer.train()  # the environment complains of forbidden actions
        obs = trainer.env_runners.sample(60, True)[0].rollout.blocks["default_policy"].columns["obs"]
    assert set(np.unique(obs["mask"])) == {0, 1}
    assert obs["mask"].shape[1:] == (4,)
    assert obs["seen"].shape[1:] == (6,)
    assert np.abs(obs["seen"]).max() > 1.2, "what is not left is standardised"


@pytest.mark.parametrize("connector", [MeanStdFilter(keys_to_leave=["mast"]), FrameStacking(2, keys_to_leave=["mast"])])
def test_keys_to_leave_must_be_there(connector: Connector) -> None:
    env = RandomSpaces(mask=3)
    for space in (env.observation_space, gym.spaces.Box(-1, 1, (2,))):
        with pytest.raises(TypeError, match=r"keys_to_leave contains unknown keys \['mast'\]; the keys of"):
            connector.recompute_output_observation_space(space, env.action_space)


def test_a_nested_part_can_be_left_alone() -> None:
    box = gym.spaces.Box(-5, 5, (2,))
    space = gym.spaces.Dict({"a": box, "left": gym.spaces.Tuple((box, gym.spaces.Dict({"d": gym.spaces.Discrete(2)})))})
    connector = MeanStdFilter(keys_to_leave=["left"])
    filtered = connector.recompute_output_observation_space(space, gym.spaces.Discrete(2))
    assert filtered["left"] == space["left"]
    obs = nested.stack([space.sample() for _ in range(9)])
    rows = connector(rl_module=None, batch={"obs": obs}, episodes=FixedEpisodes())["obs"]
    assert nested.equal(rows["left"], obs["left"])
    np.testing.assert_allclose(rows["a"].mean(0), 0, atol=1e-6)
    assert torch.from_numpy(rows["a"]).dtype == torch.float32
