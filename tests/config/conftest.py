"""Fixtures of the configuration tests: reports of problems, and a custom folder of configuration files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium
import pytest

from runner.config.errors import ConfigError, Problem, render_problems
from tests.support.configs import config_from

# Types of the fixtures.
ProblemsOf = Callable[..., list[Problem]]
ReportOf = Callable[..., str]
WriteConfig = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def only_environments_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides what other tests of the process registered: messages list the environments that are known."""
    plugins = ("ale_py", "minigrid")
    known = {name: spec for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith(plugins)}
    monkeypatch.setattr(gymnasium, "registry", known)


@pytest.fixture
def problems_of() -> ProblemsOf:
    """Return the problems that overrides lead to; fail when they are accepted."""

    def problems(overrides: Sequence[str], config_dir: Path | None = None) -> list[Problem]:
        with pytest.raises(ConfigError) as caught:
            config_from(*overrides, config_dir=config_dir)
        return list(caught.value.problems)

    return problems


@pytest.fixture
def report_of(problems_of: ProblemsOf) -> ReportOf:
    """Return the rendered problems that overrides lead to; fail when they are accepted."""
    return lambda *arguments: render_problems(problems_of(*arguments))


@pytest.fixture
def write_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteConfig:
    """Writes a file of a user's own --config-dir, which it returns; the folder around it is current."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / "my_conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return tmp_path / "my_conf"

    return write
