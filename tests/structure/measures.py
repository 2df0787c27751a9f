"""How large and how entangled the package is: read from its sources, except for the calls, which a training counts."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.structure.imports import import_graph, shortest_cycle

SMALL_PPO = (
    "+experiment=ppo_cartpole",
    "env_runners.num_envs_per_env_runner=2",
    "algorithm.train_batch_size_per_learner=16",
    "algorithm.minibatch_size=null",
    "algorithm.num_epochs=1",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
    "stop={training_iteration: 1}",
)


def measures(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each measure of the tree below `root`."""
    sources = {file: file.read_text(encoding="utf-8") for file in sorted((root / "runner").rglob("*.py"))}
    lengths = np.array(sorted(length for text in sources.values() for length in _function_lengths(text)))
    yield "lines in `runner/`", f"{sum(text.count(chr(10)) for text in sources.values()):,}"
    yield "files in `runner/`", str(len(sources))
    yield "import cycles", "none" if shortest_cycle(import_graph(root, "runner")) is None else "some"
    yield "public class names used twice", str(sum(len(files) > 1 for files in classes_by_name(root).values()))
    yield "files outside `curriculum/` that mention the curriculum", str(len(files_that_mention(root, "curriculum")))
    yield "golden files", str(sum(file.is_file() for file in (root / "tests" / "golden").rglob("*")))
    median, p90 = np.percentile(lengths, [50, 90])
    yield "lines of functions, median / 90 % / longest", f"{median:.0f} / {p90:.0f} / {lengths[-1]}"


def classes_by_name(root: Path) -> Mapping[str, list[str]]:
    """Return where each public class name of the package is defined, as `file:line`."""
    files_of: dict[str, list[str]] = defaultdict(list)
    for file in sorted((root / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files_of[node.name].append(f"{file.relative_to(root)}:{node.lineno}")
    return files_of


def files_that_mention(root: Path, feature: str) -> list[str]:
    """Return the modules outside of the folder of a feature in which its name occurs, in any case."""
    files = (file.relative_to(root) for file in sorted((root / "runner").rglob("*.py")))
    return [
        str(file)
        for file in files
        if feature not in file.parts and feature in (root / file).read_text(encoding="utf-8").lower()
    ]


def calls_from_the_loop_to_the_loss(run_dir: Path) -> list[str]:
    """Train PPO for one iteration; return the functions of the package on the stack, training loop first, loss last."""
    from runner.cli.main import main
    from runner.learners.ppo import PPOLoss

    stacks: list[list[str]] = []
    plain_call = PPOLoss.__call__

    def recorded_call(*args: Any, **kwargs: Any) -> Any:
        stacks.append(_package_functions_on_the_stack())
        return plain_call(*args, **kwargs)

    with mock.patch.object(PPOLoss, "__call__", recorded_call):
        exit_code = main([*SMALL_PPO, f"hydra.run.dir={run_dir}"])
    if exit_code != 0 or not stacks:
        raise RuntimeError(f"the training ended with exit code {exit_code} and {len(stacks)} losses")
    names = [*stacks[-1], "PPOLoss.__call__"]
    return names[names.index("Run.train_until_stopped") :]


def _package_functions_on_the_stack() -> list[str]:
    """Return the qualified names of the running functions of `runner`, the oldest first."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "runner":
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names[::-1]


def _function_lengths(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1
