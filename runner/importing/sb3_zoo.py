"""Import experiments from RL Baselines3 Zoo's `hyperparams/<algorithm>.yml`.

Missing values have the defaults of Stable-Baselines3 2.9. Values are YAML, or strings with Python calls such as
`dict(net_arch=[64, 64], activation_fn=nn.ReLU)`, which are parsed and never executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from runner.config.errors import Problem, UserError, nearest_match
from runner.config.yaml_files import YAMLError, read_yaml
from runner.importing.imported import Imported, read_python
from runner.importing.zoo_envs import ATARI_ENTRY, atari_env, find_env, find_wrappers, is_atari_wrapper

Params = dict[str, Any]
# Converts an algorithm's parameters for a run with a number of env steps.
Fill = Callable[[Imported, Params, int], None]

# Defaults of Stable-Baselines3.
_ON_POLICY = {"n_envs": 1, "gamma": 0.99, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
_PPO = {
    **_ON_POLICY,
    **{"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gae_lambda": 0.95, "clip_range": 0.2},
    "learning_rate": 3e-4,
}
_A2C = {**_ON_POLICY, "n_steps": 5, "gae_lambda": 1.0, "learning_rate": 7e-4, "use_rms_prop": True}
_OFF_POLICY = {
    **{"n_envs": 1, "gamma": 0.99, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256},
    **{"train_freq": 1, "gradient_steps": 1, "tau": 0.005, "n_steps": 1},
}
_DQN = {
    **_OFF_POLICY,
    **{"learning_rate": 1e-4, "batch_size": 32, "tau": 1.0, "train_freq": 4, "target_update_interval": 10_000},
    **{"exploration_fraction": 0.1, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.05, "max_grad_norm": 10},
}
_SAC = {**_OFF_POLICY, "learning_rate": 3e-4, "ent_coef": "auto", "target_entropy": "auto"}
_TQC = {**_SAC, "top_quantiles_to_drop_per_net": 2}
_TD3 = {
    **_OFF_POLICY,
    **{"learning_rate": 1e-3, "policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5},
    **{"noise_type": None, "noise_std": 0.0},
}
_HIDDEN = {"ppo": [64, 64], "a2c": [64, 64], "dqn": [64, 64], "td3": [400, 300], "ddpg": [400, 300]}
_WIDE = [256, 256]
_NATURE_CNN, _NATURE_FEATURES = [[32, 8, 4], [64, 4, 2], [64, 3, 1]], 512
_ACTIVATIONS = {"ReLU": "relu", "Tanh": "tanh", "ELU": "elu", "SiLU": "silu", "GELU": "gelu"}
# Keys without meaning here, or that describe the standard behaviour of this project.
_SILENT = {"policy", "n_timesteps", "monitor_kwargs", "optimize_memory_usage"}


def import_sb3_zoo(path: Path, env: str) -> Imported:
    """Import the entry of an environment.

    Args:
        path: path of the file, which is named after the algorithm.
        env: the environment's gymnasium id, or the name of an entry. If the file lacks this version of the environment,
            the newest other version is used; Atari games use the entry `atari`.

    Raises:
        UserError: the file cannot be read, does not contain the environment, or its algorithm is not supported.
    """
    algorithm = path.stem
    if algorithm not in _IMPORTERS:
        what, nearest = "this algorithm cannot be imported", nearest_match(algorithm, _IMPORTERS)
        problem = Problem(what, str(path), algorithm, f"a file named {', '.join(_IMPORTERS)} (.yml)", nearest)
        raise UserError(problem)
    entries = _read_entries(path)
    entry = _entry_of(env, entries, path)
    defaults, fill = _IMPORTERS[algorithm]
    imported = Imported(f"RL Baselines3 Zoo: {algorithm} on {entry}")
    _environment(imported, env)
    try:
        given = {str(key): _read_python(str(key), value) for key, value in entries[entry].items()}
        _take_over(imported, algorithm, {**defaults, **given}, fill)
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise UserError(Problem(f"a value cannot be read: {error}", f"{path}, {entry}")) from error
    return imported


def _environment(imported: Imported, env: str) -> None:
    """Choose the current environment for this id, and note missing packages."""
    game = atari_env(env)
    if game is not None or env == ATARI_ENTRY:
        imported.options["env"] = "atari"
        imported.set("env", env=game)
    if env == ATARI_ENTRY:
        imported.missing["env"] = (
            "the entry applies to all Atari games; to use a game other than Breakout, set for example --env ALE/Pong-v5"
        )
        return
    found = find_env(game or env)
    imported.set("env", env=found.id)
    if found.note is not None:
        imported.missing["env"] = found.note


def _take_over(imported: Imported, algorithm: str, params: Params, fill: Fill) -> None:
    num_env_steps = int(float(params.pop("n_timesteps", 1_000_000)))
    imported.set("stop", num_env_steps_sampled_lifetime=num_env_steps)
    imported.set("env_runners", num_envs_per_env_runner=int(params.pop("n_envs")))
    imported.options["evaluation"] = "periodic"
    _network(imported, algorithm, params)
    _wrappers(imported, algorithm, params)
    fill(imported, params, num_env_steps)
    _normalisation(imported, algorithm, params)
    for key in params:
        if key not in _SILENT:
            imported.missing[key] = f"{params[key]!r} is left out"


def _entry_of(env: str, entries: Mapping[str, Any], path: Path) -> str:
    """Return the name of the environment's entry, or of its newest other version if there is no such entry."""
    if env in entries:
        return env
    if atari_env(env) is not None and ATARI_ENTRY in entries:
        return ATARI_ENTRY
    name = env.rpartition("-v")[0]
    others = [entry for entry in entries if name and entry.rpartition("-v")[0] == name]
    if others:
        return max(others, key=lambda entry: (len(entry), entry))
    what, expected = "the file does not contain this environment", ", ".join(entries)
    raise UserError(Problem(what, str(path), f"--env {env}", expected, nearest_match(env, entries)))


def _read_entries(path: Path) -> Mapping[str, Any]:
    try:
        entries = read_yaml(path)
    except (OSError, YAMLError, ValueError) as error:
        raise UserError(Problem("the file cannot be read", str(path), str(error))) from error
    is_table = isinstance(entries, Mapping) and all(isinstance(entry, Mapping) for entry in entries.values())
    if not is_table or not all(isinstance(name, str) for name in entries):
        raise UserError(Problem("the file is not a table of environments", str(path)))
    return dict(entries)


def _read_python(key: str, value: Any) -> Any:
    """Parse a string that is a Python literal or a call of `dict`; other strings are returned unchanged."""
    if not isinstance(value, str) or key == "env_wrapper":  # `env_wrapper` is a path
        return value
    try:
        return read_python(value, ("dict",))
    except ValueError:
        return value


# -- common parts ------------------------------------------------------------------------------------------------------


def _number_or_schedule(value: Any, num_env_steps: int) -> Any:
    """Return a number, or the schedule for `lin_2.5e-4`, which falls to 0 over the run."""
    if isinstance(value, str) and value.startswith("lin_"):
        return [[0, float(value.removeprefix("lin_"))], [num_env_steps, 0.0]]
    return float(value)


def _network(imported: Imported, algorithm: str, params: Params) -> None:
    kwargs = params.pop("policy_kwargs", None) or {}
    if not isinstance(kwargs, Mapping):
        imported.missing["policy_kwargs"] = f"{kwargs!r} cannot be converted"
        kwargs = {}
    kwargs = dict(kwargs)
    hiddens = kwargs.pop("net_arch", None)
    if isinstance(hiddens, list) and len(hiddens) == 1 and isinstance(hiddens[0], Mapping):
        hiddens = hiddens[0]
    if isinstance(hiddens, Mapping):
        sizes = [list(of_net) for of_net in hiddens.values()]
        if any(size != sizes[0] for size in sizes):
            imported.missing["net_arch"] = f"{dict(hiddens)}: all networks get the sizes of the first one"
        hiddens = sizes[0]
    activation = kwargs.pop("activation_fn", None)
    known = _ACTIVATIONS.get(str(activation)) if activation is not None else None
    if activation is not None and known is None:
        imported.missing["activation_fn"] = f"{activation} is left out"
    is_on_policy, has_cnn = algorithm in ("ppo", "a2c"), str(params.get("policy", "")).startswith("Cnn")
    if has_cnn:  # one convolutional network, whose features are shared by the layers of all heads
        hiddens = [_NATURE_FEATURES, *(hiddens or [])]
        imported.set("module", conv_filters=_NATURE_CNN)
    imported.set(
        "module",
        fcnet_hiddens=_HIDDEN.get(algorithm, _WIDE) if hiddens is None else hiddens,
        fcnet_activation=known or ("tanh" if is_on_policy and not has_cnn else "relu"),
        vf_share_layers=has_cnn if is_on_policy else None,
    )
    if is_on_policy:
        _exploration(imported, params, kwargs)
    for key, value in kwargs.items():
        if not (key == "ortho_init" and value is False):
            imported.missing[f"policy_kwargs.{key}"] = f"{value!r} is left out"


def _exploration(imported: Imported, params: Params, kwargs: dict[str, Any]) -> None:
    """Set the standard deviation of actions, and gSDE."""
    log_std = kwargs.pop("log_std_init", None)
    frequency = int(params.pop("sde_sample_freq", -1))
    if params.pop("use_sde", False):
        frequency = int(params["n_steps"]) if frequency < 1 else frequency  # -1: once per rollout
        initial = -2.0 if log_std is None else float(log_std)
        imported.set("module", use_sde=True, sde_sample_freq=frequency, initial_log_std=initial)
    elif log_std is not None:
        imported.set("module", free_log_std=True, initial_log_std=float(log_std))


def _wrappers(imported: Imported, algorithm: str, params: Params) -> None:
    wrappers, frames = params.pop("env_wrapper", None), params.pop("frame_stack", None)
    if is_atari_wrapper(wrappers) and frames == 4 and imported.options.get("env") == "atari":
        imported.options["connectors"] = "atari" if algorithm in ("ppo", "a2c") else "atari_replay"
        return
    env = str(imported.values["env"].get("env"))
    found, unknown = find_wrappers(wrappers, env, is_normalized=bool(params.get("normalize")))
    if found:
        imported.set("env", wrappers=found)
    if unknown:
        imported.missing["env_wrapper"] = f"{', '.join(unknown)}: add the wrappers to env.wrappers"
    if frames:
        imported.missing["frame_stack"] = f"{frames} frames: use connectors=atari, or the connector FrameStacking"


def _normalisation(imported: Imported, algorithm: str, params: Params) -> None:
    """Choose pipelines for `normalize`, which is true or holds arguments of VecNormalize."""
    given = params.pop("normalize", False)
    kwargs = params.pop("normalize_kwargs", None) or {}
    wanted = {"norm_obs": True, "norm_reward": True, **(given if isinstance(given, Mapping) else {}), **kwargs}
    if not given:
        return
    is_on_policy = algorithm in ("ppo", "a2c")
    if wanted["norm_obs"]:
        imported.options["connectors"] = "mujoco" if wanted["norm_reward"] and is_on_policy else "mean_std_filter"
    if wanted["norm_reward"] and not (is_on_policy and wanted["norm_obs"]):
        imported.missing["norm_reward"] = (
            "add the connector ScaleRewards to connectors.learner (not with a replay buffer)"
        )


# -- algorithms ------------------------------------------------------------------------------------------------------


def _common(imported: Imported, params: Params, num_env_steps: int) -> None:
    imported.set(
        "algorithm",
        gamma=float(params.pop("gamma")),
        entropy_coeff=float(params.pop("ent_coef")),
        vf_loss_coeff=float(params.pop("vf_coef")),
        grad_clip=float(params.pop("max_grad_norm")),
        lr=_number_or_schedule(params.pop("learning_rate"), num_env_steps),
        lambda_=float(params.pop("gae_lambda")),
        train_batch_size_per_learner=int(params.pop("n_steps"))
        * imported.values["env_runners"]["num_envs_per_env_runner"],
    )


def _ppo(imported: Imported, params: Params, num_env_steps: int) -> None:
    imported.options["algorithm"] = "ppo_sb3"
    _common(imported, params, num_env_steps)
    clip = params.pop("clip_range")
    if isinstance(clip, str):
        imported.missing["clip_range"] = f"{clip} is constant at its first value"
        clip = clip.removeprefix("lin_")
    # Stable-Baselines3 trains on the complete batch if it has fewer rows than a minibatch.
    batch_size = imported.values["algorithm"]["train_batch_size_per_learner"]
    imported.set(
        "algorithm",
        clip_param=float(clip),
        minibatch_size=min(int(params.pop("batch_size")), batch_size),
        num_epochs=int(params.pop("n_epochs")),
    )
    if (target_kl := params.pop("target_kl", None)) is not None:
        imported.set("algorithm", target_kl=float(target_kl))


def _a2c(imported: Imported, params: Params, num_env_steps: int) -> None:
    imported.options["algorithm"] = "a2c"
    _common(imported, params, num_env_steps)
    imported.set("algorithm", min_sample_timesteps_per_iteration=2000)
    if params.pop("use_rms_prop"):
        imported.set("algorithm", optimizer={"name": "rmsprop", "alpha": 0.99, "epsilon": 1e-5})


def _replay(imported: Imported, params: Params) -> None:
    num_envs = imported.values["env_runners"]["num_envs_per_env_runner"]
    batch_size, train_freq = int(params.pop("batch_size")), params.pop("train_freq")
    gradient_steps = int(params.pop("gradient_steps"))
    if isinstance(train_freq, list) and train_freq[1] == "step":
        train_freq = train_freq[0]
    if isinstance(train_freq, list):
        imported.missing["train_freq"] = (
            f"{train_freq}, {gradient_steps} gradient steps: replaced by one update per env step"
        )
    num_steps_of_each_env = 1 if isinstance(train_freq, list) else int(train_freq)
    if isinstance(train_freq, list) or gradient_steps == -1:
        per_env_step = 1.0
    else:
        per_env_step = gradient_steps / (num_steps_of_each_env * num_envs)
    capacity = int(float(params.pop("buffer_size")))
    # Stable-Baselines3 counts the steps of the run, which may exceed its buffer; here the steps in the buffer count.
    learning_starts = min(int(float(params.pop("learning_starts"))), capacity - 1)
    imported.set(
        "algorithm",
        gamma=float(params.pop("gamma")),
        tau=float(params.pop("tau")),
        n_step=int(params.pop("n_steps")),
        replay_capacity=capacity,
        num_steps_sampled_before_learning_starts=learning_starts,
        train_batch_size_per_learner=batch_size,
        training_intensity=batch_size * per_env_step,
        replay_buffers={"replay": {"_target_": "runner.replay.ReplayBuffer"}},
    )
    # Updates are made together after a number of steps, so the policy is constant until then, and so are the targets.
    imported.set("env_runners", rollout_fragment_length=num_steps_of_each_env, episode_lookback_horizon=0)


def _dqn(imported: Imported, params: Params, num_env_steps: int) -> None:
    imported.options |= {"algorithm": "dqn", "module": "double_q"}
    _replay(imported, params)
    fraction = float(params.pop("exploration_fraction"))
    first, last = float(params.pop("exploration_initial_eps")), float(params.pop("exploration_final_eps"))
    imported.set(
        "algorithm",
        lr=_number_or_schedule(params.pop("learning_rate"), num_env_steps),
        grad_clip=float(params.pop("max_grad_norm")),
        double_q=False,
        epsilon=[[0, first], [max(1, round(fraction * num_env_steps)), last]],
        target_network_update_freq=int(params.pop("target_update_interval")),
    )
    imported.set("module", dueling=False)


def _rates(imported: Imported, params: Params, num_env_steps: int, *names: str) -> None:
    rate = _number_or_schedule(params.pop("learning_rate"), num_env_steps)
    imported.set("algorithm", **dict.fromkeys(names, rate))


def _sac(imported: Imported, params: Params, num_env_steps: int, name: str = "sac") -> None:
    imported.options |= {"algorithm": name, "module": name}
    _replay(imported, params)
    _rates(imported, params, num_env_steps, "actor_lr", "critic_lr", "alpha_lr")
    entropy, target = params.pop("ent_coef"), params.pop("target_entropy")
    if isinstance(entropy, str) and entropy.startswith("auto"):
        _, _, initial = entropy.partition("_")
        imported.set("algorithm", initial_alpha=float(initial) if initial else None)
    else:
        imported.set("algorithm", initial_alpha=float(entropy), alpha_lr=0.0)
    imported.set("algorithm", target_entropy=None if target == "auto" else float(target))


def _tqc(imported: Imported, params: Params, num_env_steps: int) -> None:
    _sac(imported, params, num_env_steps, "tqc")
    imported.set("algorithm", top_quantiles_to_drop_per_net=int(params.pop("top_quantiles_to_drop_per_net")))


def _td3(imported: Imported, params: Params, num_env_steps: int, name: str = "td3") -> None:
    imported.options |= {"algorithm": name, "module": name}
    num_random = int(float(params["learning_starts"]))
    _replay(imported, params)
    _rates(imported, params, num_env_steps, "actor_lr", "critic_lr")
    delay, noise, clip = (params.pop(key) for key in ("policy_delay", "target_policy_noise", "target_noise_clip"))
    if name == "td3":
        imported.set("algorithm", policy_delay=int(delay), target_noise=float(noise), target_noise_clip=float(clip))
    kind, deviation = params.pop("noise_type"), float(params.pop("noise_std"))
    imported.set(
        "algorithm",
        exploration="ornstein_uhlenbeck" if str(kind).startswith("ornstein") else "gaussian",
        exploration_noise=0.0 if kind is None else deviation,
        num_random_steps=num_random,
    )


_IMPORTERS: Mapping[str, tuple[Params, Fill]] = {
    "ppo": (_PPO, _ppo),
    "a2c": (_A2C, _a2c),
    "dqn": (_DQN, _dqn),
    "sac": (_SAC, _sac),
    "tqc": (_TQC, _tqc),
    "td3": (_TD3, _td3),
    "ddpg": (_TD3, partial(_td3, name="ddpg")),
}
