"""`resume` and `evaluate`: what they refuse, what they tell, and that nothing is written before."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from runner.config.errors import ConfigError, Problem
from tests.cli.conftest import HEAVY_IMPORTS, RunCli
from tests.conftest import QUICK, ROOT, MakeRun, Run
from tests.support.forging import rewrite_manifest
from tests.support.problems import assert_error, shown_problems

START = ("+experiment=ppo_cartpole", *QUICK)


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A finished run of two iterations."""
    return copy_of_run(*START, "stop.training_iteration=2")


def files_of(run_dir: Path) -> dict[Path, tuple[bytes, int]]:
    """Content and time of every file; but of the lock file, which every command that may write takes for a moment."""
    paths = [path for path in run_dir.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.fixture
def permissions_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission bits mean something for root too, as far as `os.access` says."""

    def access(path: str | Path, mode: int) -> bool:
        return not (mode & os.W_OK) or bool(Path(path).stat().st_mode & stat.S_IWUSR)

    monkeypatch.setattr(os, "access", access)


@pytest.mark.parametrize(("verb", "target"), [("resume", ()), ("evaluate", ("hydra.run.dir=run",))])
def test_a_run_dir_that_may_not_be_written(
    run_main: Run, run_dir: Path, permissions_hold: None, verb: str, target: tuple[str, ...]
) -> None:
    before = files_of(run_dir)
    run_dir.chmod(0o555)
    try:
        outcome = run_main(verb, str(run_dir), "stop.training_iteration=3", *target)
    finally:
        run_dir.chmod(0o755)
    assert (outcome.code, outcome.out) == (2, "")
    assert shown_problems(outcome.err, run_dir.parent) == [
        Problem(
            "the run dir cannot be written: permission denied",
            where="TMP/run",
            fix="allow writing there, or write to another folder with hydra.run.dir=DIR",
        )
    ]
    assert files_of(run_dir) == before


def test_a_part_of_the_run_dir_that_may_not_be_written(run_main: Run, run_dir: Path, permissions_hold: None) -> None:
    before = files_of(run_dir)
    (run_dir / "checkpoints").chmod(0o555)
    outcome = run_main("resume", str(run_dir), "stop.training_iteration=3")
    (run_dir / "checkpoints").chmod(0o755)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[1] == f"   where         {run_dir / 'checkpoints'}"
    assert files_of(run_dir) == before


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_run_dir_that_may_not_be_written_can_be_evaluated(
    run_main: Run, run_dir: Path, permissions_hold: None, options: tuple[str, ...]
) -> None:
    (run_dir / "evaluations.jsonl").mkdir()  # root may write a file without permission
    before = files_of(run_dir)
    run_dir.chmod(0o555)
    outcome = run_main("evaluate", str(run_dir), *options)
    run_dir.chmod(0o755)
    assert outcome.code == 0
    assert "episode_return_mean" in outcome.out
    assert "recorded in" not in outcome.out
    assert outcome.err == f"the result was not stored in {run_dir / 'evaluations.jsonl'}: Is a directory\n"
    assert files_of(run_dir) == before


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_a_file_where_the_run_dir_should_be(run_main: Run, run_dir: Path, verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = run_main(verb, str(run_dir), "stop.training_iteration=3", "hydra.run.dir=file/new")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"the run dir cannot be created: this is not a folder\n   where         {tmp_path / 'file'}\n"


@pytest.mark.parametrize(
    ("overrides", "told", "key"),
    [
        ([], "reached 2 iterations", "stop.training_iteration"),
        (["algorithm.lr=1e-2", "stop.training_iteration=1"], "reached 1 iteration;", "stop.training_iteration"),
        (
            ["stop.training_iteration=null", "stop.env_runners.episode_len_max=3"],
            "longest episode (env steps) ",
            "stop.env_runners.episode_len_max",
        ),
    ],
)
def test_a_finished_run_is_left_as_it_is(
    run_main: Run, run_dir: Path, overrides: list[str], told: str, key: str
) -> None:
    before = files_of(run_dir)
    outcome = run_main("resume", str(run_dir), *overrides)
    assert (outcome.code, outcome.err) == (0, "")
    first, second = outcome.out.splitlines()
    assert first.startswith(f"already finished: {told}")
    assert second.startswith(f"  to continue, raise {key}: ")
    assert second.endswith(f" {key}=...")
    assert second.count(key) == 2
    assert files_of(run_dir) == before


def test_resume_of_a_finished_run_elsewhere_makes_no_folder(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    assert run_main("resume", str(run_dir), "hydra.run.dir=new").code == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_mistakes_are_told_before_anything_heavy_is_imported(
    run_main: Run, run_cli: RunCli, run_dir: Path, verb: str
) -> None:
    commands = {("nowhere",): "the folder does not exist", ("run", "algorithm.gama=1"): "unknown key algorithm.gama"}
    for arguments, told in commands.items():
        result = run_cli(verb, *arguments, code=HEAVY_IMPORTS)
        assert result.returncode == 2
        assert told in result.stderr
        assert result.stderr.endswith("[]\n")
    finished = run_cli("resume", "run", code=HEAVY_IMPORTS)
    assert (finished.returncode, finished.stderr) == (0, "[]\n")


def test_the_summary_of_a_resumed_run_covers_the_whole_run(run_main: Run, run_dir: Path) -> None:
    (manifest,) = (run_dir / "checkpoints").glob("*/manifest.json")
    lines = [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]
    lines[0]["env_runners/episode_return_mean"] = 499.5  # far above what a few iterations reach
    (run_dir / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = json.loads(manifest.read_text())
    content["result"]["time_total_s"] = 7200.0
    rewrite_manifest(manifest.parent, content)
    outcome = run_main("resume", str(run_dir), "stop.training_iteration=3")
    assert outcome.code == 0, outcome.err
    closing = {line.split()[0]: line for line in outcome.out.partition("finished: ")[2].splitlines()[1:]}
    assert ", best 499.5" in closing["return"]
    assert closing["time"].split()[1].startswith("2:00:0")
    assert closing["env"].endswith(" (0 per second)")


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_other_spaces_name_the_override_that_brought_them(run_main: Run, run_dir: Path, verb: str) -> None:
    outcome = run_main(verb, "run", "env.env=Pendulum-v1", "stop.training_iteration=3")
    assert outcome.code == 2
    assert_error(
        outcome.err,
        ConfigError(
            [
                Problem(
                    "the checkpoint's network differs from the network of this configuration",
                    where=(
                        'module changed by overrides: env.env ("CartPole-v1" -> "Pendulum-v1"), '
                        "stop.training_iteration (2 -> 3)"
                    ),
                    got="encoder.layers.0.weight (32, 4) in the checkpoint",
                    expected="encoder.layers.0.weight (32, 3) in this configuration",
                )
            ]
        ),
        run_dir,
    )


@pytest.mark.parametrize(
    ("verb", "words", "output"),
    [
        ("resume", ["stop.training_iteration=3"], "finished: reached 3 iterations"),
        ("evaluate", ["evaluation.evaluation_duration=1"], "evaluated "),
        ("export", ["lr=0.1/policy=1.onnx"], "policy=1.onnx"),
        ("report", [], "report.html"),
        ("inspect", [], ""),
    ],
)
def test_a_path_with_an_equals_sign_is_no_override(
    run_main: Run,
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    words: list[str],
    output: str,
) -> None:
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    run_dir.rename("lr=0.1/seed=1")
    outcome = run_main(verb, *words[1:], "lr=0.1/seed=1", *words[:1])
    if verb == "inspect":  # a run dir holds no recorded data, which the message says of this folder
        assert "lr=0.1/seed=1" in outcome.err
        return
    assert outcome.code == 0, outcome.err
    assert output in outcome.out


@pytest.mark.parametrize("override", ["~stop", "stop=null", "stop=3"])
def test_a_stop_block_without_metrics(run_main: Run, run_dir: Path, override: str) -> None:
    outcome = run_main("resume", str(run_dir), override)
    assert (outcome.code, outcome.out) == (2, "")
    assert "stop must be a mapping of metrics to values" in outcome.err


def test_a_missing_run_dir_is_still_missing(run_main: Run) -> None:
    outcome = run_main("resume", "stop.env_runners/episode_return_mean=450")
    assert (outcome.code, outcome.err.splitlines()[0]) == (2, "RUN is missing")


def test_quotes_around_the_run_dir_are_read_as_hydra_reads_them(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a=b c"
    outcome = run_main("resume", str(run_dir), "stop.training_iteration=3", f"hydra.run.dir='{target}'")
    assert outcome.code == 0, outcome.err
    assert (target / "progress.jsonl").exists()


def test_hydras_keys(run_main: Run, run_dir: Path) -> None:
    outcome = run_main("resume", "run", "hydra.job.nam=x")
    assert outcome.code == 2
    assert shown_problems(outcome.err) == [
        Problem(
            "hydra.job.nam has no effect, because runner creates the folders and logs of runs itself",
            where="override hydra.job.nam=x",
            expected="hydra.run.dir",
        )
    ]
    outcome = run_main("resume", "run", "stop.training_iteration=3", "++hydra.run.dir=new")
    assert outcome.code == 0, outcome.err
    assert Path("new", "progress.jsonl").exists()


def test_a_value_with_an_equals_sign_needs_quotes(run_main: Run) -> None:
    outcome = run_main(*START, "hydra.run.dir=/runs/lr=0.1")
    assert outcome.code == 2
    assert "\"hydra.run.dir='/runs/lr=0.1'\"" in outcome.err


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data
@pytest.mark.parametrize(
    "augmenting",
    [
        (),
        (
            "connectors.learner=[{insert_before: AgentToModuleMapping, connector: {_target_: "
            "tests.offline.own_sources.Halved}}]",
        ),
    ],
)
def test_a_policy_that_learned_from_recorded_data_is_evaluated(
    ray_cluster: None, run_main: Run, augmenting: tuple[str, ...]
) -> None:
    """Its plan reads data, and evaluations do not."""
    data = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
    training = ("+experiment=bc_cartpole", f"offline.input_={data}", "tracking=none", *augmenting)
    outcome = run_main(*training, "stop.training_iteration=1", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    outcome = run_main("evaluate", "run", "evaluation.evaluation_duration=2")
    assert outcome.code == 0, outcome.err
    assert "episode_return_mean" in outcome.out


def test_exploration_goes_on_from_the_env_steps_of_the_run(run_main: Run) -> None:
    """Epsilon is 0 at the end of training, so exploration changes nothing."""
    training = ("+experiment=dqn_cartpole", "algorithm.epsilon=[[0,1.0],[100,0.0]]", "tracking=none")
    outcome = run_main(*training, "stop.training_iteration=1", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    returns = []
    for explores in ("true", "false"):
        outcome = run_main("evaluate", "run", "--episodes", "5", f"evaluation.explore={explores}")
        assert outcome.code == 0, outcome.err
        returns += [line for line in outcome.out.splitlines() if "episode_return_mean" in line]
    assert returns[0] == returns[1]
