"""Construction of one env runner, in the process that will step it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.callbacks import EPISODE_HOOKS, EpisodeCallbacks, build_callbacks
from runner.config.curriculum import task_names
from runner.config.env_runner_checks import separate_settings
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.imports import import_target
from runner.config.info_metrics import read_info_metrics
from runner.config.plans import env_steps_per_round
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import is_user_defined, place_of
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.env_makers import make_environment, make_multi_agent_env, make_vector_env
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.episode_infos import EpisodeInfos
from runner.env_runners.gradient_runner import GradientRunner
from runner.env_runners.module_runner import ActingModule
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.teams import sharing_rewards
from runner.env_runners.vector_envs import SubEnvironments, SyncEnvironments
from runner.experiment.learner_builder import build_local_learner_group
from runner.learners.collective import SingleProcess
from runner.module_parts import (
    ActingParts,
    ModuleSpec,
    build_acting_parts,
    build_joined_acting_parts,
    build_parts,
    has_several_agents,
    lookback_of,
    make_module_specs,
    networks_of,
    on_device,
)
from runner.pipelines.connector import DEFAULT_MODULE_ID

if TYPE_CHECKING:
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.recorder import EpisodeRecorder
    from runner.rllink.env_runner import ExternalEnvRunner

TRAINING, EVALUATION = "env_runner", "evaluation"


def make_env_runner(
    experiment: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None, index: int = 0
) -> EnvRunner:
    """Make one env runner of `conf/experiment/<experiment>.yaml`, or of a file in `config_dir`, in this process.

    It acts with the parameters that a run begins with, until it is given others. Close it at the end.

    Args:
        experiment: name of the experiment.
        overrides: of single keys, as on the command line.
        config_dir: folder of one's own configuration.
        index: of the runner; runners of different indexes have different seeds.

    Raises:
        ConfigError: the configuration is wrong, or a part cannot be made.
    """
    from runner.config.compose import compose_experiment  # imports Hydra, which the env runners of a run do without
    from runner.config.validation import build_experiment_config

    folder = None if config_dir is None else Path(config_dir)
    config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides], folder))
    return build_env_runner(config, make_module_specs(config), TRAINING, index, 0)


def build_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModuleSpec],
    role: str,
    index: int,
    generation: int,
    is_recording: bool = False,
    run_dir: Path | None = None,
    device: str = "cpu",
) -> EnvRunner:
    """Make an env runner with its modules, which act on a device, and pipelines, in the process that will step it."""
    if config.env.is_external and role == TRAINING:
        return _build_external_env_runner(config, plans, (role, index, generation), run_dir, is_recording)
    is_evaluation = role == EVALUATION
    num_envs = (config.evaluation if is_evaluation else config.env_runners).num_envs_per_env_runner
    parts = build_joined_acting_parts(config, plans)
    for network in networks_of(parts).values():
        network.to(device)
    for module_parts in parts.values():
        _place(module_parts, config, is_evaluation, index)
    seed_name = (role, index, 0 if is_evaluation else generation)  # evaluation always has the same seeds
    settings = (seed_name, config.seed, lookback_of(config, parts), config.env.validate_observations)
    writer_id = f"{role}-{index}-{generation}"
    if has_several_agents(plans):
        _refuse_separate_settings(config)
        envs = _make_multi_agent_envs(config, plans, is_evaluation, num_envs)
        acting_modules = {module_id: _acting_module(module_parts) for module_id, module_parts in parts.items()}
        joined = {"together": parts[next(iter(parts))].together} if config.multi_agent.multi_rl_module else {}
        several: Any = _runner_class(config, MultiAgentEnvRunner)(envs, acting_modules, *settings, **joined)
        if config.metrics:
            agents = {module_id: acting.agents for module_id, acting in acting_modules.items()}
            module_of = {agent: module_id for module_id, of_module in agents.items() for agent in of_module}
            several.infos = AgentInfos(read_info_metrics(config, agents), module_of, num_envs)
        _give_listeners(several, several.module, config, role, index, envs.environments)
        several.recorder = build_env_episode_recorder(config, plans, writer_id, index) if is_recording else None
        return cast(EnvRunner, several)
    acting, env = parts[DEFAULT_MODULE_ID], _make_vector_env(config, num_envs, is_evaluation)
    runner: Any = _runner_class(config, SingleAgentEnvRunner)(
        env, acting.module, acting.env_to_module, acting.module_to_env, *settings
    )
    if config.metrics:
        runner.infos = EpisodeInfos(read_info_metrics(config), num_envs)
    _give_listeners(runner, acting.module, config, role, index, env.environments)
    if is_recording:
        runner.recorder = build_recorder(config, acting.plan, writer_id, index)
    return cast(EnvRunner, runner)


def _place(parts: ActingParts, config: ExperimentConfig, is_evaluation: bool, index: int) -> None:
    """Freeze the pipelines of an evaluation; tell the others which env runner they act in."""
    for pipeline in (parts.env_to_module, parts.module_to_env):
        if is_evaluation:
            pipeline.freeze()
        else:
            pipeline.use_env_runner(index, max(index + 1, config.env_runners.max_env_runners))


def _make_multi_agent_envs(
    config: ExperimentConfig, plans: Mapping[str, ModuleSpec], is_evaluation: bool, num_envs: int
) -> MultiAgentEnvironments:
    make_env = partial(_make_agents_env, config)
    if not config.league.modules:
        return MultiAgentEnvironments(make_env, num_envs, config.seed, config.env.max_replayed_steps)
    from runner.experiment.league_builder import seat_environments

    explore = (config.evaluation if is_evaluation else config.env_runners).explore
    return seat_environments(config, plans, make_env, num_envs, explore)


def _make_agents_env(config: ExperimentConfig) -> MultiAgentEnv:
    """Make an environment with several agents, whose episodes are of tasks where there is a curriculum."""
    if not task_names(config.curriculum):
        return sharing_rewards(make_multi_agent_env(config.env), config.multi_agent.teams)
    from runner.experiment.curriculum_builder import make_tasked_multi_agent_env

    return make_tasked_multi_agent_env(config)


def _make_vector_env(config: ExperimentConfig, num_envs: int, is_evaluation: bool) -> SubEnvironments:
    """Make N sub-environments; ones with limited episodes are made one by one, since each is reset alone."""
    if task_names(config.curriculum):
        from runner.experiment.curriculum_builder import make_tasked_envs

        return make_tasked_envs(config, num_envs)
    runners = config.env_runners
    if is_evaluation and config.evaluation.max_episode_steps is not None and not separate_settings(runners):
        make_one = partial(make_environment, config.env, 1, runners.gym_env_vectorize_mode)
        return SyncEnvironments(make_one, num_envs, config.seed)
    return make_vector_env(
        config.env,
        num_envs,
        runners.gym_env_vectorize_mode,
        config.seed,
        runners.restart_failed_sub_environments,
        runners.env_step_timeout_s,
    )


def _refuse_separate_settings(config: ExperimentConfig) -> None:
    names = separate_settings(config.env_runners)
    if names:
        what = f"{config.env.name} has several agents, and these settings are for environments with a single one"
        raise ConfigError([Problem(what, "env_runners", ", ".join(names))])


def _give_listeners(runner: Any, module: Any, config: ExperimentConfig, role: str, index: int, envs: Any) -> None:
    """Give an env runner what hears of its episodes: the tasks of a curriculum, and its own callbacks.

    Callbacks of which none hears of episodes are left out.
    """
    if task_names(config.curriculum):
        from runner.curriculum.tasked_episodes import TaskedEpisodes

        runner.tasks = TaskedEpisodes(envs)
    runner.callbacks = None
    callbacks = build_callbacks(config)
    if callbacks.hears(*EPISODE_HOOKS):
        callbacks.context["is_evaluation"] = role == EVALUATION
        num_envs = (config.evaluation if role == EVALUATION else config.env_runners).num_envs_per_env_runner
        runner.callbacks = EpisodeCallbacks(callbacks, envs, index, num_envs, module)
        _check_callbacks_are_called(runner, config)


def _check_callbacks_are_called(runner: Any, config: ExperimentConfig) -> None:
    """Let the first `sample` of the user's env runner fail if it tells its callbacks of no episode."""
    callbacks: EpisodeCallbacks = runner.callbacks
    if not is_user_defined(type(runner)):
        return
    sample = runner.sample

    def first_sample(*arguments: Any, **options: Any) -> Any:
        sampled = sample(*arguments, **options)
        if callbacks.has_missed_episodes:
            name = type(runner).__name__
            what = f"{name} tells its callbacks of no episode, and `callbacks` hear of episodes"
            allowed = (
                f"a {name} that calls self.callbacks.before_first_reset, after_reset, before_step and after_step, "
            )
            raise RunFailure(
                Problem(
                    what,
                    f"env_runners.env_runner_class, {place_of(type(runner), 'sample')}",
                    ", ".join(str(block.get("_target_")) for block in config.callbacks),
                    f"{allowed}as SingleAgentEnvRunner does; or callbacks=[]",
                )
            )
        del runner.sample  # from now on its class's
        return sampled

    runner.sample = first_sample


def _runner_class(config: ExperimentConfig, default: Any) -> Any:
    path, key = config.env_runners.env_runner_class, "env_runners.env_runner_class"
    found = default if path is None else import_target(path, key, EnvRunner)
    others = {SingleAgentEnvRunner, MultiAgentEnvRunner} - {default}
    if issubclass(found, tuple(others)):
        what = f"{path} steps environments of another kind than {config.env.name}"
        raise ConfigError([Problem(what, key, path, f"a subclass of {default.__name__}")])
    return found


def _acting_module(parts: ActingParts) -> ActingModule:
    return ActingModule(parts.module, parts.plan.agents or (), parts.env_to_module, parts.module_to_env)


def build_gradient_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModuleSpec],
    role: str,
    index: int,
    generation: int,
    device: str = "cpu",
    **options: Any,
) -> GradientRunner:
    """Make an env runner that can compute gradients on its device, from the arguments of `build_env_runner`."""
    runner = build_env_runner(config, plans, role, index, generation, device=device, **options)
    here = on_device(config, device)
    return GradientRunner(runner, lambda: build_local_learner_group(here, build_parts(here, plans), SingleProcess()))


def _build_external_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModuleSpec],
    seed_name: tuple[str, int, int],
    run_dir: Path | None,
    is_recording: bool,
) -> ExternalEnvRunner:
    from runner.rllink.env_runner import ExternalEnvRunner, Sampling

    parts = {module_id: build_acting_parts(config, plan) for module_id, plan in plans.items()}
    num_runners = max(1, config.env_runners.min_env_runners)  # it is fixed
    sampling = Sampling(env_steps_per_round(config, num_runners), num_runners, lookback_of(config, parts))
    journal_dir = None if run_dir is None else run_dir / "rllink"
    return ExternalEnvRunner(config, plans, seed_name, sampling, journal_dir, is_recording)


def build_recorder(
    config: ExperimentConfig, plan: ModuleSpec, writer_id: str, index: int, file_list: FileList | None = None
) -> EpisodeRecorder:
    """Make the recorder of the episodes of env runner `index`, whose files are named after `writer_id`."""
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.recorder import EpisodeRecorder
    from runner.offline.writing.writer import EpisodeWriter

    spaces = Spaces(plan.observation_space, plan.action_space)
    env_name = config.env.name
    return EpisodeRecorder(EpisodeWriter(config.offline, spaces, env_name, writer_id, file_list, index + 1))


def build_env_episode_recorder(
    config: ExperimentConfig,
    plans: Mapping[str, ModuleSpec],
    writer_id: str,
    index: int,
    file_list: FileList | None = None,
) -> EnvEpisodeRecorder:
    """Make the recorder of the env episodes of several agents, see `build_recorder`."""
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.writer import EpisodeWriter

    spaces = {
        agent: Spaces(plan.observation_space, plan.action_space)
        for plan in plans.values()
        for agent in plan.agents or ()
    }
    writer = EpisodeWriter(config.offline, None, config.env.name, writer_id, file_list, index + 1, spaces)
    return EnvEpisodeRecorder(writer)
