"""The environment of a run, with images for videos and windows."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from runner.config.errors import ConfigError, Problem, show_value
from runner.config.schemas import EnvConfig

# Options of ALE's vector environments that gymnasium's Atari preprocessing does not have -> the value without effect.
_WITHOUT_EFFECT = {
    "stack_num": 1,
    "reward_clipping": False,
    "use_fire_reset": False,
    "maxpool": True,
    "continuous": False,
}
_OPTIONS_OF_GAME = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")


def rendered(env: EnvConfig, mode: str) -> EnvConfig:
    """Return an `env` block whose environment renders.

    ALE's vector environments do not render. One of gymnasium's Atari environments, with the same preprocessing, takes
    their place.

    Args:
        env: block of the run.
        mode: gymnasium's render mode.

    Raises:
        ConfigError: ALE is not installed, or its vector environment has an option that gymnasium's preprocessing does
            not have.
    """
    if env.backend == "ale":
        env = _with_gymnasium(env)
    return replace(env, env_config={**env.env_config, "render_mode": mode})


def _with_gymnasium(env: EnvConfig) -> EnvConfig:
    from runner.env_runners.native.making import check_installed

    check_installed(env.backend)
    from ale_py.vector_env import AtariVectorEnv

    defaults = {name: parameter.default for name, parameter in inspect.signature(AtariVectorEnv).parameters.items()}
    options: dict[str, Any] = {**defaults, **env.env_config}
    problems = [
        Problem(
            f"ALE's vector environments do not render, and gymnasium's preprocessing does not have {name}",
            f"env.env_config.{name}",
            show_value(options[name]),
            show_value(value),
        )
        for name, value in _WITHOUT_EFFECT.items()
        if options[name] != value
    ]
    if problems:
        raise ConfigError(problems)
    preprocessing = {
        "_target_": "gymnasium.wrappers.AtariPreprocessing",
        "noop_max": options["noop_max"],
        "frame_skip": options["frameskip"],
        "screen_size": (options["img_width"], options["img_height"]),
        "terminal_on_life_loss": options["episodic_life"],
        "grayscale_obs": options["grayscale"],
        "grayscale_newaxis": True,
    }
    return replace(
        env,
        env=f"ale_py:{(env.env or '').removeprefix('ale_py:')}",
        backend="gymnasium",
        env_config={"frameskip": 1, **{name: options[name] for name in _OPTIONS_OF_GAME}},
        wrappers=[preprocessing, *env.wrappers],
    )
