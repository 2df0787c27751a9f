"""The base of callbacks: a method for each event of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from runner.config.declared_metrics import Reports
from runner.state import DeclaredState


class Callback(DeclaredState):
    """Hear of the events of a run: a subclass overrides the hooks that it needs.

    Every argument is given by name, so that a hook names the ones that it reads and takes the others as `**kwargs`.
    All hooks get `metrics`, whose `report(name, value, weight=1.0)` counts a value of a metric that `reports` declares;
    it is `callbacks/<name>` in the run.

    The driver has an instance for the events of the run, and each env runner one of its own for the events of its
    environments and episodes; hooks there also get `is_evaluation`. Name the attributes that later events depend on in
    `state`, or override `get_state` and `set_state`. With several agents an episode is a `MultiAgentEpisode` of views,
    and its return the sum over all of them.

    Attributes:
        reports: metric -> (reduction, meaning), as for connectors: `mean`, `sum`, `min`, `max`, `median`, `last`
            or a percentile `p1` to `p99`, over an iteration and all env runners.
    """

    reports: ClassVar[Reports] = {}

    # -- environments and episodes: in the env runners that sample ---------------------------------------------------

    def on_environment_created(self, *, env: Any, env_runner_index: int, metrics: Any, **kwargs: Any) -> None:
        """Hear that an env runner has its sub-environments.

        Args:
            env: the `gymnasium.vector.VectorEnv`, or the list of all `gymnasium.Env` that are stepped one by one.
            env_runner_index: from 0.
            metrics: see the class.
            kwargs: what later releases add.
        """

    def on_episode_created(
        self, *, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Hear that a sub-environment is about to be reset.

        Args:
            env_index: number of the sub-environment within its env runner.
            custom_data: plain values and arrays of this episode, of this callback alone; empty now. All later events of
                the episode have them, and checkpoints keep them.
            rl_module: that acts.
            metrics, kwargs: see the class.
        """

    def on_episode_start(
        self, *, episode: Any, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Hear that a sub-environment was reset.

        Args:
            episode: `SingleAgentEpisode`, a view of what the env runner holds: the observation of the reset.
            env_index, custom_data, rl_module, metrics, kwargs: see `on_episode_created`.
        """

    def on_episode_step(
        self, *, episode: Any, env_index: int, custom_data: dict[str, Any], rl_module: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Hear that a sub-environment made a step, the last one of its episode too.

        Args:
            episode: a view of the steps since the last train batch was cut, the newest last; with
                `env_runners.episode_lookback_horizon` of steps before, too. `t_started` counts the ones that are gone.
                Its rows are written over later: copy what you keep.
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
        """Hear that an episode was terminated or truncated.

        Args:
            episode: as in `on_episode_step`; it has `t_started + len(episode)` env steps in all.
            episode_return: undiscounted, of the whole episode.
            env_index, custom_data, rl_module, metrics, kwargs: see `on_episode_created`.
        """

    def on_sample_end(self, *, episodes: Any, env_runner_index: int, metrics: Any, **kwargs: Any) -> None:
        """Hear that an env runner has sampled.

        Args:
            episodes: column block of the sampled steps, and a sequence of their episodes as views; with several agents
                a list of multi-agent episodes.
            env_runner_index: from 0.
            metrics, kwargs: see the class.
        """

    # -- the run: in the driver --------------------------------------------------------------------------------------

    def on_update_start(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Hear that the learners are about to update the modules, or to apply gradients."""

    def on_update_end(
        self, *, trainer: Any, updates: list[Mapping[str, Mapping[str, float]]], metrics: Any, **kwargs: Any
    ) -> None:
        """Hear what the updates reported: for each, module id -> metric -> value."""

    def on_evaluate_start(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Hear that an evaluation begins."""

    def on_evaluate_end(self, *, trainer: Any, result: Mapping[str, Any], metrics: Any, **kwargs: Any) -> None:
        """Hear the metrics of an evaluation."""

    def on_train_result(self, *, trainer: Any, result: Mapping[str, Any], metrics: Any, **kwargs: Any) -> None:
        """Hear the metrics of an iteration, its evaluation among them; what is reported now joins them."""

    def on_env_runners_recreated(self, *, trainer: Any, num_restarts: int, metrics: Any, **kwargs: Any) -> None:
        """Hear after an iteration how often env runners were restarted in it, where they were."""

    def on_checkpoint_loaded(self, *, trainer: Any, metrics: Any, **kwargs: Any) -> None:
        """Hear that the run goes on from a checkpoint, whose state all parts have."""

    def on_checkpoint_saved(self, *, trainer: Any, path: Any, metrics: Any, **kwargs: Any) -> None:
        """Hear that a checkpoint is written to the folder `path`."""

    def on_exception(self, *, trainer: Any, error: Exception, metrics: Any, **kwargs: Any) -> None:
        """Hear that an iteration failed; `error` is raised afterwards."""

    def on_stop(self, *, trainer: Any, status: str, reason: str, metrics: Any, **kwargs: Any) -> None:
        """Hear that the run has ended, `finished` or `interrupted`, and that its last checkpoint is written."""

    # -- state -------------------------------------------------------------------------------------------------------


EPISODE_HOOKS = (
    *("on_environment_created", "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"),
    "on_sample_end",
)
# What is heard of episodes that simulators send.
EXTERNAL_HOOKS = ("on_episode_end", "on_sample_end")
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
