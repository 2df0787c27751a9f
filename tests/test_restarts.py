"""How often what was lost may be started again."""

from __future__ import annotations

import pytest

from runner.config.errors import RunFailure
from runner.restarts import Restarts


def test_restarts_are_counted_up_to_their_limit() -> None:
    restarts = Restarts(2, "learners.max_restarts")
    restarts.add("learner 1 is gone", 1)
    restarts.add("learner 1 is gone", 2)
    with pytest.raises(RunFailure, match="learner 0 is gone, and 2 restarts are used up") as failure:
        restarts.add("learner 0 is gone", 1)
    assert failure.value.problem.where == "learners.max_restarts"
    assert restarts.count == 2


def test_what_is_lost_each_time_is_not_started_for_ever() -> None:
    restarts = Restarts(1000, "")
    for losses_in_a_row in (1, 2, 3):
        restarts.add("it is gone", losses_in_a_row)
    with pytest.raises(RunFailure, match="it was lost 4 times in a row"):
        restarts.add("it is gone", 4)


def test_restarts_may_be_off() -> None:
    with pytest.raises(RunFailure, match="restarts are off"):
        Restarts(0, "").add("it is gone", 1)
