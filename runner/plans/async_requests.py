"""Requests to env runners that are in flight while the plan goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.env_runners.env_runner_group import EnvRunnerGroup, RunnerTicket
from runner.env_runners.sample import Sample
from runner.env_runners.tickets import wait_any
from runner.plans.run_metrics import RunMetrics


class AsyncRequests:
    """So many requests in flight for each runner; answers are taken in the order in which they become ready.

    Runners in this process answer in the order of the requests, so that a run gives the same numbers again. With
    `is_deterministic` answers are taken in this order wherever runners are: a run gives the same numbers everywhere,
    and waits for a slow runner once the others have answered all of their requests.

    Args:
        env_runners: that are asked.
        metrics: of the run, which say how many env steps were sampled.
        method: of a runner; gives a sample.
        num_in_flight: requests of each runner.
        explore: whether actions are sampled.
        num_env_steps: of a request at least.
        sample_class: of the answers.
        is_deterministic: take answers in the order of the requests.
    """

    def __init__(
        self,
        env_runners: EnvRunnerGroup,
        metrics: RunMetrics,
        method: str,
        num_in_flight: int,
        num_env_steps: int,
        explore: bool,
        sample_class: type[Sample] = Sample,
        is_deterministic: bool = False,
    ) -> None:
        self._env_runners = env_runners
        self._metrics = metrics
        self._num_env_steps, self._explore, self._method = num_env_steps, explore, method
        self._num_in_flight = num_in_flight
        self._sample_class = sample_class
        self._is_deterministic = is_deterministic
        self._tickets: list[RunnerTicket] = []
        self._num_left = self._num_at_once

    @property
    def _num_at_once(self) -> int:
        return self._num_in_flight * self._env_runners.num_runners

    def next_ready(self) -> Sample | None:
        """Ask runners that have too few requests, and return an answer; None while none is ready.

        None comes also after as many answers as there are requests in flight, so that other plans have their turn
        where answers are always ready: runners in this process work when an answer is taken.
        """
        for _ in range(self._num_in_flight):
            for index in range(self._env_runners.num_runners):
                if sum(ticket.index == index for ticket in self._tickets) < self._num_in_flight:
                    self._tickets.append(self._request(index))
        oldest = {
            ticket.index: ticket for ticket in reversed(self._tickets)
        }  # of each runner, whose answers are in order
        ready = (one for one in self._tickets if oldest[one.index] is one and one.is_ready())
        ticket = self._tickets[wait_any(self._tickets[:1])] if self._is_deterministic else next(ready, None)
        if ticket is None or self._num_left == 0:
            self._num_left = self._num_at_once
            self._env_runners.awaited += oldest.values()
            return None
        self._num_left -= 1
        self._tickets.remove(ticket)
        return self._env_runners.collect(ticket)

    def _request(self, index: int) -> RunnerTicket:
        num_sampled = self._metrics.num_env_steps_sampled_lifetime
        return self._env_runners.request(index, self._num_env_steps, self._explore, num_sampled, self._method)

    def get_state(self) -> dict[str, Any]:
        """Wait for all answers and return them, in the order of the requests."""
        answers = [
            {"runner": ticket.index, "weights_seq_no": ticket.weights_seq_no, "answer": ticket.result().get_state()}
            for ticket in self._tickets
        ]
        return {"answers": answers, "num_left": self._num_left}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the answers of `get_state`."""
        self._num_left = int(state["num_left"])
        self._tickets = [
            self._env_runners.answered(
                int(one["runner"]), int(one["weights_seq_no"]), self._sample_class.from_state(one["answer"])
            )
            for one in state["answers"]
        ]
