"""The blocks that every run has: a frozen dataclass for each; each field has default, unit, range and meaning.

`--help`, `show`, the docs and every check come from these definitions. Names and defaults follow RLlib's new API
stack where it has the field. Blocks of features (`league`, `offline`, `rllink`, `sweep`, ...) are in modules of their
own, with their rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.fields import option

DEFAULT_STRATEGY, SPREAD, PACK = "DEFAULT", "SPREAD", "PACK"
STRATEGIES = (DEFAULT_STRATEGY, SPREAD, PACK)
DEFAULT_MODULE_ID = "default_policy"


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is stepped, and how actions reach it."""

    env: str | None = option(None, "gymnasium id, for example CartPole-v1; null when _target_ names a class")
    backend: str = option(
        "gymnasium",
        "library that has the environment of this id; envpool and ale step all sub-environments in threads of C++",
        choices=("gymnasium", "envpool", "ale"),
    )
    _target_: str | None = option(
        None, "dotted path of your own gymnasium.Env, VectorEnv or MultiAgentEnv class, or of a function that makes one"
    )
    env_config: dict[str, Any] = option({}, "keyword arguments of the environment's constructor or of that function")
    wrappers: list[dict[str, Any]] = option(
        [], "wrappers around the environment, innermost first: {_target_: dotted path, its keyword arguments, ...}"
    )
    normalize_actions: bool = option(True, "module acts in [-1, 1]; actions are scaled to the Box of the environment")
    clip_actions: bool = option(False, "clip actions into the Box of the environment (when not normalised)")
    validate_observations: str = option(
        "auto",
        "observations outside of their Box: error ends the run, warn says so once and counts them, off admits them; "
        "auto: warn, and for simulators that connect error, which rejects their message",
        choices=("auto", "error", "warn", "off"),
        renamed_from="observation_check",
    )
    max_replayed_steps: int = option(
        100_000,
        "longest running episode that `resume` steps again; after a longer one it begins a new one, unless the "
        "environment has get_state and set_state",
        unit="env steps",
        minimum=0,
    )
    port: int | None = option(
        None,
        "simulators that step themselves connect here (RLlink); 0: a free port, null: the environment is stepped here",
        minimum=0,
        maximum=65535,
    )
    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 for all of this machine")
    observation_space: dict[str, Any] | None = option(
        None, "space of simulators' observations, as in docs/reference/rllink.md; null: as in env or _target_"
    )
    action_space: dict[str, Any] | None = option(None, "space of simulators' actions; null: as in env or _target_")
    agents: dict[str, dict[str, Any]] | None = option(
        None, "agent id -> {observation_space, action_space} of simulators with several agents"
    )

    @property
    def is_external(self) -> bool:
        """Whether simulators connect, instead of being stepped here."""
        return self.port is not None

    @property
    def name(self) -> str:
        """The name of the environment in messages."""
        return self._target_ or self.env or "external"


# `env_runners.gym_env_vectorize_mode`: each sub-environment in a process of its own.
ASYNC = "async"


@dataclass(frozen=True)
class EnvRunnersConfig:
    """Number and place of sub-environments, and what happens when a runner fails."""

    num_env_runners: int | dict[str, int] = option(
        0,
        "remote env runners (Ray actors); 0 steps in the driver's process; {min: 2, max: 16}: as many as the cluster "
        "has room for, which may change while the run goes on",
        minimum=0,
    )
    num_envs_per_env_runner: int = option(1, "sub-environments that one runner steps together", minimum=1)
    rollout_fragment_length: int | str = option(
        "auto",
        "env steps per sub-environment and fragment; auto divides the train batch; with "
        "algorithm.training_intensity it divides the env steps between two updates (DQN 4, SAC and TD3 1)",
        minimum=1,
        choices=("auto",),
    )
    gym_env_vectorize_mode: str = option(
        "auto",
        "auto takes the environment's own batched implementation where it has one, sync steps one by one, async steps "
        "all at once in a process each",
        choices=("auto", "sync", ASYNC, "vector_entry_point"),
    )
    env_runner_class: str | None = option(
        None,
        "dotted path of your own EnvRunner class, made as SingleAgentEnvRunner or MultiAgentEnvRunner is; null: these",
    )
    explore: bool = option(True, "sample actions from the policy's distribution (false: its mode)")
    episode_lookback_horizon: int = option(1, "past steps an episode chunk can still see", unit="steps", minimum=0)
    metrics_num_episodes_for_smoothing: int = option(
        100, "finished episodes in the running means; `stop` compares a mean only after this many episodes", minimum=1
    )
    num_cpus_per_env_runner: float = option(1.0, "logical CPUs asked of Ray for each remote runner", minimum=0)
    num_gpus_per_env_runner: float = option(
        0.0, "GPUs asked of Ray for each remote runner, whose modules act there if it is more than 0", minimum=0
    )
    custom_resources_per_env_runner: dict[str, float] = option(
        {}, "more logical resources asked of Ray for each remote runner: {name: amount}, as nodes were started with"
    )
    scheduling_strategy: str = option(
        DEFAULT_STRATEGY,
        "nodes of remote runners: DEFAULT as Ray likes, SPREAD over as many as possible, PACK onto as few as possible",
        choices=STRATEGIES,
    )
    sample_timeout_s: float = option(60.0, "a remote runner silent for longer counts as failed", unit="s", above=0)
    restart_failed_env_runners: bool = option(True, "restart a remote runner that failed; false ends the run")
    max_num_env_runner_restarts: int = option(1000, "restarts of all runners together before the run ends", minimum=0)
    restart_failed_sub_environments: bool = option(
        False,
        "a sub-environment that raises an error or hangs is made anew, the others go on; its episode is broken off. "
        "false ends the run",
    )
    env_step_timeout_s: float | None = option(
        None,
        "gym_env_vectorize_mode async: longest step or reset before a sub-environment counts as failed; null: no limit",
        unit="s",
        above=0,
    )

    @property
    def is_elastic(self) -> bool:
        """Whether the number of remote runners follows the room of the cluster."""
        return isinstance(self.num_env_runners, dict)

    @property
    def min_env_runners(self) -> int:
        """The remote runners that a run cannot go on without: all of them where their number is fixed."""
        return self.num_env_runners.get("min", 1) if isinstance(self.num_env_runners, dict) else self.num_env_runners

    @property
    def max_env_runners(self) -> int:
        """The remote runners that a run has at most."""
        if isinstance(self.num_env_runners, dict):
            return self.num_env_runners.get("max", self.min_env_runners)
        return self.num_env_runners

    @property
    def resources_per_env_runner(self) -> dict[str, float]:
        """What a remote runner asks for, by Ray's names."""
        asked = {"CPU": self.num_cpus_per_env_runner, "GPU": self.num_gpus_per_env_runner}
        return asked | self.custom_resources_per_env_runner


@dataclass(frozen=True)
class LearnersConfig:
    """Where the updates run."""

    num_learners: int = option(
        0, "remote learners (Ray actors) that update in step on parts of the data; 0: one in the driver", minimum=0
    )
    num_cpus_per_learner: float = option(1.0, "logical CPUs asked of Ray for each remote learner", minimum=0)
    num_gpus_per_learner: float = option(
        0.0,
        "GPUs asked of Ray for each remote learner, or for the process of a trial that learns in it",
        minimum=0,
    )
    custom_resources_per_learner: dict[str, float] = option(
        {}, "more logical resources asked of Ray for each remote learner: {name: amount}, as nodes were started with"
    )
    scheduling_strategy: str = option(
        DEFAULT_STRATEGY,
        "nodes of remote learners: DEFAULT as Ray likes, SPREAD over as many as possible, PACK onto as few as possible",
        choices=STRATEGIES,
    )
    prefetch: bool = option(
        False,
        "remote learners and an asynchronous plan: make the next train batch and send it to the learners while they "
        "update, so that samples are one update older; false: afterwards",
    )
    device: str = option("auto", "torch device of each learner; auto takes a GPU where it has one")
    torch_num_threads: int = option(
        1, "threads of one torch operation, in the driver and in a remote learner; small nets want 1", minimum=1
    )
    compile: bool = option(
        False, "compile loss, gradient and clipping to one function, which takes seconds and needs a C++ compiler"
    )
    max_restarts: int = option(100, "remote learners: restarts after the loss of one before the run ends", minimum=0)
    check_on_policy_outputs: bool = option(
        True,
        "at a run's first update, check that the module's outputs for the sampled rows equal its outputs while acting",
        renamed_from="check_acted_outputs",
    )

    def in_driver(self) -> LearnersConfig:
        """Return a configuration of one learner, in the process of the driver."""
        return replace(self, num_learners=0, num_gpus_per_learner=0.0, prefetch=False)

    @property
    def resources_per_learner(self) -> dict[str, float]:
        """What a remote learner asks for, by Ray's names."""
        return {"CPU": self.num_cpus_per_learner, "GPU": self.num_gpus_per_learner} | self.custom_resources_per_learner


@dataclass(frozen=True)
class RayConfig:
    """The Ray cluster of runners, learners, recorded data and trials; used only where one of them needs Ray."""

    address: str | None = option(
        None,
        "cluster to join: host:port, or auto for the one on this machine; local: start one; null: what the variable "
        "RAY_ADDRESS names, else local",
    )
    actor_start_timeout_s: float = option(
        300.0,
        "time in which an env runner or learner finds a place in the cluster and starts; without a place the run ends; "
        "longer where an autoscaler starts machines",
        unit="s",
        above=0,
    )


@dataclass(frozen=True)
class ModuleConfig:
    """The network. Fields follow RLlib's DefaultModelConfig; shapes come from the spaces."""

    _target_: str = option("runner.modules.ActorCriticModule", "dotted path of the module class")
    fcnet_hiddens: list[int] = option([256, 256], "widths of the encoder's hidden layers", minimum=1)
    fcnet_activation: str = option(
        "tanh",
        "activation after each hidden layer",
        choices=("tanh", "relu", "silu", "elu", "gelu", "linear"),
    )
    fcnet_kernel_initializer: str | None = option(
        None,
        "name in torch.nn.init for the encoder's weights, for example orthogonal_; null: torch's default",
    )
    fcnet_kernel_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    fcnet_bias_initializer: str | None = option(None, "name in torch.nn.init for the encoder's biases")
    fcnet_bias_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    fcnet_use_layernorm: bool = option(False, "layer norm before each activation of the encoder")
    image_layout: str = option(
        "auto",
        "which observations are images: auto: recognise these by shape and bounds, and warn if it is not clear; "
        "channels_last: (H, W), (H, W, C) and (frames, H, W, C); channels_first: (H, W), (C, H, W) and "
        "(frames, C, H, W); flat: none",
        choices=("auto", "channels_last", "channels_first", "flat"),
    )
    image_max: float | None = option(
        None,
        "images: pixel value that becomes 1; null: the upper bound of a Box with values from 0 to at most 65535",
        above=0,
    )
    conv_filters: list[list[int]] | None = option(
        None,
        "images: [out_channels, kernel, stride] of each unpadded convolution; null: chosen by the image's size",
    )
    conv_activation: str = option(
        "relu",
        "images: activation after each convolution",
        choices=("tanh", "relu", "silu", "elu", "gelu", "linear"),
    )
    conv_kernel_initializer: str | None = option(None, "name in torch.nn.init for the convolutions' weights")
    conv_kernel_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    conv_bias_initializer: str | None = option(None, "name in torch.nn.init for the convolutions' biases")
    conv_bias_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    head_fcnet_hiddens: list[int] = option([], "widths of hidden layers between encoder and outputs", minimum=1)
    head_fcnet_activation: str = option(
        "relu", "activation in the heads", choices=("tanh", "relu", "silu", "elu", "gelu", "linear")
    )
    head_fcnet_kernel_initializer: str | None = option(None, "name in torch.nn.init for the heads' weights")
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    head_fcnet_bias_initializer: str | None = option(None, "name in torch.nn.init for the heads' biases")
    head_fcnet_bias_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    head_fcnet_use_layernorm: bool = option(False, "layer norm before each activation of the heads")
    vf_share_layers: bool = option(True, "policy and value function share the encoder")
    num_critics: int = option(2, "modules with Q functions: how many there are", minimum=1)
    critic_use_layernorm: bool = option(
        False, "modules with Q functions: layer norm in these, also without fcnet_use_layernorm"
    )
    critic_dropout: float = option(
        0.0, "modules with Q functions: share of these' hidden units that is left out in each pass", minimum=0, below=1
    )
    dueling: bool = option(
        False, "modules with a Q for each action: a value of the state and advantages of actions, each with a head"
    )
    q_distribution: str = option(
        "none",
        "modules with a Q for each action: what they give for it: none: the expected return; categorical: "
        "probabilities of num_atoms returns from v_min to v_max (C51); quantile: num_atoms quantiles (QR-DQN)",
        choices=("none", "categorical", "quantile"),
    )
    num_atoms: int = option(1, "numbers of a q_distribution for each action; 1 with none", minimum=1)
    v_min: float | None = option(None, "q_distribution categorical: the lowest return")
    v_max: float | None = option(None, "q_distribution categorical: the highest return")
    noisy: bool = option(
        False, "modules with a Q for each action: noisy layers in the heads, which explore; evaluation is without noise"
    )
    sigma0: float = option(0.5, "noisy layers: initial scale of the noise", minimum=0)
    mixer: str = option(
        "qmix",
        "modules with Q functions of several agents: how they become one: qmix: by a monotonic network of the state; "
        "sum: they are added up (VDN)",
        choices=("qmix", "sum"),
    )
    mixer_width: int = option(32, "mixer qmix: width of its hidden layer", minimum=1)
    free_log_std: bool = option(False, "Gaussian actions: log std is a free parameter, not an output of the net")
    log_std_clip_param: float = option(20.0, "Gaussian actions: |log std| stays below this", above=0)
    use_lstm: bool = option(False, "memory: an LSTM between encoder and heads")
    use_gru: bool = option(False, "memory: a GRU between encoder and heads")
    lstm_cell_size: int = option(256, "width of the memory, LSTM or GRU", minimum=1)
    max_seq_len: int = option(
        20, "memory: length of the sequences that gradients go back through", unit="steps", minimum=1
    )
    lstm_kernel_initializer: str | None = option(None, "name in torch.nn.init for the memory's weights, LSTM or GRU")
    lstm_kernel_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    lstm_bias_initializer: str | None = option(None, "name in torch.nn.init for the memory's biases, LSTM or GRU")
    lstm_bias_initializer_kwargs: dict[str, Any] = option({}, "its keyword arguments")
    action_mask_key: str | None = option(
        None, "key of the Dict observation that holds the action mask (0 forbids); it is not encoded"
    )
    model_config: dict[str, Any] = option({}, "free keyword arguments for a module class of your own")
    load_state_path: str | None = option(
        None,
        "begin with the parameters of another run: its run dir (the newest checkpoint) or one of its checkpoints",
        is_path=True,
    )
    load_state_strict: bool = option(
        True, "that checkpoint's module must have exactly this module's parameters; false: take over what both have"
    )


@dataclass(frozen=True)
class MultiAgentConfig:
    """Which module acts for which agent, and how modules differ. Only for environments with several agents."""

    agent_to_module: dict[str, Any] = option(
        {},
        "agent id or pattern (*, ?): module id, in which {agent} is the agent's id; the first match counts; or "
        "_target_: your own AgentMapping class; empty: default_policy acts for all",
    )
    modules: dict[str, dict[str, Any]] = option(
        {},
        "module id: fields of the module block that differ for it; and `algorithm`: the one that trains it, if not the "
        "run's: - /algorithm@multi_agent.modules.ID.algorithm: dqn in `defaults`",
    )
    multi_rl_module: dict[str, Any] | None = option(
        None,
        "modules that share parts, or are evaluated together: {_target_: your own MultiRLModule class, its keyword "
        "arguments, ...}; null: each module by itself",
    )
    teams: dict[str, list[str]] = option(
        {},
        "team: ids or patterns of its agents, which get the mean of their rewards in each env step, and a critic of "
        "their own where it is centralised",
    )
    modules_to_train: list[str] | None = option(None, "ids of the modules that are updated; null: all")
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = option(
        {}, "module id: fields of the algorithm block that differ for it"
    )

    def __post_init__(self) -> None:
        for name in ("agent_to_module", "modules", "teams", "algorithm_config_overrides_per_module"):
            by_id = {str(key): value for key, value in getattr(self, name).items()}  # YAML reads the id 0 as a number
            object.__setattr__(self, name, by_id)

    @property
    def declared_module_ids(self) -> list[str]:
        """Ids of modules that the configuration alone tells."""
        if "_target_" in self.agent_to_module:
            return []
        return list(dict.fromkeys(str(id_) for id_ in self.agent_to_module.values() if "{agent}" not in str(id_)))

    @property
    def is_mapping_complete(self) -> bool:
        """Whether the configuration alone tells the ids of all modules."""
        mapping = self.agent_to_module
        return "_target_" not in mapping and not any("{agent}" in str(module_id) for module_id in mapping.values())

    def trained_modules(self, module_ids: Sequence[str]) -> list[str]:
        """Return the ids of the modules that are updated."""
        trained = self.modules_to_train
        return [module_id for module_id in module_ids if trained is None or module_id in trained]

    def module_fields(self, module_id: str) -> dict[str, Any]:
        """Return the fields of the module block that differ for a module."""
        return {name: value for name, value in self.modules.get(module_id, {}).items() if name != "algorithm"}


@dataclass(frozen=True)
class ConnectorsConfig:
    """Edits of the three default pipelines, in order: prepend, append, insert_before, insert_after, replace, remove.

    Edits of one module come after the edits for all modules. Lists of groups, of the experiment and of the command line
    add up. A list that begins with `discard: earlier_edits` replaces the lists before it.
    """

    env_to_module: list[dict[str, Any]] = option([], "edits of the pipeline from the environment to the module")
    module_to_env: list[dict[str, Any]] = option([], "edits of the pipeline from the module to the environment")
    learner: list[dict[str, Any]] = option([], "edits of the pipeline from episodes to the train batch")
    modules: dict[str, dict[str, list[dict[str, Any]]]] = option(
        {}, "module id: env_to_module, module_to_env, learner: edits of the pipelines of this module alone"
    )

    def edits_of(self, module_id: str, pipeline: str) -> list[dict[str, Any]]:
        """Return the edits of a module's pipeline: for all modules, then for this one."""
        return [*getattr(self, pipeline), *self.modules.get(module_id, {}).get(pipeline, ())]


# What `evaluation.evaluation_duration` counts.
EPISODES, ENV_STEPS = "episodes", "env_steps"
# Keys of `evaluation.video`, and what they are where they are not given.
VIDEO = {"episodes": 1, "every": 1}


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations of exactly `evaluation_duration` whole episodes or env steps, in environments with own seeds."""

    evaluation_interval: int | None = option(None, "evaluate every so many iterations, and at the end", minimum=1)
    evaluation_duration: int = option(
        10, "length of one evaluation, in the unit of evaluation_duration_unit", minimum=1
    )
    evaluation_duration_unit: str = option(
        EPISODES,
        "episodes: whole ones; env_steps: exactly so many, which episodes that have not ended then are cut by",
        choices=(EPISODES, ENV_STEPS),
    )
    max_episode_steps: int | None = option(
        None,
        "env steps after which an episode of an evaluation is truncated, for all of its agents; null: no limit",
        minimum=1,
    )
    evaluation_num_env_runners: int = option(0, "remote runners for evaluation; 0 uses the driver", minimum=0)
    num_envs_per_env_runner: int = option(8, "sub-environments that one evaluation runner steps together", minimum=1)
    evaluation_sample_timeout_s: float = option(
        120.0, "a remote evaluation runner silent for longer counts as failed", unit="s", above=0
    )
    evaluation_parallel_to_training: bool = option(
        False, "evaluate the policy of the iteration's start on remote runners while the iteration goes on"
    )
    explore: bool = option(False, "sample actions from the policy's distribution (false: its mode)")
    video: dict[str, Any] = option(
        {},
        "film evaluations, {episodes: 1, every: 5}: so many episodes of every fifth one and the last; {}: none",
        choices=tuple(VIDEO),
    )
    offline_evaluation_input_: str | list[str] | None = option(
        None, "held-out recorded data, read with the options offline.input_...; null: none", is_path=True
    )
    offline_evaluation_interval: int | None = option(
        None, "evaluate on held-out data every so many iterations, and at the end; null: only at the end", minimum=1
    )
    offline_evaluation_type: str | list[str] = option(
        "eval_loss",
        "eval_loss: the algorithm's loss; is, wis, pdis, wpdis, dm, dr, wdr: off-policy estimates of the return; or a "
        "list of them",
    )
    offline_evaluation_level: float = option(
        0.95, "level of the bootstrap intervals of off-policy estimates", above=0, below=1
    )
    offline_evaluation_num_resamples: int = option(
        1000, "resamples of the episodes for the bootstrap intervals", minimum=1
    )
    offline_evaluation_q_model_config: dict[str, Any] = option(
        {}, "dm, dr, wdr: how Q is fitted: lr, batch_size, num_updates, num_folds, network (of the module block), ..."
    )

    @property
    def no_end_text(self) -> str:
        """What is said where no episode ends within an evaluation of env steps."""
        num_envs = self.num_envs_per_env_runner * max(1, self.evaluation_num_env_runners)
        return f"no episode ended within {self.evaluation_duration} env steps of {num_envs} sub-environments"

    @property
    def num_filmed_episodes(self) -> int:
        """Episodes of a video."""
        return int(self.video.get("episodes", VIDEO["episodes"]))

    def is_filmed(self, iteration: int) -> bool:
        """Whether an iteration has an evaluation that is filmed."""
        every = (self.evaluation_interval or 1) * self.video.get("every", VIDEO["every"])
        return bool(self.video) and iteration % every == 0


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept. One is always written at the end, also after a signal."""

    every_iterations: int | None = option(10, "write one every so many iterations; null: only at the end", minimum=1)
    keep_last: int = option(2, "newest checkpoints that are kept", minimum=1)
    keep_best: int = option(1, "best checkpoints that are kept beside the newest", minimum=0)
    metric: str = option("env_runners/episode_return_mean", "metric that the best checkpoints are chosen by")
    mode: str = option("max", "whether a high or a low metric is better", choices=("max", "min"))
    save_replay_buffers: str = option(
        "full",
        "what checkpoints hold of replay buffers: their experiences, or none: a resumed run begins with empty buffers",
        choices=("full", "none"),
        renamed_from="replay",
    )
    upload_to: str | None = option(
        None,
        "store to which the run dir is copied with each checkpoint, a URL of fsspec: s3://bucket/runs; null: nowhere",
        is_path=True,
    )


# What `tracking.extra_trackers` may name.
TRACKERS = ("tensorboard", "wandb", "csv")


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run is recorded beside its own files."""

    mlflow: bool = option(True, "record the run in MLflow")
    tracking_uri: str | None = option(None, "MLflow's tracking URI; null: sqlite:///<outputs>/mlflow.db", is_path=True)
    artifact_location: str | None = option(
        None, "where MLflow keeps artifacts; null: <outputs>/mlflow-artifacts", is_path=True
    )
    experiment_name: str | None = option(None, "MLflow experiment; null: the name of the experiment file")
    run_name: str | None = option(None, "MLflow run name; null: date and time of the run")
    flush_interval_s: float = option(2.0, "metrics reach MLflow in batches this often", unit="s", above=0)
    extra_trackers: list[str] = option(
        [], "trackers in addition to MLflow: tensorboard, wandb, csv", renamed_from="also"
    )
    display: str = option(
        "auto",
        "live progress on a terminal, plain lines elsewhere",
        choices=("auto", "live", "plain", "none"),
    )
