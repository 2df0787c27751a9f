"""The config dataclass of each algorithm, and the record of metrics that its loss returns.

An algorithm consists of its loss (`runner/learners/ppo.py`), its dataclass here, and `conf/algorithm/ppo.yaml`, which
names its loss, connectors and plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from runner.config.fields import Option, names_of, option
from runner.config.optimizer import OptimizerConfig

Schedule = float | list[list[float]]
# Key of a replay buffer's block, in addition to the arguments of its class: fill it from `offline.input_`.
RECORDED = "recorded"

# Fields of several algorithms, whose defaults differ.
_MIN_SAMPLE_TIMESTEPS = Option(
    "an iteration ends with the first update after this number of env steps", unit="env steps", minimum=0
)
_GRAD_CLIP = Option("largest global norm of the gradient of each optimiser; null: no clipping", above=0)
_MINIBATCH_SIZE = Option(
    "approximate rows of one gradient step: the batch is divided into round(batch / minibatch_size) equal parts; "
    "null: the complete batch",
    minimum=1,
)
_LEARNING_STARTS = Option("env steps stored before the first update", unit="env steps", minimum=0)
_POLICY_DELAY = Option("updates of the Q functions per update of the policy", unit="gradient steps", minimum=1)
_TARGET_ENTROPY = Option("target entropy; auto: minus the number of action components", choices=("auto",))
_N_STEP = Option("env steps whose rewards a target sums; [min, max]: drawn per row", minimum=1)
_EPSILON = Option(
    "probability of a random action, as a schedule over env steps", minimum=0, maximum=1, is_schedule=True
)


@dataclass(frozen=True)
class LossMetrics:
    """Base class of the records that losses return: each field is a metric, a 0-d tensor.

    Attributes:
        total_loss: 0-d tensor to minimise, a mean over rows. With `losses`, pass None: it becomes their sum, without a
            gradient.
        losses: optimiser -> 0-d tensor that it minimises, a mean over rows. Each gradient is computed for the
            parameters of its optimiser only; a missing optimiser gets a gradient of 0. None: the gradient of
            `total_loss` is computed for all parameters. Not a metric.
        rows: names of fields that are tensors (B, ...) with one value per row. Not metrics.
    """

    total_loss: Any
    losses: Mapping[str, Any] | None = field(default=None, kw_only=True)

    rows: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Add up `losses`. The learner reports invalid values."""
        if isinstance(self.losses, Mapping) and all(hasattr(loss, "detach") for loss in self.losses.values()):
            object.__setattr__(self, "total_loss", sum(loss.detach() for loss in self.losses.values()))

    def reported(self) -> dict[str, Any]:
        """Return name -> value of all metrics and row fields."""
        found = dict(vars(self))
        del found["losses"]
        return found

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the metrics."""
        return tuple(name for name in names_of(cls) if name not in (*cls.rows, "losses"))


@dataclass(frozen=True)
class PPOMetrics(LossMetrics):
    """Metrics of one PPO minibatch; means over its valid rows."""

    policy_loss: Any
    vf_loss: Any
    entropy: Any
    mean_kl_loss: Any


@dataclass(frozen=True)
class AlgorithmConfig:
    """Fields of all algorithms."""

    schema: str = option("runner.config.algorithms.PPOConfig", "dotted path of the dataclass of this block")
    loss: str = option("runner.learners.ppo.PPOLoss", "dotted path of the loss class")
    plan: list[Any] = option(
        ["ParallelRollouts", "ConcatBatches", "TrainOneStep"],
        "training loop: operators in the order in which items pass through them (docs/guides/training_loop.md), or "
        "{_target_: function}",
    )
    replay_buffers: dict[str, Any] = option(
        {}, "name -> {_target_: class of a replay buffer, its arguments}; the plan stores to them and replays them"
    )
    training_intensity: float | None = option(
        None,
        "trained env steps per sampled env step, in plans with round_robin_weights: auto; null: one trained item per "
        "sampled item",
        above=0,
    )
    min_sample_timesteps_per_iteration: int = option(0, _MIN_SAMPLE_TIMESTEPS)
    module_to_env_pipeline: list[dict[str, Any]] = option(
        [], "edits to the default module-to-env pipeline; lists are concatenated as in connectors"
    )
    learner_pipeline: list[dict[str, Any]] = option(
        [], "edits to the default learner pipeline; lists are concatenated as in connectors"
    )
    gamma: float = option(0.99, "discount factor", minimum=0, maximum=1)
    grad_clip: float | None = option(None, _GRAD_CLIP)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train_batch_size_per_learner: int = option(4000, "rows per update", unit="env steps", minimum=1)
    num_epochs: int = option(1, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(None, _MINIBATCH_SIZE)
    minibatching: str = option(
        "shuffled",
        "order of rows in minibatches: shuffled; time_ordered: as in the batch, chunk by chunk; recurrent modules "
        "always learn from complete sequences",
        choices=("shuffled", "time_ordered"),
    )
    microbatch_size: int | None = option(
        None,
        "maximum rows per backward pass; the gradients of a minibatch are accumulated before the step; null: all of "
        "its rows",
        minimum=1,
    )
    reset_interval: int | None = option(
        None,
        "gradient steps after which all parameters and the optimiser return to their initial values; replay buffers "
        "are kept; null: never",
        unit="gradient steps",
        minimum=1,
    )
    name: str | None = option(None, "name in texts such as the first lines of a run; null: the name of the schema")

    @property
    def recorded_buffers(self) -> list[str]:
        """Names of the replay buffers that are filled with recorded steps."""
        buffers = self.replay_buffers
        return [name for name, block in buffers.items() if isinstance(block, dict) and block.get(RECORDED) is True]

    of_run: ClassVar[tuple[str, ...]] = (
        "plan",
        "replay_buffers",
        "training_intensity",
        "min_sample_timesteps_per_iteration",
        "train_batch_size_per_learner",
    )
    """Fields that all modules of a run share; only the `algorithm` block sets them."""
    metrics: ClassVar[type[LossMetrics]] = LossMetrics
    """Class of the record that the loss returns."""
    coefficients: ClassVar[tuple[str, ...]] = ()
    """Names of the coefficients that the loss reports in addition to its metrics."""
    module_options: ClassVar[tuple[str, ...]] = ()
    """Options of the module that only some losses support, such as `q_distribution`."""
    optimizers: ClassVar[Mapping[str, str]] = {"default": "lr"}
    """Optimiser -> field with its learning rate.

    Each optimiser updates the parameter group of the same name; a single `default` updates all parameters.
    """


def algorithm_name(config: AlgorithmConfig) -> str:
    """Return `name`, or the name of the class without `Config`; for a class `Config` the name of its module."""
    cls = type(config)
    return config.name or cls.__name__.removesuffix("Config") or cls.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class TargetNetworksConfig(AlgorithmConfig):
    """Fields of algorithms whose learner updates target networks."""

    tau: float = option(5e-3, "Polyak factor of target updates; 1 copies the networks", above=0, maximum=1)
    target_network_update_freq: int | None = option(
        0,
        "trained rows between target updates; 0: after each gradient step; null: only the plan updates the targets",
        unit="env steps",
        minimum=0,
    )


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """PPO (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) with RLlib's names and defaults.

    With `use_kl_loss`, the coefficient of the KL penalty adapts to `kl_target` (section 4 of the paper).
    """

    lr: Schedule = option(5e-5, "learning rate of the optimiser", minimum=0, is_schedule=True)
    num_epochs: int = option(30, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(128, _MINIBATCH_SIZE)
    lambda_: float = option(1.0, "GAE's lambda", minimum=0, maximum=1)
    clip_param: float = option(0.3, "epsilon of the clipped surrogate", above=0)
    vf_loss_coeff: float = option(1.0, "weight of the value loss", minimum=0)
    vf_clip_param: float | None = option(10.0, "upper bound of the squared value error; null: no bound", above=0)
    entropy_coeff: Schedule = option(0.0, "weight of the entropy bonus", minimum=0, is_schedule=True)
    use_kl_loss: bool = option(True, "add the adaptive KL penalty")
    kl_coeff: float = option(0.2, "initial weight of the KL penalty", minimum=0, is_adapted=True)
    kl_target: float = option(
        0.01, "use_kl_loss: target of the KL divergence from the sampling policy; it does not end updates", above=0
    )
    target_kl: float | None = option(
        None,
        "without use_kl_loss: end an update before a gradient step whose minibatch has a mean KL divergence above 1.5 "
        "times this value; null: never",
        above=0,
    )

    metrics: ClassVar[type[LossMetrics]] = PPOMetrics
    module_options: ClassVar[tuple[str, ...]] = ("vf_normalization",)
    coefficients: ClassVar[tuple[str, ...]] = ("curr_kl_coeff", "curr_entropy_coeff")


@dataclass(frozen=True)
class A2CMetrics(LossMetrics):
    """Metrics of one gradient step of A2C; means over the minibatch."""

    policy_loss: Any
    vf_loss: Any
    entropy: Any


@dataclass(frozen=True)
class A2CConfig(AlgorithmConfig):
    """A2C, the synchronous form of A3C (Mnih et al., 2016, https://arxiv.org/abs/1602.01783), with RLlib's defaults.

    One gradient step per batch of short fragments. The paper uses the returns of lambda = 1.
    """

    lr: Schedule = option(1e-4, "learning rate", minimum=0, is_schedule=True)
    grad_clip: float | None = option(40.0, _GRAD_CLIP)
    train_batch_size_per_learner: int = option(200, "rows per update", unit="env steps", minimum=1)
    lambda_: float = option(1.0, "GAE's lambda", minimum=0, maximum=1)
    standardize_advantages: bool = option(False, "scale the advantages of a batch to mean 0 and standard deviation 1")
    vf_loss_coeff: float = option(0.5, "weight of the value loss", minimum=0)
    entropy_coeff: Schedule = option(0.01, "weight of the entropy bonus", minimum=0, is_schedule=True)

    metrics: ClassVar[type[LossMetrics]] = A2CMetrics
    coefficients: ClassVar[tuple[str, ...]] = ("curr_entropy_coeff",)


@dataclass(frozen=True)
class IMPALAConfig(A2CConfig):
    """IMPALA (Espeholt et al., 2018, https://arxiv.org/abs/1802.01561): A2C's loss with V-trace, with RLlib's defaults.

    `lambda_` scales the traces (remark 2 of the paper).
    """

    lr: Schedule = option(5e-4, "learning rate", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(500, "rows per update", unit="env steps", minimum=1)
    vtrace_clip_rho_threshold: float = option(1.0, "largest importance ratio of a temporal difference (rho)", above=0)
    vtrace_clip_c_threshold: float = option(1.0, "largest importance ratio of a trace (c)", above=0)
    vtrace_clip_pg_rho_threshold: float = option(1.0, "largest importance ratio of an advantage", above=0)


@dataclass(frozen=True)
class APPOConfig(PPOConfig):
    """APPO as in IMPACT (Luo et al., 2020, https://arxiv.org/abs/1912.00167), with RLlib's names and defaults.

    PPO's clipped surrogate for samples of older policies, with ratios to a target policy and V-trace targets.
    """

    lr: Schedule = option(5e-4, "learning rate of the optimiser", minimum=0, is_schedule=True)
    grad_clip: float | None = option(40.0, _GRAD_CLIP)
    train_batch_size_per_learner: int = option(500, "rows per update", unit="env steps", minimum=1)
    num_epochs: int = option(1, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(None, _MINIBATCH_SIZE)
    replay_capacity: int = option(4000, "number of newest env steps to replay from", unit="env steps", minimum=2)
    replay_proportion: float = option(1.0, "updates on replayed batches per update on a sampled batch", minimum=0)
    replay_fragment_length: int = option(50, "maximum number of consecutive env steps in a replayed batch", minimum=1)
    target_network_update_freq: int = option(
        2, "updates between two updates of the target policy", unit="updates", minimum=1
    )
    tau: float = option(1.0, "Polyak factor of target updates; 1 copies the policy", above=0, maximum=1)
    target_worker_clipping: float = option(
        2.0, "largest ratio of the sampling policy to the target policy (rho)", above=0
    )
    lambda_: float = option(1.0, "decay factor of the traces (lambda)", minimum=0, maximum=1)
    vtrace_clip_rho_threshold: float = option(1.0, "largest importance ratio of a temporal difference (rho)", above=0)
    vtrace_clip_c_threshold: float = option(1.0, "largest importance ratio of a trace (c)", above=0)
    vtrace_clip_pg_rho_threshold: float = option(1.0, "largest importance ratio of an advantage", above=0)
    standardize_advantages: bool = option(False, "scale the advantages of a batch to mean 0 and standard deviation 1")
    clip_param: float = option(0.4, "epsilon of the clipped surrogate", above=0)
    vf_loss_coeff: float = option(0.5, "weight of the value loss", minimum=0)
    vf_clip_param: float | None = option(None, "upper bound of the squared value error; null: no bound", above=0)
    entropy_coeff: Schedule = option(0.01, "weight of the entropy bonus", minimum=0, is_schedule=True)
    use_kl_loss: bool = option(False, "add the adaptive KL penalty")
    kl_coeff: float = option(1.0, "initial weight of the KL penalty", minimum=0, is_adapted=True)


@dataclass(frozen=True)
class PGMetrics(LossMetrics):
    """Metrics of one gradient step of REINFORCE; means over the minibatch. Without a baseline, `vf_loss` is 0."""

    policy_loss: Any
    vf_loss: Any
    entropy: Any


@dataclass(frozen=True)
class PGConfig(AlgorithmConfig):
    """REINFORCE (Williams, 1992, https://doi.org/10.1007/BF00992696) on complete episodes, with RLlib's names and
    defaults.
    """

    lr: Schedule = option(4e-4, "learning rate", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(
        200, "minimum rows of one update, which consists of complete episodes", unit="env steps", minimum=1
    )
    use_baseline: bool = option(False, "train a value function and subtract it from the returns")
    vf_loss_coeff: float = option(0.5, "weight of the baseline's loss", minimum=0)
    entropy_coeff: Schedule = option(0.0, "weight of the entropy bonus", minimum=0, is_schedule=True)

    metrics: ClassVar[type[LossMetrics]] = PGMetrics
    coefficients: ClassVar[tuple[str, ...]] = ("curr_entropy_coeff",)


@dataclass(frozen=True)
class DQNMetrics(LossMetrics):
    """Metrics of one gradient step of DQN; means over the minibatch.

    `td_error` (B,) is |Q - y|. With a distribution of returns it is the unweighted loss of the row: the KL
    divergence or the quantile Huber loss.
    """

    qf_loss: Any
    qf_mean: Any
    td_error_mean: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class DQNConfig(AlgorithmConfig):
    """DQN (Mnih et al., 2015, https://doi.org/10.1038/nature14236): double, dueling, n-step, with RLlib's defaults.

    Two defaults differ: targets sum three rewards, as in Rainbow (Hessel et al., 2018, table 1), and there is one
    update per four env steps, as in Mnih et al. and Stable-Baselines3. Rainbow adds options of the module:
    distributions of returns and noisy layers.
    """

    lr: Schedule = option(5e-4, "learning rate", minimum=0, is_schedule=True)
    grad_clip: float | None = option(40.0, _GRAD_CLIP)
    train_batch_size_per_learner: int = option(32, "rows per update", unit="env steps", minimum=1)
    min_sample_timesteps_per_iteration: int = option(1000, _MIN_SAMPLE_TIMESTEPS)
    replay_capacity: int = option(50_000, "capacity of the replay buffer", unit="env steps", minimum=2)
    num_steps_sampled_before_learning_starts: int = option(1000, _LEARNING_STARTS)
    n_step: int | list[int] = option(3, _N_STEP)
    epsilon: Schedule = option([[0, 1.0], [10_000, 0.05]], _EPSILON)
    double_q: bool = option(
        True,
        "double Q-learning: the network chooses the next action and the target network evaluates it; false: the target "
        "network does both",
    )
    td_error_loss_fn: str = option("huber", "loss of TD errors", choices=("huber", "mse"))
    value_rescaling: bool = option(
        False,
        "the network learns h(Q) with h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, as in R2D2, for large returns",
    )
    tau: float = option(1.0, "Polyak factor of target updates; 1 copies the networks", above=0, maximum=1)
    target_network_update_freq: int = option(
        500, "sampled env steps between target updates", unit="env steps", minimum=1
    )

    metrics: ClassVar[type[LossMetrics]] = DQNMetrics
    module_options: ClassVar[tuple[str, ...]] = ("q_distribution", "noisy")


@dataclass(frozen=True)
class MunchausenDQNConfig(DQNConfig):
    """Munchausen-DQN (Vieillard et al., 2020, https://arxiv.org/abs/2007.14430): DQN with log-policies in rewards."""

    n_step: int | list[int] = option(1, _N_STEP)
    double_q: bool = option(False, "false: the target is the value of a softmax policy", choices=(False,))
    value_rescaling: bool = option(False, "false: the log-policy has the scale of the rewards", choices=(False,))
    munchausen_alpha: float = option(0.9, "weight of the log-policy in the reward", minimum=0, maximum=1)
    munchausen_tau: float = option(0.03, "temperature of the softmax policy", above=0)

    module_options: ClassVar[tuple[str, ...]] = ("noisy",)


@dataclass(frozen=True)
class PQNMetrics(LossMetrics):
    """Metrics of one gradient step of PQN; means over the minibatch."""

    qf_loss: Any
    qf_mean: Any


@dataclass(frozen=True)
class PQNConfig(AlgorithmConfig):
    """PQN (Gallici et al., 2024, https://arxiv.org/abs/2407.04811): Q-learning without replay or target networks.

    Learning rate, batch, epochs and lambda are CleanRL's.
    """

    lr: Schedule = option(2.5e-4, "learning rate", minimum=0, is_schedule=True)
    grad_clip: float | None = option(10.0, _GRAD_CLIP)
    optimizer: OptimizerConfig = field(default_factory=partial(OptimizerConfig, name="radam"))
    train_batch_size_per_learner: int = option(512, "rows per update", unit="env steps", minimum=1)
    num_epochs: int = option(4, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(128, _MINIBATCH_SIZE)
    lambda_: float = option(
        0.65, "lambda of the returns: 0: one step; 1: to the end of the fragment", minimum=0, maximum=1
    )
    epsilon: Schedule = option([[0, 1.0], [100_000, 0.05]], _EPSILON)

    metrics: ClassVar[type[LossMetrics]] = PQNMetrics


@dataclass(frozen=True)
class ApexDQNConfig(DQNConfig):
    """Ape-X (Horgan et al., 2018, https://arxiv.org/abs/1803.00933): DQN from shards of replay, with RLlib's names.

    Env runners sample at their own pace, and their sub-environments explore differently.
    """

    lr: Schedule = option(5e-4, "learning rate", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(512, "rows per update", unit="env steps", minimum=1)
    replay_capacity: int = option(2_000_000, "total capacity of all shards", unit="env steps", minimum=2)
    num_replay_shards: int = option(4, "number of replay shards, one process each", minimum=1)
    num_steps_sampled_before_learning_starts: int = option(50_000, _LEARNING_STARTS)
    n_step: int | list[int] = option(3, _N_STEP)
    epsilon: Schedule = option(
        0.4, "probability of a random action in the first sub-environment", minimum=0, maximum=1, is_schedule=True
    )
    epsilon_exponent: float = option(
        7.0,
        "sub-environment i of N uses epsilon^(1 + epsilon_exponent i / (N - 1)); a single one uses epsilon",
        minimum=0,
    )
    training_intensity: float | None = option(
        1.0, "trained env steps per sampled env step; null: one trained item per sampled item", above=0
    )
    target_network_update_freq: int = option(
        500_000, "sampled env steps between target updates", unit="env steps", minimum=1
    )


@dataclass(frozen=True)
class QMIXConfig(DQNConfig):
    """QMIX (Rashid et al., 2018, https://arxiv.org/abs/1803.11485), and VDN: DQN on a joint Q of several agents.

    Recurrent agents learn from chunks of `batch_length_T` steps; the paper replays complete episodes.
    """

    grad_clip: float | None = option(10.0, _GRAD_CLIP)
    n_step: int | list[int] = option(1, _N_STEP)
    td_error_loss_fn: str = option("mse", "loss of TD errors", choices=("huber", "mse"))

    module_options: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class BCMetrics(LossMetrics):
    """Metrics of one gradient step of behaviour cloning; means over the minibatch."""

    policy_loss: Any


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Behaviour cloning: maximise the likelihood of the recorded actions."""

    lr: Schedule = option(1e-4, "learning rate of the optimiser", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(2000, "rows per update", unit="env steps", minimum=1)
    bc_logstd_coeff: float = option(0.0, "Gaussian actions: weight of a bonus for the log std", minimum=0)

    metrics: ClassVar[type[LossMetrics]] = BCMetrics


@dataclass(frozen=True)
class MARWILMetrics(LossMetrics):
    """Metrics of one gradient step of MARWIL; means over the minibatch."""

    policy_loss: Any
    vf_loss: Any
    squared_advantages: Any
    mean_weight: Any


@dataclass(frozen=True)
class MARWILConfig(AlgorithmConfig):
    """MARWIL (Wang et al., 2018), behaviour cloning weighted by exp(beta A / c), with RLlib's names and defaults."""

    lr: Schedule = option(1e-4, "learning rate of the optimiser", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(2000, "rows per update", unit="env steps", minimum=1)
    lambda_: float = option(1.0, "GAE's lambda", minimum=0, maximum=1)
    beta: float = option(1.0, "weight of advantages; 0 is behaviour cloning", minimum=0)
    vf_coeff: float = option(1.0, "weight of the value loss", minimum=0)
    bc_logstd_coeff: float = option(0.0, "Gaussian actions: weight of a bonus for the log std", minimum=0)
    moving_average_sqd_adv_norm_start: float = option(
        100.0, "initial moving average of squared advantages", above=0, is_adapted=True
    )
    moving_average_sqd_adv_norm_update_rate: float = option(1e-8, "update rate of this average", minimum=0, maximum=1)

    metrics: ClassVar[type[LossMetrics]] = MARWILMetrics
    coefficients: ClassVar[tuple[str, ...]] = ("moving_average_sqd_adv_norm",)


@dataclass(frozen=True)
class IQLMetrics(LossMetrics):
    """Metrics of one gradient step of IQL; means over the minibatch; `qf_loss` is the sum over the Q functions."""

    policy_loss: Any
    qf_loss: Any
    vf_loss: Any
    qf_mean: Any
    vf_mean: Any
    mean_weight: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class IQLConfig(TargetNetworksConfig):
    """Implicit Q-learning (Kostrikov et al., 2021) with RLlib's names and defaults.

    The paper uses beta 3 and expectile 0.7 (locomotion) or 10 and 0.9 (mazes), and tau 0.005.
    """

    actor_lr: Schedule = option(3e-4, "learning rate of the policy", minimum=0, is_schedule=True)
    critic_lr: Schedule = option(3e-4, "learning rate of the Q functions", minimum=0, is_schedule=True)
    value_lr: Schedule = option(3e-4, "learning rate of the value function", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(2000, "rows per update", unit="env steps", minimum=1)
    beta: float = option(0.1, "inverse temperature of the weights exp(beta (Q - V)); 0 is behaviour cloning", minimum=0)
    expectile: float = option(0.8, "V estimates this expectile of Q over the recorded actions", above=0, below=1)
    tau: float = option(1.0, "Polyak factor of target updates; 1 copies the networks", above=0, maximum=1)

    metrics: ClassVar[type[LossMetrics]] = IQLMetrics
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr", "value": "value_lr"}


@dataclass(frozen=True)
class SACMetrics(LossMetrics):
    """Metrics of one gradient step of SAC; means over the minibatch; Q losses are sums over the Q functions."""

    policy_loss: Any
    qf_loss: Any
    alpha_loss: Any
    alpha_value: Any
    qf_mean: Any
    logp_mean: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class SoftActorCriticConfig(AlgorithmConfig):
    """Fields of algorithms with a policy, Q functions and a temperature."""

    actor_lr: Schedule = option(3e-4, "learning rate of the policy", minimum=0, is_schedule=True)
    critic_lr: Schedule = option(3e-4, "learning rate of the Q functions", minimum=0, is_schedule=True)
    alpha_lr: Schedule = option(3e-4, "learning rate of the temperature alpha", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(256, "rows per update", unit="env steps", minimum=1)
    min_sample_timesteps_per_iteration: int = option(1000, _MIN_SAMPLE_TIMESTEPS)
    replay_capacity: int = option(1_000_000, "capacity of the replay buffer", unit="env steps", minimum=2)
    num_steps_sampled_before_learning_starts: int = option(100, _LEARNING_STARTS)
    n_step: int | list[int] = option(1, _N_STEP)
    initial_alpha: float = option(1.0, "initial weight of the policy's entropy", above=0)
    target_entropy: float | str = option("auto", _TARGET_ENTROPY)
    policy_q: str = option("min", "how the policy loss combines the Q functions", choices=("min", "mean"))
    policy_delay: int = option(1, _POLICY_DELAY)

    metrics: ClassVar[type[LossMetrics]] = SACMetrics
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr", "alpha": "alpha_lr"}


@dataclass(frozen=True)
class SACConfig(SoftActorCriticConfig, TargetNetworksConfig):
    """Soft actor-critic for real-valued actions (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905).

    Learning rates and uniform replay follow the paper; learning starts after 100 env steps, as in Stable-Baselines3.
    """

    num_target_critics: int | None = option(
        None,
        "Q functions drawn per gradient step whose minimum is the target (REDQ: 2); null: all",
        minimum=1,
    )

    module_options: ClassVar[tuple[str, ...]] = ("critic_dropout",)


@dataclass(frozen=True)
class CrossQConfig(SoftActorCriticConfig):
    """CrossQ (Bhatt et al., 2024, https://arxiv.org/abs/1902.05605), with the learning rates and delay of the paper."""

    actor_lr: Schedule = option(1e-3, "learning rate of the policy", minimum=0, is_schedule=True)
    critic_lr: Schedule = option(1e-3, "learning rate of the Q functions", minimum=0, is_schedule=True)
    alpha_lr: Schedule = option(1e-3, "learning rate of the temperature alpha", minimum=0, is_schedule=True)
    policy_delay: int = option(3, _POLICY_DELAY)

    module_options: ClassVar[tuple[str, ...]] = ("critic_use_batchnorm",)


@dataclass(frozen=True)
class DiscreteSACConfig(SACConfig):
    """Soft actor-critic for discrete actions (Christodoulou, 2019, https://arxiv.org/abs/1910.07207)."""

    target_entropy: float | str = option(
        "auto",
        "target entropy; auto: half of the maximum, log(number of actions) / 2",
        choices=("auto",),
    )


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """Truncated quantile critics (Kuznetsov et al., 2020, https://arxiv.org/abs/2005.04269).

    Defaults follow the paper, except for the first steps and `min_sample_timesteps_per_iteration`.
    """

    policy_q: str = option("mean", "how the policy loss combines the Q functions", choices=("min", "mean"))
    top_quantiles_to_drop_per_net: int = option(
        2, "number of highest quantiles to drop from the target, per Q function", minimum=0
    )

    module_options: ClassVar[tuple[str, ...]] = ("q_distribution", "critic_dropout")


@dataclass(frozen=True)
class TD3Metrics(LossMetrics):
    """Metrics of one gradient step of TD3; means over the minibatch; Q losses are sums over the Q functions.

    `policy_loss` is reported in steps that update the policy.
    """

    policy_loss: Any
    qf_loss: Any
    qf_mean: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class TD3Config(TargetNetworksConfig):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477), with
    the paper's defaults. `ddpg` uses one Q function, no delay and no target noise.

    Noise is in units of half the range of an action.
    """

    actor_lr: Schedule = option(1e-3, "learning rate of the policy", minimum=0, is_schedule=True)
    critic_lr: Schedule = option(1e-3, "learning rate of the Q functions", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(256, "rows per update", unit="env steps", minimum=1)
    min_sample_timesteps_per_iteration: int = option(1000, _MIN_SAMPLE_TIMESTEPS)
    replay_capacity: int = option(1_000_000, "capacity of the replay buffer", unit="env steps", minimum=2)
    num_steps_sampled_before_learning_starts: int = option(1500, _LEARNING_STARTS)
    n_step: int | list[int] = option(1, _N_STEP)
    target_network_update_freq: int | None = option(
        None,
        "trained rows between target updates; 0: after each gradient step; null: only the plan updates the targets, "
        "with the policy",
        unit="env steps",
        minimum=0,
    )
    policy_delay: int = option(2, _POLICY_DELAY)
    target_noise: float = option(0.2, "standard deviation of the target policy noise; 0: no noise", minimum=0)
    target_noise_clip: float = option(0.5, "bound of the target policy noise", minimum=0)
    exploration: str = option("gaussian", "kind of exploration noise", choices=("gaussian", "ornstein_uhlenbeck"))
    exploration_noise: Schedule = option(
        0.1, "standard deviation of the exploration noise, as a schedule over env steps", minimum=0, is_schedule=True
    )
    num_random_steps: int = option(1500, "initial env steps with uniformly random actions", unit="env steps", minimum=0)

    metrics: ClassVar[type[LossMetrics]] = TD3Metrics
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr"}


@dataclass(frozen=True)
class CQLMetrics(LossMetrics):
    """Metrics of one gradient step of CQL; means over the minibatch; Q losses are sums over the Q functions."""

    policy_loss: Any
    qf_loss: Any
    cql_loss: Any
    alpha_loss: Any
    alpha_value: Any
    alpha_prime_value: Any
    qf_mean: Any
    logp_mean: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class CQLConfig(TargetNetworksConfig):
    """Conservative Q-learning CQL(H) for real-valued actions, on SAC (Kumar et al., 2020), with RLlib's defaults."""

    actor_lr: Schedule = option(1e-4, "learning rate of the policy", minimum=0, is_schedule=True)
    critic_lr: Schedule = option(1e-3, "learning rate of the Q functions", minimum=0, is_schedule=True)
    alpha_lr: Schedule = option(
        1e-3, "learning rate of the temperature alpha and of the Lagrange multiplier", minimum=0, is_schedule=True
    )
    train_batch_size_per_learner: int = option(256, "rows per update", unit="env steps", minimum=1)
    initial_alpha: float = option(1.0, "initial weight of the policy's entropy", above=0)
    target_entropy: float | str = option("auto", _TARGET_ENTROPY)
    bc_iters: int = option(
        20000,
        "initial gradient steps in which the policy clones the recorded behaviour",
        unit="gradient steps",
        minimum=0,
    )
    temperature: float = option(1.0, "temperature of the log-sum-exp over actions", above=0)
    num_actions: int = option(
        10, "sampled actions per kind: random, current policy, policy at the next state", minimum=1
    )
    min_q_weight: float = option(5.0, "weight of the conservative term", minimum=0)
    deterministic_backup: bool = option(True, "omit the entropy term from the target of Q")
    lagrangian: bool = option(False, "adapt the weight of the conservative term to lagrangian_thresh")
    lagrangian_thresh: float = option(5.0, "target of the weighted conservative term")

    metrics: ClassVar[type[LossMetrics]] = CQLMetrics
    coefficients: ClassVar[tuple[str, ...]] = ("curr_bc_iters_left",)
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr", "alpha": "alpha_lr"}


@dataclass(frozen=True)
class DiscreteCQLMetrics(LossMetrics):
    """Metrics of one gradient step of CQL on double Q-learning; means over the minibatch."""

    qf_loss: Any
    cql_loss: Any
    qf_mean: Any
    td_error: Any

    rows: ClassVar[tuple[str, ...]] = ("td_error",)


@dataclass(frozen=True)
class DiscreteCQLConfig(TargetNetworksConfig):
    """Conservative Q-learning CQL(H) for discrete actions, on double Q-learning (Kumar et al., 2020)."""

    lr: Schedule = option(1e-3, "learning rate of the optimiser", minimum=0, is_schedule=True)
    train_batch_size_per_learner: int = option(256, "rows per update", unit="env steps", minimum=1)
    temperature: float = option(1.0, "temperature of the log-sum-exp over actions", above=0)
    min_q_weight: float = option(5.0, "weight of the conservative term", minimum=0)

    metrics: ClassVar[type[LossMetrics]] = DiscreteCQLMetrics
