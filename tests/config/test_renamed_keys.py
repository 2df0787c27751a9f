"""Renamed configuration keys: the old key is an alias in files, overrides and stored configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.paths import search_dirs
from runner.config.renamed_keys import renamed_keys
from runner.config.stored import compose_stored
from runner.config.validation import build_experiment_config
from runner.experiment.trainer import Trainer
from runner.sweep.space import read_search_space
from tests.conftest import Run
from tests.support.forging import rewrite_manifest

CARTPOLE = "+experiment=ppo_cartpole"
TINY = ("env_runners.num_env_runners=0", "stop.training_iteration=1", "hydra.run.dir=run", "tracking.mlflow=false")
# Old key -> a value other than the default.
VALUES: Mapping[str, Any] = {
    "rllink.leave_out": ["0.0:1-2"],
    "learners.check_acted_outputs": False,
    "tracking.also": ["csv"],
    "checkpoint.replay": "none",
    "env.observation_check": "off",
}
NOTE = "checkpoint.replay was renamed to checkpoint.save_replay_buffers"


def test_the_values_cover_the_renamed_keys() -> None:
    assert renamed_keys().keys() == VALUES.keys()


@pytest.mark.parametrize("old", VALUES)
def test_an_override_of_an_old_key_is_one_of_the_new_key(old: str) -> None:
    new, value = renamed_keys()[old], json.dumps(VALUES[old])
    composed = compose_experiment([CARTPOLE, f"{old}={value}"])
    expected = compose_experiment([CARTPOLE, f"{new}={value}"])
    assert digest(composed) == digest(expected)
    assert (composed.overrides, composed.sources) == (expected.overrides, expected.sources)
    assert composed.notes == (f"{old} was renamed to {new} (override {old})",)
    assert not expected.notes


@pytest.mark.parametrize("old", VALUES)
def test_a_file_with_an_old_key_is_one_with_the_new_key(old: str, tmp_path: Path) -> None:
    new = renamed_keys()[old]
    composed, expected = (in_file(tmp_path, {key: VALUES[old]}) for key in (old, new))
    assert digest(composed) == digest(expected)
    assert not composed.problems
    (note,) = composed.notes
    assert note.startswith(f"{old} was renamed to {new} (")
    assert note.endswith("mine.yaml:4)")
    later = compose_experiment(["+experiment=mine", f"{new}={json.dumps(default_of(new))}"], tmp_path)
    assert (value_at(later, new), later.problems) == (default_of(new), ())


@pytest.mark.parametrize("old", VALUES)
def test_a_stored_configuration_may_have_the_old_key(old: str) -> None:
    new, block, name = renamed_keys()[old], *old.split(".")
    stored = dict(compose_experiment([CARTPOLE, f"{new}={json.dumps(VALUES[old])}"]).unresolved)
    before = {
        key: {renamed_from(f"{block}.{inner}", old): value for inner, value in values.items()}
        if key == block
        else values
        for key, values in stored.items()
    }
    assert name in before[block]
    composed, expected = (compose_stored(values, [], (), "ppo_cartpole") for values in (before, stored))
    assert digest(composed) == digest(expected)
    assert not composed.notes  # nobody can change a checkpoint
    override = f"{new}={json.dumps(default_of(new))}"
    later = compose_stored(before, [override], (), "ppo_cartpole")
    assert (value_at(later, new), later.problems) == (default_of(new), ())


def test_a_block_in_an_override_may_have_the_old_key() -> None:
    composed = compose_experiment([CARTPOLE, "checkpoint={replay: none}"])
    expected = compose_experiment([CARTPOLE, "checkpoint={save_replay_buffers: none}"])
    assert digest(composed) == digest(expected)
    assert composed.notes == (f"{NOTE} (override checkpoint={{replay: none}})",)
    stored = compose_stored(compose_experiment([CARTPOLE]).unresolved, ["checkpoint={replay: none}"], (), None)
    assert (value_at(stored, "checkpoint.save_replay_buffers"), stored.notes) == ("none", composed.notes)


def test_a_choice_of_a_sweep_may_have_the_old_key(run_main: Run) -> None:
    spaces = [
        read_search_space([f"{key}=full,none"], search_dirs(None), np.random.default_rng(0)).to_dict()
        for key in ("checkpoint.replay", "checkpoint.save_replay_buffers")
    ]
    assert spaces[0] == spaces[1]
    checked = run_main("validate", CARTPOLE, "checkpoint.replay=full,none", "seed=1,2", "-m")
    assert (checked.code, checked.err) == (0, f"{NOTE} (override checkpoint.replay)\n")


def test_both_keys_on_a_command_line_are_a_mistake(run_main: Run) -> None:
    both = ("checkpoint.replay=none", "checkpoint.save_replay_buffers=full")
    (problem,) = compose_experiment([CARTPOLE, *both]).problems
    assert problem.what == f"{NOTE}, but both are set"
    assert (problem.where, problem.expected) == ("override checkpoint.replay", "checkpoint.save_replay_buffers only")
    for more in ((), ("seed=1,2", "-m")):
        outcome = run_main("validate", CARTPOLE, *both, *more)
        assert outcome.code == 2
        assert f"{NOTE}, but both are set" in " ".join(outcome.err.split())


def test_both_keys_in_a_file_are_a_mistake(tmp_path: Path) -> None:
    both = {"checkpoint.replay": "none", "checkpoint.save_replay_buffers": "full"}
    (problem,) = in_file(tmp_path, both).problems
    assert problem.what == f"{NOTE}, but both are set"
    assert problem.where is not None
    assert problem.where.endswith("mine.yaml:4")


def test_a_run_notes_an_old_key_once_and_records_the_new_one(run_main: Run) -> None:
    done = run_main(CARTPOLE, *TINY, "checkpoint.replay=none", "connectors=mean_std_filter")
    assert done.code == 0, done.err
    assert (done.out + done.err).count("was renamed to") == 1
    for file in Path("run/.hydra").glob("*.yaml"):
        assert "replay: none" not in file.read_text()
    assert "save_replay_buffers: none" in Path("run/.hydra/config.yaml").read_text()
    (manifest,) = Path("run").glob("checkpoints/*/manifest.json")
    content = json.loads(manifest.read_text())
    content["config"]["checkpoint"]["replay"] = content["config"]["checkpoint"].pop("save_replay_buffers")
    (edit,) = content["config"]["connectors"]["env_to_module"]
    edit["piece"] = edit.pop("connector")
    rewrite_manifest(manifest.parent, content)
    resumed = run_main("resume", "run", "tracking.also=[csv]", "stop.training_iteration=2")
    assert resumed.code == 0, resumed.err
    assert (resumed.out + resumed.err).count("was renamed to") == 1
    newest = max(Path("run").glob("checkpoints/*/manifest.json"))
    config = json.loads(newest.read_text())["config"]
    assert config["checkpoint"]["save_replay_buffers"] == "none"
    assert config["tracking"]["extra_trackers"] == ["csv"]
    assert "replay" not in config["checkpoint"]
    assert config["connectors"]["env_to_module"][0]["connector"]["_target_"] == "runner.pipelines.MeanStdFilter"


def test_a_trainer_in_python_logs_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with Trainer.from_experiment("ppo_cartpole", [*TINY[:2], "checkpoint.replay=none"]) as trainer:
        assert trainer.config.checkpoint.save_replay_buffers == "none"
    assert [record.getMessage() for record in caplog.records] == [f"{NOTE} (override checkpoint.replay)"]


def in_file(folder: Path, values: Mapping[str, Any]) -> Composed:
    """Compose an experiment file with these values, which builds on CartPole's."""
    lines = ["# @package _global_", "defaults: [ppo_cartpole]"]
    for index, (key, value) in enumerate(values.items()):
        block, _, name = key.partition(".")
        lines += [*([] if index else [f"{block}:"]), f"  {name}: {json.dumps(value)}"]
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text("\n".join(lines) + "\n")
    return compose_experiment(["+experiment=mine"], folder)


def digest(composed: Composed) -> tuple[str, Any]:
    """Return the stored configuration as text, with the order of its keys, and the configuration."""
    return json.dumps(composed.unresolved), build_experiment_config(composed)


def renamed_from(key: str, old: str) -> str:
    return old.partition(".")[2] if key == renamed_keys()[old] else key.partition(".")[2]


def value_at(composed: Composed, key: str) -> Any:
    block, _, name = key.partition(".")
    return composed.values[block][name]


def default_of(key: str) -> Any:
    return value_at(compose_experiment([CARTPOLE]), key)
