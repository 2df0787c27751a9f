"""What is known of `env.backend` without importing the libraries behind it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.config.composed import Composed
from runner.config.errors import Problem, list_names, nearest_match, show_value
from runner.config.schemas import EnvConfig, ExperimentConfig
from runner.config.targets import is_subclass

ALE_CLASS = "ale_py.vector_env.AtariVectorEnv"
_WRAPPER_OF_ONE = "gymnasium.core.Wrapper"
# Options of the libraries that are not in `env.env_config`, and what decides them.
DECIDED = {
    "num_envs": "env_runners.num_envs_per_env_runner",
    "seed": "seed, of the experiment",
    "env_seed": "seed, of the experiment",
    "game": "env.env",
    "task_id": "env.env",
    "batch_size": "all sub-environments take each vector step",
    "autoreset_mode": "a sub-environment is reset in the step after its episode's end",
    "max_num_players": "environments with one agent",
    "gym_reset_return_info": "infos are returned",
    "base_path": "the files of the installed package",
    "render_mode": "env.backend=gymnasium: this one draws no pictures",
}
# ROMs without a game for one player.
_FOR_SEVERAL_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
Where = Callable[[str], str | None]


def find_backend_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what does not go together with an `env.backend` other than gymnasium."""
    env, mode = config.env, config.env_runners.gym_env_vectorize_mode
    got = f"env.backend={env.backend}"
    if env.is_external:
        what, allowed = "simulators that connect step themselves", "env.backend=gymnasium, or env.port=null"
        yield Problem(what, composed.where("env.backend"), got, allowed)
    if env._target_ is not None:
        what = "env.backend is for environments of its library, and env._target_ names your own"
        allowed = "env.backend=gymnasium, or env.env: an id of that library"
        yield Problem(what, composed.where("env.backend"), got, allowed)
    if mode != "auto":
        key = "env_runners.gym_env_vectorize_mode"
        what = f"{key} is for env.backend=gymnasium: {env.backend} steps sub-environments together in any case"
        yield Problem(what, composed.where(key), mode, "auto")
    for index, wrapper in enumerate(env.wrappers):
        target = str(wrapper.get("_target_"))
        if is_subclass(target, _WRAPPER_OF_ONE):
            key = f"env.wrappers.{index}"
            what = f"{key} goes around one sub-environment, and env.backend={env.backend} steps all of them together"
            yield Problem(what, composed.where(key), target, "a gymnasium.vector.VectorWrapper, or env.wrappers=[]")
    yield from find_native_problems(env, composed.where)


def find_native_problems(env: EnvConfig, where: Where) -> Iterator[Problem]:
    """Yield options that runner decides, and a game that ALE does not have.

    Args:
        env: the block, with a backend other than gymnasium.
        where: place of a key.
    """
    for name, value in env.env_config.items():
        if name in DECIDED:
            key = f"env.env_config.{name}"
            what = f"{key} is no option with env.backend={env.backend}"
            yield Problem(what, where(key), show_value(value), DECIDED[name])
    games = ale_games() if env.backend == "ale" else {}
    if games and env.env is not None and env.env.removeprefix("ale_py:") not in games:
        yield unknown_id(env, list(games), where)


def unknown_id(env: EnvConfig, known: list[str], where: Where) -> Problem:
    """Return that a backend has no environment of this id."""
    name = env.env or ""
    allowed = list_names(known, name, limit=8)
    return Problem(
        f"env.backend={env.backend} has no environment {name}",
        where("env.env"),
        name,
        allowed,
        nearest_match(name, known),
    )


def ale_games() -> dict[str, str]:
    """Return the name of the ROM of each Atari game, by gymnasium's id of the game; empty without ale_py."""
    spec = importlib.util.find_spec("ale_py")
    folders = spec.submodule_search_locations if spec else None
    roms = sorted(path.stem for folder in folders or () for path in Path(folder, "roms").glob("*.bin"))
    return {f"ALE/{rom.title().replace('_', '')}-v5": rom for rom in roms if rom not in _FOR_SEVERAL_PLAYERS}
