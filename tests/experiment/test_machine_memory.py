"""Free memory, as the files of a machine and of its control groups tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.experiment.machine_memory import available_memory

MEMINFO = "MemTotal:       64000 kB\nMemFree:        100 kB\nMemAvailable:   40000 kB\n"
MACHINE = 40000 * 1024


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def version_2(group: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{group}"
    stat = f"anon 7\ninactive_file {inactive}\n"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": f"{used}\n", f"{folder}/memory.stat": stat}


def version_1(group: str, limit: int, used: int, inactive: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{group}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {inactive}\n",
    }


V2, V1 = {"proc/self/cgroup": "0::/a/b\n"}, {"proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/a\n0::/\n"}
CASES: dict[str, tuple[dict[str, str], int]] = {
    "no groups": ({}, MACHINE),
    "no limits": (V2 | version_2("a/b", "max\n", 5), MACHINE),
    "a limit": (V2 | version_2("a/b", "9000\n", 5000, inactive=700), 4700),
    "the limit of a group around": (V2 | version_2("a/b", "max\n", 5) | version_2("a", "6000\n", 100), 5900),
    "the tightest limit": (V2 | version_2("a/b", "6000\n", 100) | version_2("", "2000\n", 500), 1500),
    "a path of the machine outside": (V2 | version_2("", "2000\n", 500), 1500),
    "a limit above the machine": (V2 | version_2("a", f"{10**15}\n", 500), MACHINE),
    "nothing left": (V2 | version_2("a", "100\n", 500), 0),
    "version 1": (V1 | version_1("a", 9000, 5000, inactive=300), 4300),
    "version 1 without a limit": (V1 | version_1("a", 9223372036854771712, 5000), MACHINE),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_free(case: str, tmp_path: Path) -> None:
    files, expected = CASES[case]
    assert available_memory(machine(tmp_path, files)) == expected


def test_a_machine_that_tells_nothing_has_all_its_memory(tmp_path: Path) -> None:
    assert available_memory(tmp_path) >= available_memory() > 10**8
