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
_NVML_LIBRARY = "libnvidia-ml.so.1"

Usage = dict[str, float | None]


class SystemUsage:
    """Samples the use of the machine, at most once per second.

    Args:
        has_gpus: whether to report GPUs.
    """

    def __init__(self, has_gpus: bool = False) -> None:
        self._has_gpus = has_gpus
        psutil.cpu_percent()  # begins to measure
        self._before = _Run.read()
        self._newest: Usage | None = None
        self._next_s = 0.0

    def metrics(self) -> Usage:
        """Return the newest sample: metric -> value, or None for GPUs without a driver."""
        if self._newest is None or time.perf_counter() >= self._next_s:
            started_s = time.thread_time()
            self._newest = self._sample()
            work_s = time.thread_time() - started_s
            self._next_s = time.perf_counter() + max(_INTERVAL_S, _PAUSE_PER_WORK * work_s)
        return dict(self._newest)

    def _sample(self) -> Usage:
        before, now = self._before, _Run.read()
        self._before = now
        usage: Usage = {
            CPU_PERCENT: psutil.cpu_percent(),
            RUN_CPUS: now.cpus_since(before),
            MEMORY_PERCENT: psutil.virtual_memory().percent,
            RUN_MEMORY_GB: now.num_bytes / 1e9,
        }
        return usage | _gpu_usage() if self._has_gpus else usage


@dataclass(frozen=True)
class _Run:
    """Use of the machine by this process and its descendants.

    Attributes:
        time_s: time of the reading.
        cpu_s: process id -> seconds of CPU time.
        num_bytes: resident memory.
    """

    time_s: float
    cpu_s: Mapping[int, float]
    num_bytes: int

    @classmethod
    def read(cls) -> _Run:
        this = psutil.Process()
        cpu_s: dict[int, float] = {}
        num_bytes = 0
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():  # the process has ended
                used = process.cpu_times()
                num_bytes += process.memory_info().rss
                cpu_s[process.pid] = used.user + used.system
        return cls(time.perf_counter(), cpu_s, num_bytes)

    def cpus_since(self, before: _Run) -> float:
        """Return the mean number of CPUs that the processes kept busy."""
        used_s = sum(cpu_s - before.cpu_s.get(process, 0.0) for process, cpu_s in self.cpu_s.items())
        return used_s / (self.time_s - before.time_s)


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
