"""Runs in stores: what is there at any moment, what a store that fails does to a run, and how a run goes on from it."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from runner import Trainer, fit
from runner.checkpoints import read_manifest, save_checkpoint
from runner.config.errors import ConfigError, Problem
from runner.config.paths import local_copy_of
from runner.experiment.run_records import RunRecords
from runner.storage import uploads
from runner.storage.stored_files import open_store, run_dir_of, url_of_run
from tests.conftest import QUICK, WAIT_S, Run, Start, checkpoints_of, lines_of, wait_until
from tests.support.problems import Including, assert_error, shown_problems

START = ("+experiment=ppo_cartpole", *QUICK, "checkpoint.every_iterations=2", "checkpoint.keep_best=0")
REPLAY = (
    *("+experiment=dqn_cartpole", "tracking=none", "evaluation.evaluation_interval=null", "module.fcnet_hiddens=[8]"),
    *("checkpoint.every_iterations=1", "stop.env_runners.episode_return_mean=1000"),
    *("checkpoint.upload_to=faulty://runs", "algorithm.replay_capacity=20000"),
)


class FaultyStore(MemoryFileSystem):
    """A store in memory that refuses some writes, and counts them."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refused: Callable[[str], bool] = staticmethod(lambda path: False)
    written: ClassVar[list[str]] = []
    pause_s = 0.0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("faulty://", "memory://"))
        return stripped

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._look(path)
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._look(rpath)
        time.sleep(self.pause_s)
        super().put_file(lpath, rpath, **options)

    def _look(self, path: str) -> None:
        if type(self).refused(path):
            raise PermissionError(f"Access Denied: {path}")
        self.written.append(path)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyStore]]:
    """An empty store at faulty://, that is tried again at once."""
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    monkeypatch.setattr(uploads, "FIRST_PAUSE_S", 0.001)
    FaultyStore.store.clear()
    FaultyStore.written.clear()
    FaultyStore.pseudo_dirs[:] = [""]
    yield FaultyStore
    FaultyStore.refused = staticmethod(lambda path: False)
    FaultyStore.pause_s = 0.0


def _stored(run: str = "run") -> dict[str, bytes]:
    """The files of a run in the store."""
    return {
        path.removeprefix(f"/runs/{run}/"): file.getvalue()
        for path, file in FaultyStore.store.items()
        if path.startswith(f"/runs/{run}/")
    }


def _stored_checkpoints() -> list[str]:
    return sorted(path.split("/")[1] for path in _stored() if path.endswith("manifest.json"))


def _assert_whole() -> None:
    """Each checkpoint in the store has its files and its lines, and there are no other files."""
    files = _stored()
    manifests = {path: json.loads(content) for path, content in files.items() if path.endswith("manifest.json")}
    digests = {digest for manifest in manifests.values() for digest in manifest["files"].values()}
    assert {path.rpartition("/")[2] for path in files if path.startswith("checkpoints/files/")} == digests
    iterations = [json.loads(line)["training_iteration"] for line in files["progress.jsonl"].splitlines()]
    assert iterations == list(range(1, len(iterations) + 1))
    assert all(manifest["result"]["training_iteration"] <= iterations[-1] for manifest in manifests.values())


def _digests(checkpoint: Path) -> dict[str, str]:
    """Digests of what two equal runs share: seconds are in `metrics.json` and `callbacks.json` alone."""
    files = read_manifest(checkpoint)["files"]
    return {name: digest for name, digest in files.items() if name.split(".")[0] not in ("metrics", "plan")}


def test_a_run_dir_and_its_url() -> None:
    url = url_of_run("s3://bucket/runs/", Path("/home/me/outputs/ppo/2026-11-25/10-00-00"))
    assert url == "s3://bucket/runs/ppo/2026-11-25/10-00-00"
    assert run_dir_of(url, "s3://bucket/runs") == Path.cwd() / "outputs/ppo/2026-11-25/10-00-00"
    assert url_of_run("s3://bucket", Path("/scratch/run")) == "s3://bucket/run"
    assert run_dir_of("s3://other/../run", "s3://bucket") == Path.cwd() / "outputs/run"


def test_the_store_has_what_the_run_dir_has(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    outcome = run_main(*START, "hydra.run.dir=run", "stop.training_iteration=7", "checkpoint.upload_to=faulty://runs")
    assert (outcome.code, outcome.err) == (0, "")
    assert "  upload to    faulty://runs/run" in outcome.out.splitlines()
    files, run_dir = _stored(), tmp_path / "run"
    assert _stored_checkpoints() == checkpoints_of(run_dir) == ["iteration_000006", "iteration_000007"]
    _assert_whole()
    for name in ("progress.jsonl", "result.json", ".hydra/config.yaml", ".hydra/overrides.yaml", "environment.json"):
        assert files[name] == (run_dir / name).read_bytes()
    for name in checkpoints_of(run_dir):
        for file, digest in read_manifest(run_dir / "checkpoints" / name)["files"].items():
            assert files[f"checkpoints/files/{digest}"] == (run_dir / "checkpoints" / name / file).read_bytes()
    assert json.loads(files["result.json"])["status"] == "finished"
    assert ".lock" not in files


def test_a_manifest_comes_after_all_that_it_names(run_main: Run, store: type[FaultyStore]) -> None:
    run_main(*START, "hydra.run.dir=run", "stop.training_iteration=2", "checkpoint.upload_to=faulty://runs")
    names = [path.removeprefix("/runs/run/") for path in store.written]
    manifest = names.index("checkpoints/iteration_000002/manifest.json")
    assert max(number for number, name in enumerate(names) if name.startswith("checkpoints/files/")) < manifest
    assert "progress.jsonl" in names[:manifest]


@pytest.mark.slow
def test_a_replay_buffer_is_sent_once(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    outcome = run_main(*REPLAY, "hydra.run.dir=run", "stop.training_iteration=4")
    assert outcome.code == 0, outcome.err
    files = [path for path in store.written if "/files/" in path]
    assert len(files) == len(set(files)), "a file was sent twice"
    segments = {
        digest
        for name in checkpoints_of(tmp_path / "run")
        for file, digest in read_manifest(tmp_path / "run/checkpoints" / name)["files"].items()
        if file.endswith(".segment")
    }
    assert segments
    assert all(any(path.endswith(digest) for path in files) for digest in segments)


@pytest.mark.parametrize(
    ("start", "unit"),
    [((*START, "checkpoint.upload_to=faulty://runs"), 2), pytest.param(REPLAY, 1, marks=pytest.mark.slow)],
    ids=["ppo", "dqn"],
)
def test_a_run_goes_on_from_the_store_bit_for_bit(
    run_main: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: type[FaultyStore],
    start: tuple[str, ...],
    unit: int,
) -> None:
    first, last = 2 * unit, 4 * unit
    straight = run_main(
        *start, "checkpoint.upload_to=null", "hydra.run.dir=straight", f"stop.training_iteration={last}"
    )
    assert straight.code == 0, straight.err
    assert run_main(*start, "hydra.run.dir=outputs/a/run", f"stop.training_iteration={first}").code == 0
    shutil.rmtree(tmp_path / "outputs")  # the machine is gone
    other_machine = tmp_path / "other"
    other_machine.mkdir()
    monkeypatch.chdir(other_machine)
    outcome = run_main("resume", "faulty://runs/a/run", f"stop.training_iteration={last}")
    assert outcome.code == 0, outcome.err
    run_dir = other_machine / "outputs/a/run"
    assert f"into {run_dir}" in outcome.err
    expected = lines_of(tmp_path / "straight")
    assert lines_of(run_dir) == expected
    name = f"checkpoints/iteration_{last:06d}"
    assert _digests(run_dir / name) == _digests(tmp_path / "straight" / name)
    evaluated = run_main("evaluate", "faulty://runs/a/run", "evaluation.evaluation_duration=1")
    assert evaluated.code == 0, evaluated.err
    assert "has already been fetched into" in evaluated.err


def test_a_refusal_in_mid_run_does_not_end_it(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    refusals: list[str] = []

    def refuse(path: str) -> bool:
        is_refused = "/files/" in path and len(refusals) < 3
        refusals.extend([path] * is_refused)
        return is_refused

    store.refused = staticmethod(refuse)
    outcome = run_main(*START, "hydra.run.dir=run", "stop.training_iteration=6", "checkpoint.upload_to=faulty://runs")
    assert (outcome.code, outcome.err) == (0, "")
    told = [line for line in outcome.out.splitlines() if "upload" in line and "faulty" in line]
    assert [line.partition(":")[0] for line in told[1:]] == [
        "the upload to faulty",
        "the upload to faulty",
    ]
    assert "failed and will be retried: PermissionError: Access Denied" in told[1]
    assert "works again after 3 failures" in told[2]
    assert "failed and will be retried" in (tmp_path / "run" / "runner.log").read_text()
    assert _stored_checkpoints() == checkpoints_of(tmp_path / "run")
    _assert_whole()


def test_a_store_that_stays_refused_ends_no_run_and_is_told(
    run_main: Run, tmp_path: Path, store: type[FaultyStore]
) -> None:
    store.refused = staticmethod(lambda path: "checkpoints/" in path)
    outcome = run_main(*START, "hydra.run.dir=run", "stop.training_iteration=2", "checkpoint.upload_to=faulty://runs")
    assert (outcome.code, outcome.err) == (0, "")
    assert "the newest files are not in faulty://runs/run, only in the run dir" in outcome.out
    assert checkpoints_of(tmp_path / "run") == ["iteration_000002"]


def test_training_does_not_wait_for_uploads(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    store.pause_s = 0.2  # 12 files of the first checkpoint take longer than all iterations
    outcome = run_main(
        *START, "hydra.run.dir=run", "stop.training_iteration=8", "checkpoint.keep_last=1",
        "checkpoint.upload_to=faulty://runs",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert _stored_checkpoints() == checkpoints_of(tmp_path / "run") == ["iteration_000008"]
    _assert_whole()
    sent = [path for path in store.written if path.endswith("manifest.json")]
    assert len(sent) < 4, "an upload that is behind skips what is not the newest any more"


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_for_an_upload(tmp_path: Path, store: type[FaultyStore]) -> None:
    save_checkpoint(tmp_path / "run/checkpoints/iteration_000001", {"part": {}}, {"result": {}})
    notes: list[str] = []
    one = uploads.Uploads("faulty://runs", tmp_path / "run", None, notes.append)
    store.pause_s = 5.0
    one.request()
    while not any("/files/" in path for path in store.written):
        time.sleep(0.01)
    began_s = time.monotonic()
    one.give_up()
    one.finish(lambda: None)
    assert time.monotonic() - began_s < 4.0
    one._thread.join()  # what it sends belongs to no other test
    assert not notes


def test_a_refusal_before_training_is_the_users(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    store.refused = staticmethod(lambda path: True)
    outcome = run_main(*START, "hydra.run.dir=run", "checkpoint.upload_to=faulty://runs")
    assert (outcome.code, outcome.out) == (2, "")
    assert shown_problems(outcome.err) == [
        Problem(
            "checkpoint.upload_to: the store cannot be used",
            where="faulty://runs/run",
            got="PermissionError: Access Denied: /runs/run/environment.json",
            fix="use a store that can be written",
        )
    ]
    assert not (tmp_path / "run/progress.jsonl").exists()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "s4://bucket/runs",
            Problem(
                "checkpoint.upload_to has an unknown file system",
                where="override checkpoint.upload_to=s4://bucket/runs",
                got="s4://bucket/runs",
                expected=Including("a URL with a protocol of fsspec: ", " more)"),
            ),
        ),
        (
            "tos://bucket/runs",
            Problem(
                "checkpoint.upload_to needs a package that is not installed",
                where="override checkpoint.upload_to=tos://bucket/runs",
                got="tos://bucket/runs",
                fix="pip install tosfs",
            ),
        ),
    ],
)
def test_a_wrong_url_is_found_by_validate(run_main: Run, tmp_path: Path, url: str, expected: Problem) -> None:
    outcome = run_main("validate", *START, f"checkpoint.upload_to={url}")
    assert outcome.code == 2
    assert_error(outcome.err, ConfigError([expected]), tmp_path)


HELD = Problem(
    "checkpoint.upload_to: the store already has a run of this name",
    where="faulty://runs/run",
    got="iteration_000002",
    fix="use another hydra.run.dir or checkpoint.upload_to, or runner resume faulty://runs/run",
)


def test_another_run_of_the_name_is_not_written_over(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    upload = "checkpoint.upload_to=faulty://runs"
    assert run_main(*START, "hydra.run.dir=run", "stop.training_iteration=2", upload).code == 0
    before = _stored()
    outcome = run_main(*START, "hydra.run.dir=elsewhere/run", "stop.training_iteration=2", upload)
    assert outcome.code == 2
    assert shown_problems(outcome.err) == [HELD]
    assert _stored() == before


def test_a_run_dir_that_is_behind_does_not_go_on(run_main: Run, tmp_path: Path, store: type[FaultyStore]) -> None:
    upload = "checkpoint.upload_to=faulty://runs"
    assert run_main(*START, "hydra.run.dir=run", "stop.training_iteration=2", upload).code == 0
    elsewhere = ("hydra.run.dir=elsewhere/run", "stop.training_iteration=4")
    assert run_main("resume", "faulty://runs/run", *elsewhere).code == 0
    before = _stored()
    outcome = run_main("resume", "run", "stop.training_iteration=6")
    assert outcome.code == 2
    assert shown_problems(outcome.err) == [
        Problem(
            "checkpoint.upload_to: the store has a newer checkpoint of this run than the run dir",
            where="faulty://runs/run",
            got="iteration_000004",
            fix="use runner resume faulty://runs/run in another folder, or set checkpoint.upload_to=null",
        )
    ]
    fetched = run_main("resume", "faulty://runs/run", "hydra.run.dir=run", "stop.training_iteration=6")
    assert fetched.code == 2
    assert shown_problems(fetched.err, tmp_path) == [
        Problem(
            "this run dir differs from faulty://runs/run",
            where="TMP/run",
            got="iteration_000002 locally, iteration_000004 in the store",
            fix="use RUN_DIR=TMP/run for the local copy, or another hydra.run.dir=DIR for the copy in the store",
        )
    ]
    assert _stored() == before


def test_going_back_to_an_older_checkpoint_drops_later_ones_in_the_store(
    run_main: Run, tmp_path: Path, store: type[FaultyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the resumed run ends before its next checkpoint. Else the store would be ahead of the run dir."""
    upload = "checkpoint.upload_to=faulty://runs"
    assert run_main(*START, "hydra.run.dir=run", "stop.training_iteration=4", upload).code == 0
    assert _stored_checkpoints() == ["iteration_000002", "iteration_000004"]

    def interrupt_twice(records: RunRecords, result: Any) -> None:
        wait_until(lambda: "/runs/run/checkpoints/iteration_000004/manifest.json" not in FaultyStore.store)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunRecords, "add", interrupt_twice)
        assert run_main("resume", "run/checkpoints/iteration_000002", "stop.training_iteration=6").code == 130
    assert run_main("resume", "run", "stop.training_iteration=6").code == 0
    assert _stored_checkpoints() == checkpoints_of(tmp_path / "run") == ["iteration_000004", "iteration_000006"]
    _assert_whole()


def test_no_such_run(run_main: Run, store: type[FaultyStore]) -> None:
    outcome = run_main("resume", "faulty://runs/none")
    assert (outcome.code, outcome.out) == (2, "")
    assert shown_problems(outcome.err) == [
        Problem(
            "this checkpoint is not in the store",
            where="faulty://runs/none",
            got="no checkpoints",
            expected="the URL of a run uploaded by checkpoint.upload_to, or of one of its checkpoints",
        )
    ]
    assert run_main("evaluate", "tos://bucket/run").code == 2


def test_what_is_cut_off_or_altered_in_the_store_is_not_taken(
    run_main: Run, tmp_path: Path, store: type[FaultyStore]
) -> None:
    run_main(*START, "hydra.run.dir=run", "stop.training_iteration=4", "checkpoint.upload_to=faulty://runs")
    newest = read_manifest(tmp_path / "run/checkpoints/iteration_000004")["files"]["learners.safetensors"]
    path = f"/runs/run/checkpoints/files/{newest}"
    content = store.store[path].getvalue()
    for damaged in (content[:-1], content[:-1] + b"?"):
        FaultyStore("").pipe_file(path, damaged)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        outcome = run_main("resume", "faulty://runs/run", "hydra.run.dir=copy", "stop.training_iteration=3")
        assert "iteration_000004 is incomplete in the store, using the previous one" in outcome.err
        assert "resume " + str(tmp_path / "copy/checkpoints/iteration_000002") in outcome.out
        FaultyStore.store.pop("/runs/run/checkpoints/iteration_000003/manifest.json", None)
        _restore(tmp_path / "run")


def _restore(run_dir: Path) -> None:
    """Bring the store to the state of the run dir again."""
    uploads.StoredCopy(open_store("faulty://runs/run", "RUN_DIR"), run_dir).send()


def test_a_kill_in_mid_upload_leaves_the_checkpoint_before(
    start_main: Start, run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process, a store on disk, killed while files of a checkpoint are there and its manifest is not."""
    bucket = tmp_path / "bucket"
    upload = f"checkpoint.upload_to=file://{bucket}"
    process = start_main(*START, "hydra.run.dir=run", upload, "stop.training_iteration=100000")
    manifests, deadline = bucket / "run/checkpoints", time.monotonic() + WAIT_S
    while True:
        names = {path.parent.name for path in manifests.glob("*/manifest.json")}
        wanted = {digest for name in names for digest in _named(manifests / name / "manifest.json")}
        files = {path.name for path in (manifests / "files").glob("*")}
        if names and files - wanted:  # of the next one
            process.kill()
            break
        assert time.monotonic() < deadline
    process.wait()
    shutil.rmtree(tmp_path / "run")
    done = max(int(path.parent.name.removeprefix("iteration_")) for path in manifests.glob("*/manifest.json"))
    bound = f"stop.training_iteration={done + 2}"
    outcome = run_main("resume", f"file://{bucket}/run", "hydra.run.dir=run", bound)
    assert outcome.code == 0, outcome.err
    assert run_main(*START, "hydra.run.dir=straight", bound).code == 0
    expected = lines_of(tmp_path / "straight")
    assert lines_of(tmp_path / "run") == expected


def test_a_checkpoint_that_is_replaced_while_it_is_sent_is_complete(tmp_path: Path, store: type[FaultyStore]) -> None:
    checkpoint, numbers = tmp_path / "run/checkpoints/iteration_000001", [1, 2]

    def save() -> None:
        save_checkpoint(checkpoint, {"part": {"number": numbers.pop(0)}}, {"result": {}})

    def replace_it(path: str) -> bool:
        if "/files/" in path and numbers:
            save()
        return False

    save()
    store.refused = staticmethod(replace_it)
    uploads.StoredCopy(open_store("faulty://runs/run", uploads.KEY), tmp_path / "run").send()
    files = _stored()
    assert json.loads(files["checkpoints/iteration_000001/manifest.json"]) == read_manifest(checkpoint)
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items() if "/files/" in path}
    assert digests == {f"checkpoints/files/{digest}": digest for digest in read_manifest(checkpoint)["files"].values()}


def test_a_local_store_has_the_old_record_until_it_has_the_new_one(tmp_path: Path) -> None:
    """A kill in mid-write must not leave the cut beginning of a record where the whole one was."""
    files = open_store(f"file://{tmp_path}/run", "checkpoint.upload_to")
    files.write("progress.jsonl", b"one\n")
    with (tmp_path / "run/progress.jsonl").open("rb") as old:
        files.write("progress.jsonl", b"one\ntwo\n")
        assert old.read() == b"one\n", "the file was written over"
    assert files.read("progress.jsonl") == b"one\ntwo\n"
    assert list(files.sizes()) == ["progress.jsonl"]


def test_a_local_store_keeps_modes_and_links(tmp_path: Path) -> None:
    files = open_store(f"file://{tmp_path}/run", "checkpoint.upload_to")
    files.write("result.json", b"old")
    record, place = tmp_path / "run/result.json", tmp_path / "elsewhere.json"
    record.chmod(0o664)
    record.rename(place)
    record.symlink_to(place)
    files.write("result.json", b"new")
    assert record.is_symlink()
    assert place.read_bytes() == b"new"
    assert place.stat().st_mode & 0o777 == 0o664


def test_a_run_dir_at_a_url_and_its_local_copy() -> None:
    url = "s3://bucket/outputs/runs/one"
    copy = Path.cwd() / local_copy_of(url)
    assert copy == Path.cwd() / "outputs/s3/bucket/outputs/runs/one"
    assert url_of_run("s3://bucket/outputs/runs", copy) == url
    assert run_dir_of(url, "s3://bucket/outputs/runs") == copy
    assert url_of_run("s3://bucket/outputs/runs", Path("/scratch/one")) == url
    assert local_copy_of("file:///mnt/../one/") == Path("outputs/file/mnt/one")


def test_a_run_dir_at_a_url_is_a_local_copy_and_an_upload(
    run_main: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: type[FaultyStore],
) -> None:
    started = run_main(*START, "hydra.run.dir=faulty://runs/run/", "stop.training_iteration=2")
    copy = tmp_path / "outputs/faulty/runs/run"
    assert (started.code, started.err) == (0, "")
    assert f"  run dir      {copy}" in started.out.splitlines()
    assert "  upload to    faulty://runs/run" in started.out.splitlines()
    assert not (tmp_path / "faulty:").exists()
    assert _stored_checkpoints() == checkpoints_of(copy) == ["iteration_000002"]
    _assert_whole()
    resumed = run_main("resume", "faulty://runs/run", "stop.training_iteration=4")
    assert resumed.code == 0, resumed.err
    assert f"has already been fetched into {copy}" in resumed.err
    other_machine = tmp_path / "other"
    other_machine.mkdir()
    monkeypatch.chdir(other_machine)
    refused = run_main(*START, "hydra.run.dir=faulty://runs/run", "stop.training_iteration=2")
    assert refused.code == 2
    assert shown_problems(refused.err) == [replace(HELD, got="iteration_000004")]
    resumed = run_main("resume", "faulty://runs/run", "stop.training_iteration=6")
    assert resumed.code == 0, resumed.err
    assert f"into {other_machine / 'outputs/faulty/runs/run'}" in resumed.err
    assert _stored_checkpoints()[-1] == "iteration_000006"
    _assert_whole()
    assert all(path.startswith("/runs/run/") for path in store.store)


def test_a_run_dir_at_a_url_from_a_file_and_from_python(
    run_main: Run, tmp_path: Path, store: type[FaultyStore]
) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [ppo_cartpole]\nhydra: {run: {dir: 'faulty://runs/${experiment_name}/a b'}}\n"
        "experiment_name: mine\n"
    )
    outcome = run_main("--config-dir", "conf", "+experiment=mine", *QUICK, "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    assert checkpoints_of(tmp_path / "outputs/faulty/runs/mine/a b") == ["iteration_000001"]
    assert _stored("mine/a b")["progress.jsonl"]
    url = "hydra.run.dir=faulty://runs/run"
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, url, "stop.training_iteration=1"]) as trainer:
        run = fit(trainer)
    assert run.path == tmp_path / "outputs/faulty/runs/run"
    assert _stored_checkpoints() == ["iteration_000001"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            ["hydra.run.dir=file:///runs/run", "checkpoint.upload_to=file:///others"],
            Problem(
                "hydra.run.dir and checkpoint.upload_to are two different URLs for the files of the run",
                where="override hydra.run.dir=file:///runs/run, override checkpoint.upload_to=file:///others",
                got="file:///runs/run and file:///others",
                expected="hydra.run.dir=file:///runs/run without checkpoint.upload_to; or hydra.run.dir=FOLDER",
            ),
            id="two_places",
        ),
        pytest.param(
            ["hydra.run.dir=file:///run"],
            Problem(
                "hydra.run.dir is not the URL of a run",
                where="override hydra.run.dir=file:///run",
                got="file:///run",
                expected="STORE/NAME, such as s3://bucket/run or file:///mnt/runs/run",
            ),
            id="no_run",
        ),
        pytest.param(
            ["hydra.run.dir=tos://bucket/run"],
            Problem(
                "hydra.run.dir needs a package that is not installed",
                where="override hydra.run.dir=tos://bucket/run",
                got="tos://bucket/run",
                fix="pip install tosfs",
            ),
            id="no_package",
        ),
        pytest.param(
            ["-m", "seed=1,2", "hydra.sweep.dir=file:///sweeps/sweep"],
            Problem(
                "hydra.sweep.dir is a URL, but a sweep needs a local folder",
                where="override hydra.sweep.dir=file:///sweeps/sweep",
                got="file:///sweeps/sweep",
                expected=(
                    "hydra.sweep.dir=FOLDER; with checkpoint.upload_to=file:///sweeps/sweep each trial "
                    "uploads its run dir"
                ),
            ),
            id="sweep_dir",
        ),
        pytest.param(
            ["-m", "seed=1,2", "hydra.run.dir=file:///runs/run"],
            Problem(
                "hydra.run.dir is the URL of one run, and a sweep (-m) has many",
                where="hydra.run.dir",
                got="file:///runs/run",
                expected="checkpoint.upload_to=file:///runs/run instead: each trial uploads its run dir",
            ),
            id="run_of_sweep",
        ),
    ],
)
def test_mistakes_of_run_dirs_at_urls_are_found_by_validate(
    run_main: Run, tmp_path: Path, overrides: list[str], expected: Problem
) -> None:
    outcome = run_main("validate", "+experiment=ppo_cartpole", *overrides)
    assert outcome.code == 2
    assert_error(outcome.err, ConfigError([expected]), tmp_path)


@pytest.mark.parametrize("same", ["file:///runs/run", "file:///runs"])
def test_the_same_place_twice_is_no_mistake(run_main: Run, same: str) -> None:
    overrides = ("hydra.run.dir=file:///runs/run", f"checkpoint.upload_to={same}")
    outcome = run_main("validate", "+experiment=ppo_cartpole", *overrides)
    assert outcome.code == 0, outcome.err


def test_a_stored_run_goes_on_in_a_local_folder(run_main: Run) -> None:
    outcome = run_main("resume", "run", "hydra.run.dir=file:///runs/run")
    assert outcome.code == 2
    assert shown_problems(outcome.err) == [
        Problem(
            "the run dir of a stored run must be a local folder",
            where="override hydra.run.dir",
            got="file:///runs/run",
            fix="hydra.run.dir=FOLDER; with checkpoint.upload_to=file:///runs `resume` uploads it",
        )
    ]


def test_what_a_killed_write_left_is_removed(run_main: Run, tmp_path: Path) -> None:
    left = tmp_path / "bucket/run/.progress.jsonl.999.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("{")
    upload = f"checkpoint.upload_to=file://{tmp_path}/bucket"
    outcome = run_main(*START, "hydra.run.dir=run", upload, "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    assert not left.exists()
    assert (tmp_path / "bucket/run/progress.jsonl").read_bytes() == (tmp_path / "run/progress.jsonl").read_bytes()


def _named(manifest: Path) -> list[str]:
    try:
        return list(json.loads(manifest.read_text())["files"].values())
    except (OSError, ValueError):  # dropped, or being written
        return []
