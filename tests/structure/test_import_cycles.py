"""No module of `runner` imports itself through others, including imports in functions and for type checking."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.structure.imports import import_graph, shortest_cycle

ROOT = Path(__file__).parents[2]


def test_runner_has_no_import_cycle() -> None:
    graph = import_graph(ROOT, "runner")
    assert len(graph) > 300  # so that an empty folder does not pass
    cycle = shortest_cycle(graph)
    assert cycle is None, f"import cycle: {' -> '.join(cycle)}; move what both need into a module of its own"


def test_env_runners_start_without_hydra() -> None:
    builders = "runner.experiment.env_runner_builder, runner.experiment.league_builder, runner.curriculum.feature"
    code = f"import sys, {builders}; sys.exit(' '.join({{'hydra', 'omegaconf'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "from pkg import b", "b.py": "import pkg.c"}, None),
        ({"a.py": "from pkg import b", "b.py": "import pkg.a"}, ["pkg.a", "pkg.b", "pkg.a"]),
        ({"a.py": "from pkg.b import f", "b.py": "def f():\n    from .a import x"}, ["pkg.a", "pkg.b", "pkg.a"]),
        (
            {
                "a.py": "from pkg import b",
                "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.a",
            },
            ["pkg.a", "pkg.b", "pkg.a"],
        ),
        ({"sub/__init__.py": "from .a import x", "sub/a.py": "from pkg.sub import b", "sub/b.py": ""}, None),
        ({"sub/__init__.py": "from .a import x", "sub/a.py": "from . import x"}, ["pkg.sub", "pkg.sub.a", "pkg.sub"]),
        (
            {
                "a.py": "import pkg.b",
                "b.py": "import pkg.c",
                "c.py": "import pkg.a, pkg.d",
                "d.py": "class D:\n    import pkg.c",
            },
            ["pkg.c", "pkg.d", "pkg.c"],
        ),
    ],
    ids=["chain", "cycle", "in function", "type checking", "package of submodules", "name of package", "shortest"],
)
def test_finds_the_shortest_cycle(tmp_path: Path, files: Mapping[str, str], expected: list[str] | None) -> None:
    for name, text in {"__init__.py": "", "c.py": "", **files}.items():
        file = tmp_path / "pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert shortest_cycle(import_graph(tmp_path, "pkg")) == expected
