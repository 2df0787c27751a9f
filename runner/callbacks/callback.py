"""The base class of callbacks: a method for each event of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from runner.config.declared_metrics import Reports
from runner.state import DeclaredState


class Callback(DeclaredState):
    """Base class of callbacks: override the hooks you need.

    Every argument is passed by name, so that a hook names the arguments it reads and takes the others as `**kwargs`.
    All hooks receive `metrics`. Its `report(name, value, weight=1.0)` counts a value of a metric that `reports`
    declares; the run reports the metric as `callbacks/<name>`.

    The driver has an instance for the events of the run. Each env runner has its own instance for the events of its
    environments and episodes; hooks there also get `is_evaluation`. Name the attributes that later events depend on in
    `state`, or override `get_state` and `set_state`. With several agents an episode is a `MultiAgentEpisode` of views,
    and its return is the sum over all agents.

    Attributes:
        reports: metric -> (reduction, meaning), as for connectors: `mean`, `sum`, `min`, `max`, `median`, `last`
            or a percentile `p1` to `p99`, over an iteration and all env runners.
    """

    reports: ClassVar[Reports] = {}

    # -- environments and episodes: in the env runners that sample ---------------------------------------------------

    def on_environment_created(self, *, env: Any, env_runner_index: int, metrics: Any, **kwargs: Any) -> None:
        """Called when an env runner has made its sub-environments.

        Args:
            env: the `gymnasium.vector.VectorEnv`, or the list of all `gymnasium.Env` that are stepped one by one.
            env_runner_index: number of the env runner, from 0.
            metrics: see the class.
            kwargs: arguments that later releases add.
        """

    def on_episode_created(
        self, *, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Called before a sub-environment is reset.

        Args:
            env_index: number of the sub-environment within its env runner.
            custom_data: dict for plain values and arrays of this episode, which only this callback sees; empty now. All
                later hooks of the episode get it, and checkpoints contain it.
            rl_module: the module that acts.
            metrics, kwargs: see the class.
        """

    def on_episode_start(
        self, *, episode: Any, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Called after a sub-environment was reset.

        Args:
            episode: `SingleAgentEpisode`, a view of the rows of the env runner: the observation of the reset.
            env_index, custom_data, rl_module, metrics, kwargs: see `on_episode_created`.
        """

    def on_episode_step(
        self, *, episode: Any, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Called after every environment step, including the last of an episode.

        Args:
            episode: a view of the steps since the last train batch was cut, the newest last, and of
                `env_runners.episode_lookback_horizon` earlier steps. `t_started` counts the steps before these.
                Its rows are overwritten later: copy what you keep.
            env_index, custom_data, rl_module, metrics, kwargs: see `on_episode_created`.
        """

    def on_episode_end(
        self,
        *,
        episode: Any,
        episode_return: float,
        env_index: int,
        custom_data: dict[str, Any],
        rl_module: Any,
        metrics: Any,
        **kwargs: Any,
    ) -> None:
        """Called after an episode was terminated or truncated.

        Args:
            episode: as in `on_episode_step`; it has `t_started + len(episode)` env steps in total.
            episode_return: undiscounted return of the entire episode.
            env_index, custom_data, rl_module, metrics, kwargs: see `on_episode_created`.
        """

    def on_sample_end(self, *, episodes: Any, env_runner_index: int, metrics: Any, **kwargs: Any) -> None:
        """Called after an env runner has sampled.

        Args:
            episodes: column block of the sampled steps, which is also a sequence of views of their episodes; with
                several agents a list of multi-agent episodes.
            env_runner_index: number of the env runner, from 0.
            metrics, kwargs: see the class.
        """

    # -- the run: in the driver --------------------------------------------------------------------------------------

    def on_update_start(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Called before the learners update the modules or apply gradients."""

    def on_update_end(
        self, *, trainer: Any, updates: list[Mapping[str, Mapping[str, float]]], metrics: Any, **kwargs: Any
    ) -> None:
        """Called after updates with the metrics of each: module id -> metric -> value."""

    def on_evaluate_start(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Called before an evaluation."""

    def on_evaluate_end(self, *, trainer: Any, result: Mapping[str, Any], metrics: Any, **kwargs: Any) -> None:
        """Called after an evaluation with its metrics."""

    def on_train_result(self, *, trainer: Any, result: Mapping[str, Any], metrics: Any, **kwargs: Any) -> None:
        """Called after an iteration with its metrics, including evaluation metrics; values reported here are added."""

    def on_env_runners_recreated(self, *, trainer: Any, num_restarts: int, metrics: Any, **kwargs: Any) -> None:
        """Called after an iteration in which env runners were restarted, with the number of restarts."""

    def on_checkpoint_loaded(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Called when the run resumes from a checkpoint, after all parts have restored their states."""

    def on_checkpoint_saved(self, *, trainer: Any, path: Any, metrics: Any, **kwargs: Any) -> None:
        """Called after a checkpoint was written to the folder `path`."""

    def on_exception(self, *, trainer: Any, error: Exception, metrics: Any, **kwargs: Any) -> None:
        """Called after an iteration failed; `error` is raised afterwards."""

    def on_stop(self, *, trainer: Any, status: str, reason: str, metrics: Any, **kwargs: Any) -> None:
        """Called after the run has ended, `finished` or `interrupted`, and its last checkpoint was written."""


EPISODE_HOOKS = (
    *("on_environment_created", "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"),
    "on_sample_end",
)
# Hooks that are called for episodes that simulators send.
EXTERNAL_HOOKS = ("on_episode_end", "on_sample_end")
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
