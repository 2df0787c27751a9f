"""Videos: files that a player shows, filmed evaluations of a run, and `play`."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from runner.config.errors import ConfigError, RunFailure, UserError
from runner.config.paths import zoo_dir
from runner.experiment.trainer import Trainer
from runner.pages.page import Video, render
from runner.pages.run_page import run_page
from runner.pages.run_record import read_run
from runner.videos import VideoFile, frame_of
from tests.conftest import QUICK, ROOT, WAIT_S, MakeRun, Run, result_of
from tests.support.configs import config_from

RUN = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=2")
NUM_FRAMES, HEIGHT, WIDTH = 40, 60, 81  # an odd width: H.264 keeps colours for pairs of pixels


def frames() -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return pictures of a bright square that moves to the right."""
    made = []
    for number in range(NUM_FRAMES):
        frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        frame[20:40, number : number + 20] = (250, 120, 30)
        made.append(frame)
    return made


def decoded(path: Path) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the pictures of an MP4 file."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_an_mp4_shows_what_was_added(tmp_path: Path) -> None:
    with VideoFile(tmp_path / "a" / "b.mp4", 25.0) as video:
        for frame in frames():
            video.add(frame)
    shown = decoded(tmp_path / "a" / "b.mp4")
    assert len(shown) == NUM_FRAMES
    assert shown[0].shape == (HEIGHT, WIDTH - 1, 3)
    for made, seen in zip(frames(), shown, strict=True):
        assert np.abs(made[:, :-1].astype(int) - seen).mean() < 10
    with av.open(str(tmp_path / "a" / "b.mp4")) as container:
        assert container.streams.video[0].average_rate == 25


def test_a_gif_is_a_preview(tmp_path: Path) -> None:
    path = tmp_path / "b.gif"
    with VideoFile(path, 50.0) as video:
        for number in range(200):
            frame = np.full((400, 640, 3), number, np.uint8)
            video.add(frame)
    with Image.open(path) as image:
        assert image.size == (320, 200)
        assert image.info["duration"] == 80  # every fourth picture
        assert image.n_frames == 50  # type: ignore[attr-defined]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), VideoFile(tmp_path / "b.mp4", 25.0) as video:
        video.add(frames()[0])
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"must be \.mp4 or \.gif"):
        VideoFile(tmp_path / "b.avi", 25.0)


class Blind(gym.Env[Any, Any]):
    """Renders what it is told to."""

    def __init__(self, shown: Any = None, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)
        self.render_mode, self._shown = render_mode, shown

    def render(self) -> Any:
        if isinstance(self._shown, Exception):
            raise self._shown
        return self._shown


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, "got           NoneType"),
        (np.zeros((3, 4, 4), np.uint8), r"got           uint8 \(3, 4, 4\)"),
        (np.zeros((3, 4, 3)), "got           float64"),
        (ZeroDivisionError("no lamp"), "raised ZeroDivisionError in render: no lamp"),
    ],
)
def test_what_is_no_picture(shown: Any, message: str) -> None:
    with pytest.raises(RunFailure, match=message):
        frame_of(Blind(shown))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("a.mp4", "a.gif"):
        with pytest.raises(UserError, match="the video cannot be written"):
            VideoFile(tmp_path / "file" / name, 25.0)


def test_a_film_that_fails_is_told_and_the_run_goes_on(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no room for films")

    monkeypatch.setattr(VideoFile, "add", fail)
    outcome = run_main(
        "+experiment=ppo_cartpole", *QUICK, "evaluation.evaluation_interval=1", "evaluation.video={every: 1}",
        "hydra.run.dir=run", "stop.training_iteration=2",
    )  # fmt: skip
    assert outcome.code == 0
    assert outcome.out.count("was not recorded as a video") == 2
    assert "no room for films" in outcome.out
    assert list((tmp_path / "run" / "videos").iterdir()) == []
    assert (tmp_path / "run" / "checkpoints" / "iteration_000002").is_dir()


def test_links_to_videos_are_left_out(copy_of_run: MakeRun, tmp_path: Path) -> None:
    run_dir = copy_of_run(*RUN)
    (tmp_path / "private.mp4").write_bytes(b"private")
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "iteration_000009.mp4").symlink_to(tmp_path / "private.mp4")
    assert read_run(run_dir).videos == []


def test_filmed_evaluations_of_a_run(run_main: Run, tmp_path: Path) -> None:
    filmed = ("evaluation.evaluation_interval=1", "evaluation.video={every: 2, episodes: 2}")
    outcome = run_main(
        "+experiment=ppo_cartpole", *QUICK, *filmed, "hydra.run.dir=run", "stop.training_iteration=3",
        "evaluation.num_envs_per_env_runner=1", "evaluation.evaluation_duration=2",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    found = sorted(path.name for path in (tmp_path / "run" / "videos").iterdir())
    assert found == [f"iteration_00000{n}.{kind}" for n in (2, 3) for kind in ("gif", "mp4")]  # the last one, too
    mean_length = result_of(tmp_path / "run")["evaluation/env_runners/episode_len_mean"]
    shown = decoded(tmp_path / "run" / "videos" / "iteration_000003.mp4")
    assert len(shown) == 2 * mean_length + 2  # the very episodes that were evaluated, and two resets
    assert len({picture.tobytes() for picture in shown}) > 5
    page = run_page(read_run(tmp_path / "run"))
    (video,) = [block for section in page.sections for block in section.blocks if isinstance(block, Video)]
    assert (
        base64.b64decode(video.url.removeprefix("data:video/mp4;base64,"))
        == (tmp_path / "run" / "videos" / "iteration_000003.mp4").read_bytes()
    )
    assert f'src="{video.url}"' in render(page)


def test_filming_changes_nothing_else() -> None:
    results = []
    for video in ("{}", "{every: 1}"):
        overrides = [*QUICK, "evaluation.evaluation_interval=1", f"evaluation.video={video}"]
        with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
            trainer.train()
            if trainer.config.evaluation.video:
                trainer.evaluator.record_videos(trainer.parts, [], 1)
            trainer.train()
            results.append(trainer.learners.get_weights()["default_policy"])
    assert len(results[0]) > 100
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.video={every: 0}"], "evaluation.video.every must be a positive integer"),
        (["evaluation.video={evry: 1}"], "did you mean  every"),
        (["evaluation.video=true"], "expected      a block of the keys episodes, every"),
        (["evaluation.video={every: 1}", "evaluation.evaluation_interval=null"], "evaluation.video needs evaluations"),
        (["evaluation.video={every: often}"], "evaluation.video.every"),
    ],
)
def test_mistakes_are_told(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_from("+experiment=ppo_cartpole", *overrides)
    assert message in str(raised.value)


def test_several_agents_are_filmed(tmp_path: Path) -> None:
    """Both poles, one above the other, a picture for each observation of the longer episode."""
    with Trainer.from_experiment("ppo_multi_agent_cartpole", ["tracking=none"]) as trainer:
        episodes = trainer.evaluator.record_videos(trainer.parts, [tmp_path / "episode.mp4"], 1)
    shown = decoded(tmp_path / "episode.mp4")
    assert len(shown) == episodes.lengths[0] + 1
    assert shown[0].shape == (800, 600, 3)
    assert (shown[0][:400] != shown[0][400:]).any()


def test_what_cannot_be_filmed_is_told_before_training() -> None:
    with pytest.raises((ConfigError, RunFailure), match="render"):
        Trainer.from_experiment(
            "qmix_two_step_game", ["evaluation.video={every: 1}", "evaluation.evaluation_interval=1"]
        )


@pytest.mark.parametrize(
    "experiment", ["her_bit_flipping", "ppo_dict_cartpole", "ppo_masked_cartpole", "ppo_stateless_cartpole_lstm"]
)
def test_bundled_environments_are_filmed(experiment: str, tmp_path: Path) -> None:
    with Trainer.from_experiment(experiment, ["tracking=none"]) as trainer:
        episodes = trainer.evaluator.record_videos(trainer.parts, [tmp_path / "episode.mp4"], 1)
    shown = decoded(tmp_path / "episode.mp4")
    assert len(shown) == episodes.lengths[0] + 1
    assert (shown[0] != shown[-1]).any()


# -- play --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_play_a_policy_file_in_an_environment_that_is_stepped_together(run_main: Run, tmp_path: Path) -> None:
    """With a memory, which starts anew with each episode."""
    outcome = run_main("play", "zoo:ppo_stateless_cartpole_lstm", "--output", "a.mp4", "--episodes", "2")
    assert outcome.code == 0, outcome.err
    found = re.search(r"return ([\d.]+), ([\d.]+)$", outcome.out, re.MULTILINE)
    assert found is not None
    returns = [float(found[1]), float(found[2])]
    assert min(returns) > 100, "a policy that sees nothing of the past has about 50"
    assert len(decoded(tmp_path / "a.mp4")) == sum(returns) + 2


def test_play_a_run_and_its_policy_file(copy_of_run: MakeRun, run_main: Run, tmp_path: Path) -> None:
    copy_of_run(*RUN)
    outcome = run_main("play", "run", "--output", "run.mp4", "--episodes", "2")
    assert outcome.code == 0, outcome.err
    returns = [float(text) for text in outcome.out.splitlines()[0].rpartition("return ")[2].split(", ")]
    assert len(decoded(tmp_path / "run.mp4")) == sum(returns) + 2
    assert run_main("play", "run", "--output", "run.mp4", "--trust", "--force").code == 0
    assert run_main("export", "run", "policy.onnx").code == 0
    outcome = run_main("play", "policy.onnx", "env=cartpole", "--output", "policy.gif")
    assert outcome.code == 0, outcome.err
    assert "played 1 episode of policy.onnx" in outcome.out
    with Image.open(tmp_path / "policy.gif") as image:
        assert image.n_frames > 1  # type: ignore[attr-defined]
    for arguments, message in {
        ("policy.onnx", "env=pendulum"): "got           Box([3], float32)\n   expected      Box([4], float32)\n",
        ("policy.onnx",): "does not name its environment",
        ("nothing.onnx", "env=cartpole"): "the policy file does not exist",
        ("run", "--config-dir", "conf"): "a run contains its configuration",
        ("zoo:ppo_sb3_cartpole", "--trust"): "the policies of the zoo are trusted",
    }.items():
        outcome = run_main("play", *arguments, "--output", "x.gif")
        assert outcome.code == 2
        assert message in outcome.err
    assert not (tmp_path / "x.gif").exists()


def zoo_policies() -> list[Any]:
    """Return the names of the zoo's policies."""
    no_egl = pytest.mark.skipif(find_library("EGL") is None, reason="MuJoCo draws by EGL, which is not here")
    names = sorted(path.stem for path in zoo_dir().glob("*.onnx"))
    return [pytest.param(name, marks=no_egl) if name == "ppo_inverted_pendulum" else name for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", zoo_policies())
def test_every_policy_of_the_zoo_plays(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    outcome = run_main("play", f"zoo:{experiment}", "--output", "zoo.gif")
    assert outcome.code == 0, outcome.err
    assert f"played 1 episode of zoo:{experiment}: return " in outcome.out
    with Image.open(tmp_path / "zoo.gif") as image:
        assert image.n_frames > 1  # type: ignore[attr-defined]


def test_play_a_policy_of_the_zoo(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main("play", "zoo:ppo_sb3_cartpole", "--output", "zoo.gif")
    assert outcome.code == 0, outcome.err
    assert float(outcome.out.splitlines()[0].rpartition("return ")[2]) > 200
    outcome = run_main("play", "zoo:ppo_sb3_cartpol", "--output", "zoo.gif")
    assert outcome.code == 2
    assert "did you mean  ppo_sb3_cartpole" in outcome.err


@pytest.mark.parametrize("name", ["nothing", "nothing.onnx"])
def test_a_missing_run_is_reported_before_a_missing_display(
    run_main: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(variable, raising=False)
    outcome = run_main("play", name)
    assert outcome.code == 2
    assert "does not exist" in outcome.err
    assert "display" not in outcome.err


def test_play_in_a_window(copy_of_run: MakeRun, tmp_path: Path) -> None:
    run_dir = copy_of_run(*RUN)
    command = [sys.executable, "-m", "runner", "play", str(run_dir)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert outcome.returncode == 2
    assert "a window needs a display" in outcome.stderr
    environment |= {
        "SDL_VIDEODRIVER": "dummy",
        "RUNNER_KEY": "a key that the tests made up",
    }  # a window that nobody sees
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert outcome.returncode == 0, outcome.stderr
    assert "played 1 episode" in outcome.stdout
