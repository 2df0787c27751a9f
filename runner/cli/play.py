"""`play RUN`, `play POLICY.onnx` or `play zoo:NAME`: episodes of a trained policy in a window, or as a video."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runner.checkpoints.folder import newest_checkpoint
from runner.checkpoints.trust import ACTING
from runner.cli.arguments import Arguments, UsageError
from runner.cli.output_files import check_new_file
from runner.config.documents import read_regular
from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError, UserError, nearest_match
from runner.config.paths import zoo_dir
from runner.config.user_code import USER_ERRORS

_ZOO = "zoo:"
_SPACES = ("observation_space", "action_space")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def main(arguments: Arguments) -> int:
    """Play episodes, and print their returns."""
    [name] = arguments.words
    output, num_episodes = arguments.path("--output"), arguments.integer("--episodes", 1)
    policy = _policy_file(name)
    if policy is None:
        newest_checkpoint(Path(name).absolute())  # a missing run is reported before a missing display
    elif not os.path.isfile(policy):
        raise UserError(Problem("the policy file does not exist", name, expected="POLICY.onnx, RUN or zoo:NAME"))
    if output is None:
        _check_display()
    else:
        check_new_file(output, arguments.has("--force"))
    if policy is None:
        _reject(arguments, "--config-dir", "a run contains its configuration")
        returns = _play_run(arguments, output, num_episodes)
    else:
        overrides, folder = list(arguments.overrides), arguments.config_dir
        if name.startswith(_ZOO):
            _reject(arguments, "--config-dir", "the zoo has its own experiments")
            _reject(arguments, "--trust", "the policies of the zoo are trusted")
            overrides = [f"experiment={policy.stem}", *overrides]
        returns = list(_play_file(policy, overrides, folder, output, num_episodes))
    shown = ", ".join(f"{value:g}" for value in returns)
    print(f"played {num_episodes} episode{'' if num_episodes == 1 else 's'} of {name}: return {shown}")
    if output is not None:
        print(f"  video  {output}, {output.stat().st_size:,} bytes")
    return 0


def _policy_file(name: str) -> Path | None:
    """Return the policy file that the command line names; None for a run."""
    if name.startswith(_ZOO):
        return _policy_in_zoo(name.removeprefix(_ZOO))
    return Path(name) if name.endswith(".onnx") else None


def _reject(arguments: Arguments, option: str, why: str) -> None:
    if arguments.has(option):
        raise UsageError(Problem(f"{option} has no effect here: {why}"))


def _policy_in_zoo(experiment: str) -> Path:
    path = zoo_dir() / f"{experiment}.onnx"
    names = sorted(policy.stem for policy in path.parent.glob("*.onnx"))
    if experiment not in names:
        nearest = nearest_match(experiment, names)
        what = f"zoo:{experiment} is not a policy of the zoo"
        raise UserError(Problem(what, expected=", ".join(names), nearest=nearest))
    return path


def has_display() -> bool:
    """Return whether a window can open."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _DISPLAYS)


def _check_display() -> None:
    """Raise `UserError` if a window cannot open; SDL would draw to an invisible one."""
    if not has_display():
        fix = "-o video.mp4, or .gif"
        raise UserError(Problem("a window needs a display", got="DISPLAY is not set", fix=fix))


def _play_run(arguments: Arguments, output: Path | None, num_episodes: int) -> list[float]:
    from runner.cli.stored_run import evaluation_of, open_run

    stored = open_run(arguments, ACTING)
    with evaluation_of(stored) as evaluation:
        paths = [] if output is None else [output]
        returns: list[float] = evaluation.record_videos(paths, num_episodes).returns.tolist()
    return returns


def _play_file(
    path: Path, overrides: Sequence[str], config_dir: Path | None, output: Path | None, num_episodes: int
) -> Iterator[float]:
    """Play a policy file in the environment that the overrides name, and yield returns."""
    from runner.config.compose import compose_experiment
    from runner.config.validation import build_experiment_config

    env_config = build_experiment_config(compose_experiment(list(overrides), config_dir), ()).env
    if env_config.env is None and env_config._target_ is None:
        what = "a policy file does not name its environment"
        raise UserError(Problem(what, str(path), fix="env=NAME, such as env=cartpole"))
    from runner.env_runners.env_closing import close_environments
    from runner.env_runners.env_makers import make_environment
    from runner.env_runners.rendered_envs import rendered
    from runner.episodes.nested import StateError
    from runner.episodes.spaces import space_from_dict
    from runner.rllink.client.local_policy import LocalPolicy, PolicyFileError
    from runner.videos import VideoFile, fps_of, frame_of, render_mode

    try:
        policy = LocalPolicy(read_regular(path))
        spaces = [space_from_dict(policy.manifest[name], name) for name in _SPACES]
    except (OSError, PolicyFileError, KeyError, StateError) as error:
        raise UserError(Problem("the policy cannot be read", str(path), str(error))) from error
    with ExitStack() as held:
        made = make_environment(rendered(env_config, render_mode(is_window=output is None)), mode="sync")
        held.callback(close_environments, [made])
        env = _with_one_agent(made)
        _check_fits(spaces, env, path)
        video = None if output is None else held.enter_context(VideoFile(output, fps_of(made)))

        def show() -> None:
            if video is not None:
                video.add(frame_of(made))

        for seed in range(num_episodes):
            yield _episode(policy, env, seed, show, type(made.unwrapped).__name__)


def _with_one_agent(env: Any) -> Any:
    import gymnasium as gym

    from runner.env_runners.limited_envs import OnlySubEnvironment

    if isinstance(env, gym.vector.VectorEnv):
        return OnlySubEnvironment(env)
    if not isinstance(env, gym.Env):
        fix = "an environment with one agent, or `runner play RUN`, which shows several agents"
        raise ConfigError([Problem("a policy file plays one agent", "env", type(env).__name__, fix=fix)])
    return env


def _check_fits(spaces: Sequence[Any], env: Any, path: Path) -> None:
    """Raise `UserError` if the spaces of the policy and the environment differ."""
    from runner.episodes.spaces import space_to_dict
    from runner.offline.codecs.layout import describe_space

    for name, own in zip(_SPACES, spaces, strict=True):
        given = getattr(env, name)
        if space_to_dict(own) != space_to_dict(given):
            what = f"the {name.replace('_', ' ')} of the policy differs from the environment's"
            got, expected = describe_space(given), describe_space(own)
            if got == expected:  # their bounds differ
                got, expected = str(space_to_dict(given)), str(space_to_dict(own))
            raise UserError(Problem(what, str(path), got, expected, fix="env=NAME, the environment of the policy"))


def _episode(policy: Any, env: Any, seed: int, show: Callable[[], None], env_name: str) -> float:
    """Play one episode greedily; `show` is called after the reset and after each step."""
    try:
        obs, _ = env.reset(seed=seed)
        show()
        total, is_over, state, reward = 0.0, False, None, None
        while not is_over:
            action, extra = policy.act(obs, state=state, rewards=reward)
            state = extra.get("state_out")
            obs, reward, is_terminated, is_truncated, _ = env.step(action)
            show()
            total, is_over = total + float(reward), is_terminated or is_truncated
    except RunnerError:
        raise
    except USER_ERRORS as error:
        what = f"an episode cannot be played: {type(error).__name__}: {error}"
        raise RunFailure(Problem(what, env_name)) from error
    return total
