"""Builds one env runner, in the process that will step it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.callbacks import EPISODE_HOOKS, Callbacks, build_callbacks
from runner.config.env_runners import separate_settings
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.info_metrics import read_info_metrics
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import is_user_defined
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.checked_env_runner import CheckedEnvRunner
from runner.env_runners.env_makers import make_environment, make_multi_agent_env, make_vector_env
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.episode_callbacks import EpisodeCallbacks
from runner.env_runners.episode_infos import EpisodeInfos
from runner.env_runners.episode_recording import EnvEpisodeRecording, EpisodeRecording
from runner.env_runners.gradient_runner import GradientRunner
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.module_runner import ActingModule
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.protocol import EnvRunner, FragmentSource
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.teams import sharing_rewards
from runner.env_runners.vector_envs import SubEnvironments, SyncEnvironments
from runner.experiment.features import features_of
from runner.experiment.learner_builder import build_local_learner_group
from runner.feature import Feature
from runner.learners.collective import Collective
from runner.module_building import (
    BuiltActingModule,
    ModuleSpec,
    build_acting_modules,
    build_modules,
    has_several_agents,
    lookback_of,
    make_module_specs,
    networks_of,
    on_device,
)
from runner.modules.multi_rl_module import MultiRLModule
from runner.pipelines.connector import DEFAULT_MODULE_ID

if TYPE_CHECKING:
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.recorder import EpisodeRecorder

TRAINING, EVALUATION = "env_runner", "evaluation"


def make_env_runner(
    experiment: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None, index: int = 0
) -> EnvRunner:
    """Make one env runner of `conf/experiment/<experiment>.yaml`, or of a file in `config_dir`, in this process.

    It acts with the initial parameters of the run until it receives others. Close it after use.

    Args:
        experiment: name of the experiment.
        overrides: overrides of single keys, as on the command line.
        config_dir: folder of custom configuration files, or None.
        index: index of the env runner, which selects its seeds.

    Raises:
        ConfigError: the configuration is wrong, or a part cannot be created.
    """
    from runner.config.compose import compose_experiment  # imports Hydra, which env runners of a run do not need
    from runner.config.validation import build_experiment_config

    folder = None if config_dir is None else Path(config_dir)
    config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides], folder))
    return cast(EnvRunner, build_env_runner(config, make_module_specs(config), TRAINING, index, 0))


def build_env_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    role: str,
    index: int,
    generation: int,
    is_recording: bool = False,
    run_dir: Path | None = None,
    device: str = "cpu",
) -> FragmentSource:
    """Make an env runner with its modules (on a device) and pipelines, in the process that will step it."""
    # Evaluation always has the same seeds.
    identity = RunnerIdentity(role, index, 0 if role == EVALUATION else generation, config.seed)
    if config.env.is_external and role == TRAINING:
        from runner.rllink.build import build_external_env_runner

        journal_dir = None if run_dir is None else run_dir / "rllink"
        tasks = {name: task for feature in features_of(config) for name, task in feature.client_tasks().items()}
        return build_external_env_runner(config, specs, identity, tasks, journal_dir, is_recording)
    writer_id = f"{role}-{index}-{generation}" if is_recording else None
    return build_stepping_env_runner(config, specs, identity, writer_id, device)


def build_stepping_env_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    identity: RunnerIdentity,
    writer_id: str | None = None,
    device: str = "cpu",
    callbacks: Callbacks | None = None,
) -> EnvRunner:
    """Make an env runner that steps environments in this process.

    Args:
        config: configuration of the run.
        specs: module id -> its specification.
        identity: names the random streams and the episodes.
        writer_id: name of the files of recorded episodes, or None to record nothing.
        device: where the modules act.
        callbacks: callbacks to use, or None for the callbacks of the configuration.
    """
    built_modules = build_acting_modules(config, specs)
    for network in networks_of(built_modules).values():
        network.to(device)
    for built in built_modules.values():
        _prepare_pipelines(built, config, identity)
    build = _build_multi_agent_runner if has_several_agents(specs) else _build_single_agent_runner
    return build(config, specs, built_modules, identity, writer_id, callbacks)


def _build_single_agent_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    built_modules: Mapping[str, BuiltActingModule],
    identity: RunnerIdentity,
    writer_id: str | None,
    callbacks: Callbacks | None,
) -> EnvRunner:
    acting = built_modules[DEFAULT_MODULE_ID]
    features = features_of(config)
    env = _make_vector_env(config, features, _num_envs(config, identity), identity.role == EVALUATION)
    listeners: list[EpisodeListener] = []
    if config.metrics:
        listeners.append(EpisodeInfos(read_info_metrics(config), env.num_envs))
    listeners += _listeners_of(features, env)
    if writer_id is not None:
        listeners.append(EpisodeRecording(build_recorder(config, acting.spec, writer_id, identity.index)))
    hooks = _episode_callbacks(config, identity, callbacks, env, acting.module)
    if hooks is not None:
        listeners.append(hooks)
    runner = _runner_class(config, SingleAgentEnvRunner)(
        env,
        acting.module,
        acting.env_to_module,
        acting.module_to_env,
        identity,
        lookback_of(config, built_modules),
        config.env.validate_observations,
        listeners,
    )
    return _checked(runner, hooks, config)


def _build_multi_agent_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    built_modules: Mapping[str, BuiltActingModule],
    identity: RunnerIdentity,
    writer_id: str | None,
    callbacks: Callbacks | None,
) -> EnvRunner:
    names = separate_settings(config.env_runners)
    if names:
        what = f"{config.env.name} has several agents, but these settings need an environment with a single agent"
        raise ConfigError([Problem(what, "env_runners", ", ".join(names))])
    features = features_of(config)
    env = _make_multi_agent_envs(config, specs, features, _num_envs(config, identity), identity.role == EVALUATION)
    modules = {
        module_id: ActingModule(built.module, built.spec.agents or (), built.env_to_module, built.module_to_env)
        for module_id, built in built_modules.items()
    }
    together = built_modules[next(iter(built_modules))].together
    module = MultiRLModule({id_: one.module for id_, one in modules.items()}) if together is None else together
    listeners: list[EpisodeListener] = []
    if config.metrics:
        agents = {module_id: acting.agents for module_id, acting in modules.items()}
        module_of = {agent: module_id for module_id, of_module in agents.items() for agent in of_module}
        listeners.append(AgentInfos(read_info_metrics(config, agents), module_of, env.num_envs))
    listeners += _listeners_of(features, env)
    if writer_id is not None:
        recorder = build_env_episode_recorder(config, specs, writer_id, identity.index)
        listeners.append(EnvEpisodeRecording(recorder, identity.id_prefix))
    hooks = _episode_callbacks(config, identity, callbacks, env, module)
    if hooks is not None:
        listeners.append(hooks)
    runner = _runner_class(config, MultiAgentEnvRunner)(
        env,
        modules,
        module,
        identity,
        lookback_of(config, built_modules),
        config.env.validate_observations,
        together is not None,
        listeners,
    )
    return _checked(runner, hooks, config)


def _num_envs(config: ExperimentConfig, identity: RunnerIdentity) -> int:
    return (config.evaluation if identity.role == EVALUATION else config.env_runners).num_envs_per_env_runner


def _prepare_pipelines(built: BuiltActingModule, config: ExperimentConfig, identity: RunnerIdentity) -> None:
    """Freeze the pipelines of an evaluation; set the index of the env runner in the others."""
    index = identity.index
    for pipeline in (built.env_to_module, built.module_to_env):
        if identity.role == EVALUATION:
            pipeline.freeze()
        else:
            pipeline.use_env_runner(index, max(index + 1, config.env_runners.max_env_runners))


def _make_multi_agent_envs(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    features: Sequence[Feature],
    num_envs: int,
    is_evaluation: bool,
) -> MultiAgentEnvironments:
    make_env = _env_maker_of(features, has_several_agents=True) or partial(_make_agents_env, config)
    explore = (config.evaluation if is_evaluation else config.env_runners).explore
    made = (feature.make_envs(specs, make_env, num_envs, explore) for feature in features)
    envs = next((envs for envs in made if envs is not None), None)
    return envs or MultiAgentEnvironments(make_env, num_envs, config.seed, config.env.max_replayed_steps)


def _env_maker_of(features: Sequence[Feature], has_several_agents: bool) -> Callable[[], Any] | None:
    """Return a feature's function that makes environments, or None to use the `env` block."""
    makers = (feature.env_maker(has_several_agents) for feature in features)
    return next((make_env for make_env in makers if make_env is not None), None)


def _make_agents_env(config: ExperimentConfig) -> MultiAgentEnv:
    return sharing_rewards(make_multi_agent_env(config.env), config.multi_agent.teams)


def _make_vector_env(
    config: ExperimentConfig, features: Sequence[Feature], num_envs: int, is_evaluation: bool
) -> SubEnvironments:
    """Make N sub-environments, one by one if episodes are limited, because each is then reset alone."""
    make_env = _env_maker_of(features, has_several_agents=False)
    if make_env is not None:
        return SyncEnvironments(make_env, num_envs, config.seed, max_replayed_steps=config.env.max_replayed_steps)
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


def _episode_callbacks(
    config: ExperimentConfig, identity: RunnerIdentity, callbacks: Callbacks | None, env: Any, module: Any
) -> EpisodeCallbacks | None:
    """Make the listener that calls the callbacks; None if they do not override any hook that an env runner calls."""
    if callbacks is None:
        callbacks = build_callbacks(config, is_evaluation=identity.role == EVALUATION)
    if not callbacks.overrides_any(*EPISODE_HOOKS):
        return None
    return EpisodeCallbacks(callbacks, env.environments, identity.index, env.num_envs, module)


def _checked(runner: Any, hooks: EpisodeCallbacks | None, config: ExperimentConfig) -> EnvRunner:
    """Return the env runner. A custom class is wrapped to check that it calls the hooks of its callbacks."""
    if hooks is None or not is_user_defined(type(runner)):
        return cast(EnvRunner, runner)
    given = ", ".join(str(block.get("_target_")) for block in config.callbacks)
    return cast(EnvRunner, CheckedEnvRunner(runner, hooks, given))


def _runner_class(config: ExperimentConfig, default: Any) -> Any:
    path, key = config.env_runners.env_runner_class, "env_runners.env_runner_class"
    found = default if path is None else import_target(path, key, EnvRunner)
    others = {SingleAgentEnvRunner, MultiAgentEnvRunner} - {default}
    if issubclass(found, tuple(others)):
        what = f"{path} does not support environments like {config.env.name}"
        raise ConfigError([Problem(what, key, path, f"a subclass of {default.__name__}")])
    return found


def _listeners_of(features: Iterable[Feature], env: Any) -> list[EpisodeListener]:
    """Return the listeners of the features for an env runner with these sub-environments."""
    made = [feature.make_listener(env) for feature in features]
    return [listener for listener in made if listener is not None]


def build_gradient_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    role: str,
    index: int,
    generation: int,
    device: str = "cpu",
    **options: Any,
) -> GradientRunner:
    """Make an env runner that can compute gradients on its device, from the arguments of `build_env_runner`."""
    runner = build_env_runner(config, specs, role, index, generation, device=device, **options)
    here = on_device(config, device)
    return GradientRunner(runner, lambda: build_local_learner_group(here, build_modules(here, specs), Collective()))


def build_recorder(
    config: ExperimentConfig, spec: ModuleSpec, writer_id: str, index: int, file_list: FileList | None = None
) -> EpisodeRecorder:
    """Make the recorder for the episodes of env runner `index`; `writer_id` is the prefix of its file names."""
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.recorder import EpisodeRecorder
    from runner.offline.writing.writer import EpisodeWriter

    spaces = Spaces(spec.observation_space, spec.action_space)
    env_name = config.env.name
    return EpisodeRecorder(EpisodeWriter(config.offline, spaces, env_name, writer_id, file_list, index + 1))


def build_env_episode_recorder(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    writer_id: str,
    index: int,
    file_list: FileList | None = None,
) -> EnvEpisodeRecorder:
    """Make the recorder for env episodes of several agents; see `build_recorder`."""
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.writer import EpisodeWriter

    spaces = {
        agent: Spaces(spec.observation_space, spec.action_space)
        for spec in specs.values()
        for agent in spec.agents or ()
    }
    writer = EpisodeWriter(config.offline, None, config.env.name, writer_id, file_list, index + 1, spaces)
    return EnvEpisodeRecorder(writer)
