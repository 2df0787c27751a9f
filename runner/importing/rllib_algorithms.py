"""Counterparts of RLlib's algorithms, and conversion of keys that are not fields with the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.algorithms import (
    AlgorithmConfig,
    APPOConfig,
    BCConfig,
    CQLConfig,
    DiscreteSACConfig,
    DQNConfig,
    IMPALAConfig,
    IQLConfig,
    MARWILConfig,
    PPOConfig,
    SACConfig,
    TQCConfig,
)
from runner.config.optimizer import OptimizerConfig
from runner.config.schemas import ModuleConfig
from runner.importing.rllib_config import CONVERTED, RLlibConfig, find_fault

_REPLAY = CONVERTED[AlgorithmConfig]["replay_buffers"]


@dataclass(frozen=True)
class Counterpart:
    """Algorithm of runner that corresponds to one of RLlib.

    Attributes:
        option: option of the group `algorithm`.
        schema: dataclass of its block.
        prepare: converts the keys that are not fields with the same name.
        module: option of the group `module`.
        learns_from: `samples`, `replay` or `recorded` data.
    """

    option: str
    schema: type[AlgorithmConfig]
    prepare: Callable[[RLlibConfig], None]
    module: str = "mlp"
    learns_from: str = "samples"

    @property
    def is_offline(self) -> bool:
        """Whether it learns from recorded data."""
        return self.learns_from == "recorded"


def take_algorithm(config: RLlibConfig, counterpart: Counterpart) -> None:
    """Convert the algorithm's block, and options of its module."""
    config.imported.options["algorithm"] = counterpart.option
    if counterpart.module != "mlp":
        config.imported.options["module"] = counterpart.module
    _take_batch_size(config)
    if counterpart.learns_from == "replay":
        _take_replay(config, counterpart.schema)
        _put_intensity(config)
    counterpart.prepare(config)
    config.copy_fields("algorithm", counterpart.schema, not_copied=("optimizer",))


def counterpart_of(name: str, config: RLlibConfig) -> Counterpart:
    """Return runner's algorithm for the environment's action space, if the configuration reveals it."""
    if name == "SAC" and str(config.values.get("action_space")).startswith("Discrete("):
        config.take("action_space")
        return Counterpart("sac_discrete", DiscreteSACConfig, _prepare_sac, "sac_discrete", "replay")
    return ALGORITHMS[name]


def _take_batch_size(config: RLlibConfig) -> None:
    """Convert RLlib's `train_batch_size`: the total of all learners, used if no size per learner is given."""
    of_all, of_learner = config.take("train_batch_size"), config.take("_train_batch_size_per_learner")
    only_of_all = "train_batch_size" in config.given and "_train_batch_size_per_learner" not in config.given
    if of_learner is None or only_of_all or config.is_old_stack:
        num_learners = config.count("num_learners", 1)
        of_learner = of_all // num_learners if isinstance(of_all, int) else of_all
    config.values["train_batch_size_per_learner"] = of_learner


def _take_replay(config: RLlibConfig, schema: type[AlgorithmConfig]) -> None:
    known = dict(config.defaults[_REPLAY])
    replay = {**known, **config.take_block(_REPLAY)}
    kind = str(replay.pop("type"))
    if "ReplayBuffer" not in kind:
        config.leave_out(f"{_REPLAY}.type", kind, "a custom buffer goes into algorithm.replay_buffers")
    capacity = replay.pop("capacity")
    config.write("algorithm", schema, "replay_capacity", capacity, CONVERTED[AlgorithmConfig]["replay_capacity"])
    old = {name: replay.pop(f"prioritized_replay_{name}", None) for name in ("alpha", "beta")}
    new = {name: replay.pop(name) for name in ("alpha", "beta")}
    buffer: dict[str, Any] = {"_target_": "runner.replay.ReplayBuffer"}
    if "Prioritized" in kind:
        buffer = {"_target_": "runner.replay.PrioritizedReplayBuffer"}
        for name, value in new.items():
            given = value if old[name] is None else old[name]
            if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0:
                buffer[name] = given
            else:
                config.leave_out(f"{_REPLAY}.{name}", given, "expected a number of at least 0")
    config.imported.set("algorithm", replay_buffers={"replay": buffer})
    for key, value in replay.items():
        if value != known.get(key):
            config.leave_out(f"{_REPLAY}.{key}", value)


def _put_intensity(config: RLlibConfig) -> None:
    """Write RLlib's natural ratio: one update per sample of all env runners."""
    steps = config.values["n_step"]
    longest = max(steps) if isinstance(steps, list) and steps and all(isinstance(n, int) for n in steps) else steps
    if config.values.get("rollout_fragment_length") == "auto":
        config.values["rollout_fragment_length"] = longest
    if config.values.get("training_intensity") is None:
        names = ("rollout_fragment_length", "num_envs_per_env_runner", "num_env_runners")
        fragment, num_envs, num_env_runners = (config.count(name, 1) for name in names)
        rows = config.count("train_batch_size_per_learner", 1) * config.count("num_learners", 1)
        config.values["training_intensity"] = rows / (fragment * num_envs * num_env_runners)


def _prepare_nothing(config: RLlibConfig) -> None:
    """Do nothing, because all keys are fields with the same name."""


def _prepare_ppo(config: RLlibConfig) -> None:
    if config.take(CONVERTED[AlgorithmConfig]["minibatching"]) is False:
        config.imported.set("algorithm", minibatching="time_ordered")


def _prepare_impala(config: RLlibConfig) -> None:
    if config.take("vtrace") is False:
        config.leave_out("vtrace", False, "runner always uses V-trace targets")


def _prepare_appo(config: RLlibConfig) -> None:
    """Convert the circular buffer: RLlib draws batches from it, runner draws fragments."""
    _prepare_impala(config)
    proportion = config.take("replay_proportion")
    if proportion != config.defaults["replay_proportion"]:
        config.leave_out("replay_proportion", proportion, "RLlib's APPO ignores it")
    rows = config.count("train_batch_size_per_learner", 1) * config.count("num_learners", 1)
    is_used = config.take("use_circular_buffer") is not False
    for name, key in CONVERTED[APPOConfig].items():
        number = config.take(key)
        if not isinstance(number, int) or number < 1:
            config.leave_out(key, number, "expected an integer of at least 1")
        elif name == "replay_capacity":
            config.values[name] = number * rows
        else:
            config.values[name] = number - 1 if is_used else 0
    fragment = config.values.get("rollout_fragment_length")
    if isinstance(fragment, int):
        config.values["replay_fragment_length"] = fragment


def _prepare_dqn(config: RLlibConfig) -> None:
    exploration = config.values.get("exploration_config")
    if isinstance(exploration, dict) and exploration.get("type") == "EpsilonGreedy":
        config.take("exploration_config")
        first, last = exploration.get("initial_epsilon", 1.0), exploration.get("final_epsilon", 0.05)
        config.values["epsilon"] = [[0, first], [exploration.get("epsilon_timesteps", 10_000), last]]
    config.write("module", ModuleConfig, "dueling", config.take("dueling"), "dueling")
    num_atoms, bounds = config.take("num_atoms"), {name: config.take(name) for name in ("v_min", "v_max")}
    config.write("module", ModuleConfig, "num_atoms", num_atoms, "num_atoms")
    if "num_atoms" in config.imported.values.get("module", {}):
        config.imported.set("module", q_distribution="categorical")
        for name, value in bounds.items():
            config.write("module", ModuleConfig, name, value, name)
    if config.is_old_stack:
        for key, name in {"noisy": "noisy", "sigma0": "sigma0", "hiddens": "head_fcnet_hiddens"}.items():
            config.write("module", ModuleConfig, name, config.take(key), key)
    key = CONVERTED[OptimizerConfig]["epsilon"]
    epsilon = config.values[key]
    if epsilon != config.defaults[key] and find_fault(OptimizerConfig, "epsilon", epsilon) is None:
        config.imported.set("algorithm", optimizer={"epsilon": config.take(key)})


def _prepare_critics(config: RLlibConfig) -> None:
    if config.take("twin_q") is False:
        config.imported.set("module", num_critics=1)


def _prepare_sac(config: RLlibConfig) -> None:
    _prepare_critics(config)
    _put_old_rates(config)
    _put_target_updates(config)


def _put_target_updates(config: RLlibConfig) -> None:
    frequency = config.values["target_network_update_freq"]
    intensity = config.values["training_intensity"]
    if isinstance(frequency, int) and frequency > 0 and isinstance(intensity, (int, float)):
        # RLlib counts sampled env steps, runner counts trained rows.
        config.values["target_network_update_freq"] = max(1, round(frequency * intensity))


def _prepare_tqc(config: RLlibConfig) -> None:
    _put_old_rates(config)
    _put_target_updates(config)
    for name in ("num_critics", "num_atoms"):
        key = CONVERTED[ModuleConfig][name]
        config.write("module", ModuleConfig, name, config.take(key), key, is_needed=True)


def _prepare_cql(config: RLlibConfig) -> None:
    _prepare_critics(config)
    _put_old_rates(config)


def _put_old_rates(config: RLlibConfig) -> None:
    """Convert learning rates, which RLlib's old API stack stores in `optimization`."""
    if config.is_old_stack:
        rates = {**config.defaults["optimization"], **config.take_block("optimization")}
        names = {"actor_lr": "actor", "critic_lr": "critic", "alpha_lr": "entropy"}
        config.values |= {name: rates[f"{old}_learning_rate"] for name, old in names.items()}


ALGORITHMS: Mapping[str, Counterpart] = {
    "PPO": Counterpart("ppo", PPOConfig, _prepare_ppo),
    "IMPALA": Counterpart("impala", IMPALAConfig, _prepare_impala),
    "APPO": Counterpart("appo", APPOConfig, _prepare_appo, "appo"),
    "DQN": Counterpart("dqn", DQNConfig, _prepare_dqn, "double_q", "replay"),
    "SAC": Counterpart("sac", SACConfig, _prepare_sac, "sac", "replay"),
    "TQC": Counterpart("tqc", TQCConfig, _prepare_tqc, "tqc", "replay"),
    "BC": Counterpart("bc", BCConfig, _prepare_nothing, learns_from="recorded"),
    "MARWIL": Counterpart("marwil", MARWILConfig, _prepare_nothing, learns_from="recorded"),
    "CQL": Counterpart("cql", CQLConfig, _prepare_cql, "sac", "recorded"),
    "IQL": Counterpart("iql", IQLConfig, _prepare_critics, "iql", "recorded"),
}
