"""Checks of environments, wrappers and connectors that `validate` makes from their source code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.config.conftest import ReportOf
from tests.support.configs import config_from

CODE = """
raise RuntimeError("validate imports nothing of this")
import functools
import gymnasium as gym
from gymnasium.wrappers import NormalizeReward
from runner.environments import MultiAgentCartPole
from runner.pipelines import Connector, ConnectorPipeline

class Maze(gym.Env):
    def __init__(self, size, *, walls=()): ...

class NamedMaze(Maze):
    def __init__(self, name, **others):
        super().__init__(**others)

class FixedMaze(Maze):
    def __init__(self, **others):
        super().__init__(3, **others)

class LooseMaze(Maze):
    def __init__(self, size, **others):
        super().__init__(size, **others)
        print(others)

class Mazes(gym.vector.VectorEnv):
    def __init__(self, num_envs, size=3): ...

class Agents(MultiAgentCartPole): ...

class Wrapped(gym.Wrapper):
    def __init__(self, env, factor): ...

class Plain:
    def __init__(self, size=3): ...

def make_maze(size): return Maze(size)

def make_mazes(num_envs, size=3): return Mazes(num_envs, size)

@functools.cache
def make_cached(size): return Maze(size)

def rewarded(env, *, times=2): return env

class Connector(Connector):
    def __init__(self, factor): ...

class Pipeline(ConnectorPipeline): ...
"""
TARGETS = "my_rooms.code"


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "my_rooms"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    assert "my_rooms.code" not in sys.modules


def with_env(name: str, env_config: str = "{}", wrappers: str = "[]") -> list[str]:
    target = [f"env._target_={TARGETS}.{name}", f"env.env_config={env_config}", f"env.wrappers={wrappers}"]
    return ["+experiment=ppo_cartpole", "env.env=null", *target]


def with_connector(connector: str) -> list[str]:
    return ["+experiment=ppo_cartpole", f"connectors.learner=[{{append: {connector}}}]"]


GOOD = {
    "class": with_env("Maze", "{size: 3}"),
    "keyword arguments for the base class": with_env("NamedMaze", "{name: a, size: 3, walls: [1]}"),
    "an argument that is given to the base class": with_env("FixedMaze", "{walls: [1]}"),
    "keyword arguments for anything": with_env("LooseMaze", "{size: 3, colour: red}"),
    "sub-environments together": with_env("Mazes", "{size: 3}"),
    "agents": with_env("Agents", "{num_agents: 3}"),
    "function": with_env("make_maze", "{size: 3}"),
    "function that makes all": with_env("make_mazes"),
    "decorated function": with_env("make_cached", "{colour: red}"),
    "wrappers": with_env(
        "make_maze",
        "{size: 3}",
        f"[{{_target_: {TARGETS}.Wrapped, factor: 3}}, {{_target_: {TARGETS}.rewarded, times: 3}}, "
        f"{{_target_: gymnasium.wrappers.NormalizeReward, gamma: 0.9}}, {{_target_: {TARGETS}.NormalizeReward}}]",
    ),
    "connector": with_connector(f"{{_target_: {TARGETS}.Connector, factor: 3}}"),
    "pipeline": with_connector(
        f"{{_target_: {TARGETS}.Pipeline, connectors: [{{_target_: {TARGETS}.Connector, factor: 3}}]}}"
    ),
}
BAD = {
    "path in the place of an id": (
        ["+experiment=ppo_cartpole", f"env.env={TARGETS}.Agents"],
        f"the environment {TARGETS}.Agents is not registered",
        f"expected env._target_={TARGETS}.Agents instead of env.env",
    ),
    "path into a package that is not there": (
        ["+experiment=ppo_cartpole", "env.env=my_roms.code.Agents"],
        "the environment my_roms.code.Agents is not registered",
        "module:id imports the module",
    ),
    "id with dots": (
        ["+experiment=ppo_cartpole", "env.env=my_rooms.Maze-v1"],
        "the environment my_rooms.Maze-v1 is not registered",
        "module:id imports the module",
    ),
    "unknown argument": (
        with_env("Maze", "{size: 3, wals: []}"),
        "Maze does not take the argument wals",
        "did you mean  walls",
    ),
    "missing argument": (with_env("Maze"), "Maze needs the argument size", "env.env_config"),
    "unknown argument for the base class": (
        with_env("NamedMaze", "{name: a, size: 3, wals: []}"),
        "NamedMaze does not take the argument wals",
        "did you mean  walls",
    ),
    "missing argument of the base class": (with_env("NamedMaze", "{name: a}"), "needs the argument size", "name"),
    "argument that is given already": (
        with_env("FixedMaze", "{size: 3}"),
        "FixedMaze does not take the argument size",
        "walls",
    ),
    "missing argument beside others": (
        with_env("LooseMaze", "{colour: red}"),
        "needs the argument size",
        "where         override env.env_config={colour: red}",
    ),
    "unknown argument of all": (
        with_env("Mazes", "{sze: 3}"),
        "Mazes does not take the argument sze",
        "did you mean  size",
    ),
    "unknown argument of a function": (
        with_env("make_maze", "{sze: 3}"),
        "make_maze does not take the argument sze",
        "size",
    ),
    "missing argument of a function": (with_env("make_maze"), "make_maze needs the argument size", "size"),
    "no environment": (with_env("Plain"), "is not a subclass of gymnasium.Env", "env._target_"),
    "wrapper without a path": (with_env("make_mazes", wrappers="[{factor: 3}]"), "env.wrappers.0 must be", "_target_"),
    "wrapper that is not there": (
        with_env("make_mazes", wrappers=f"[{{_target_: {TARGETS}.Wraped}}]"),
        f"env.wrappers.0._target_: {TARGETS} does not define Wraped",
        "did you mean  Wrapped",
    ),
    "missing argument of a wrapper": (
        with_env("make_mazes", wrappers=f"[{{_target_: {TARGETS}.Wrapped}}]"),
        "env.wrappers.0: Wrapped needs the argument factor",
        "expected      factor",
    ),
    "unknown argument of a wrapper": (
        with_env("make_mazes", wrappers="[{_target_: gymnasium.wrappers.NormalizeReward, gama: 0.9}]"),
        "env.wrappers.0: NormalizeReward does not take the argument gama",
        "did you mean  gamma",
    ),
    "wrappers that are no list": (with_env("make_mazes", wrappers="3"), "env.wrappers has the wrong type", "a list"),
    "argument of an id": (
        ["+experiment=ppo_pendulum", "env.env_config.gravity=9"],
        "PendulumEnv does not take the argument gravity",
        "expected      g, render_mode",
    ),
    "module of an id": (
        ["+experiment=ppo_cartpole", "env.env='my_rooms.cde:Maze-v0'"],
        "package my_rooms does not contain a module cde",
        "where         override env.env='my_rooms.cde:Maze-v0'",
    ),
    "module of an id that is no package": (
        ["+experiment=ppo_cartpole", "env.env='my_romos:Maze-v0'"],
        "there is no package my_romos",
        "where         override env.env='my_romos:Maze-v0'",
    ),
    "function for a module": (
        ["+experiment=ppo_cartpole", f"module._target_={TARGETS}.make_maze"],
        f"module._target_: {TARGETS}.make_maze is a function",
        "a subclass of runner.modules.RLModule",
    ),
    "no mapping": (
        ["+experiment=ppo_multi_agent_cartpole_shared", f"multi_agent.agent_to_module={{_target_: {TARGETS}.Plain}}"],
        f"multi_agent.agent_to_module._target_: {TARGETS}.Plain is not a subclass of AgentMapping",
        "where         override multi_agent.agent_to_module",
    ),
    "no loss": (
        ["+experiment=ppo_cartpole", f"algorithm.loss={TARGETS}.Plain"],
        f"algorithm.loss: {TARGETS}.Plain is not a subclass of runner.learners.loss.Loss",
        "Plain",
    ),
    "no connector": (
        with_connector(f"{{_target_: {TARGETS}.Plain}}"),
        "is not a subclass of runner.pipelines.Connector",
        "",
    ),
    "missing argument of a connector": (
        with_connector(f"{{_target_: {TARGETS}.Connector}}"),
        "needs the argument factor",
        "factor",
    ),
    "connector of a pipeline": (
        with_connector(f"{{_target_: {TARGETS}.Pipeline, connectors: [{{_target_: {TARGETS}.Connector, facto: 3}}]}}"),
        "connectors.learner.0.append.connectors.0._target_: Connector does not take the argument facto",
        "did you mean  factor",
    ),
    "connector of a pipeline in a pipeline": (
        with_connector(
            f"{{_target_: {TARGETS}.Pipeline, connectors: [{{_target_: {TARGETS}.Pipeline, "
            f"connectors: [{{_target_: {TARGETS}.Plain}}]}}]}}"
        ),
        "connectors.learner.0.append.connectors.0.connectors.0._target_",
        "is not a subclass",
    ),
    "pipeline without connectors": (
        with_connector(f"{{_target_: {TARGETS}.Pipeline}}"),
        "needs the argument connectors",
        "",
    ),
    "connectors that are no list": (
        with_connector(f"{{_target_: {TARGETS}.Pipeline, connectors: 3}}"),
        "connectors must be a list of connectors",
        "",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_source_admits(name: str) -> None:
    config_from(*GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_the_source_refuses(name: str, report_of: ReportOf) -> None:
    overrides, *messages = BAD[name]
    report = report_of(overrides)
    assert report.startswith("1 problem")
    for message in messages:
        assert message in " ".join(report.split()) or message in report
