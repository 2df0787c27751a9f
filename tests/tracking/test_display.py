import io
import logging
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner.tracking import headline as summary_module
from runner.tracking.display import Display, DisplayInfo, PlainDisplay, logged_to_file
from runner.tracking.display_modes import make_display
from runner.tracking.headline import RunSummary, TimeLeft
from runner.tracking.live_display import LiveDisplay
from tests.conftest import AssertGolden, wait_until

INFO = DisplayInfo(
    "ppo_cartpole",
    {"environment": "CartPole-v1", "algorithm": "PPO", "run dir": "/runs/1"},
    {"num_env_steps_sampled_lifetime": 40_000, "env_runners/episode_return_mean": 450},
)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def metrics_of(iteration: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 4000 * iteration,
        "num_gradient_steps_lifetime": 320 * iteration,
        "env_steps_per_s": 31_000.0 + iteration,
        "env_runners/episode_return_mean": math.nan if iteration == 1 else 22.5 * iteration,
        "env_runners/episode_len_mean": 22.5 * iteration,
        "learners/default_policy/vf_loss": 9.1234567 / iteration,
        "learners/default_policy/policy_loss": -0.0123456,
        "learners/default_policy/entropy": 0.6931,
        "learners/default_policy/mean_kl_loss": 1.2345e-5,
    }
    if iteration % 5 == 0:
        metrics["evaluation/env_runners/episode_return_mean"] = 30.0 * iteration
    return metrics


def show(display: PlainDisplay | LiveDisplay, clock: Clock, last: int = 10, seconds: float = 0.4) -> None:
    display.start(INFO)
    for iteration in range(1, last + 1):
        clock.now_s += seconds
        display.update(metrics_of(iteration))
        if iteration == 5:
            display.note("checkpoint written")


def test_plain_display_golden(assert_golden: AssertGolden) -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock)
    show(display, clock)
    clock.now_s += 100.0  # the closing work is not the iteration's time
    display.finish(["finished: all done"])
    display.finish(["only once"])
    assert_golden("plain", stream.getvalue())


def test_plain_display_shows_every_iteration_when_asked_and_has_no_control_codes() -> None:
    stream, clock = io.StringIO(), Clock()
    show(PlainDisplay(stream, min_interval_s=0.0, clock=clock), clock)
    lines = stream.getvalue().splitlines()
    headers = [line for line in lines if line.startswith(" iter ")]
    rows = [line for line in lines if line[:5].strip().isdigit()]
    assert [line.rstrip().endswith("ETA  evaluation") for line in headers] == [False, True]
    assert len(rows) == 10
    assert "\x1b" not in stream.getvalue()
    assert {len(row) for row in rows} == {len(line) for line in headers}


def reading_of(iteration: int) -> dict[str, Any]:
    """Of a run on recorded data."""
    kept = {name: value for name, value in metrics_of(iteration).items() if not name.startswith("env_runners/")}
    queued = zip(("read", "prelearner", "learner"), (1936, 56, None), strict=True)
    return kept | {
        "offline_data/num_rows_read_lifetime": 1_018_070 * iteration,
        "offline_data/rows_read_per_s": 123_456.7,
        **{f"offline_data/queued_blocks_{stage}": number for stage, number in queued},
    }


def test_a_run_on_recorded_data_shows_what_it_reads() -> None:
    stream, clock = io.StringIO(), Clock()
    plain, live = PlainDisplay(stream, clock=clock), LiveDisplay(live_console(80), clock=clock)
    for display in (plain, live):
        display.start(replace(INFO, samples_episodes=False))
        assert " return " not in "\n".join(block_of(live, 80)[-4:])
        display.update(reading_of(5))
    live.finish([])
    header, line = stream.getvalue().splitlines()[-2:]
    assert header.split()[:8] == ["iter", "env", "steps", "rows", "rows/s", "queued", "steps/s", "policy"]
    assert line.split()[:6] == ["5", "20,000", "5,090,350", "123,457", "1,936/56/-", "31,005"]
    assert "return" not in header
    assert (header.split()[-1], line.split()[-1]) == ("evaluation", "150")
    block = block_of(live, 80)
    assert "rows read 5,090,350   rows/s 123,457     queued 1,936/56/-" in block
    assert "evaluation 150" in block
    assert not any("return" in line or "best" in line for line in block)


def test_queues_are_left_out_where_none_is_known() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.start(replace(INFO, samples_episodes=False))
    display.update({"offline_data/num_rows_read_lifetime": 3614, "offline_data/rows_read_per_s": 0.0})
    header, line = stream.getvalue().splitlines()[-2:]
    assert header.split()[:5] == ["iter", "env", "steps", "rows", "steps/s"]
    assert "3,614" in line.split()
    assert "queued" not in stream.getvalue()


def test_display_survives_a_stream_that_went_away() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock)
    stream.close()
    show(display, clock)
    display.finish(["done"])


class _FullAsciiStream(io.TextIOBase):
    """A stream that can neither encode a check mark nor store the replacement."""

    def write(self, text: str) -> int:
        text.encode("ascii")
        raise OSError("no space left on device")


def test_a_full_ascii_stream_raises_no_error() -> None:
    PlainDisplay(_FullAsciiStream()).note("\N{CHECK MARK}")  # type: ignore[arg-type]


def test_an_ascii_stream_gets_question_marks_and_no_error() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainDisplay(stream).note("caf\u00e9")
    stream.seek(0)
    assert stream.read() == "caf?\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_live_display_continues_after_text_that_the_terminal_cannot_encode(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=100, legacy_windows=False))
    display.note("run dir /runs/caf\udce9")  # as in a path whose bytes are not UTF-8
    display.note("next")
    stream.seek(0)
    assert stream.read() == "run dir /runs/caf?\nnext\n"


def test_auto_is_live_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display("auto", Terminal()), LiveDisplay)
    assert isinstance(make_display("auto", io.StringIO()), PlainDisplay)
    assert isinstance(make_display("plain", Terminal()), PlainDisplay)
    assert isinstance(make_display("live", io.StringIO()), LiveDisplay)
    assert type(make_display("none", Terminal())) is Display
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display("auto", Terminal()), PlainDisplay)


def live_console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), record=True, force_terminal=True, width=width, legacy_windows=False)


def block_of(display: LiveDisplay, width: int) -> list[str]:
    """The lines that the display draws in a terminal of `width` columns."""
    console = live_console(width)
    console.print(display.render())
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_cut_off_or_wrapped_in_a_narrow_terminal(width: int) -> None:
    console, clock = live_console(width), Clock()
    display = LiveDisplay(console, clock=clock)
    show(display, clock)
    lines = block_of(display, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for words in ("iteration 10", "steps/s 31,010", "episode length 225", "evaluation 300", "kl 1.234e-05", "100%"):
        assert words in text
    display.finish([])
    if width == 40:  # a criterion is never divided
        assert "  stop when    env steps >= 40,000\n" in console.export_text(clear=False)
        assert "\n               or mean return >= 450\n" in console.export_text()


def test_columns_stay_where_they_are_when_values_turn_negative() -> None:
    texts = []
    for sign in (1, -1):
        metrics = metrics_of(3) | {
            "env_runners/episode_return_mean": sign * 1234.56,
            "learners/default_policy/policy_loss": sign * 0.000123456,
            "learners/default_policy/vf_loss": sign * 1.23456e-5,
        }
        clock, stream = Clock(), io.StringIO()
        live, plain = LiveDisplay(live_console(80), clock=clock), PlainDisplay(stream, clock=clock)
        live.update(metrics)
        plain.update(metrics)
        texts.append([*block_of(live, 80), stream.getvalue()])
    labels = ("best", "episode length", "vf", "entropy", "kl", "steps/s", "elapsed")
    positions = [[line.find(f" {label} ") for label in labels for line in text] for text in texts]
    assert positions[0] == positions[1]


def test_a_run_that_reached_its_return_ends_with_a_full_bar_and_nothing_left() -> None:
    clock, stream = Clock(), io.StringIO()
    live, plain = LiveDisplay(live_console(), clock=clock), PlainDisplay(stream, clock=clock)
    for display in (live, plain):
        show(display, clock, last=3, seconds=0.3)  # 12,000 of 40,000 steps
    assert " 30%  " in block_of(live, 100)[-1]
    live.finish([], is_done=True)
    plain.finish([], is_done=True)
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * 30 + " 100%  0:00:0" in block_of(live, 100)[-1]
    assert block_of(live, 100)[-1].endswith(" elapsed")
    assert stream.getvalue().splitlines()[-1].endswith("   0:00:00")


def test_the_bar_of_a_run_that_was_interrupted_stays() -> None:
    clock = Clock()
    live = LiveDisplay(live_console(), clock=clock)
    show(live, clock, last=3)
    live.finish([])
    assert " 30%  0:00:01 elapsed" in block_of(live, 100)[-1]


def test_the_best_return_goes_on_after_a_resume() -> None:
    live = LiveDisplay(live_console())
    live.start(replace(INFO, best_return=499.5))
    live.update(metrics_of(3))
    live.finish([])
    assert any("best 499.5" in line for line in block_of(live, 100))


def test_live_display() -> None:
    console, clock = live_console(), Clock()
    display = LiveDisplay(console, clock=clock)
    show(display, clock)
    block = live_console()
    block.print(display.render())
    display.finish(["finished: all done"])
    assert [line.rstrip() for line in block.export_text().splitlines()] == [
        "iteration 10          env steps 40,000      updates 3,200       steps/s 31,010",
        "return 225         best 225         episode length 225         evaluation 300",
        "policy -0.01235    vf 0.9123      entropy 0.6931      kl 1.234e-05",
        "━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100%  0:00:04 elapsed, <=0:00:00 left",
    ]
    text = console.export_text()
    assert text.startswith("ppo_cartpole\n  environment  CartPole-v1\n")
    assert "checkpoint written\n" in text
    assert text.endswith("finished: all done\n")
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor is back


def test_live_display_draws_itself_and_leaves_no_thread() -> None:
    console = live_console()
    display = LiveDisplay(console)
    display.start(INFO)
    display.update(metrics_of(3))
    wait_until(lambda: "12,000" in console.file.getvalue())  # type: ignore[attr-defined]
    display.finish([])
    assert "live-display" not in [thread.name for thread in threading.enumerate()]


def test_time_left_is_the_first_steady_criterion() -> None:
    left = TimeLeft({"training_iteration": 100, "time_total_s": 1000.0}, {}, started_s=0.0)
    assert left.text(0.0) == "-"
    left.update({"training_iteration": 10, "time_total_s": 50.0}, now_s=50.0)
    assert left.seconds(50.0) == pytest.approx(450.0)
    assert left.seconds(60.0) == pytest.approx(440.0)
    assert left.text(50.0) == "0:07:30"
    assert left.fraction_done == pytest.approx(0.1)


def test_time_left_of_a_resumed_run_uses_the_rate_since_the_resume() -> None:
    left = TimeLeft({"training_iteration": 100}, {"training_iteration": 80}, started_s=0.0)
    left.update({"training_iteration": 85}, now_s=10.0)
    assert left.seconds(10.0) == pytest.approx(30.0)


def test_time_left_says_when_the_run_may_end_sooner_or_cannot_be_known() -> None:
    left = TimeLeft({"training_iteration": 100, "env_runners/episode_return_mean": 450}, {}, started_s=0.0)
    left.update({"training_iteration": 50}, now_s=10.0)
    assert left.text(10.0) == "<=0:00:10"
    unknown = TimeLeft({"env_runners/episode_return_mean": 450}, {}, started_s=0.0)
    unknown.update({"training_iteration": 50}, now_s=10.0)
    assert unknown.text(10.0) == "-"
    assert unknown.fraction_done is None


@pytest.mark.parametrize("limit", [math.inf, 1e308, 1e20])
def test_an_endless_run_is_shown(limit: float) -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock)
    display.start(replace(INFO, stop={"training_iteration": limit}))
    clock.now_s += 2.0
    display.update(metrics_of(1))
    header, row = stream.getvalue().splitlines()[-2:]
    assert (header.split()[-1], row.split()[-1]) == ("ETA", "-")


def test_a_run_that_was_logged_leaves_the_logging_of_its_caller_as_it_was(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with logged_to_file(tmp_path):
        logging.getLogger("some.package").info("one line")
    assert (root.level, root.handlers) == before
    assert (tmp_path / "runner.log").read_text().endswith("[some.package][INFO] - one line\n")


def test_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "ui_command", lambda uri: f"mlflow ui --backend-store-uri {uri}")
    summary = RunSummary(
        status="finished",
        stop_reason="num_env_steps_sampled_lifetime reached 200,000",
        iterations=50,
        env_steps=200_000,
        time_s=6.4,
        run_dir=Path("/outputs/ppo_cartpole/2026-01-31/10-00-00"),
        last_return=451.25,
        best_return=460.123456,
        evaluation_return=500.0,
        checkpoint=Path("/outputs/ppo_cartpole/2026-01-31/10-00-00/checkpoints/iteration_000050"),
        tracking_uri="sqlite:////outputs/mlflow.db",
        resume_command="runner resume /outputs/ppo_cartpole/2026-01-31/10-00-00",
    )
    assert summary.lines() == [
        "finished: num_env_steps_sampled_lifetime reached 200,000",
        "  iterations  50",
        "  env steps   200,000 (31,250 per second)",
        "  time        6.4 s",
        "  return      last 451.2, best 460.1, evaluation 500",
        "  run dir     /outputs/ppo_cartpole/2026-01-31/10-00-00",
        "  checkpoint  /outputs/ppo_cartpole/2026-01-31/10-00-00/checkpoints/iteration_000050",
        "  MLflow      mlflow ui --backend-store-uri sqlite:////outputs/mlflow.db",
        "  resume      runner resume /outputs/ppo_cartpole/2026-01-31/10-00-00",
    ]


def test_summary_of_a_run_on_recorded_data() -> None:
    summary = RunSummary("finished", "enough", 5, 20_000, 2.0, "/r", rows_read=18_070, rows_per_s=9035.0)
    lines = summary.lines()
    assert lines[3] == "  rows read   18,070 (9,035 per second)"
    assert not any("return" in line for line in lines)
    assert replace(summary, rows_per_s=None).lines()[3] == "  rows read   18,070"


def test_summary_of_a_run_that_failed_early_leaves_out_what_is_not_there() -> None:
    summary = RunSummary("failed", "the environment raised in reset", 0, 0, 7200.0, "/outputs/r")
    assert summary.lines() == [
        "failed: the environment raised in reset",
        "  iterations  0",
        "  env steps   0 (0 per second)",
        "  time        2:00:00",
        "  run dir     /outputs/r",
    ]
