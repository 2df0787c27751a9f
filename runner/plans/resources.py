"""What the operators of a plan work with: everything with a state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from runner.callbacks import Callbacks
from runner.closing import close_each
from runner.config.errors import Problem, RunFailure
from runner.config.metrics import NUM_READY
from runner.config.operator_metrics import free_name, operator_metric
from runner.config.operators import ENV_RUNNERS, LEARNERS, QUEUES, RECORDED_DATA, REPLAY_BUFFERS
from runner.config.piece_reports import meaning_of
from runner.config.references import Digests, with_references
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import place_of
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.episodes.columns import Rollout
from runner.interrupts import BrokenOff, is_overdue
from runner.learners.remote_learner_group import Learners
from runner.pipelines.pipeline_metrics import joined_reports
from runner.pipelines.raw_observations import Standardisation
from runner.plans.async_requests import AsyncRequests
from runner.plans.flow import Operator, Waiting
from runner.plans.item_state import KEPT, item_from_state, item_to_state
from runner.plans.items import Item, Origin
from runner.plans.run_metrics import Result, RunMetrics
from runner.replay import ReplayBuffer

if TYPE_CHECKING:  # env runners, which import this, do without the libraries of recorded data
    from runner.curriculum.curriculum import Curriculum
    from runner.league.league import League
    from runner.offline.training.offline_data import OfflineData


class Resource(Protocol):
    """A part of a run that has a state.

    Attributes:
        settings: what the state depends on; with other settings, `start_anew` takes the place of `set_state`.
    """

    settings: Mapping[str, Any]

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next item depends on, as plain values and arrays."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""

    def start_anew(self, state: Mapping[str, Any]) -> None:
        """Begin anew after a state with other settings, repeating nothing of it; it is empty if there is none."""

    def metrics(self) -> Mapping[str, float | int | None]:
        """Return what is reported at the end of an iteration."""

    def close(self) -> None:
        """Free what is held."""


@dataclass
class Queue:
    """Items between two plans, at most `capacity`."""

    capacity: int
    items: deque[Item] = field(default_factory=deque)


class Resources:
    """The resources of a run.

    Args:
        config: of the run.
        learners: of all modules.
        run_metrics: counters, timers and running means.
        env_runners: that sample; None: the plan needs none.
        recorded_data: to learn from; None: the plan needs none.
        adapting_losses: names of losses that adapt to updates, which env runners cannot compute.
        replay_buffers: by name.
        standardisation: of replayed observations; None: they are replayed as they were sampled.

    Attributes:
        metrics: `run_metrics`.
        callbacks: of the driver; none, unless a trainer gives its own.
        league: whose players env runners play against; None: there is none.
        curriculum: whose tasks env runners draw; None: there is none.
        queues: by name, between plans.
        operators: by name, in the order in which the plan makes them; the second one of a class is `Name#2`.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        learners: Learners,
        run_metrics: RunMetrics,
        env_runners: EnvRunnerGroup | None = None,
        recorded_data: OfflineData | None = None,
        adapting_losses: Sequence[str] = (),
        replay_buffers: Mapping[str, ReplayBuffer] = MappingProxyType({}),
        standardisation: Standardisation | None = None,
    ) -> None:
        self.config = config
        self.learners = learners
        self.metrics = run_metrics
        self._env_runners, self._recorded_data = env_runners, recorded_data
        self.adapting_losses = tuple(adapting_losses)
        self.replay_buffers = dict(replay_buffers)
        self._standardisation = standardisation
        self.league: League | None = None
        self.curriculum: Curriculum | None = None
        self.callbacks = Callbacks()
        self.queues: dict[str, Queue] = {}
        self.operators: dict[str, Operator] = {}
        self.digests = Digests({}, {})
        self.continues_episodes = True  # of the last state that was set

    @property
    def env_runners(self) -> EnvRunnerGroup:
        """The runners that sample."""
        if self._env_runners is None:
            raise AttributeError("this run has no env runners: no operator of its plan names them in `needs`")
        return self._env_runners

    @property
    def recorded_data(self) -> OfflineData:
        """The recorded data."""
        if self._recorded_data is None:
            raise AttributeError("this run has no recorded data: no operator of its plan names them in `needs`")
        return self._recorded_data

    @property
    def sources(self) -> dict[str, EnvRunnerGroup | OfflineData]:
        """Env runners and recorded data by name, where the run has them."""
        named = {ENV_RUNNERS: self._env_runners, RECORDED_DATA: self._recorded_data}
        return {name: source for name, source in named.items() if source is not None}

    # -- weights ---------------------------------------------------------------------------------------------------

    def send_weights(self, runners: Iterable[int] | None = None) -> None:
        """Let env runners act with the newest weights, all or some of them."""
        if self._env_runners is not None:
            self._env_runners.set_weights(self.learners.get_weights(), runners)

    def lags_of(self, origins: Iterable[Origin]) -> list[tuple[int, int]]:
        """Return the updates that env runners had not seen when they sampled, and the env steps of each sample."""
        newest = 0 if self._env_runners is None else self._env_runners.weights_seq_no
        return [(newest - origin.weights_seq_no, origin.num_env_steps) for origin in origins]

    @property
    def shared_state(self) -> Mapping[str, Any]:
        """Module id -> merged state of pieces that runners share."""
        return next(iter(self.sources.values())).shared_state

    def standardised(self, rollout: Rollout) -> Rollout:
        """Return replayed experiences with observations as the modules see them now."""
        if self._standardisation is None:
            return rollout
        return self._standardisation(rollout, self.shared_state)

    def set_policy(self, shared_state: Mapping[str, Any]) -> None:
        """Let all sources work with the learners' weights, and with this state of pieces that runners share."""
        for source in self.sources.values():
            source.use_shared_state(shared_state)
            source.set_weights(self.learners.get_weights())

    # -- the plan --------------------------------------------------------------------------------------------------

    def add_operator(self, operator: Operator) -> None:
        """Keep an operator that was made for these resources, and give it its `metrics`.

        Raises:
            ConfigError: it declares metrics that cannot be.
        """
        part = type(operator)
        key = free_name(part.__name__, self.operators)
        self.operators[key] = operator
        reports = joined_reports([operator], "algorithm.plan")
        where = f"algorithm.plan, {place_of(part, 'transform', 'make_items', 'flow')}"
        operator.metrics = self.metrics.reporter(part.__name__, where, reports, operator_metric(key, ""))
        if ENV_RUNNERS in operator.needed:
            self.metrics.counts_recorded = False

    @property
    def reported_metrics(self) -> dict[str, str]:
        """Return metric of the run -> meaning, for metrics that operators report."""
        return {
            operator_metric(key, name): meaning_of(operator.reports, name)
            for key, operator in self.operators.items()
            for name in operator.reports
        }

    def queue(self, name: str, capacity: int | None = None) -> Queue:
        """Return the queue of this name, with this capacity from now on."""
        queue = self.queues.setdefault(name, Queue(capacity or 1))
        queue.capacity = capacity or queue.capacity
        return queue

    def wait(self, what: Waiting) -> None:
        """Wait until an env runner has answered, and count the seconds as ones of sampling.

        Raises:
            RunFailure: plans wait for each other.
            BrokenOff: the run is to end.
        """
        if what is Waiting.FOR_END:
            self.metrics.break_off()
            raise BrokenOff
        if what is Waiting.FOR_QUEUE:
            problem = Problem("the plan stands still: each of its plans waits for a queue", "algorithm.plan")
            raise RunFailure(problem)
        started = time.perf_counter()
        self.env_runners.wait_for_any()
        self.metrics.add_seconds("env_runner_sampling", time.perf_counter() - started)

    def breaks_off(self, item: object) -> bool:
        """Return whether an item is to wait for a resumed run, because an end was asked for some time ago."""
        return type(item) in KEPT and is_overdue()

    @property
    def _requests(self) -> dict[str, AsyncRequests]:
        """The requests of operators that ask env runners while the plan goes on, by operator."""
        found = {name: getattr(operator, "requests", None) for name, operator in self.operators.items()}
        return {name: requests for name, requests in found.items() if isinstance(requests, AsyncRequests)}

    def end_iteration(self) -> Result:
        """Return the metrics of the resources at the end of an iteration.

        The league says who plays in the next one, and the curriculum which tasks are drawn.
        """
        return self._metrics_of_resources() | self._end_iteration_of_league() | self._end_iteration_of_curriculum()

    def begin_episodes(self) -> None:
        """Let the league, if there is one, begin with the learners' weights, and a curriculum with its first tasks."""
        if self.league is not None:
            self.league.begin(self.learners.get_weights(), self.shared_state)
            self.league.announce_lineup(self.env_runners)
        if self.curriculum is not None:
            self.curriculum.announce(self.env_runners)

    def _end_iteration_of_curriculum(self) -> Result:
        if self.curriculum is None:
            return {}
        self.curriculum.add(self.metrics.tasks)
        self.curriculum.announce(self.env_runners)
        return self.curriculum.metrics()

    def _end_iteration_of_league(self) -> Result:
        if self.league is None:
            return {}
        num_env_steps, matches = self.metrics.num_env_steps_sampled_lifetime, self.metrics.matches
        self.league.add_matches(matches)
        metrics = self.league.metrics(matches)
        self.league.end_iteration(num_env_steps, self.learners.get_weights, self.shared_state)
        self.league.announce_lineup(self.env_runners)
        return metrics

    def _metrics_of_resources(self) -> Result:
        parts: list[Any] = [*self.sources.values(), self.learners]
        of_parts = {name: value for part in parts for name, value in part.metrics().items()}
        for buffer_name, buffer in self.replay_buffers.items():
            of_parts |= {f"{REPLAY_BUFFERS}/{buffer_name}/{name}": value for name, value in buffer.metrics().items()}
        of_parts |= {f"{QUEUES}/{name}/num_items": len(queue.items) for name, queue in self.queues.items()}
        if self._requests:
            of_parts[NUM_READY] = sum(requests.num_ready for requests in self._requests.values())
        return of_parts

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the states of operators, queues and resources.

        Operators come first: what they have asked of env runners is answered before the states of the runners.
        """
        states = {name: operator.get_state() for name, operator in self.operators.items()}
        rest = {name: [item_to_state(item) for item in operator.rest] for name, operator in self.operators.items()}
        return {
            "plan": {
                "operators": {name: state for name, state in states.items() if state},
                "rest": {name: items for name, items in rest.items() if items},
                "held": {name: item_to_state(one.held) for name, one in self.operators.items() if one.held is not None},
                "queues": {name: [item_to_state(item) for item in queue.items] for name, queue in self.queues.items()},
                "settings": self._settings_with(self.digests),
                **self.digests.get_state(),
            },
            LEARNERS: self.learners.get_state(),
            "metrics": self.metrics.get_state(),
            **{name: source.get_state() for name, source in self.sources.items()},
            **({REPLAY_BUFFERS: self._replay_state()} if self.replay_buffers else {}),
            **({"callbacks": self.callbacks.get_state()} if self.config.callbacks else {}),
            **({} if self.league is None else {"league": self.league.get_state()}),
            **({} if self.curriculum is None else {"curriculum": self.curriculum.get_state()}),
        }

    def _replay_state(self) -> dict[str, Any]:
        has_experiences = self.config.checkpoint.save_replay_buffers == "full"
        return {name: buffer.get_state(has_experiences) for name, buffer in self.replay_buffers.items()}

    def _settings_with(self, digests: Digests) -> dict[str, Any]:
        """Return what the states of sources and operators depend on, with digests of values that resolvers give."""
        algorithm, found = self.config.algorithm, digests.of_each()
        plan = {"plan": algorithm.plan, "operators": list(self.operators), REPLAY_BUFFERS: algorithm.replay_buffers}
        if not found:
            return {**plan, **{name: source.settings for name, source in self.sources.items()}}
        of_sources = {
            name: with_references(source.settings, found, "offline" if name == RECORDED_DATA else "")
            for name, source in self.sources.items()
        }
        return {**with_references(plan, found, "algorithm"), **of_sources}

    def set_state(self, state: Mapping[str, Any]) -> list[str]:
        """Go on from a state of `get_state`.

        A source with other settings begins anew, and so do the operators that need it. What operators and queues kept
        for another plan is dropped.

        Returns:
            The replay buffers that begin empty, because they have other arguments than the ones of the state.
        """
        salt = state["plan"].get("salt")
        digests = self.digests.with_salt(salt) if salt is not None else Digests({}, {})
        saved, settings = dict(state["plan"]["settings"]), self._settings_with(digests)
        self.metrics.set_state(state["metrics"])
        self.callbacks.set_state(state.get("callbacks", []))
        anew = {name for name, source in self.sources.items() if saved.get(name) != settings[name]}
        self.continues_episodes = ENV_RUNNERS not in anew
        for name, source in self.sources.items():
            if name in anew:
                source.start_anew(state.get(name, {}))
            else:
                source.set_state(state[name])
        self._set_state_of_episodes(state)
        saved_buffers = saved.get(REPLAY_BUFFERS, {})
        emptied = []
        for name, buffer in self.replay_buffers.items():
            if saved_buffers.get(name) == settings[REPLAY_BUFFERS][name]:
                buffer.set_state(state[REPLAY_BUFFERS][name])
            elif name in saved_buffers:
                emptied.append(name)
        if all(saved.get(name) == settings[name] for name in ("plan", "operators")):
            self._set_state_of_plan(state["plan"], anew)
        return emptied

    def _set_state_of_episodes(self, state: Mapping[str, Any]) -> None:
        """Let the league and the curriculum go on, and tell env runners what new episodes are drawn from."""
        if self.league is not None:
            if "league" in state:
                self.league.set_state(state["league"])
            self.league.begin(self.learners.get_weights(), self.shared_state)  # modules that are new in it
            self.league.announce_lineup(self.env_runners)
        if self.curriculum is not None:
            if "curriculum" in state:
                self.curriculum.set_state(state["curriculum"])
            self.curriculum.announce(self.env_runners)

    def _set_state_of_plan(self, state: Mapping[str, Any], anew: Collection[str]) -> None:
        for name, operator_state in state["operators"].items():
            operator = self.operators[name]
            if not set(operator.needed) & set(anew):
                operator.set_state(operator_state)
        for name, items in state["rest"].items():
            self.operators[name].rest = deque(item_from_state(item, self) for item in items)
        for name, item in state.get("held", {}).items():
            self.operators[name].held = item_from_state(item, self)
        for name, items in state["queues"].items():
            self.queue(name).items = deque(item_from_state(item, self) for item in items)

    def close(self) -> None:
        """Close all resources."""
        close_each([self.learners, *self.sources.values(), *self.replay_buffers.values()])
