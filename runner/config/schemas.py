"""The experiment: all blocks of a configuration. Imports neither torch nor Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.config.algorithms import AlgorithmConfig, PPOConfig
from runner.config.blocks import (
    CheckpointConfig,
    ConnectorsConfig,
    EnvConfig,
    EnvRunnersConfig,
    EvaluationConfig,
    LearnersConfig,
    ModuleConfig,
    MultiAgentConfig,
    RayConfig,
    TrackingConfig,
)
from runner.config.curriculum import CurriculumConfig
from runner.config.features import FEATURE_BLOCKS
from runner.config.fields import option
from runner.config.league import LeagueConfig
from runner.config.list_patches import module_algorithm_key
from runner.config.offline import OfflineConfig
from runner.config.rllink import RLlinkConfig
from runner.config.sweep import POPULATIONS, SweepConfig

__all__ = ["EnvConfig", "ExperimentConfig", "ModuleConfig", "Number"]

Number = int | float


@dataclass(frozen=True)
class ExperimentConfig:
    """A complete, checked experiment, composed from `conf/` and the overrides."""

    experiment_name: str | None = option(
        None, "name of the run in outputs/ and MLflow; null: the name of the experiment file"
    )
    seed: int = option(0, "seed of all random streams of the run", minimum=0)
    engine: str = option(
        "ray",
        "inline runs all env runners in the driver's process, for debugging",
        choices=("ray", "inline"),
    )
    debug: bool = option(False, "show stack traces with error messages")
    algorithm: AlgorithmConfig = field(default_factory=PPOConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    connectors: ConnectorsConfig = field(default_factory=ConnectorsConfig)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    multi_agent: MultiAgentConfig = field(default_factory=MultiAgentConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    env_runners: EnvRunnersConfig = field(default_factory=EnvRunnersConfig)
    learners: LearnersConfig = field(default_factory=LearnersConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    rllink: RLlinkConfig = field(default_factory=RLlinkConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: list[dict[str, Any]] = option(
        [], "callbacks for events of the run and its episodes: {_target_: dotted path, keyword arguments ...}"
    )
    metrics: dict[str, Any] = option(
        {}, "metrics of finished episodes from infos: env_runners/name: {info: key, at: episode_end, reduce: mean}"
    )
    sweep: SweepConfig = field(default_factory=SweepConfig)
    stop: dict[str, Number] = option(
        {},
        "metric: value; the run ends when a metric reaches its value. Means over training episodes count once "
        "env_runners.metrics_num_episodes_for_smoothing episodes have finished",
    )

    def algorithm_of(self, module_id: str) -> AlgorithmConfig:
        """Return the algorithm of a module: its own, or the run's."""
        own: AlgorithmConfig | None = self.multi_agent.modules.get(module_id, {}).get("algorithm")
        return self.algorithm if own is None else own

    def module_defaults_of(self, module_id: str) -> ModuleConfig:
        """Return the block whose fields a module overrides: `module`, or the defaults for an auxiliary module."""
        return ModuleConfig() if module_id in self.multi_agent.auxiliary_modules else self.module

    @property
    def resets_apart(self) -> bool:
        """Whether a feature needs sub-environments that are created and reset one by one."""
        return any(getattr(self, name).resets_apart for name in FEATURE_BLOCKS)

    @property
    def algorithms(self) -> dict[str, AlgorithmConfig]:
        """Dotted key of the block -> algorithm: the run's, and the algorithms of single modules."""
        own = {id_: fields["algorithm"] for id_, fields in self.multi_agent.modules.items() if "algorithm" in fields}
        return {"algorithm": self.algorithm, **{module_algorithm_key(id_): algorithm for id_, algorithm in own.items()}}

    @property
    def objectives(self) -> dict[str, str]:
        """Metric -> `max` or `min` for the trials of a sweep; the first metric ranks them."""
        metric, mode = self.sweep.metric or self.checkpoint.metric, self.sweep.mode or self.checkpoint.mode
        metrics = [metric] if isinstance(metric, str) else metric
        return dict(zip(metrics, [mode] * len(metrics) if isinstance(mode, str) else mode, strict=True))

    @property
    def perturbation_interval(self) -> float | None:
        """Time between comparisons of a population's trials, in `sweep.time_attr`; None without a population."""
        sweep = self.sweep
        if sweep.scheduler not in POPULATIONS:
            return None
        return sweep.perturbation_interval or self.stop[sweep.time_attr] / 10
