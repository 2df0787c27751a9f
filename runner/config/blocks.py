"""The blocks of every run: one frozen dataclass per block; each field has a default, unit, range and description.

`show`, the docs and the checks are generated from these definitions. Names and defaults follow RLlib's new API stack.
Blocks of features (`league`, `offline`, `rllink`, `sweep`, ...) are in separate modules with their rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.fields import option

DEFAULT_STRATEGY, SPREAD, PACK = "DEFAULT", "SPREAD", "PACK"
STRATEGIES = (DEFAULT_STRATEGY, SPREAD, PACK)
DEFAULT_MODULE_ID = "default_policy"
_LONGEST_S = 1e9  # Ray does not take an infinite time


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how actions are converted for it."""

    env: str | None = option(None, "gymnasium id, for example CartPole-v1; null if _target_ names a class")
    backend: str = option(
        "gymnasium",
        "library that provides the environment; envpool and ale step all sub-environments in C++ threads",
        choices=("gymnasium", "envpool", "ale"),
    )
    _target_: str | None = option(
        None, "dotted path of a gymnasium.Env, VectorEnv or MultiAgentEnv class, or of a function that returns one"
    )
    env_config: dict[str, Any] = option({}, "keyword arguments of the class or function")
    wrappers: list[dict[str, Any]] = option(
        [], "wrappers around the environment, innermost first: {_target_: dotted path, its keyword arguments, ...}"
    )
    normalize_actions: bool = option(
        True, "the module returns actions in [-1, 1], which are scaled to the Box of the environment"
    )
    clip_actions: bool = option(False, "clip actions into the Box of the environment (when not normalised)")
    validate_observations: str = option(
        "auto",
        "observations outside of their Box: error ends the run, warn warns once and counts them, off ignores them; "
        "auto: warn; for external simulators error, which rejects their message",
        choices=("auto", "error", "warn", "off"),
        renamed_from="observation_check",
    )
    max_replayed_steps: int = option(
        100_000,
        "longest unfinished episode that `resume` replays; if it is longer, a new episode starts, unless the "
        "environment has get_state and set_state",
        unit="env steps",
        minimum=0,
    )
    port: int | None = option(
        None,
        "port where external simulators connect (RLlink); 0: any free port, null: the run steps the environment",
        minimum=0,
        maximum=65535,
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all interfaces")
    observation_space: dict[str, Any] | None = option(
        None, "observation space of external simulators, as in docs/reference/rllink.md; null: as in env or _target_"
    )
    action_space: dict[str, Any] | None = option(
        None, "action space of external simulators; null: as in env or _target_"
    )
    agents: dict[str, dict[str, Any]] | None = option(
        None, "agent id: {observation_space, action_space} of external simulators with several agents"
    )

    @property
    def is_external(self) -> bool:
        """Whether external simulators connect to the run."""
        return self.port is not None

    @property
    def name(self) -> str:
        """Name of the environment in messages."""
        return self._target_ or self.env or "external"


# `env_runners.gym_env_vectorize_mode`: one process per sub-environment.
ASYNC = "async"


@dataclass(frozen=True)
class EnvRunnersConfig:
    """Number and placement of sub-environments, and what happens when a runner fails."""

    num_env_runners: int | dict[str, int] = option(
        0,
        "remote env runners (Ray actors); 0 samples in the driver's process; {min: 2, max: 16}: follows the free "
        "resources of the cluster during the run",
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
        "auto uses the environment's batched implementation if there is one, sync steps sub-environments one by one, "
        "async steps each in its own process",
        choices=("auto", "sync", ASYNC, "vector_entry_point"),
    )
    env_runner_class: str | None = option(
        None,
        "dotted path of a custom EnvRunner class with the constructor of SingleAgentEnvRunner or MultiAgentEnvRunner",
    )
    explore: bool = option(True, "sample actions from the policy's distribution (false: its mode)")
    episode_lookback_horizon: int = option(
        1, "past steps that an episode chunk can look back to", unit="steps", minimum=0
    )
    metrics_num_episodes_for_smoothing: int = option(
        100, "finished episodes in the running means; `stop` ignores a mean until this many have finished", minimum=1
    )
    num_cpus_per_env_runner: float = option(1.0, "logical CPUs per remote runner", minimum=0)
    num_gpus_per_env_runner: float = option(
        0.0, "GPUs per remote runner; above 0, its modules run on the GPU", minimum=0
    )
    custom_resources_per_env_runner: dict[str, float] = option(
        {}, "additional custom Ray resources per remote runner: {name: amount}"
    )
    scheduling_strategy: str = option(
        DEFAULT_STRATEGY,
        "placement of remote runners: DEFAULT leaves it to Ray, SPREAD uses many nodes, PACK uses few",
        choices=STRATEGIES,
    )
    sample_timeout_s: float = option(
        60.0,
        "time without an answer after which a remote runner counts as failed",
        unit="s",
        above=0,
        maximum=_LONGEST_S,
    )
    restart_failed_env_runners: bool = option(True, "restart a remote runner that fails; false ends the run")
    max_num_env_runner_restarts: int = option(
        1000, "total number of restarts of all runners before the run ends", minimum=0
    )
    restart_failed_sub_environments: bool = option(
        False,
        "recreate a sub-environment that raises an error or hangs, and abort its episode, while the others keep "
        "running; false ends the run",
    )
    env_step_timeout_s: float | None = option(
        None,
        "gym_env_vectorize_mode async: time limit of a step, a reset or a callback's call, after which a "
        "sub-environment counts as failed",
        unit="s",
        above=0,
        maximum=2e6,  # a pipe takes 2**31 milliseconds
    )

    @property
    def is_elastic(self) -> bool:
        """Whether the number of remote runners follows the free resources of the cluster."""
        return isinstance(self.num_env_runners, dict)

    @property
    def min_env_runners(self) -> int:
        """Minimum number of remote runners: all of them if their number is fixed."""
        return self.num_env_runners.get("min", 1) if isinstance(self.num_env_runners, dict) else self.num_env_runners

    @property
    def max_env_runners(self) -> int:
        """Maximum number of remote runners."""
        if isinstance(self.num_env_runners, dict):
            return self.num_env_runners.get("max", self.min_env_runners)
        return self.num_env_runners

    @property
    def resources_per_env_runner(self) -> dict[str, float]:
        """Resources of a remote runner, by Ray's names."""
        asked = {"CPU": self.num_cpus_per_env_runner, "GPU": self.num_gpus_per_env_runner}
        return asked | self.custom_resources_per_env_runner


@dataclass(frozen=True)
class LearnersConfig:
    """Number and placement of learners."""

    num_learners: int = option(
        0,
        "remote learners (Ray actors), each updating on its share of the batch; 0: one learner in the driver's process",
        minimum=0,
    )
    num_cpus_per_learner: float = option(1.0, "logical CPUs per remote learner", minimum=0)
    num_gpus_per_learner: float = option(
        0.0,
        "GPUs per remote learner, or per trial process if the trial learns in it",
        minimum=0,
    )
    custom_resources_per_learner: dict[str, float] = option(
        {}, "additional custom Ray resources per remote learner: {name: amount}"
    )
    scheduling_strategy: str = option(
        DEFAULT_STRATEGY,
        "placement of remote learners: DEFAULT leaves it to Ray, SPREAD uses many nodes, PACK uses few",
        choices=STRATEGIES,
    )
    prefetch: bool = option(
        False,
        "with remote learners and an asynchronous plan: prepare and send the next train batch during the update, so "
        "that samples are one update older",
    )
    device: str = option("auto", "torch device of each learner; auto uses a GPU if there is one")
    torch_num_threads: int = option(
        1,
        "threads per torch operation, in the driver and in remote learners; 1 is fastest for small networks",
        minimum=1,
    )
    compile: bool | str = option(
        "auto",
        "compile loss, gradient and clipping into one function, which takes seconds and needs a C++ compiler; auto "
        "compiles if `stop` allows at least 100,000 updates",
        choices=("auto",),
    )
    max_restarts: int = option(100, "restarts after a remote learner dies before the run ends", minimum=0)
    check_on_policy_outputs: bool = option(
        True,
        "at the first update, check that the module's outputs for the sampled rows equal its outputs while acting",
        renamed_from="check_acted_outputs",
    )

    def in_driver(self) -> LearnersConfig:
        """Return the configuration of a single learner in the driver's process."""
        return replace(self, num_learners=0, num_gpus_per_learner=0.0, prefetch=False)

    @property
    def resources_per_learner(self) -> dict[str, float]:
        """Resources of a remote learner, by Ray's names."""
        return {"CPU": self.num_cpus_per_learner, "GPU": self.num_gpus_per_learner} | self.custom_resources_per_learner


@dataclass(frozen=True)
class RayConfig:
    """The Ray cluster for runners, learners, recorded data and trials; unused if none of them needs Ray."""

    address: str | None = option(
        None,
        "cluster to join: host:port, or auto for a running cluster on this machine; local: start one; null: the "
        "variable RAY_ADDRESS if it is set, else local",
    )
    actor_start_timeout_s: float = option(
        300.0,
        "time limit for scheduling and starting an env runner or learner, after which the run ends; increase it if an "
        "autoscaler starts machines",
        unit="s",
        above=0,
        maximum=_LONGEST_S,
    )


_ACTIVATIONS = ("tanh", "relu", "silu", "elu", "gelu", "linear")


@dataclass(frozen=True)
class ModuleConfig:
    """The network. Fields follow RLlib's DefaultModelConfig; shapes come from the spaces."""

    _target_: str = option("runner.modules.ActorCriticModule", "dotted path of the module class")
    architecture: str = option(
        "mlp",
        "encoder: mlp: hidden layers of the widths fcnet_hiddens; simba: a residual block with layer normalisation for "
        "each of these widths, which are equal; simba_v2: the same with features and weights normalised to unit length",
        choices=("mlp", "simba", "simba_v2"),
    )
    fcnet_hiddens: list[int] = option([256, 256], "widths of the encoder's hidden layers", minimum=1)
    fcnet_activation: str = option("tanh", "activation after each hidden layer", choices=_ACTIVATIONS)
    fcnet_kernel_initializer: str | None = option(
        None,
        "function of torch.nn.init for the encoder's weights, for example orthogonal_; null: torch's default",
    )
    fcnet_kernel_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    fcnet_bias_initializer: str | None = option(None, "function of torch.nn.init for the encoder's biases")
    fcnet_bias_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    fcnet_use_layernorm: bool = option(
        False, "layer normalisation before each activation of the encoder's linear layers"
    )
    image_layout: str = option(
        "auto",
        "layout of image observations: auto: recognise images by shape and bounds, and warn if it is ambiguous; "
        "channels_last: (H, W), (H, W, C) and (frames, H, W, C); channels_first: (H, W), (C, H, W) and "
        "(frames, C, H, W); flat: no observation is an image",
        choices=("auto", "channels_last", "channels_first", "flat"),
    )
    image_max: float | None = option(
        None,
        "images: pixel value that is scaled to 1; null: the upper bound of the Box, if it is at most 65535",
        above=0,
    )
    image_min: float = option(
        0.0,
        "images: pixel value that becomes 0, for example the brightness of the background",
    )
    conv_filters: list[list[int]] | None = option(
        None,
        "images: [out_channels, kernel, stride] of each unpadded convolution; null: chosen by the size of the image",
    )
    conv_activation: str = option("relu", "images: activation after each convolution", choices=_ACTIVATIONS)
    conv_use_layernorm: bool = option(
        False, "images: layer normalisation over channels and pixels before each activation of the convolutions"
    )
    conv_kernel_initializer: str | None = option(None, "function of torch.nn.init for the convolutions' weights")
    conv_kernel_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    conv_bias_initializer: str | None = option(None, "function of torch.nn.init for the convolutions' biases")
    conv_bias_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    head_fcnet_hiddens: list[int] = option([], "widths of hidden layers between encoder and outputs", minimum=1)
    head_fcnet_activation: str = option("relu", "activation in the heads", choices=_ACTIVATIONS)
    head_fcnet_kernel_initializer: str | None = option(None, "function of torch.nn.init for the heads' weights")
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    head_fcnet_bias_initializer: str | None = option(None, "function of torch.nn.init for the heads' biases")
    head_fcnet_bias_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    head_fcnet_use_layernorm: bool = option(False, "layer normalisation before each activation of the heads")
    vf_share_layers: bool = option(True, "policy and value function share the encoder")
    vf_normalization: str = option(
        "none",
        "actor-critic modules, with PPO: scale in which the network predicts values. symlog: for returns of very "
        "different sizes; popart: standardised by moving averages of the value targets",
        choices=("none", "symlog", "popart"),
    )
    num_critics: int = option(2, "modules with Q functions: number of Q functions", minimum=1)
    critic_use_layernorm: bool = option(
        False, "modules with Q functions: layer normalisation in the Q functions, even without fcnet_use_layernorm"
    )
    critic_use_batchnorm: bool = option(
        False, "modules with Q functions: batch renormalisation in the Q functions; with algorithm=crossq"
    )
    critic_dropout: float = option(
        0.0, "modules with Q functions: dropout rate of their hidden units", minimum=0, below=1
    )
    dueling: bool = option(
        False, "modules with one Q per action: separate heads for the state value and the advantages"
    )
    q_distribution: str = option(
        "none",
        "modules with one Q per action: none: the expected return; categorical: probabilities of num_atoms returns "
        "from v_min to v_max (C51); quantile: num_atoms quantiles (QR-DQN); implicit_quantile: quantiles at num_atoms "
        "random fractions (IQN)",
        choices=("none", "categorical", "quantile", "implicit_quantile"),
    )
    num_atoms: int = option(1, "values per action of a q_distribution; 1 with none", minimum=1)
    v_min: float | None = option(None, "q_distribution categorical: lowest return")
    v_max: float | None = option(None, "q_distribution categorical: highest return")
    noisy: bool = option(
        False, "modules with one Q per action: explore with noisy layers in the heads; evaluation uses no noise"
    )
    sigma0: float = option(0.5, "noisy layers: initial scale of the noise", minimum=0)
    mixer: str = option(
        "qmix",
        "joint Q of several agents: qmix: a monotonic mixing network of the state; sum: the sum of their Q values "
        "(VDN)",
        choices=("qmix", "sum"),
    )
    mixer_width: int = option(32, "mixer qmix: width of its hidden layer", minimum=1)
    action_distribution: str = option(
        "gaussian",
        "float actions of actor-critic modules: gaussian: unbounded, clipped for the environment; beta: between the "
        "bounds of the actions",
        choices=("gaussian", "beta"),
    )
    free_log_std: bool = option(
        False, "Gaussian actions: log std is a free parameter instead of an output of the network"
    )
    use_sde: bool = option(
        False, "Gaussian actions: explore with noise that is a linear function of the features (gSDE)"
    )
    sde_sample_freq: int = option(
        4, "use_sde: env steps of a sub-environment between two draws of the function", unit="env steps", minimum=1
    )
    initial_log_std: float = option(0.0, "free_log_std, use_sde: value before training; with use_sde try -2")
    log_std_clip_param: float = option(20.0, "Gaussian actions: upper bound of |log std|", above=0)
    use_lstm: bool = option(False, "add an LSTM between encoder and heads")
    use_gru: bool = option(False, "add a GRU between encoder and heads")
    lstm_cell_size: int = option(256, "width of the LSTM or GRU", minimum=1)
    max_seq_len: int = option(
        20, "recurrent modules: length of the sequences for backpropagation through time", unit="steps", minimum=1
    )
    lstm_kernel_initializer: str | None = option(None, "function of torch.nn.init for the weights of the LSTM or GRU")
    lstm_kernel_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    lstm_bias_initializer: str | None = option(None, "function of torch.nn.init for the biases of the LSTM or GRU")
    lstm_bias_initializer_kwargs: dict[str, Any] = option({}, "keyword arguments of this function")
    action_mask_key: str | None = option(
        None, "key of the Dict observation with the action mask (0: forbidden); the mask is not encoded"
    )
    model_config: dict[str, Any] = option({}, "keyword arguments of a custom module class")
    load_state_path: str | None = option(
        None,
        "load the parameters of another run: its run dir (newest checkpoint) or one of its checkpoints",
        is_path=True,
    )
    load_state_strict: bool = option(
        True, "require equal parameter names and shapes in that checkpoint; false: load only matching parameters"
    )


@dataclass(frozen=True)
class MultiAgentConfig:
    """Which module acts for which agent, and how modules differ.

    Requires an environment with several agents, unless it only adds auxiliary modules.
    """

    agent_to_module: dict[str, Any] = option(
        {},
        "agent id or pattern (*, ?): module id, in which {agent} is the agent's id; an exact name counts before the "
        "first pattern that matches; or _target_: a custom AgentMapping class; empty: default_policy acts for all "
        "agents",
    )
    modules: dict[str, dict[str, Any]] = option(
        {},
        "module id: fields of the module block that differ for it; `algorithm` if another algorithm trains it "
        "(in `defaults`: - /algorithm@multi_agent.modules.ID.algorithm: dqn). `trains_on: ID` makes it an auxiliary "
        "module, which does not choose actions and learns from the experiences of module ID; its other fields do not "
        "follow the module block",
    )
    multi_rl_module: dict[str, Any] | None = option(
        None,
        "modules that share layers, or are evaluated together: {_target_: MultiRLModule class, keyword arguments ...}; "
        "null: separate modules",
    )
    teams: dict[str, list[str]] = option(
        {},
        "team: ids or patterns of its agents, which share the mean of their rewards in each env step and, with a "
        "centralised critic, one critic per team",
    )
    modules_to_train: list[str] | None = option(None, "ids of the trained modules; null: all")
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]] = option(
        {}, "module id: fields of the algorithm block that differ for it"
    )

    @property
    def auxiliary_modules(self) -> dict[str, str]:
        """Auxiliary module -> the module from whose experiences it learns."""
        return {id_: str(fields["trains_on"]) for id_, fields in self.modules.items() if "trains_on" in fields}

    @property
    def declared_module_ids(self) -> list[str]:
        """Ids of acting modules that the configuration names."""
        if "_target_" in self.agent_to_module:
            return []
        return list(dict.fromkeys(str(id_) for id_ in self.agent_to_module.values() if "{agent}" not in str(id_)))

    @property
    def is_mapping_complete(self) -> bool:
        """Whether the configuration names all modules."""
        mapping = self.agent_to_module
        return "_target_" not in mapping and not any("{agent}" in str(module_id) for module_id in mapping.values())

    def module_ids(self, acting: Iterable[str] | None = None) -> list[str]:
        """Return the ids of all modules: acting modules, by default the declared ones, and auxiliary modules."""
        return [*(acting or self.declared_module_ids or [DEFAULT_MODULE_ID]), *self.auxiliary_modules]

    def trained_modules(self, module_ids: Sequence[str]) -> list[str]:
        """Return the ids of the trained modules."""
        trained = self.modules_to_train
        return [module_id for module_id in module_ids if trained is None or module_id in trained]

    def module_fields(self, module_id: str) -> dict[str, Any]:
        """Return the fields of the module block that differ for a module."""
        fields = self.modules.get(module_id, {})
        return {name: value for name, value in fields.items() if name not in ("algorithm", "trains_on")}


@dataclass(frozen=True)
class ConnectorsConfig:
    """Edits of the three default pipelines: prepend, append, insert_before, insert_after, replace, remove.

    Edits of a single module follow the edits for all modules. Lists of config groups, the experiment and the command
    line are concatenated. A list that begins with `discard: earlier_edits` replaces the earlier lists.
    """

    env_to_module: list[dict[str, Any]] = option([], "edits to the pipeline from the environment to the module")
    module_to_env: list[dict[str, Any]] = option([], "edits to the pipeline from the module to the environment")
    learner: list[dict[str, Any]] = option([], "edits to the pipeline from episodes to the train batch")
    modules: dict[str, dict[str, list[dict[str, Any]]]] = option(
        {}, "module id: {env_to_module, module_to_env, learner}: edits only for this module"
    )

    def edits_of(self, module_id: str, pipeline: str) -> list[dict[str, Any]]:
        """Return the edits of a module's pipeline: for all modules, then for this one."""
        return [*getattr(self, pipeline), *self.modules.get(module_id, {}).get(pipeline, ())]


# What `evaluation.evaluation_duration` counts.
EPISODES, ENV_STEPS = "episodes", "env_steps"
# Keys of `evaluation.video` and their defaults.
VIDEO = {"episodes": 1, "every": 1}


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations of exactly `evaluation_duration` episodes or env steps, in separately seeded environments."""

    evaluation_interval: int | None = option(None, "evaluate every N iterations and at the end", minimum=1)
    evaluation_duration: int = option(
        10, "length of one evaluation, in the unit of evaluation_duration_unit", minimum=1
    )
    evaluation_duration_unit: str = option(
        EPISODES,
        "episodes: complete episodes; env_steps: exactly that number; unfinished episodes do not count",
        choices=(EPISODES, ENV_STEPS),
    )
    max_episode_steps: int | None = option(
        None,
        "env steps after which an episode is truncated for all agents; null: no limit",
        minimum=1,
    )
    evaluation_num_env_runners: int = option(
        0, "remote runners for evaluation; 0 evaluates in the driver's process", minimum=0
    )
    num_envs_per_env_runner: int = option(8, "sub-environments that one evaluation runner steps together", minimum=1)
    evaluation_sample_timeout_s: float = option(
        120.0,
        "time without an answer after which a remote evaluation runner counts as failed",
        unit="s",
        above=0,
        maximum=_LONGEST_S,
    )
    evaluation_parallel_to_training: bool = option(
        False, "evaluate on remote runners during the next training iteration, with the policy at its start"
    )
    explore: bool = option(False, "sample actions from the policy's distribution (false: its mode)")
    video: dict[str, Any] = option(
        {},
        "record videos: {episodes: 1, every: 5} records one episode of every fifth evaluation and of the last one; {}: "
        "no videos",
        choices=tuple(VIDEO),
    )
    offline_evaluation_input_: str | list[str] | None = option(
        None, "held-out recorded data, read with the options offline.input_...; null: no data", is_path=True
    )
    offline_evaluation_interval: int | None = option(
        None, "evaluate on held-out data every N iterations and at the end; null: only at the end", minimum=1
    )
    offline_evaluation_type: str | list[str] = option(
        "eval_loss",
        "eval_loss: the algorithm's loss; is, wis, pdis, wpdis, dm, dr, wdr: off-policy estimates of the return; or a "
        "list of them",
    )
    offline_evaluation_level: float = option(
        0.95, "confidence level of the bootstrap intervals of off-policy estimates", above=0, below=1
    )
    offline_evaluation_num_resamples: int = option(1000, "bootstrap resamples of the episodes", minimum=1)
    offline_evaluation_q_model_config: dict[str, Any] = option(
        {},
        "dm, dr, wdr: options of the fitted Q: lr, batch_size, num_updates, num_folds, network (of the module "
        "block), ...",
    )

    @property
    def no_end_text(self) -> str:
        """Message if no episode ends within an evaluation of env steps."""
        num_envs = self.num_envs_per_env_runner * max(1, self.evaluation_num_env_runners)
        return f"no episode ended within {self.evaluation_duration} env steps of {num_envs} sub-environments"

    @property
    def num_video_episodes(self) -> int:
        """Episodes per video."""
        return int(self.video.get("episodes", VIDEO["episodes"]))

    def has_video(self, iteration: int) -> bool:
        """Return whether the evaluation of an iteration is recorded as a video."""
        every = (self.evaluation_interval or 1) * self.video.get("every", VIDEO["every"])
        return bool(self.video) and iteration % every == 0


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept. One is always written at the end, also after a signal."""

    every_iterations: int | None = option(10, "write a checkpoint every N iterations; null: only at the end", minimum=1)
    keep_last: int = option(2, "number of newest checkpoints to keep", minimum=1)
    keep_best: int = option(1, "number of best checkpoints to keep in addition", minimum=0)
    metric: str = option("env_runners/episode_return_mean", "metric that ranks checkpoints")
    mode: str = option("max", "whether a high or a low metric is better", choices=("max", "min"))
    save_replay_buffers: str = option(
        "full",
        "whether checkpoints contain the experiences of replay buffers; if not, a resumed run starts with empty "
        "buffers",
        choices=("full", "none"),
        renamed_from="replay",
    )
    upload_to: str | None = option(
        None,
        "fsspec URL to which the run dir is copied with each checkpoint, for example s3://bucket/runs; null: no upload",
        is_path=True,
    )


# Values of `tracking.extra_trackers`.
TRACKERS = ("tensorboard", "wandb", "csv")


@dataclass(frozen=True)
class TrackingConfig:
    """Trackers of a run, in addition to the files of its run dir."""

    mlflow: bool = option(True, "record the run in MLflow")
    tracking_uri: str | None = option(None, "MLflow's tracking URI; null: sqlite:///<outputs>/mlflow.db", is_path=True)
    artifact_location: str | None = option(
        None, "folder or URL of MLflow artifacts; null: <outputs>/mlflow-artifacts", is_path=True
    )
    experiment_name: str | None = option(None, "MLflow experiment; null: the name of the experiment file")
    run_name: str | None = option(None, "MLflow run name; null: date and time")
    flush_interval_s: float = option(2.0, "interval between batches of metrics to MLflow", unit="s", above=0)
    extra_trackers: list[str] = option(
        [], "trackers in addition to MLflow: tensorboard, wandb, csv", renamed_from="also"
    )
    display: str = option(
        "auto",
        "live progress on a terminal, plain lines elsewhere",
        choices=("auto", "live", "plain", "none"),
    )
