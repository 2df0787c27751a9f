"""Microseconds per vector step without callbacks, without the code that calls hooks, and with hooks.

CartPole, eight sub-environments in one process; processor time; the variants are interleaved.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import statistics
import textwrap
import time
from typing import Any

from runner.callbacks import Callback
from runner.env_runners import stepping_env_runner as module
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.stepping_env_runner import SteppingEnvRunner
from runner.experiment.env_runner_builder import make_env_runner

NUM_ENVS = 8
OVERRIDES = [f"env_runners.num_envs_per_env_runner={NUM_ENVS}", "evaluation=none"]


class EpisodeEnds(Callback):
    """Called at the end of each episode; does nothing."""

    def on_episode_end(self, **kwargs: Any) -> None:
        """Do nothing."""


class EpisodeSteps(Callback):
    """Called after each step of each sub-environment; does nothing."""

    def on_episode_step(self, **kwargs: Any) -> None:
        """Do nothing."""


class _WithoutHooks(ast.NodeTransformer):
    """Removes the loops over hooks."""

    def visit_For(self, node: ast.For) -> ast.AST | None:
        return None if ast.unparse(node.iter) in ("self._before_reset", "self._on_step") else node


def without_hooks() -> type[SingleAgentEnvRunner]:
    """Return the env runner without the lines that call hooks."""
    methods: dict[str, Any] = {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(SteppingEnvRunner._vector_step)))
    exec(compile(_WithoutHooks().visit(tree), "_vector_step", "exec"), vars(module), methods)  # our own source
    return type("WithoutHooks", (SingleAgentEnvRunner,), methods)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2000, help="vector steps per repeat")
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are meaningless")
    arguments = parser.parse_args()
    repeats, steps = (1, 50) if arguments.quick else (arguments.repeats, arguments.steps)
    bare = make_env_runner("ppo_cartpole", OVERRIDES)
    bare.__class__ = without_hooks()
    runners = {"without the code of hooks": bare, "callbacks: []": make_env_runner("ppo_cartpole", OVERRIDES)}
    for callback in (EpisodeEnds, EpisodeSteps):
        block = f"callbacks=[{{_target_: {callback.__module__}.{callback.__name__}}}]"
        runners[callback.__name__] = make_env_runner("ppo_cartpole", [*OVERRIDES, block])
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeats + 1):  # the first one is a warm-up
        for name, runner in runners.items():
            begun = time.process_time()
            runner.sample(steps * NUM_ENVS)
            seconds[name].append(time.process_time() - begun)
    of_bare = seconds["without the code of hooks"][1:]
    print("| runner | us per vector step | ratio to no hooks, median of pairs (min-max) |\n| --- | --- | --- |")
    for name, measured in seconds.items():
        ratios = [ours / theirs for ours, theirs in zip(measured[1:], of_bare, strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        print(f"| {name} | {1e6 * statistics.median(measured[1:]) / steps:.1f} | {spread} |")


if __name__ == "__main__":
    main()
