"""CPU, memory and GPU use of a run; GPUs are read with NVIDIA's management library."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import psutil

from runner.config.metrics import (
    CPU_PERCENT,
    GPU_MEMORY_GB,
    GPU_PERCENT,
    MEMORY_PERCENT,
    RUN_CPUS,
    RUN_MEMORY_GB,
)

_INTERVAL_S = 1.0
_PAUSE_PER_WORK = 500  # a sample takes at most this fraction of the time since the sample before it
_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # they are part of `user` and `nice`
_NVML_LIBRARY = "libnvidia-ml.so.1"

Usage = dict[str, float | None]


class SystemUsage:
    """Samples the use of the machine, at most once per second.

    Args:
        has_gpus: whether to report GPUs.
    """

    def __init__(self, has_gpus: bool = False) -> None:
        self._has_gpus = has_gpus
        self._before = _read_counters()
        self._newest: Usage | None = None
        self._next_s = 0.0

    def metrics(self) -> Usage:
        """Return the newest sample: metric -> value, or None if the system does not report it."""
        if self._newest is None or time.perf_counter() >= self._next_s:
            started_s = time.thread_time()
            self._newest = self._sample()
            work_s = time.thread_time() - started_s
            self._next_s = time.perf_counter() + max(_INTERVAL_S, _PAUSE_PER_WORK * work_s)
        return dict(self._newest)

    def _sample(self) -> Usage:
        before, now = self._before, _read_counters()
        self._before = now
        usage: Usage = dict.fromkeys((CPU_PERCENT, RUN_CPUS, MEMORY_PERCENT, RUN_MEMORY_GB))
        if before is not None and now is not None:
            usage[CPU_PERCENT], usage[RUN_CPUS] = now.cpu_percent_since(before), now.run_cpus_since(before)
        if now is not None:
            usage[MEMORY_PERCENT], usage[RUN_MEMORY_GB] = now.memory_percent, now.run_bytes / 1e9
        return usage | _gpu_usage() if self._has_gpus else usage


@dataclass(frozen=True)
class _Counters:
    """Counters of the machine, and of this process and its descendants, which are the run.

    Attributes:
        time_s: time of the reading.
        busy_s, total_s: seconds of all CPUs.
        memory_percent: memory in use.
        run_s: process id -> seconds of CPU time.
        run_bytes: resident memory of the processes.
    """

    time_s: float
    busy_s: float
    total_s: float
    memory_percent: float
    run_s: Mapping[int, float]
    run_bytes: int

    def cpu_percent_since(self, before: _Counters) -> float | None:
        total_s = self.total_s - before.total_s
        return 100.0 * (self.busy_s - before.busy_s) / total_s if total_s > 0 else None

    def run_cpus_since(self, before: _Counters) -> float:
        """Return the mean number of CPUs that the processes kept busy."""
        used_s = sum(seconds - before.run_s.get(process, 0.0) for process, seconds in self.run_s.items())
        return used_s / (self.time_s - before.time_s)


def _read_counters() -> _Counters | None:
    """Return the counters, or None if the system does not report them."""
    run_s: dict[int, float] = {}
    run_bytes = 0
    try:
        cpus = psutil.cpu_times()._asdict()
        memory_percent = psutil.virtual_memory().percent
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.NoSuchProcess), process.oneshot():  # the process has ended
                used = process.cpu_times()
                run_bytes += process.memory_info().rss
                run_s[process.pid] = used.user + used.system
    except (psutil.Error, OSError):
        return None
    total_s = sum(cpus.values()) - sum(cpus.get(name, 0.0) for name in _COUNTED_TWICE)
    idle_s = sum(cpus.get(name, 0.0) for name in _IDLE)
    return _Counters(time.perf_counter(), total_s - idle_s, total_s, memory_percent, run_s, run_bytes)


# -- GPUs -------------------------------------------------------------------------------------------------------------


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@cache
def _nvml() -> ctypes.CDLL | None:
    """Return NVIDIA's management library, or None without a driver."""
    try:
        library = ctypes.CDLL(_NVML_LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _gpu_usage() -> Usage:
    """Return the mean use and the total memory in use of the GPUs of this machine."""
    found = list(_read_gpus())
    return {
        GPU_PERCENT: sum(percent for percent, _ in found) / len(found) if found else None,
        GPU_MEMORY_GB: sum(used for _, used in found) / 1e9 if found else None,
    }


def _read_gpus() -> Iterator[tuple[int, int]]:
    """Yield the use in percent and the used bytes of each GPU."""
    library, num = _nvml(), ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(num)):
        return
    for index in range(num.value):
        device, use, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        failures = (
            library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)),
            library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)),
            library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
        )
        if not any(failures):
            yield use.gpu, memory.used
