"""Checkpoints of somebody else: what they ask for is refused and listed, and nothing of it has happened."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoints import load_checkpoint, read_manifest
from runner.checkpoints.trust import UntrustedError
from runner.experiment.mlflow_runs import known_run
from runner.experiment.trainer import Trainer
from runner.tracking.known_run import write_known_run
from tests.conftest import QUICK, AssertGolden, MakeRun, Run, checkpoints_of
from tests.support.configs import config_from
from tests.support.forging import forge

START = ("+experiment=ppo_cartpole", *QUICK)
TRAIN = (*START, "hydra.run.dir=run")
EXPORT = ("export", "run", "-o", "policy.onnx")


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A run of one iteration, of this installation."""
    return copy_of_run(*START, "stop.training_iteration=1")


@pytest.fixture
def strange_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from; `strange_loss` and `strange_env` leave a file there if they are."""
    for name in ("strange_loss", "strange_env"):
        marker = tmp_path / f"{name}.imported"
        code = f"open({str(marker)!r}, 'w').close()\n"
        code += "from runner.learners.ppo import PPOLoss\nclass Loss(PPOLoss): pass\n"
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("strange_loss", "strange_env"):
        sys.modules.pop(name, None)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def address_of(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


def assert_unvisited(listener: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        listener.accept()


VERBS = {
    "resume": ("resume", "run", "stop.training_iteration=2"),
    "module_only": ("resume", "run", "--module-only", "stop.training_iteration=2", "hydra.run.dir=new"),
    "evaluate": ("evaluate", "run", "evaluation.evaluation_duration=1"),
    "record": ("record", "run", "evaluation.evaluation_duration=1", "offline.output=recorded"),
    "export": EXPORT,
}


STRANGE = {
    "algorithm.loss": "strange_loss.Loss",
    "algorithm.schema": "strange_loss.Config",
    "env.env": "strange_env:Strange-v0",
    "module._target_": "strange_loss.Loss",
    "connectors.learner": [{"append": {"_target_": "strange_loss.Loss"}}],
}


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_strange_is_imported(run_main: Run, run_dir: Path, strange_modules: Path, verb: str) -> None:
    forge(run_dir, {"env._target_": None, **STRANGE})
    before = checkpoints_of(run_dir)
    outcome = run_main(*VERBS[verb])
    assert outcome.code == 2
    assert outcome.err.startswith("this checkpoint is not signed with your key and needs")
    assert "origin        not signed" in outcome.err
    assert all(f"imports       {key}" in outcome.err for key in STRANGE)
    assert "--trust (see docs/explanation/trust.md)" in outcome.err
    assert not list(strange_modules.glob("*.imported"))
    assert checkpoints_of(run_dir) == before
    assert not (strange_modules / "new").exists()


def test_trust_and_overrides_allow_it(run_main: Run, run_dir: Path, strange_modules: Path) -> None:
    forge(run_dir, {"algorithm.loss": "strange_loss.Loss"})
    before = run_main(
        "evaluate", "run", "algorithm.loss=runner.learners.ppo.PPOLoss", "evaluation.evaluation_duration=1"
    )
    assert before.code == 0, before.err
    assert not (strange_modules / "strange_loss.imported").exists()
    outcome = run_main(*VERBS["resume"], "--trust")
    assert outcome.code == 0, outcome.err
    assert (strange_modules / "strange_loss.imported").exists()
    # The run has gone on, so that its newest checkpoint is of this installation.
    assert run_main(*VERBS["evaluate"]).code == 0


@pytest.mark.parametrize("verb", ["resume", "module_only"])
def test_no_environment_variable_goes_anywhere(
    run_main: Run,
    run_dir: Path,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    assert_golden: AssertGolden,
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_TEST", "never told")
    uri = f"http://{address_of(listener)}/${{oc.env:A_SECRET_OF_THE_TEST}}"
    forge(run_dir, {"tracking.mlflow": True, "tracking.tracking_uri": uri, "experiment_name": "${oc.env:HOME}"})
    outcome = run_main(*VERBS[verb])
    assert outcome.code == 2
    assert "never told" not in outcome.out + outcome.err
    assert_unvisited(listener)
    assert_golden("trust_resolvers", outcome.err.replace(address_of(listener), "HOST:PORT"))


def test_addresses_files_and_ray_options_are_listed_together(
    run_main: Run, run_dir: Path, listener: socket.socket, assert_golden: AssertGolden
) -> None:
    address = address_of(listener)
    forge(
        run_dir,
        {
            "offline.input_": [f"http://{address}/data", "data/local"],
            "offline.input_filesystem": "strange.FileSystem",
            "offline.input_filesystem_kwargs": {"fs": {"_target_": "strange.Inner"}},
            "offline.map_batches_kwargs": {
                "concurrency": 2,
                "runtime_env": {"py_executable": "touch marker; python"},
                "ray_remote_args": {"resources": {"x": 1}},
            },
            "offline.input_read_method": "read_sql",
            "offline.output": "/somewhere/else",
            "evaluation.offline_evaluation_input_": "held_out",
            "env.env_config": {"xml_file": "model.xml"},
            "env.port": 5556,
            "env.host": "0.0.0.0",
            "rllink.tls_key": "key.pem",
            "tracking.artifact_location": "/elsewhere",
            "ray.address": "ray://somebody:10001",
            "experiment_name": "../../up",
            "multi_agent.agent_to_module": {"_target_": "strange.Mapping"},
            "multi_agent.modules": {"p0": {"_target_": "strange.Module"}},
        },
    )
    outcome = run_main(*VERBS["resume"])
    assert outcome.code == 2
    assert_unvisited(listener)
    assert_golden("trust_list", outcome.err.replace(address, "HOST:PORT"))
    evaluated = run_main("evaluate", "run")
    told = {
        line.split()[1] for line in evaluated.err.splitlines() if line.split()[0] in ("imports", "reads", "contacts")
    }
    assert "offline.input_.0" not in told, "evaluate does not read them"
    assert {"env.env_config.xml_file", "evaluation.offline_evaluation_input_", "ray.address"} <= told


def test_functions_that_read_data_are_not_imported(run_main: Run, run_dir: Path, strange_modules: Path) -> None:
    factory = {"_target_": "strange_env.connect", "_partial_": True}
    forge(
        run_dir,
        {
            "offline.input_": {"_target_": "strange_loss.episodes"},
            "offline.input_read_method": "strange_env.read",
            "offline.input_read_method_kwargs": {"connection_factory": factory},
        },
    )
    outcome = run_main(*VERBS["resume"])
    assert outcome.code == 2
    told = {line.split()[1] for line in outcome.err.splitlines() if line.split()[0] == "imports"}
    of_kwargs = "offline.input_read_method_kwargs.connection_factory._target_"
    assert told == {"offline.input_._target_", "offline.input_read_method", of_kwargs}
    assert not list(strange_modules.glob("*.imported"))


def test_a_reference_carries_nothing_past_the_check(run_main: Run, run_dir: Path, strange_modules: Path) -> None:
    forge(run_dir, {"algorithm.loss": "${env.env_config.kind}", "env.env_config": {"kind": "strange_loss.Loss"}})
    outcome = run_main(*VERBS["evaluate"])
    assert outcome.code == 2
    assert 'imports       algorithm.loss  "strange_loss.Loss"' in outcome.err
    forge(run_dir, {"algorithm.loss": "runner.learners.ppo.PPOLoss", "env.env_config": {}})
    forge(run_dir, {"algorithm.gamma": "${algorithm.lambda_}"})
    assert run_main(*VERBS["evaluate"]).code == 0, "references to other keys stay"


def test_an_ordinary_run_of_somebody_else_needs_no_flag(
    run_main: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_KEY", "the key of another installation")
    manifest = read_manifest(next(run_dir.glob("checkpoints/*")))
    assert "hmac" in manifest
    for verb in ("evaluate", "resume"):
        outcome = run_main(*VERBS[verb])
        assert outcome.code == 0, outcome.err


def test_where_a_foreign_run_is_in_mlflow_is_not_followed(
    run_main: Run, run_dir: Path, listener: socket.socket
) -> None:
    content = {"run_id": "0" * 32, "tracking_uri": f"http://{address_of(listener)}"}
    (run_dir / "mlflow_run.json").write_text(json.dumps(content))
    registered = run_main("register", "run", "--name", "policy")
    assert registered.code == 2
    assert "the run's MLflow id comes from another installation, so its address is not contacted" in registered.err
    reported = run_main("report", "run")
    assert reported.code == 0
    assert (
        "warning: the report was not logged to MLflow: the run's MLflow id comes from another installation"
        in reported.err
    )
    told: list[str] = []
    assert known_run(run_dir, told.append) == {}
    assert told == [
        "starting a new MLflow run: the run's MLflow id comes from another installation, so its address is not "
        "contacted"
    ]
    assert known_run(run_dir, is_trusted=True) == content
    write_known_run(run_dir / "mlflow_run.json", **content)
    assert known_run(run_dir) == content, "this installation wrote it"
    assert_unvisited(listener)


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
@pytest.mark.parametrize("name", ["progress.jsonl", "evaluations.jsonl", "runner.log"])
def test_links_of_a_foreign_run_are_not_followed(
    run_main: Run, run_dir: Path, tmp_path: Path, verb: str, name: str
) -> None:
    forge(run_dir)
    target = tmp_path / "startup_file"
    target.write_text("nothing of it is changed\n")
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(target)
    outcome = run_main(*VERBS[verb])
    assert outcome.code == 2
    # `resume` opens the log before it reads the checkpoint; neither log nor lock is ever a link.
    is_log = (name, verb) == ("runner.log", "resume")
    assert (f"{name} is a symbolic link" if is_log else f"follows       {name}") in outcome.err
    assert target.read_text() == "nothing of it is changed\n"
    assert run_main(*VERBS[verb], "--trust").code == (2 if is_log else 0)


def test_a_trainer_of_a_foreign_checkpoint(run_dir: Path, strange_modules: Path) -> None:
    forge(run_dir, {"algorithm.loss": "strange_loss.Loss"})
    checkpoint = next(run_dir.glob("checkpoints/*"))
    with pytest.raises(UntrustedError) as caught:
        Trainer.from_checkpoint(checkpoint)
    assert [(one.verb, one.key) for one in caught.value.requirements] == [("imports", "algorithm.loss")]
    assert not (strange_modules / "strange_loss.imported").exists()
    with Trainer.from_checkpoint(checkpoint, trust=True) as trainer:
        assert trainer.training_iteration == 1


def test_modules_of_a_foreign_checkpoint_are_data_only(
    run_main: Run, run_dir: Path, strange_modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_SECRET_OF_THE_TEST", raising=False)  # resolving would fail
    forge(run_dir, {"algorithm.loss": "strange_loss.Loss", "tracking.run_name": "${oc.env:A_SECRET_OF_THE_TEST}"})
    overrides = ("hydra.run.dir=new", "stop.training_iteration=1", "module.load_state_path=run")
    outcome = run_main("+experiment=ppo_cartpole", *QUICK, *overrides)
    assert outcome.code == 0, outcome.err
    assert not (strange_modules / "strange_loss.imported").exists()


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without a key, whose state folder is returned."""
    monkeypatch.delenv("RUNNER_KEY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_runs_of_ones_own_need_no_flag(run_main: Run, no_key: Path, tmp_path: Path, monkeypatch: Any) -> None:
    mine = ("env._target_=tests.support.environments.Faulty", "env.env=null", "env.env_config={fault: none}")
    assert run_main(*TRAIN, *mine, "stop.training_iteration=1").code == 0
    assert (no_key / "runner" / "key").stat().st_mode & 0o777 == 0o600
    assert run_main(*VERBS["evaluate"]).code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another_machine"))
    refused = run_main(*VERBS["evaluate"])
    assert refused.code == 2
    assert "origin        signed, but this installation does not have a key" in refused.err
    monkeypatch.setenv("RUNNER_KEY_FILE", str(no_key / "runner" / "key"))
    assert run_main(*VERBS["evaluate"]).code == 0
    assert not (tmp_path / "another_machine").exists(), "reading makes no key"


@pytest.mark.parametrize("state", ["not absolute", "not writable"])
def test_a_run_without_a_home_goes_on_unsigned(
    run_main: Run, no_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    if state == "not absolute":
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        no_key.write_text("a file where the folder should be")
    outcome = run_main(*TRAIN, "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    lines = [line for line in (outcome.out + outcome.err).splitlines() if "checkpoints are not signed" in line]
    assert len(lines) == 1
    _, manifest = load_checkpoint(next((tmp_path / "run").glob("checkpoints/*")))
    assert "hmac" not in manifest


@pytest.mark.parametrize("name", ["rllink/runner-0.0.new", "checkpoints/elsewhere", ".hydra/config.yaml"])
def test_links_deep_in_a_foreign_run_are_not_followed(run_main: Run, run_dir: Path, tmp_path: Path, name: str) -> None:
    forge(run_dir)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    link = run_dir / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(precious)
    outcome = run_main("resume", "run", "stop.training_iteration=2")
    assert outcome.code == 2
    assert name in outcome.err
    assert precious.read_text() == "precious"


def test_a_foreign_log_that_is_a_link_is_not_opened(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    forge(run_dir)
    (run_dir / "runner.log").unlink()
    (run_dir / "runner.log").symlink_to(tmp_path / "made")
    assert run_main("resume", "run", "stop.training_iteration=2").code == 2
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [b"[" * 60_000, b"x" * 1_000_000, json.dumps({"token": "t", "pid": "x"}).encode(), None],
    ids=["deep", "long", "odd", "pipe"],
)
def test_a_foreign_lock_file_ends_nothing(run_main: Run, run_dir: Path, content: bytes | None) -> None:
    forge(run_dir)
    lock = run_dir / ".lock"
    lock.unlink(missing_ok=True)
    os.mkfifo(lock) if content is None else lock.write_bytes(content)
    outcome = run_main("resume", "run", "stop.training_iteration=2")
    assert outcome.code in (0, 2)
    assert "Traceback" not in outcome.err


def test_a_claim_with_fields_of_other_types_is_none(tmp_path: Path) -> None:
    from dataclasses import asdict

    from runner.locks import Claim, owner_of

    claim = asdict(Claim.of_this_process(None))
    (tmp_path / ".lock").write_text(json.dumps(claim))
    assert owner_of(tmp_path) is not None
    for name, value in (("pid", "x"), ("pid", -1), ("started", "x"), ("since", 1e300), ("host", 3)):
        (tmp_path / ".lock").write_text(json.dumps(claim | {name: value}))
        assert owner_of(tmp_path) is None, name


def test_the_store_of_a_foreign_run_is_not_the_one_that_came_along(tmp_path: Path, monkeypatch: Any) -> None:
    from runner.experiment.mlflow_runs import find_store

    monkeypatch.chdir(tmp_path)
    config = config_from("+experiment=ppo_cartpole")
    run_dir = tmp_path / "pub" / "outputs" / "x" / "d" / "t"
    assert str(tmp_path / "pub" / "outputs") in str(find_store(config, run_dir, {}).tracking_uri)
    assert str(tmp_path / "outputs") in str(find_store(config, run_dir, {}, is_own=False).tracking_uri)


def test_connectors_of_a_nested_pipeline_are_known_kinds() -> None:
    from runner.config.targets import is_known_kind

    key = "connectors.env_to_module.0.append.connectors.0._target_"
    assert is_known_kind(key, "runner.pipelines.MeanStdFilter")
    assert not is_known_kind(key, "runner.learners.ppo.PPOLoss")
