"""The environments and wrappers of RL Zoo's entries, with the keys and values that its files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.importing import import_sb3_zoo
from runner.importing.zoo_envs import atari_env, find_env, find_wrappers
from tests.conftest import Run

SDE = {"use_sde": True, "policy_kwargs": "dict(log_std_init=-3, net_arch=[400, 300])"}
NETS = "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[256, 256], vf=[256, 256]))"
ATARI = {
    "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
    **{"frame_stack": 4, "policy": "CnnPolicy", "n_timesteps": 1e7},
}
HER = {
    "policy": "MultiInputPolicy",
    "normalize": True,
    **{"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": "dict(n_sampled_goal=4)"},
}
# (algorithm, entry, its values, what the import says about the environment; None: it exists)
ENTRIES: list[tuple[str, str, dict[str, Any], str | None]] = [
    ("ppo", "MountainCarContinuous-v0", {"normalize": True, "n_envs": 1, "n_steps": 8, "batch_size": 256}, None),
    ("ppo", "InvertedDoublePendulum-v2", {"n_steps": 128, "batch_size": 512}, "InvertedDoublePendulum-v5"),
    ("ppo", "InvertedPendulum-v2", {"n_steps": 32, "batch_size": 64}, "InvertedPendulum-v5"),
    ("ppo", "Hopper-v3", {"normalize": True, "n_steps": 512, "policy_kwargs": NETS}, "Hopper-v5"),
    ("ppo", "HalfCheetahBulletEnv-v0", {"n_envs": 16, **SDE}, "pip install pybullet_envs_gymnasium"),
    ("ppo", "MiniGrid-DoorKey-5x5-v0", {"normalize": True, "env_wrapper": "minigrid.wrappers.FlatObsWrapper"}, None),
    ("ppo", "MiniGrid-FourRooms-v0", {"normalize": True, "n_steps": 512}, None),
    ("ppo", "atari", {**ATARI, "n_envs": 8, "n_steps": 128, "learning_rate": "lin_2.5e-4"}, "all Atari games"),
    ("a2c", "atari", {**ATARI, "policy_kwargs": "dict(optimizer_class=RMSpropTFLike)"}, "all Atari games"),
    ("a2c", "Pendulum-v0", {"normalize": True, "n_steps": 8, "learning_rate": "lin_7e-4"}, "Pendulum-v1"),
    ("dqn", "atari", {**ATARI, "buffer_size": 100_000, "learning_starts": 100_000}, "all Atari games"),
    ("dqn", "LunarLander-v2", {"train_freq": 16, "gradient_steps": -1, "learning_starts": 0}, "LunarLander-v3"),
    ("sac", "FetchReach-v1", HER, "gymnasium"),
    ("sac", "donkey-generated-track-v0", {"train_freq": [1, "episode"], **SDE}, "pip install gym-donkeycar"),
    ("sac", "NeckEnvRelative-v2", {"use_sde_at_warmup": True, **SDE}, "no installed package"),
    ("td3", "HalfCheetah-v2", {"noise_type": "normal", "noise_std": 0.1, "train_freq": 1000}, "HalfCheetah-v5"),
    ("td3", "BipedalWalker-v2", {"batch_size": 100, "learning_rate": 1e-3}, "BipedalWalker-v3"),
    ("tqc", "PandaStack-v1", HER, "panda"),
    ("tqc", "CarRacing-v0", {"env_wrapper": [{"rl_zoo3.wrappers.FrameSkip": {"skip": 2}}]}, "CarRacing-v3"),
]


def write_entry(folder: Path, algorithm: str, entry: str, values: dict[str, Any]) -> Path:
    file = folder / f"{algorithm}.yml"
    file.write_text(yaml.safe_dump({entry: values}))
    return file


@pytest.mark.parametrize(("algorithm", "entry", "values", "note"), ENTRIES)
def test_an_entry_validates_or_says_what_is_missing(
    tmp_path: Path, algorithm: str, entry: str, values: dict[str, Any], note: str | None
) -> None:
    imported = import_sb3_zoo(write_entry(tmp_path, algorithm, entry, values), entry)
    file = tmp_path / "conf" / "experiment" / "imported.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(imported.to_yaml())
    assert (note or "") in imported.missing.get("env", "")
    assert ("env" in imported.missing) is (note is not None)
    composed = compose_experiment(["+experiment=imported"], tmp_path / "conf")
    if "package" in imported.missing.get("env", ""):
        with pytest.raises(ConfigError) as raised:
            build_experiment_config(composed)
        assert [problem.got for problem in raised.value.problems] == [imported.values["env"]["env"]]
        return
    config = build_experiment_config(composed)
    minibatch, batch = config.algorithm.minibatch_size, config.algorithm.train_batch_size_per_learner
    assert minibatch is None or minibatch <= batch


def test_a_minibatch_is_at_most_the_batch(tmp_path: Path) -> None:
    values = {"n_envs": 1, "n_steps": 8, "batch_size": 256}
    imported = import_sb3_zoo(write_entry(tmp_path, "ppo", "CartPole-v1", values), "CartPole-v1")
    assert imported.values["algorithm"]["train_batch_size_per_learner"] == 8
    assert imported.values["algorithm"]["minibatch_size"] == 8


@pytest.mark.parametrize("env", ["PongNoFrameskip-v4", "ALE/Pong-v5", "ale_py:ALE/Pong-v5"])
def test_an_atari_game_uses_the_entry_of_all_games(tmp_path: Path, env: str) -> None:
    imported = import_sb3_zoo(write_entry(tmp_path, "dqn", "atari", ATARI), env)
    assert imported.options["env"] == "atari"
    assert imported.options["connectors"] == "atari_replay"
    assert imported.values["env"] == {"env": "ale_py:ALE/Pong-v5"}
    assert imported.values["module"]["fcnet_hiddens"] == [512]
    assert not imported.missing


def test_atari_games() -> None:
    assert atari_env("BreakoutNoFrameskip-v4") == "ale_py:ALE/Breakout-v5"
    assert atari_env("Humanoid-v5") is None
    assert atari_env("CartPole-v1") is None


def test_versions() -> None:
    assert find_env("CartPole-v1").note is None
    assert find_env("my_package:Mine-v0").id == "my_package:Mine-v0"
    assert find_env("LunarLander-v2").id == "LunarLander-v3"
    assert find_env("Ant-v3").id == "Ant-v5"  # gymnasium's Ant-v3 only raises
    assert find_env("Ant-v4").id == "Ant-v4"
    missing = find_env("MiniGrid-NoSuchRoom-v0")
    assert missing.id == "minigrid:MiniGrid-NoSuchRoom-v0"
    assert missing.note == "the package minigrid does not register MiniGrid-NoSuchRoom-v0"


def test_wrappers() -> None:
    listed = ["gym.wrappers.time_limit.TimeLimit", "utils.wrappers.HistoryWrapper"]
    found, unknown = find_wrappers([{listed[0]: {"max_episode_steps": 500}}, {listed[1]: {"horizon": 2}}], "A-v0", True)
    assert found == [{"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 500}]
    assert unknown == ["utils.wrappers.HistoryWrapper with {'horizon': 2}"]
    found, unknown = find_wrappers("sb3_contrib.common.wrappers.TimeFeatureWrapper", "A-v0", False)
    assert (found, unknown) == ([], ["sb3_contrib.common.wrappers.TimeFeatureWrapper"])
    found, unknown = find_wrappers("gym_minigrid.wrappers.ImgObsWrapper", "minigrid:MiniGrid-Empty-5x5-v0", False)
    assert (found, unknown) == ([{"_target_": "minigrid.wrappers.ImgObsWrapper"}], [])


def test_what_the_import_cannot_explain_is_validated(run_main: Run, tmp_path: Path) -> None:
    write_entry(tmp_path, "ppo", "CartPole-v1", {"n_epochs": 0})
    written = run_main("import", "sb3-zoo", "ppo.yml", "--env", "CartPole-v1", "--output", "conf/experiment/mine.yaml")
    assert written.code == 0
    assert "does not validate  algorithm.num_epochs" in written.out
    assert "# Does not validate: algorithm.num_epochs" in (tmp_path / "conf/experiment/mine.yaml").read_text()


def test_an_environment_without_its_package_is_told_once(run_main: Run, tmp_path: Path) -> None:
    write_entry(tmp_path, "ppo", "NoSuch-v0", {})
    written = run_main("import", "sb3-zoo", "ppo.yml", "--env", "NoSuch-v0", "--output", "mine.yaml")
    assert "no counterpart  env: no installed package is known to register NoSuch-v0" in written.out
    assert "does not validate" not in written.out
