"""Experiments out of RL Baselines3 Zoo's files: each is one that `validate` takes, with the file's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.config.errors import UserError
from runner.config.schemas import ExperimentConfig
from runner.experiment.trainer import Trainer
from runner.importing import import_sb3_zoo
from tests.conftest import Run
from tests.support.configs import config_from

PPO = """
default: &few
  n_timesteps: !!float 3e5
  policy: MlpPolicy
CartPole-v1:
  <<: *few
  n_envs: 4
  n_steps: 64
  batch_size: 128
  n_epochs: 7
  gamma: 0.97
  gae_lambda: 0.9
  clip_range: lin_0.3
  ent_coef: 0.002
  vf_coef: 0.4
  max_grad_norm: 0.8
  learning_rate: lin_2e-3
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU,
                       net_arch=[dict(pi=[32, 16], vf=[32, 16])])"
Pendulum-v0:
  n_envs: 2
  normalize: "{'norm_obs': True, 'norm_reward': False}"
"""
OFF_POLICY = {
    "dqn": "CartPole-v1: {n_timesteps: 5e4, learning_rate: !!float 2e-3, batch_size: 64, buffer_size: 100000, "
    "learning_starts: 500, target_update_interval: 10, train_freq: 256, gradient_steps: 128, "
    "exploration_fraction: 0.16, exploration_final_eps: 0.04, policy_kwargs: 'dict(net_arch=[256, 256])'}",
    "sac": "Pendulum-v1: {n_timesteps: 20000, learning_rate: !!float 1e-3, ent_coef: auto_0.5, train_freq: [8, step], "
    "gradient_steps: -1}",
    "tqc": "Pendulum-v1: {n_timesteps: 20000, ent_coef: 0.2, top_quantiles_to_drop_per_net: 3, tau: 0.01}",
    "td3": "Pendulum-v1: {n_timesteps: 20000, noise_type: ornstein-uhlenbeck, noise_std: 0.3, learning_starts: 700}",
    "ddpg": "Pendulum-v1: {n_timesteps: 20000, gradient_steps: 2, train_freq: 1}",
    "a2c": "CartPole-v1: {n_envs: 8, n_timesteps: 5e5, ent_coef: 0.01}",
}


def experiment(folder: Path, algorithm: str, text: str, env: str) -> tuple[ExperimentConfig, Any]:
    """Import an entry, write the experiment, and compose it as the command line does."""
    file = folder / f"{algorithm}.yml"
    file.write_text(text)
    imported = import_sb3_zoo(file, env)
    path = folder / "conf" / "experiment" / "imported.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(imported.to_yaml())
    return config_from("+experiment=imported", config_dir=folder / "conf"), imported


def test_ppo(tmp_path: Path) -> None:
    config, imported = experiment(tmp_path, "ppo", PPO, "CartPole-v1")
    algorithm: Any = config.algorithm
    assert algorithm.train_batch_size_per_learner == 256
    assert (algorithm.minibatch_size, algorithm.num_epochs, algorithm.lambda_) == (128, 7, 0.9)
    assert (algorithm.gamma, algorithm.clip_param, algorithm.grad_clip) == (0.97, 0.3, 0.8)
    assert (algorithm.entropy_coeff, algorithm.vf_loss_coeff) == (0.002, 0.4)
    assert algorithm.lr == [[0, 2e-3], [300_000, 0.0]]
    assert algorithm.use_kl_loss is False
    assert config.module.fcnet_hiddens == [32, 16]
    assert (config.module.fcnet_activation, config.module.vf_share_layers) == ("relu", False)
    assert config.env_runners.num_envs_per_env_runner == 4
    assert config.stop == {"num_env_steps_sampled_lifetime": 300_000}
    assert (config.module.use_sde, config.module.sde_sample_freq, config.module.initial_log_std) == (True, 64, -2.0)
    assert set(imported.missing) == {"clip_range"}


def test_defaults_another_version_and_normalisation(tmp_path: Path) -> None:
    config, imported = experiment(tmp_path, "ppo", PPO, "Pendulum-v1")
    algorithm: Any = config.algorithm
    assert config.env.env == "Pendulum-v1"
    assert "Pendulum-v0" in imported.source
    assert (algorithm.train_batch_size_per_learner, algorithm.minibatch_size) == (4096, 64)
    assert imported.options["connectors"] == "mean_std_filter"
    assert not imported.missing


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_an_imported_experiment_trains(tmp_path: Path, algorithm: str) -> None:
    text = OFF_POLICY[algorithm]
    _, imported = experiment(tmp_path, algorithm, text, text.partition(":")[0])
    assert not imported.missing
    overrides = ["module.fcnet_hiddens=[8]", "evaluation.evaluation_interval=100"]
    if algorithm != "a2c":
        overrides += ["algorithm.min_sample_timesteps_per_iteration=60", "algorithm.replay_capacity=1000"]
        overrides += ["algorithm.num_steps_sampled_before_learning_starts=30"]
    with Trainer.from_experiment("imported", overrides, tmp_path / "conf") as trainer:
        assert trainer.train()["num_env_steps_trained_lifetime"]


def test_off_policy_numbers(tmp_path: Path) -> None:
    found = {}
    for name, text in OFF_POLICY.items():
        folder = tmp_path / name
        folder.mkdir()
        found[name] = experiment(folder, name, text, text.partition(":")[0])[0].algorithm
    dqn, sac, tqc, td3, ddpg = (found[name] for name in ("dqn", "sac", "tqc", "td3", "ddpg"))
    assert dqn.training_intensity == 32  # half an update of 64 rows for each env step
    assert dqn.epsilon == [[0, 1.0], [8000, 0.04]]  # type: ignore[attr-defined]
    assert (dqn.target_network_update_freq, dqn.double_q) == (10, False)  # type: ignore[attr-defined]
    assert (sac.training_intensity, sac.initial_alpha, sac.alpha_lr) == (256, 0.5, 1e-3)  # type: ignore[attr-defined]
    assert (tqc.initial_alpha, tqc.alpha_lr, tqc.tau) == (0.2, 0.0, 0.01)  # type: ignore[attr-defined]
    assert tqc.top_quantiles_to_drop_per_net == 3  # type: ignore[attr-defined]
    assert td3.exploration == "ornstein_uhlenbeck"  # type: ignore[attr-defined]
    assert (td3.exploration_noise, td3.num_random_steps) == (0.3, 700)  # type: ignore[attr-defined]
    assert ddpg.training_intensity == 512


@pytest.mark.parametrize(
    ("name", "text", "env", "message"),
    [
        ("ppo", PPO, "CartPol-v1", "did you mean  CartPole-v1"),
        ("trpo", PPO, "CartPole-v1", "this algorithm cannot be imported"),
        ("ppo", "- a list", "CartPole-v1", "not a table of environments"),
        ("ppo", "a: [", "CartPole-v1", "the file cannot be read"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, text: str, env: str, message: str) -> None:
    (tmp_path / f"{name}.yml").write_text(text)
    with pytest.raises(UserError, match=message):
        import_sb3_zoo(tmp_path / f"{name}.yml", env)


def test_python_text_is_read_and_never_run(tmp_path: Path) -> None:
    (tmp_path / "ppo.yml").write_text("E-v1: {policy_kwargs: \"__import__('os').mkdir('made')\", n_steps: 'open(1)'}")
    with pytest.raises(UserError, match="a value cannot be read"):
        import_sb3_zoo(tmp_path / "ppo.yml", "E-v1")
    assert not (tmp_path / "made").exists()


def test_texts_of_a_file_stay_in_their_comments(tmp_path: Path) -> None:
    evil = "callbacks: [{_target_: evil.Callback}]"
    text = f"""
"CartPole-v1\\n{evil}\\n#-v1": {{}}
E-v1: {{"x\\n{evil}\\n#": 1, y: "1\\n{evil}\\u001b[31m", frame_stack: "4\\n{evil}"}}
"""
    (tmp_path / "ppo.yml").write_text(text)
    written = import_sb3_zoo(tmp_path / "ppo.yml", "E-v1").to_yaml()
    assert evil in written
    assert all(line.startswith("#") for line in written.splitlines() if evil in line)
    assert written.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "entry",
    ['{policy_kwargs: "dict(net_arch={})"}', '{n_steps: "-[1]"}', "{n_envs: many}", "{learning_rate: [1]}"],
)
def test_values_that_cannot_be_read(tmp_path: Path, entry: str) -> None:
    (tmp_path / "ppo.yml").write_text(f"E-v1: {entry}")
    with pytest.raises(UserError, match="a value cannot be read"):
        import_sb3_zoo(tmp_path / "ppo.yml", "E-v1")


def test_updates_by_episodes_and_noise_that_nobody_asks_for(tmp_path: Path) -> None:
    text = "Pendulum-v1: {train_freq: [1, episode], gradient_steps: 64, policy_kwargs: 'dict(net_arch=[])'}"
    config, imported = experiment(tmp_path, "td3", text, "Pendulum-v1")
    assert config.algorithm.training_intensity == 256
    assert "train_freq" in imported.missing
    assert config.algorithm.exploration_noise == 0.0  # type: ignore[attr-defined]
    assert config.module.fcnet_hiddens == []


def test_the_command(run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "ppo.yml").write_text(PPO)
    shown = run_main("import", "sb3-zoo", "ppo.yml", "--env", "CartPole-v1")
    assert shown.code == 0
    assert shown.out.startswith("# @package _global_\n# Imported from RL Baselines3 Zoo: ppo on CartPole-v1.\n")
    file = "conf/experiment/mine.yaml"
    written = run_main("import", "sb3-zoo", "ppo.yml", "--env", "CartPole-v1", "--output", file)
    assert written.code == 0
    assert "no counterpart  clip_range: lin_0.3 is constant at its first value" in written.out
    header, modeline, rest = (tmp_path / file).read_text().split("\n", 2)
    assert (modeline, f"{header}\n{rest}") == ("# yaml-language-server: $schema=../runner.schema.json", shown.out)
    assert run_main("validate", "+experiment=mine", "--config-dir", "conf").code == 0
    again = run_main("import", "sb3-zoo", "ppo.yml", "--env", "CartPole-v1", "--output", file)
    assert again.code == 2
    assert "the file already exists" in again.err
    assert run_main("import", "rllib", "ppo.yml").code == 2
