"""What Ray Data says of its pipeline, what a run shows and records of it, and of its data sets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.config.metrics import producible_metrics
from runner.config.offline import OfflineConfig
from runner.offline.reading.source import data_set_of, data_set_of_config, open_source, recorded_data_set, start_text
from runner.offline.training.repeated_passes import PipelineMonitor
from tests.conftest import ROOT, Run, progress_of, result_of
from tests.offline.blocks import flat_block
from tests.offline.recorded import record
from tests.support.configs import config_from

RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"  # ten episodes, 3,614 steps
BC = (
    "+experiment=bc_cartpole",
    f"offline.input_={RECORDED}",
    "module.fcnet_hiddens=[16]",
    "algorithm.train_batch_size_per_learner=512",
    "offline.dataset_num_iters_per_learner=8",
    "evaluation.evaluation_interval=null",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)
ray_test = pytest.mark.ray
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray Data, and of SQLAlchemy about MLflow


# -- the pipeline --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@ray_test
def test_progress_of_a_real_execution(ray_cluster: None) -> None:
    import ray.data

    dataset = ray.data.range(400, override_num_blocks=20).map_batches(
        lambda batch: batch, batch_size=None, num_cpus=0.5
    )
    clock = iter([0.0, 2.0, 4.0])
    monitor = PipelineMonitor(dataset, clock=lambda: next(clock))
    batches = iter(dataset.iter_batches(batch_size=50))
    next(batches)
    assert sum(1 for _ in batches) == 7
    monitor.look()  # as at the end of a pass
    for _ in dataset.iter_batches(batch_size=50):  # another execution
        pass
    progress = monitor.progress()
    assert progress == {
        "offline_data/num_rows_read_lifetime": 800,
        "offline_data/rows_read_per_s": 400.0,
        "offline_data/queued_blocks_read": 0,
        "offline_data/queued_blocks_prelearner": 0,
        "offline_data/queued_blocks_learner": 0,
    }
    assert monitor.progress()["offline_data/rows_read_per_s"] == 0.0


@ray_test
def test_materialised_rows_are_counted_once(ray_cluster: None) -> None:
    import ray.data

    dataset = ray.data.range(30).materialize()
    monitor = PipelineMonitor(dataset)
    for _ in range(2):
        assert sum(len(batch["id"]) for batch in dataset.iter_batches(batch_size=10)) == 30
        monitor.look()
    progress = monitor.progress()
    assert progress["offline_data/num_rows_read_lifetime"] == 30
    assert progress["offline_data/rows_read_per_s"] == 0.0
    assert {progress[f"offline_data/queued_blocks_{stage}"] for stage in ("read", "prelearner", "learner")} == {None}


class _Executor:
    """Can be referenced weakly; has no topology. The test of `status_of` has other forms."""


def test_a_ray_that_does_not_say_stops_nothing() -> None:
    monitor = PipelineMonitor(SimpleNamespace(_current_executor=_Executor()))  # type: ignore[arg-type]
    monitor.look()
    assert set(monitor.progress().values()) == {None}


# -- the data set --------------------------------------------------------------------------------------------------


def test_a_data_set_of_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "expert"
    record(folder, flat_block([5, 3, 8], prefix="a"), flat_block([1, 7], prefix="b", seed=1))
    config = OfflineConfig(input_=str(folder))
    source = open_source(config)
    data_set = data_set_of(source, "training")
    assert (data_set.name, data_set.context, data_set.source_type) == ("expert", "training", "local")
    assert data_set.source == {"uri": str(folder)}
    assert data_set.digest == source.description().digest
    assert {"obs", "actions", "rewards"} <= set(data_set.schema)
    counts = {"num_files": 1, "num_bytes": source.num_bytes, "num_episodes": 5, "num_steps": 24}
    assert data_set.profile == {"format": "episodes", **counts}
    assert str(data_set) == f"expert (1 file, {source.num_bytes / 1e3:.1f} kB)"
    shutil.rmtree(folder)  # for the record only: no error
    assert recorded_data_set(source, config, "training").name == "expert"


def test_a_data_set_of_steps_has_no_episodes_to_count(tmp_path: Path) -> None:
    record(tmp_path / "steps", flat_block([5, 3]), output_write_episodes=False)
    profile = data_set_of(open_source(OfflineConfig(input_=str(tmp_path / "steps"))), "evaluation").profile
    assert (profile["format"], profile["num_steps"], "num_episodes" in profile) == ("table", 8, False)


@pytest.mark.parametrize(
    ("options", "name", "kind", "source"),
    [
        ({"input_": "s3://bucket/data/expert/"}, "expert", "s3", {"uri": "s3://bucket/data/expert/"}),
        ({"input_": "bucket/expert", "input_filesystem": "gcs"}, "expert", "gcs", {"uri": "bucket/expert"}),
        ({"input_": "/d/e"}, "e", "local", {"uri": "/d/e"}),
        ({"input_": "file:///d/e"}, "e", "local", {"uri": "file:///d/e"}),
        (
            {"input_": ["s3://b/x/1", "s3://b/x/2"]},
            "1",
            "s3",
            {"uri": "s3://b/x", "paths": ["s3://b/x/1", "s3://b/x/2"]},
        ),
        ({"offline_data_class": "my.Data"}, "my.Data", "code", {"tags": {"class": "my.Data"}}),
    ],
)
def test_where_data_are(options: dict[str, Any], name: str, kind: str, source: dict[str, Any]) -> None:
    data_set = data_set_of_config(OfflineConfig(**options), "training")
    assert (data_set.name, data_set.source_type, data_set.source) == (name, kind, source)
    assert len(data_set.digest) == 16
    assert str(data_set) == name


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((), "reading rllib_cartpole_episodes (2 files, "),
        (("evaluation.evaluation_interval=5", "evaluation.evaluation_num_env_runners=2"), "starting 2 evaluation r"),
    ],
)
def test_what_is_told_before_ray_starts(more: tuple[str, ...], text: str) -> None:
    config = config_from(*BC, *more)
    assert start_text(config, open_source(config.offline)).startswith(text)


# -- a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@ray_test
def test_a_run_shows_and_records_what_it_reads(ray_cluster: None, run_main: Run, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    held_out, run_dir = tmp_path / "held_out", tmp_path / "outputs" / "run"
    shutil.copytree(RECORDED, held_out)
    more = [f"evaluation.offline_evaluation_input_={held_out}", "evaluation.offline_evaluation_interval=2"]
    first = run_main(*BC, *more, f"hydra.run.dir={run_dir}", "stop.training_iteration=2")
    assert first.code == 0, first.err
    assert first.out.splitlines()[0].startswith("reading rllib_cartpole_episodes (2 files,")
    assert "\n  rows read   3,614\n" in first.out
    second = run_main("resume", str(run_dir), "offline.materialize_mapped_data=false", "stop.training_iteration=4")
    assert second.code == 0, second.err
    assert "\nwaiting for the first batch of rllib_cartpole_episodes (2 files," in second.out
    assert "per second)\n  time" in second.out
    for outcome in (first, second):
        lines = [line for line in outcome.out.splitlines() if line.startswith("iter ")]
        assert all(" return " not in line and " rows " in line for line in lines)

    config = config_from(*BC, *more)
    *kept, before, streamed = progress_of(run_dir)
    for line in (*kept, before, streamed):
        assert set(line) <= set(producible_metrics(config))
    assert [line["offline_data/num_rows_read_lifetime"] for line in kept] == [3614, 3614]
    assert streamed["offline_data/num_rows_read_lifetime"] >= 2 * 8 * 512
    assert streamed["offline_data/num_rows_read_lifetime"] >= before["offline_data/num_rows_read_lifetime"]
    assert before["offline_data/rows_read_per_s"] > 0
    assert streamed["offline_data/queued_blocks_learner"] >= 0

    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    run = client.get_run(result_of(run_dir)["mlflow_run_id"])
    inputs = {own.tags[0].value: own.dataset for own in run.inputs.dataset_inputs}
    assert len(run.inputs.dataset_inputs) == 2  # once, though there was a resume
    assert [inputs[context].name for context in ("training", "evaluation")] == [RECORDED.name, "held_out"]
    assert json.loads(inputs["training"].source) == {"uri": str(RECORDED)}
    assert json.loads(inputs["evaluation"].profile)["format"] == "rllib_episodes"
    assert run.data.metrics["offline_data/num_rows_read_lifetime"] == streamed["offline_data/num_rows_read_lifetime"]
    client._tracking_client.store._dispose_engine()
