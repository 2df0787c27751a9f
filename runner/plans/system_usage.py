"""CPU, memory and GPU use of a run, read from /proc and from NVIDIA's management library."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.config.metrics import (
    CPU_PERCENT,
    GPU_MEMORY_GB,
    GPU_PERCENT,
    MEMORY_PERCENT,
    RUN_CPUS,
    RUN_MEMORY_GB,
)

_PROC = Path("/proc")
_INTERVAL_S = 1.0
_PAUSE_PER_WORK = 500  # a sample takes at most this fraction of the time since the sample before it
_PAGE_BYTES, _TICKS_PER_S = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
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
        usage: Usage = {
            CPU_PERCENT: now.cpu_percent_since(before),
            RUN_CPUS: now.run_cpus_since(before),
            MEMORY_PERCENT: _memory_percent(),
            RUN_MEMORY_GB: now.run_bytes / 1e9 if now.run_ticks else None,
        }
        return usage | _gpu_usage() if self._has_gpus else usage


@dataclass(frozen=True)
class _Counters:
    """Counters of the machine and of the processes of the run.

    Attributes:
        time_s: time of the reading.
        busy, total: ticks of all CPUs.
        run_ticks: process id -> ticks of CPU time.
        run_bytes: resident memory of the processes.
    """

    time_s: float
    busy: int
    total: int
    run_ticks: Mapping[int, int]
    run_bytes: int

    def cpu_percent_since(self, before: _Counters) -> float | None:
        total = self.total - before.total
        return 100.0 * (self.busy - before.busy) / total if total > 0 else None

    def run_cpus_since(self, before: _Counters) -> float | None:
        """Return the mean number of CPUs that the processes kept busy."""
        if not self.run_ticks or self.time_s <= before.time_s:
            return None
        ticks = sum(ticks - before.run_ticks.get(process, 0) for process, ticks in self.run_ticks.items())
        return ticks / _TICKS_PER_S / (self.time_s - before.time_s)


def _read_counters() -> _Counters:
    processes = {process: (parent, ticks, size) for process, parent, ticks, size in _read_processes()}
    family = _family(os.getpid(), {process: parent for process, (parent, _, _) in processes.items()})
    busy, total = _read_cpus()
    return _Counters(
        time_s=time.perf_counter(),
        busy=busy,
        total=total,
        run_ticks={process: processes[process][1] for process in family},
        run_bytes=sum(processes[process][2] for process in family),
    )


def _read_cpus() -> tuple[int, int]:
    """Return the ticks that all CPUs were busy, and all ticks."""
    try:
        ticks = [int(text) for text in (_PROC / "stat").read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, and waiting for a disk


def _read_processes() -> Iterator[tuple[int, int, int, int]]:
    """Yield id, parent, ticks of CPU time and resident bytes of each process of the machine."""
    try:
        names = [name for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return
    for name in names:
        with suppress(OSError, ValueError, IndexError):  # the process has ended
            fields = _read(f"{_PROC}/{name}/stat").rpartition(b")")[2].split()  # the name may contain spaces
            yield int(name), int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_BYTES


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _family(root: int, parents: Mapping[int, int]) -> list[int]:
    """Return a process with its descendants; empty if it is unknown."""
    children: dict[int, list[int]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    family = [root] if root in parents else []
    for process in family:
        family += children.get(process, [])
    return family


def _memory_percent() -> float | None:
    try:
        lines = dict(line.split(":") for line in (_PROC / "meminfo").read_text().splitlines())
        total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, LookupError):
        return None
    return 100.0 * (1 - available / total)


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
