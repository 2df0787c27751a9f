"""The sampler: time is given to the functions that took it, all of it, and nothing is left behind."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from runner.config.errors import UserError
from runner.profiling.sampler import Sampler, Samples, collapsed_lines


def sleep() -> None:
    time.sleep(0.3)


def compute() -> None:
    ends = time.perf_counter() + 0.3
    while time.perf_counter() < ends:
        sum(range(100))


def call_natively() -> None:
    """One long call during which Python handles no signal."""
    np.sort(np.random.default_rng(0).random(16_000_000))


def begin() -> None:
    """Takes no time, and is where Python handles the signals of its caller's arithmetic."""


def calculate() -> None:
    values, ends = np.ones(200_000), time.perf_counter() + 0.3
    while time.perf_counter() < ends:
        _ = values * values + values - values * 2
        begin()


def sampled(*functions: object) -> tuple[Samples, float]:
    sampler = Sampler()
    started = time.perf_counter()
    sampler.start()
    for function in functions:
        function()  # type: ignore[operator]
    samples = sampler.stop()
    return samples, time.perf_counter() - started


def seconds_in(samples: Samples, function: str) -> float:
    return sum(of for stack, of in samples.by_stack().items() if any(frame.function == function for frame in stack))


def test_time_is_given_to_the_functions_that_took_it() -> None:
    samples, wall_s = sampled(sleep, compute)
    assert samples.wall_s == pytest.approx(wall_s, abs=0.05)
    assert seconds_in(samples, "sleep") == pytest.approx(0.3, abs=0.1)
    assert seconds_in(samples, "compute") == pytest.approx(0.3, abs=0.1)
    assert samples.num_samples > 100


def test_a_long_native_call_counts_in_full() -> None:
    samples, _ = sampled(call_natively)
    assert samples.wall_s > 0.1
    assert seconds_in(samples, "call_natively") > 0.9 * samples.wall_s


def test_arithmetic_counts_for_the_function_that_does_it() -> None:
    samples, _ = sampled(calculate)
    assert seconds_in(samples, "calculate") > 0.25
    assert seconds_in(samples, "begin") < 0.03


def test_nothing_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    sampled(sleep)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_timer_of_others_is_left_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    try:
        with pytest.raises(UserError, match=r"the timer of this process is already in use \(signal.setitimer"):
            Sampler().start()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 90
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_only_the_main_thread_can_be_sampled() -> None:
    told = []

    def start() -> None:
        with pytest.raises(UserError, match="only the main thread") as error:
            Sampler().start()
        told.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert told


def test_collapsed_stacks_are_what_flame_graph_tools_read() -> None:
    samples, _ = sampled(sleep)
    lines = list(collapsed_lines({"driver": samples}))
    [line] = [line for line in lines if line.split(" ")[0].startswith("driver;") and ";sleep (" in line]
    stack, _, microseconds = line.rpartition(" ")
    assert stack.split(";")[-1].startswith("sleep (tests/profiling/test_sampler.py:")
    assert int(microseconds) == pytest.approx(300_000, abs=100_000)
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == pytest.approx(samples.wall_s * 1e6, abs=len(lines))
