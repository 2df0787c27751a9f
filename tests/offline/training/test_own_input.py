"""Learning from code of one's own: functions that yield episodes, without end too, and functions that read rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.experiment.trainer import Trainer
from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.codecs.layout import Spaces
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from tests.offline import own_sources
from tests.offline.blocks import flat_block
from tests.offline.own_sources import write_steps
from tests.support.resuming import train

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")]

MODULE = own_sources.__name__
SMALL = (
    "module.fcnet_hiddens=[16]",
    "algorithm.train_batch_size_per_learner=64",
    "evaluation.evaluation_interval=null",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)
STREAMED = ("offline.materialize_mapped_data=false", "offline.dataset_num_iters_per_learner=3")
ENDLESS = f"offline.input_={{_target_: {MODULE}.cartpole_episodes, lengths: [20, 30], is_endless: true}}"


def opened(**target: Any) -> Any:
    return open_source(OfflineConfig(input_={"_target_": f"{MODULE}.{target.pop('function')}", **target}))


def test_episodes_of_a_function() -> None:
    source = opened(function="cartpole_episodes", lengths=[3, 4], start=7)
    (block,) = source.blocks()
    assert block.episode_ids == ["e7", "e8"]
    assert block.lengths.tolist() == [4, 3]
    np.testing.assert_array_equal(block.columns["obs"][:, 0], [7] * 5 + [8] * 4)


def test_an_endless_stream_is_read_in_blocks() -> None:
    blocks = opened(function="cartpole_episodes", lengths=[500], is_endless=True).blocks()
    assert [next(blocks).num_rows for _ in range(3)] == [2500, 2500, 2500]


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ({"function": "numbers", "count": 3}, "the function did not yield an episode"),
        ({"function": "failing_episodes", "length": 3}, "failing_episodes failed: OSError: the line is dead"),
        ({"function": "cartpole_episodes", "lengths": []}, "do not contain a complete step"),
        ({"function": "episodes_after_empty_ones", "num_empty": 2}, "episode 2"),
        ({"function": "cartpole_episodes"}, "cartpole_episodes failed: TypeError"),
    ],
)
def test_a_function_that_yields_no_episodes(target: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        opened(**target)


def test_episodes_of_a_function_are_converted_to_files(tmp_path: Path) -> None:
    target = {"_target_": f"{MODULE}.cartpole_episodes", "lengths": [3, 4]}
    convert(OfflineConfig(input_=target, output=str(tmp_path / "data")), Spaces())
    (block,) = open_source(OfflineConfig(input_=str(tmp_path / "data"))).blocks()
    assert block.episode_ids == ["e0", "e1"]


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [0, 2])
def test_an_interrupted_run_goes_on_in_a_stream_without_end(ray_cluster: None, num_learners: int) -> None:
    overrides = [*SMALL, *STREAMED, ENDLESS, f"learners.num_learners={num_learners}"]
    overrides += [
        "offline.map_batches_kwargs={ray_remote_args: {num_cpus: 0.5, max_restarts: 3}}",
        "learners.num_cpus_per_learner=0.1",
    ]
    with Trainer.from_experiment("bc_cartpole", overrides) as first:
        lines = train(first, 2)
        state = first.get_state()
        following = train(first, 2)
    assert lines[1]["num_env_steps_sampled_lifetime"] == 2 * 3 * 64 * max(1, num_learners)
    with Trainer.from_experiment("bc_cartpole", overrides) as second:
        second.set_state(state)
        assert train(second, 2) == following


def test_a_stream_that_ends_begins_again(ray_cluster: None) -> None:
    finite = f"offline.input_={{_target_: {MODULE}.cartpole_episodes, lengths: [20, 30]}}"
    with Trainer.from_experiment("bc_cartpole", [*SMALL, *STREAMED, finite]) as trainer:
        lines = train(trainer, 2)
    assert lines[1]["num_env_steps_sampled_lifetime"] == 2 * 3 * 64  # more than seven passes


@pytest.mark.slow
def test_a_stream_that_cannot_be_read_again_is_not_resumed(ray_cluster: None) -> None:
    nameless = f"offline.input_={{_target_: {MODULE}.nameless_episodes, length: 200}}"
    with Trainer.from_experiment("bc_cartpole", [*SMALL, *STREAMED, nameless]) as first:
        train(first, 1)
        state = first.get_state()
    with (
        Trainer.from_experiment("bc_cartpole", [*SMALL, *STREAMED, nameless]) as second,
        pytest.raises(
            ConfigError, match="the data does not start with the same episodes as when the checkpoint was written"
        ) as caught,
    ):
        second.set_state(state)
    assert "nameless_episodes" in str(caught.value)
    assert caught.value.problems[0].what.endswith("so the run cannot resume")


@pytest.mark.slow
def test_rows_of_a_database(ray_cluster: None, tmp_path: Path) -> None:
    """Each step once a pass, and the same after an interruption; a table that has changed is told."""
    write_steps(tmp_path / "steps.db", [40, 50, 60])
    sql = [
        "offline.input_='SELECT * FROM steps ORDER BY eps_id, t'",
        "offline.input_read_method=read_sql",
        f"offline.input_read_method_kwargs={{connection_factory: {{_target_: {MODULE}.connect, _partial_: true, "
        f"path: {tmp_path / 'steps.db'}}}}}",
        "offline.dataset_num_iters_per_learner=null",
    ]
    with Trainer.from_experiment("bc_cartpole", [*SMALL, *sql]) as first:
        lines = train(first, 2)
        state = first.get_state()
        following = train(first, 1)
    assert [line["num_env_steps_sampled"] for line in lines] == [150, 150]
    with Trainer.from_experiment("bc_cartpole", [*SMALL, *sql]) as second:
        second.set_state(state)
        assert train(second, 1) == following
    (tmp_path / "steps.db").unlink()
    write_steps(tmp_path / "steps.db", [41, 50, 60])
    with (
        Trainer.from_experiment("bc_cartpole", [*SMALL, *sql]) as third,
        pytest.raises(
            ConfigError, match="the data does not start with the same episodes as when the checkpoint was written"
        ),
    ):
        third.set_state(state)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["offline.input_read_episodes=true"]])
def test_our_episodes_through_a_function_are_the_ones_of_the_folder(
    ray_cluster: None, tmp_path: Path, more: list[str]
) -> None:
    """Ray Data leaves the metadata of the files out, so that the columns themselves say what they hold."""
    pq.write_table(episodes_to_table(flat_block([40, 50, 60])), tmp_path / "episodes.parquet")
    folder = [*SMALL, f"offline.input_={tmp_path}", "offline.dataset_num_iters_per_learner=2"]
    with Trainer.from_experiment("bc_cartpole", folder) as trainer:
        expected = train(trainer, 2)
    with Trainer.from_experiment(
        "bc_cartpole", [*folder, f"offline.input_read_method={MODULE}.read_episodes_of", *more]
    ) as trainer:
        assert train(trainer, 2) == expected


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ([ENDLESS], "episodes of a function are streamed, possibly without end"),
        ([*STREAMED, "offline.input_={path: data}"], "offline.input_ is a block without a function"),
        ([*STREAMED, ENDLESS, "offline.input_read_schema={obs: o}"], "offline.input_read_schema applies to rows"),
        ([*STREAMED, ENDLESS, "connectors=mean_std_filter"], "a function that yields episodes may never end"),
        ([*STREAMED, f"offline.input_={{_target_: {MODULE}.cartpole_episodez}}"], "does not define cartpole_episodez"),
        ([*STREAMED, f"offline.input_={{_target_: {MODULE}.numbers}}"], "numbers needs the argument count"),
        (
            [
                *STREAMED,
                ENDLESS,
                "offline.prelearner_class=tests.offline.training.test_training.OwnPreLearner",
            ],
            "a pre-learner with _map_to_episodes needs rows",
        ),
    ],
)
def test_what_does_not_go_with_a_stream(overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.from_experiment("bc_cartpole", [*SMALL, *overrides])
    (problem,) = caught.value.problems
    assert what in problem.what
