"""`env=ID`: environments without a file in conf/env, and the settings that they start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs import registration
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.defaults import conf_dir
from runner.config.env_defaults import connectors_of, env_defaults_of, env_kinds, kinds_of
from runner.config.env_ids import env_option, id_table
from runner.config.paths import list_options
from runner.config.yaml_files import read_yaml
from tests.support.configs import config_from

STOP = "stop.training_iteration=1"
OURS = [conf_dir()]


def _composed(*overrides: str, config_dir: Path | None = None) -> Composed:
    composed = compose_experiment([*overrides, STOP], config_dir)
    assert composed.problems == ()
    return composed


def _problem(*overrides: str) -> str:
    [problem] = compose_experiment([*overrides, STOP]).problems
    return problem.render_alone()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("Acrobot-v1", {"env": "Acrobot-v1"}),
        ("MiniGrid-Empty-8x8-v0", {"defaults": ["/env/minigrid@_here_"], "env": "minigrid:MiniGrid-Empty-8x8-v0"}),
        ("mine:MiniGrid-Maze-v0", {"defaults": ["/env/minigrid@_here_"], "env": "mine:MiniGrid-Maze-v0"}),
        ("ALE/Pong-v5", {"defaults": ["/env/atari@_here_"], "env": "ale_py:ALE/Pong-v5"}),
        ("MinAtar/Asterix-v1", {"defaults": ["/env/minatar@_here_"], "env_config": {"game": "asterix"}}),
        ("package.module:Maze-v0", {"env": "package.module:Maze-v0"}),
        ("highway-fast-v0", {"env": "highway_env:highway-fast-v0"}),
        ("Acrobat-v1", None),
        ("cartpol", None),
        ("two words", None),
        ("../cartpole", None),
    ],
)
def test_an_id_is_an_option(name: str, content: dict[str, Any] | None) -> None:
    assert env_option(name) == content


def test_families_build_on_files_of_the_group() -> None:
    options = list_options(OURS, "env")
    for content in id_table()["families"].values():
        for base in content.get("defaults", []):
            assert base.removeprefix("/env/").removesuffix("@_here_") in options


def test_connectors_are_named_for_options_that_exist() -> None:
    assert set(id_table()["connectors"]) <= set(list_options(OURS, "env_defaults"))
    assert set(id_table()["connectors"].values()) <= set(list_options(OURS, "connectors"))


@pytest.mark.parametrize("name", [name for name in list_options(OURS, "env_defaults") if name != "none"])
def test_each_option_names_its_algorithm_and_is_valid(name: str) -> None:
    algorithm, _, kind = name.partition("_")
    assert kind
    env = "Pendulum-v1" if kind == "continuous" else "CartPole-v1"
    overrides = [f"algorithm={algorithm}", f"env={env}", f"env_defaults={name}", "connectors=default", STOP]
    config_from(*overrides)
    file = OURS[0] / "env_defaults" / f"{name}.yaml"
    assert set(read_yaml(file)) <= {"defaults", "algorithm", "module", "env_runners", "env"}


def test_values_come_from_the_file_of_the_kind() -> None:
    composed = _composed("env=Acrobot-v1")
    assert composed.values["env"]["env"] == "Acrobot-v1"
    assert composed.sources["env.env"] == "override env=Acrobot-v1"
    assert composed.sources["algorithm.lr"].startswith("conf/env_defaults/ppo_vector.yaml:")
    assert composed.sources["module.fcnet_hiddens"].startswith("conf/env_defaults/ppo_vector.yaml:")


def test_a_family_keeps_the_values_of_its_file() -> None:
    composed = _composed("env=MinAtar/SpaceInvaders-v1")
    assert composed.values["env"]["_target_"] == "runner.environments.MinAtar"
    assert composed.values["env"]["env_config"] == {"game": "space_invaders"}
    assert composed.sources["env._target_"] == "conf/env/minatar.yaml:2"


def test_what_users_write_comes_later(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "small.yaml").write_text("fcnet_hiddens: [7]\n")
    lines = ["# @package _global_", "defaults:", "  - override /env: Acrobot-v1", "  - override /module: small"]
    lines += ["  - override /connectors: normalize", "algorithm: {lr: 7e-3}"]
    (tmp_path / "experiment" / "mine.yaml").write_text("\n".join(lines))
    composed = _composed("experiment=mine", "env_runners.num_envs_per_env_runner=3", config_dir=tmp_path)
    values = composed.values
    assert values["algorithm"]["lr"] == 7e-3
    assert values["module"]["fcnet_hiddens"] == [7]
    assert values["env_runners"]["num_envs_per_env_runner"] == 3
    assert [edit["connector"]["_target_"] for edit in values["connectors"]["env_to_module"]] == [
        "runner.pipelines.MeanStdFilter"
    ]
    assert composed.sources["env.env"].endswith("experiment/mine.yaml:3")
    assert composed.sources["algorithm.num_epochs"].startswith("conf/env_defaults/ppo_vector.yaml:")


def test_files_and_other_algorithms_keep_their_defaults() -> None:
    of_file = _composed("env=acrobot").values
    assert of_file["algorithm"] == _composed("env.env=Acrobot-v1").values["algorithm"]
    assert _composed("env=Acrobot-v1", "env_defaults=none").values["algorithm"] == of_file["algorithm"]
    assert (
        _composed("env=Acrobot-v1", "algorithm=pg").values["algorithm"]
        == (_composed("env=acrobot", "algorithm=pg").values["algorithm"])
    )


def test_an_option_of_the_user_extends_the_table(tmp_path: Path) -> None:
    (tmp_path / "env_defaults").mkdir()
    (tmp_path / "env_defaults" / "pg_vector.yaml").write_text("# @package _global_\nalgorithm: {lr: 7e-3}\n")
    assert _composed("env=Acrobot-v1", "algorithm=pg", config_dir=tmp_path).values["algorithm"]["lr"] == 7e-3


def test_an_environment_may_have_a_custom_option(tmp_path: Path) -> None:
    (tmp_path / "env_defaults").mkdir()
    (tmp_path / "env_defaults" / "ppo_Acrobot.yaml").write_text("# @package _global_\nalgorithm: {lr: 7e-3}\n")
    values = _composed("env=Acrobot-v1", config_dir=tmp_path).values
    assert values["algorithm"]["lr"] == 7e-3
    assert values["connectors"]["env_to_module"] == _composed("env=Acrobot-v1").values["connectors"]["env_to_module"]
    swimmer, hopper = (_composed(f"env={name}-v5").values for name in ("Swimmer", "Hopper"))
    assert (swimmer["algorithm"]["gamma"], hopper["algorithm"]["gamma"]) == (0.9999, 0.99)
    assert swimmer["connectors"]["env_to_module"] == hopper["connectors"]["env_to_module"]


def test_a_wrong_id_has_the_nearest_option_and_id() -> None:
    text = _problem("env=Acrobat-v1")
    assert "unknown option 'Acrobat-v1' of the config group env" in text
    assert "did you mean  Acrobot-v1" in text
    assert "module:ID" in text


def test_a_wrong_id_in_a_file_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\ndefaults:\n  - override /env: Acrobat-v1\n")
    [problem] = compose_experiment(["experiment=mine", STOP], tmp_path).problems
    assert problem.nearest == "Acrobot-v1"
    assert problem.where is not None
    assert problem.where.endswith("mine.yaml:3")


def test_a_removed_environment_is_reported_as_before() -> None:
    assert _composed("~env").values["env"]["env"] is None


def test_an_environment_that_cannot_be_made_has_no_kind() -> None:
    assert env_kinds("no_such_module_here:Maze-v0") == ()
    assert env_defaults_of("ppo", "no_such_module_here:Maze-v0", OURS) == "none"
    assert connectors_of("ppo", "no_such_module_here:Maze-v0", OURS) == "default"


def test_the_environment_is_made_once_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Watched(gymnasium.Env[Any, Any]):
        observation_space, action_space = Discrete(3), Discrete(2)
        is_closed = False

        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            self.is_closed = True

    gymnasium.register("Watched-v7", Watched)
    monkeypatch.setitem(gymnasium.registry, "Watched-v7", registration.registry["Watched-v7"])
    for algorithm in ("dqn", "ppo"):
        _composed("env=Watched-v7", f"algorithm={algorithm}")
    del registration.registry["Watched-v7"]
    assert [env.is_closed for env in made] == [True]


PIXELS, CELLS = Box(0, 255, (84, 84, 4), np.uint8), Box(0, 255, (7, 7, 3), np.uint8)


@pytest.mark.parametrize(
    ("observations", "actions", "has_limit", "kinds"),
    [
        (Box(-1, 1, (4,)), Discrete(2), True, ("vector",)),
        (Box(-np.inf, np.inf, (5, 5)), Discrete(2), False, ("vector_endless", "vector")),
        (Dict({"a": Box(-1, 1, (4,)), "b": Discrete(3)}), Discrete(2), True, ("vector",)),
        (Discrete(16), Discrete(4), True, ("table",)),
        (Discrete(16), Discrete(4), False, ("table_endless", "table")),
        (Tuple([Discrete(32), Discrete(2)]), Discrete(2), True, ("table",)),
        (MultiDiscrete([3, 3]), Discrete(2), True, ("table",)),
        (PIXELS, Discrete(6), True, ("image",)),
        (Box(0, 255, (84, 84), np.uint8), Discrete(6), True, ("image",)),
        (CELLS, Discrete(7), True, ("grid",)),
        (Box(-1, 1, (4,)), Box(-1, 1, (2,)), True, ("continuous",)),
        (PIXELS, Box(-1, 1, (2,)), False, ("continuous",)),
    ],
)
def test_kinds_follow_from_spaces(observations: Any, actions: Any, has_limit: bool, kinds: tuple[str, ...]) -> None:
    assert kinds_of(observations, actions, has_limit) == kinds
