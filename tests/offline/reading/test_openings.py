"""Recorded data are opened once: listed, looked at, and then narrowed and passed on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from runner.experiment.trainer import Trainer
from runner.module_building import build_modules
from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.reading.source import data_set_of, start_text
from runner.offline.training.preflight import check_recorded_data
from runner.pipelines.connector import DEFAULT_MODULE_ID
from tests.conftest import ROOT
from tests.offline.recorded import BLOCK
from tests.support.configs import config_from

RLLIB_EPISODES = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
done: Counter[str] = Counter()


class CountingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Counts what is done with each path in this process."""

    cachable = False

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        done[f"list {Path(path).name}"] += 1
        return super().find(path, *arguments, **options)

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        done[f"open {Path(path).name}"] += 1
        return super()._open(path, *arguments, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    pq.write_table(episodes_to_table(BLOCK), tmp_path / "data" / "a.parquet")
    pq.write_table(episodes_to_table(BLOCK), tmp_path / "data" / "b.parquet")
    done.clear()
    return tmp_path / "data"


def test_all_that_a_run_asks_before_it_trains_takes_one_opening(folder: Path) -> None:
    counting = f"offline.input_filesystem={__name__}.CountingFileSystem"
    overrides = ["+experiment=bc_cartpole", f"offline.input_={folder}", counting]
    config = config_from(*overrides)
    parts = build_modules(config)[DEFAULT_MODULE_ID]
    source = check_recorded_data(config, parts)
    assert source is not None
    before = done.copy()
    # The footers, the first episodes (two for each pass), and all rows because they are small.
    assert before == {"list data": 1, "open a.parquet": 1 + 2 * 2, "open b.parquet": 1 + 2 * 1}
    narrow = source.narrowed((), with_infos=False)
    assert set(narrow.first_block().columns) == {"obs", "actions", "rewards"}
    assert set(narrow.layout.columns) == {"obs", "actions", "rewards"}
    assert source.schema()
    assert "reading data (2 files, " in start_text(config, source)
    source.check_spaces(parts.spec.observation_space, parts.spec.action_space)
    assert [len(part.files.paths) for part in source.parts() if part.files is not None] == [1, 1]
    assert done == before
    data_set_of(source, "training")  # the digest reads the end of each file, and the counts two columns
    assert done["list data"] == 1


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_a_run_finds_its_data_once(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.offline.files import parquet_reader
    from runner.offline.reading import source

    found: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            found[name] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(source, "find_files", counted("find", source.find_files))
    monkeypatch.setattr(parquet_reader, "_checked", counted("footer", parquet_reader._checked))
    small = [
        f"offline.input_={RLLIB_EPISODES}",
        "module.fcnet_hiddens=[16]",
        "algorithm.train_batch_size_per_learner=512",
        "evaluation.evaluation_interval=null",
        "checkpoint.metric=training_iteration",
        "~stop.evaluation.env_runners.episode_return_mean",
        "offline.dataset_num_iters_per_learner=2",
    ]
    with Trainer.from_experiment("bc_cartpole", small) as trainer:
        trainer.train()
        assert trainer.data_sets()[0].profile["format"] == "rllib_episodes"
    assert found == {"find": 1, "footer": 2}  # two files
