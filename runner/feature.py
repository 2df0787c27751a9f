"""Base class of features that follow episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runner.config.schemas import ExperimentConfig
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.module_building.built_module import BuiltModule
from runner.module_building.module_spec import ModuleSpec
from runner.parts import Part


class Feature:
    """Base class of features: override the methods you need. Instances are made only for runs that use the feature.

    Args:
        config: configuration of the run.

    Attributes:
        title: name of the feature in messages.
    """

    title: str = ""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    def check(self, specs: Mapping[str, ModuleSpec]) -> None:
        """Check conditions that depend on the environments and modules; raises `ConfigError`."""

    def make_part(self, built_modules: Mapping[str, BuiltModule]) -> Part:
        """Make the part that the driver holds."""
        raise NotImplementedError

    def env_maker(self, has_several_agents: bool) -> Callable[[], Any] | None:
        """Return a factory that replaces the environment of the `env` block, or None to keep that environment."""
        return None

    def make_envs(
        self, specs: Mapping[str, ModuleSpec], make_env: Callable[[], Any], num_envs: int, explore: bool
    ) -> MultiAgentEnvironments | None:
        """Make the sub-environments of a multi-agent env runner, or return None for the usual ones."""
        return None

    def make_listener(self, env: Any) -> EpisodeListener | None:
        """Return a listener for an env runner with these sub-environments, or None."""
        return None

    def client_tasks(self) -> dict[str, Any]:
        """Return name -> content of the tasks that external simulators may draw."""
        return {}
