"""Experiments out of the JSON of RLlib's `to_dict()`: each is one that `validate` takes, with the file's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.config.errors import UserError
from runner.config.schemas import ExperimentConfig
from runner.config.yaml_files import read_yaml
from runner.experiment.trainer import Trainer
from runner.importing import Imported, import_rllib
from runner.importing.rllib_algorithms import ALGORITHMS
from runner.importing.rllib_config import rllib_defaults
from tests.conftest import Run
from tests.support.configs import config_from

CONFIGS = Path(__file__).parents[1] / "data" / "rllib_configs"
ENVIRONMENT = {"DQN": "CartPole-v1", "PPO": "CartPole-v1", "BC": "CartPole-v1", "MARWIL": "CartPole-v1"}
RECORDED = {"input": "data/episodes", "dataset_num_iters_per_learner": 10}
SEVERAL = "runner.environments.MultiAgentCartPole"


def write(folder: Path, values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def experiment(folder: Path, imported: Imported) -> ExperimentConfig:
    """Write the experiment, and compose and validate it as the command line does."""
    path = folder / "conf" / "experiment" / "imported.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(imported.to_yaml())
    return config_from("+experiment=imported", config_dir=folder / "conf")


def partial(folder: Path, algorithm: str, **values: Any) -> tuple[Any, Imported]:
    """Import a file with these keys alone."""
    recorded = RECORDED if ALGORITHMS[algorithm].is_offline else {}
    given = {"env": ENVIRONMENT.get(algorithm, "Pendulum-v1"), **recorded, **values}
    imported = import_rllib(write(folder, given), algorithm)
    return experiment(folder, imported), imported


def test_ppo(tmp_path: Path) -> None:
    imported = import_rllib(CONFIGS / "ppo_cartpole.json", "PPO")
    config = experiment(tmp_path, imported)
    algorithm: Any = config.algorithm
    assert (algorithm.train_batch_size_per_learner, algorithm.minibatch_size, algorithm.num_epochs) == (512, 64, 4)
    assert algorithm.lr == [[0, 1e-3], [100_000, 1e-4]]
    assert (algorithm.lambda_, algorithm.clip_param, algorithm.grad_clip) == (0.95, 0.2, 0.5)
    assert (algorithm.use_kl_loss, algorithm.vf_clip_param, algorithm.kl_target) == (False, 10.0, 0.01)
    assert (config.module.fcnet_hiddens, config.module.vf_share_layers) == ([32], False)
    assert (config.env_runners.num_env_runners, config.env_runners.num_envs_per_env_runner) == (0, 4)
    evaluation = config.evaluation
    assert (evaluation.evaluation_interval, evaluation.evaluation_duration, evaluation.explore) == (5, 3, False)
    assert config.seed == 7
    assert set(imported.missing) == {"stop", "keep_per_episode_custom_metrics"}


def test_an_imported_experiment_trains(tmp_path: Path) -> None:
    experiment(tmp_path, import_rllib(CONFIGS / "ppo_cartpole.json", "ppo"))
    with Trainer.from_experiment("imported", ["evaluation.evaluation_interval=100"], tmp_path / "conf") as trainer:
        first, second = trainer.train(), trainer.train()
    assert first["num_env_steps_sampled_lifetime"] in range(512, 520)
    assert second["num_env_steps_sampled_lifetime"] in range(1024, 1040)
    rate = "learners/default_policy/default_optimizer_learning_rate"
    assert second[rate] < first[rate] < 1e-3


def test_asynchronous_algorithms(tmp_path: Path) -> None:
    """RLlib's defaults, and a circular buffer as env steps that are replayed."""
    impala, imported = partial(tmp_path, "IMPALA", vtrace_clip_rho_threshold=2.0, vtrace=False)
    assert (impala.algorithm.lr, impala.algorithm.train_batch_size_per_learner) == (5e-4, 500)
    assert impala.algorithm.vtrace_clip_rho_threshold == 2.0
    assert set(imported.missing) == {"stop", "vtrace"}
    buffer = {"circular_buffer_num_batches": 4, "circular_buffer_iterations_per_batch": 3}
    appo, imported = partial(tmp_path, "APPO", **buffer, target_worker_clipping=3.0, train_batch_size_per_learner=100)
    block = appo.algorithm
    assert (block.replay_capacity, block.replay_proportion, block.replay_fragment_length) == (400, 2, 50)
    assert (block.target_worker_clipping, block.clip_param, block.use_kl_loss) == (3.0, 0.4, False)
    assert appo.module._target_ == "runner.modules.APPOModule"
    assert set(imported.missing) == {"stop"}
    appo, _ = partial(tmp_path, "APPO", use_circular_buffer=False)
    assert appo.algorithm.replay_proportion == 0


def test_policies(tmp_path: Path) -> None:
    imported = import_rllib(CONFIGS / "ppo_two_policies.json", "PPO", env=SEVERAL)
    config = experiment(tmp_path, imported)
    agents = config.multi_agent
    assert config.env._target_ == SEVERAL
    assert agents.agent_to_module == {"p0": "p0", "p1": "p1"}
    assert agents.modules_to_train == ["p0"]
    assert agents.algorithm_config_overrides_per_module == {"p0": {"lr": 1e-3, "lambda_": 0.9}}
    assert config.env_runners.num_env_runners == 2  # RLlib's default of PPO
    assert set(imported.missing) == {"stop", "policy_mapping_fn"}


def test_overrides_of_policies(tmp_path: Path) -> None:
    policies = {"all": [None, None, "Discrete(2)", {"lr": 0.01, "train_batch_size": 10, "gama": 1}]}
    given = {"env": "any", "policies": policies, "algorithm_config_overrides_per_module": {"none": {"lr": 1.0}}}
    imported = import_rllib(write(tmp_path, given), "PPO", env=SEVERAL)
    config = experiment(tmp_path, imported)
    assert config.multi_agent.agent_to_module == {"*": "all"}
    assert config.multi_agent.algorithm_config_overrides_per_module == {"all": {"lr": 0.01}}
    left = {"policies.all", "policies.all.train_batch_size", "policies.all.gama"}
    assert set(imported.missing) == {"stop", "algorithm_config_overrides_per_module.none", *left}


def test_the_old_api_stack(tmp_path: Path) -> None:
    imported = import_rllib(CONFIGS / "dqn_old_stack.json", "DQN")
    config = experiment(tmp_path, imported)
    algorithm: Any = config.algorithm
    assert (algorithm.train_batch_size_per_learner, algorithm.replay_capacity) == (64, 20_000)
    assert algorithm.replay_buffers["replay"]["_target_"] == "runner.replay.ReplayBuffer"
    assert algorithm.epsilon == [[0, 1.0], [10_000, 0.02]]  # of its exploration_config
    assert algorithm.training_intensity == 16  # 64 rows for each fragment of 4
    module = config.module
    assert (module.fcnet_hiddens, module.head_fcnet_hiddens, module.dueling) == ([64], [128], True)
    assert set(imported.missing) == {"stop", "model.no_final_linear"}


def test_sac(tmp_path: Path) -> None:
    config = experiment(tmp_path, import_rllib(CONFIGS / "sac_pendulum.json", "SAC"))
    algorithm: Any = config.algorithm
    assert (algorithm.actor_lr, algorithm.critic_lr, algorithm.gamma, algorithm.n_step) == (3e-5, 1e-3, 0.98, 3)
    assert config.env_runners.rollout_fragment_length == 3  # RLlib's auto is n_step
    assert algorithm.training_intensity == pytest.approx(256 / 3)
    assert algorithm.replay_buffers["replay"]["_target_"] == "runner.replay.PrioritizedReplayBuffer"
    assert config.module.fcnet_activation == "tanh"


def test_recorded_data(tmp_path: Path) -> None:
    config = experiment(tmp_path, import_rllib(CONFIGS / "marwil_cartpole.json", "MARWIL"))
    offline = config.offline
    assert (offline.input_, offline.input_read_episodes) == ([str(Path("data/cartpole").absolute())], True)
    assert (offline.materialize_data, offline.materialize_mapped_data) == (True, False)
    assert offline.dataset_num_iters_per_learner == 20
    assert config.algorithm.beta == 0.5  # type: ignore[attr-defined]


def test_a_recorded_stream_and_its_evaluation(tmp_path: Path) -> None:
    config, imported = partial(
        tmp_path, "IQL", dataset_num_iters_per_learner=None, evaluation_interval=2, evaluation_duration="auto"
    )
    assert config.offline.dataset_num_iters_per_learner == 1
    assert (config.evaluation.evaluation_interval, config.evaluation.explore) == (2, True)
    assert config.checkpoint.metric == "evaluation/env_runners/episode_return_mean"
    assert set(imported.missing) == {"stop", "dataset_num_iters_per_learner", "evaluation_duration"}


def test_evaluations_of_time_steps(tmp_path: Path) -> None:
    config, imported = partial(
        tmp_path, "PPO", evaluation_interval=2, evaluation_duration=400, evaluation_duration_unit="timesteps"
    )
    evaluation = config.evaluation
    assert (evaluation.evaluation_duration, evaluation.evaluation_duration_unit) == (400, "env_steps")
    assert set(imported.missing) == {"stop"}


def test_data_that_are_not_named(tmp_path: Path) -> None:
    imported = import_rllib(write(tmp_path, {"env": "CartPole-v1"}), "BC")
    assert set(imported.missing) == {"stop", "input"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_rllibs(tmp_path: Path, algorithm: str) -> None:
    config, imported = partial(tmp_path, algorithm)
    assert set(imported.missing) == {"stop"}
    defaults = rllib_defaults()[algorithm]
    fields = vars(config.algorithm)
    renamed = {"lambda_": "lambda"}
    same = {name: renamed.get(name, name) for name in fields if renamed.get(name, name) in defaults}
    computed = {"optimizer", "training_intensity", "replay_proportion"}
    assert {name: fields[name] for name in same if name not in computed} == {
        name: defaults[key] for name, key in same.items() if name not in computed
    }


def changed(value: Any) -> Any:
    """Return another value, of the same kind where there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 0.5
    if isinstance(value, dict):
        return {**value, "other": 1}
    return [*value, 7.5] if isinstance(value, list) else "other"


# Keys without effect where the others are at their defaults, in RLlib too.
WITHOUT_EFFECT = {
    *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2", "_prior_exploration_config"),
    *("_is_online", "store_buffer_in_checkpoints", "env", "v_min", "v_max"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_key_is_dropped_silently(tmp_path: Path, algorithm: str) -> None:
    defaults = rllib_defaults()[algorithm]
    base = {**defaults, "env": "CartPole-v1"}

    def text_of(values: dict[str, Any]) -> str:
        return import_rllib(write(tmp_path, values), algorithm).to_yaml()

    without_change = text_of(base)
    ignored = {"train_batch_size"} if defaults["_train_batch_size_per_learner"] is not None else set()
    keys = [key for key, value in defaults.items() if value != -1 and key not in WITHOUT_EFFECT | ignored]
    silent = [key for key in keys if text_of({**base, key: changed(base[key])}) == without_change]
    assert silent == []


def test_names_of_older_versions(tmp_path: Path) -> None:
    config, imported = partial(
        tmp_path,
        "PPO",
        num_rollout_workers=3,
        num_envs_per_worker=5,
        rollout_fragment_length=100,
        train_batch_size=1500,
        sgd_minibatch_size=50,
        num_sgd_iter=2,
        lambda_=0.8,
        lr_schedule=[[0, 0.1], [10, 0.0]],
        evaluation_num_workers=1,
        model={"fcnet_hiddens": [16], "fcnet_activation": "swish", "use_lstm": True},
        observation_filter="MeanStdFilter",
        horizon=200,
    )
    runners, algorithm = config.env_runners, config.algorithm
    assert (runners.num_env_runners, runners.num_envs_per_env_runner, runners.rollout_fragment_length) == (3, 5, 100)
    assert (algorithm.train_batch_size_per_learner, algorithm.minibatch_size, algorithm.num_epochs) == (1500, 50, 2)
    assert (algorithm.lambda_, algorithm.lr) == (0.8, [[0, 0.1], [10, 0.0]])
    assert config.evaluation.evaluation_num_env_runners == 1
    assert (config.module.fcnet_hiddens, config.module.fcnet_activation, config.module.use_lstm) == ([16], "silu", True)
    assert imported.options["connectors"] == "mean_std_filter"
    assert set(imported.missing) == {"stop", "horizon"}


def test_learners_share_the_batch(tmp_path: Path) -> None:
    config, _ = partial(tmp_path, "PPO", num_learners=4, train_batch_size=4000, torch_compile_learner=True)
    assert config.algorithm.train_batch_size_per_learner == 1000
    assert (config.learners.num_learners, config.learners.compile) == (4, True)


def test_a_distribution_of_returns(tmp_path: Path) -> None:
    config, _ = partial(tmp_path, "DQN", num_atoms=51, v_max=200.0, n_step=[1, 3], adam_epsilon=1e-4)
    module = config.module
    assert (module.q_distribution, module.num_atoms, module.v_min, module.v_max) == ("categorical", 51, -10.0, 200.0)
    assert config.algorithm.n_step == [1, 3]
    assert config.env_runners.rollout_fragment_length == 3
    assert config.algorithm.optimizer.epsilon == 1e-4


def test_memory_and_images(tmp_path: Path) -> None:
    text = "DefaultModelConfig(use_lstm=True, max_seq_len=10, conv_filters=[[16, [4, 4], 2]], fcnet_activation='relu')"
    config, imported = partial(tmp_path, "DQN", _model_config=text, training_intensity=8)
    assert config.algorithm.replay_buffers["replay"]["batch_length_T"] == 10
    assert (config.module.use_lstm, config.module.conv_filters) == (True, [[16, 4, 2]])
    assert config.algorithm.training_intensity == 8
    assert "model_config.padding" in imported.missing


def test_module_specs(tmp_path: Path) -> None:
    spec = "RLModuleSpec(module_class=None, inference_only=False, model_config={'fcnet_hiddens': [8], 'own': 1})"
    config, imported = partial(tmp_path, "PPO", _rl_module_spec=spec)
    assert config.module.fcnet_hiddens == [8]
    assert set(imported.missing) == {"stop", "model_config.own"}
    own = "RLModuleSpec(module_class=<class 'mine.Module'>, model_config={})"
    assert "_rl_module_spec" in partial(tmp_path, "PPO", _rl_module_spec=own)[1].missing


def test_code_is_told_with_its_place(tmp_path: Path) -> None:
    code = ("env_runner_cls", "env_to_module_connector", "learner_class")
    _, imported = partial(tmp_path, "PPO", **dict.fromkeys(code, "<class 'mine.Own'>"))
    assert imported.missing["env_runner_cls"].endswith("goes into env_runners.env_runner_class")
    assert imported.missing["_env_to_module_connector"].endswith("go into connectors.env_to_module")
    assert imported.missing["_learner_class"].endswith("goes into algorithm.loss")


def test_discrete_actions_and_targets(tmp_path: Path) -> None:
    given = {"env": "CartPole-v1", "action_space": "Discrete(2)", "target_network_update_freq": 4, "twin_q": False}
    config, imported = partial(tmp_path, "SAC", **given)
    assert imported.options["algorithm"] == imported.options["module"] == "sac_discrete"
    assert config.algorithm.target_network_update_freq == 1024  # rows: 256 for each env step
    assert config.module.num_critics == 1


def test_a_class_as_environment(tmp_path: Path) -> None:
    given = {"env": f"<class '{SEVERAL}'>", "env_config": {"num_agents": 3}}
    imported = import_rllib(write(tmp_path, given), "PPO")
    config = experiment(tmp_path, imported)
    assert (config.env._target_, config.env.env_config) == (SEVERAL, {"num_agents": 3})
    assert "env_config" in imported.missing


def test_text_of_any_script_is_kept(tmp_path: Path) -> None:
    titles = {"title": "é 😀", "quoted": 'a "b"\\c: d'}
    imported = import_rllib(write(tmp_path, {"env": "CartPole-v1", "env_config": titles}), "PPO")
    path = tmp_path / "imported.yaml"
    path.write_text(imported.to_yaml())
    assert read_yaml(path)["env"]["env_config"] == titles


def test_values_that_are_no_values_are_left_out(tmp_path: Path) -> None:
    values = {
        "lr": "fast",
        "callbacks": "<class 'mine.Callbacks'>",
        "gamma": 1.5,
        "clip_param": "${oc.env:HOME}",
        "env_config": {"size": {"_target_": "os.system"}},
        "num_envs_per_env_runner": 10**400,
        "grad_clip": float("inf"),
        "_model_config": "DefaultModelConfig(fcnet_hiddens={[]: b'x'})",
        "output": "x\ncallbacks: [{_target_: evil.Callback}]",
        "x\ny": 1,
    }
    config, imported = partial(tmp_path, "PPO", **values)
    assert set(imported.missing) == {"stop", *values} - {"output"}
    assert config.callbacks == []
    assert config.offline.output == str(Path(str(values["output"])).absolute())
    assert imported.to_yaml().replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("values", "algorithm", "message"),
    [
        ({"env": "CartPole-v1"}, None, "does not name its algorithm"),
        ({"env": "CartPole-v1"}, "DreamerV3", "runner does not have a counterpart of DreamerV3"),
        ({"env": "CartPole-v1"}, "PPPO", "did you mean  PPO"),
        ({"lr": 1.0}, "PPO", "--env with a gymnasium id"),
        ({"env": "<function <lambda> at 0x7f>"}, "PPO", "--env with a gymnasium id"),
        ("{", "PPO", "the file cannot be read"),
        ("[1]", "PPO", "the file is not a configuration"),
        ("[" * 100_000, "PPO", "the file cannot be read"),
    ],
)
def test_mistakes(tmp_path: Path, values: Any, algorithm: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_rllib(write(tmp_path, values), algorithm)


@pytest.mark.parametrize(
    ("name", "fitting"),
    [("ppo_cartpole", "PPO"), ("dqn_old_stack", "DQN"), ("sac_pendulum", "SAC"), ("marwil_cartpole", "BC or MARWIL")],
)
def test_the_keys_tell_the_algorithm(name: str, fitting: str) -> None:
    with pytest.raises(UserError, match=f"did you mean  {fitting}, according to the file's keys"):
        import_rllib(CONFIGS / f"{name}.json")
    with pytest.raises(UserError, match=f"did you mean  {fitting}, according to the file's keys"):
        import_rllib(CONFIGS / f"{name}.json", "CQL")


def test_the_command(run_main: Run, tmp_path: Path) -> None:
    file = str(CONFIGS / "ppo_cartpole.json")
    shown = run_main("import", "rllib", file, "--algorithm", "PPO")
    assert shown.code == 0
    assert shown.out.startswith("# @package _global_\n# Imported from RLlib: PPO, ppo_cartpole.json.\n")
    written = run_main("import", "rllib", file, "--algorithm", "PPO", "--output", "conf/experiment/mine.yaml")
    assert "no counterpart  keep_per_episode_custom_metrics: true is left out" in written.out
    header, modeline, rest = (tmp_path / "conf/experiment/mine.yaml").read_text().split("\n", 2)
    assert (modeline, f"{header}\n{rest}") == ("# yaml-language-server: $schema=../runner.schema.json", shown.out)
    assert run_main("validate", "+experiment=mine", "--config-dir", "conf").code == 0
    assert "does not name its algorithm" in run_main("import", "rllib", file).err
    assert "did you mean  import rllib" in run_main("import", "rlib", file).err
    foreign = run_main("import", "sb3-zoo", "a.yml", "--env", "a", "--algorithm", "PPO").err
    assert "--algorithm is an option of `runner new experiment` and `runner import rllib`, not of" in foreign


def test_what_training_will_import_is_told(run_main: Run, tmp_path: Path) -> None:
    """Whoever made the file may have named any function: a reader sees it before training calls it."""
    values = {"env": "<class 'pandas.read_pickle'>", "env_config": {"filepath_or_buffer": "x.pkl"}}
    imported = import_rllib(write(tmp_path, values), "PPO")
    told = 'imports env._target_ "pandas.read_pickle"'
    assert f"# Training {told}; review it first." in imported.to_yaml().splitlines()
    written = run_main("import", "rllib", "config.json", "--algorithm", "PPO", "--output", "mine.yaml")
    assert f"  review first    training {told}" in written.out.splitlines()


@pytest.mark.parametrize("key", ["input_read_method", "offline_data_class", "prelearner_class"])
def test_functions_and_classes_that_read_data_are_left_out(tmp_path: Path, key: str) -> None:
    imported = import_rllib(write(tmp_path, {"env": "CartPole-v1", **RECORDED, key: "os.system"}), "BC")
    assert '"os.system" is left out' in imported.missing[key]
    assert "os.system" not in str(imported.values)


def test_what_differs_for_a_policy_is_taken_or_told(tmp_path: Path) -> None:
    of_policies = {"a": [None, None, None, "<AlgorithmConfig>"], "b": [None, None, None, {"lr": 0.1, "x": 1}]}
    _, imported = partial(tmp_path, "PPO", env=f"<class '{SEVERAL}'>", policies=of_policies)
    assert imported.values["multi_agent"]["algorithm_config_overrides_per_module"] == {"b": {"lr": 0.1}}
    assert {"policies.a", "policies.b.x"} <= imported.missing.keys()
    _, imported = partial(tmp_path, "PPO", env=f"<class '{SEVERAL}'>", policies={"a": None, "b": None})
    assert not {"policies.a", "policies.b"} & imported.missing.keys()


def test_a_model_that_is_text_is_left_out(tmp_path: Path) -> None:
    _, imported = partial(tmp_path, "SAC", policy_model_config="x")
    assert imported.missing["policy_model_config"] == '"x" is left out'
