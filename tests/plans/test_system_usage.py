"""CPU and memory of a run, as metrics of each iteration."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from runner.config.metrics import CPU_PERCENT, GPU_MEMORY_GB, GPU_PERCENT, MEMORY_PERCENT, RUN_CPUS, RUN_MEMORY_GB
from runner.plans import system_usage
from runner.plans.system_usage import SystemUsage

_BYTES = 300_000_000
_CHILD = f"memory = bytearray({_BYTES}); print(flush=True); input()"


def value_of(usage: SystemUsage, metric: str) -> float:
    value = usage.metrics()[metric]
    assert value is not None
    return value


def work(seconds: float) -> None:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def test_a_process_that_works_keeps_a_cpu_busy() -> None:
    usage, started_s, worked_s = SystemUsage(), time.perf_counter(), 0.3
    work(worked_s)
    cpus = value_of(usage, RUN_CPUS)
    share = worked_s / (time.perf_counter() - started_s)  # the machine may be busy with other processes
    assert 0.8 * share < cpus < 1.3
    assert 0 < value_of(usage, CPU_PERCENT) <= 100
    assert 0 < value_of(usage, MEMORY_PERCENT) < 100


def test_memory_of_started_processes_counts() -> None:
    alone_gb = value_of(SystemUsage(), RUN_MEMORY_GB)
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child_gb = value_of(SystemUsage(), RUN_MEMORY_GB)
        child.communicate(b"\n")
    assert with_child_gb - alone_gb == pytest.approx(_BYTES / 1e9, rel=0.2)


def test_a_sample_is_repeated_until_the_next_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_usage, "_INTERVAL_S", 3600.0)
    usage = SystemUsage()
    first = usage.metrics()
    memory = bytearray(_BYTES)
    assert usage.metrics() == first
    monkeypatch.setattr(system_usage, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(system_usage, "_PAUSE_PER_WORK", 0.0)
    usage = SystemUsage()
    first = usage.metrics()
    del memory
    assert usage.metrics() != first


def test_samples_of_two_runs_are_independent() -> None:
    first, second = SystemUsage(), SystemUsage()
    work(0.2)
    assert value_of(second, CPU_PERCENT) > 0
    assert value_of(first, CPU_PERCENT) > 0


def test_a_system_that_cannot_be_read_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "virtual_memory", denied)
    assert set(SystemUsage().metrics().values()) == {None}


def test_gpus_are_reported_on_request() -> None:
    assert not {GPU_PERCENT, GPU_MEMORY_GB} & SystemUsage().metrics().keys()
    assert {GPU_PERCENT, GPU_MEMORY_GB} <= SystemUsage(has_gpus=True).metrics().keys()
