"""`check-env ENV`: violations of the environment contract, and speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments, UsageError
from runner.config.compose import compose_experiment
from runner.config.env import env_override
from runner.config.errors import Problem
from runner.config.paths import search_dirs
from runner.config.rules import ENV_RULES
from runner.config.validation import build_experiment_config

if TYPE_CHECKING:
    from runner.testing.environment_findings import EnvironmentCheck


def main(arguments: Arguments) -> int:
    """Check the environment; return 1 if it has a fault."""
    others = [text for text in arguments.overrides if not text.lstrip("+~").startswith(("env.", "debug="))]
    if others:
        raise UsageError(Problem("check-env accepts only keys of `env`", None, others[0], "env.KEY=VALUE"))
    name, named = arguments.words[0], env_override(arguments.words[0], search_dirs(arguments.config_dir))
    if any(text.lstrip("+").startswith("env.backend=") for text in arguments.overrides):
        named = f"env.env={name}"  # the wrappers that belong to an id are for environments of Gymnasium
    composed = compose_experiment([named, *arguments.overrides], arguments.config_dir)
    env = build_experiment_config(composed, ENV_RULES).env
    from runner.testing import inspect_environment

    check = inspect_environment(env)
    print(render_check(env.name, check))
    return 1 if check.faults else 0


def render_check(name: str, check: EnvironmentCheck) -> str:
    """Render faults, warnings and measurements, in this order."""
    width = max(map(len, check.facts), default=0)
    paragraphs = [
        *_section("fault", check.faults),
        *_section("warning", check.warnings),
        "\n".join(f"{fact:<{width}}  {value}" for fact, value in check.facts.items()),
    ]
    verdict = "not usable as it is" if check.faults else "usable"
    return "\n\n".join([f"{name}: {verdict}", *paragraphs])


def _section(kind: str, problems: Sequence[Problem]) -> list[str]:
    if not problems:
        return []
    plural = "" if len(problems) == 1 else "s"
    return [f"{len(problems)} {kind}{plural}", *(one.render(n) for n, one in enumerate(problems, start=1))]
