"""`check_callback` names what is wrong with a callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.callbacks import Callback
from runner.testing import BrokenContract, check_callback
from tests.callbacks.own_callbacks import Failing, FailingAtTheEnd, Misspelt, Returns, Seen, Undeclared
from tests.testing.changed_classes import changed


@pytest.mark.parametrize("callback_class", [Returns, Seen])
def test_callbacks_of_users(callback_class: type[Callback]) -> None:
    check_callback(callback_class)


class TakesTooLittle(Callback):
    def on_episode_end(self, *, episode: Any) -> None:  # type: ignore[override]
        pass


class WritesIntoEpisodes(Callback):
    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        episode.get_observations(-1)[:] = 0.0


class KeepsObjects(Callback):
    def on_episode_step(self, *, custom_data: dict[str, Any], **kwargs: Any) -> None:
        custom_data["self"] = self


class Counts(Callback):
    """Reports how many episodes have ended; nothing is wrong with it."""

    reports = {"ended": ("last", "episodes that have ended")}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_ended = 0

    def on_episode_end(self, *, metrics: Any, **kwargs: Any) -> None:
        self.num_ended += 1
        metrics.report("ended", self.num_ended)

    def get_state(self) -> dict[str, Any]:
        return {"num_ended": self.num_ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_ended = state["num_ended"]


class HasAStateOfObjects(Counts):
    def get_state(self) -> dict[str, Any]:
        return {"num_ended": self}


ReportsNoReduction = changed(Callback, reports={"fell": "share"})
ForgetsItsState = changed(Counts, set_state=lambda self, state: None)
CountsInSecret = changed(Counts, get_state=lambda self: {})


class DrawsFromElsewhere(Counts):
    def on_episode_end(self, *, metrics: Any, **kwargs: Any) -> None:
        metrics.report("ended", np.random.default_rng().random())


class NotOne:
    def on_episode_end(self, **kwargs: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("callback_class", "message"),
    [
        (NotOne, "make does not return a callback"),
        (Misspelt, "Misspelt has a hook on_episode_ends, which no event calls"),
        (TakesTooLittle, "on_episode_end does not take all arguments of its event"),
        (ReportsNoReduction, r"reports\['fell'\] is not a pair of reduction and meaning(.*\n)+.*got +'share'"),
        (Undeclared, "Undeclared reports is_succes, which its `reports` does not declare"),
        (Failing, "KeyError: 'goal'"),
        (FailingAtTheEnd, "KeyError: 'goal'"),
        (WritesIntoEpisodes, "assignment destination is read-only"),
        (KeepsObjects, "KeepsObjects cannot be part of a checkpoint"),
        (HasAStateOfObjects, "state/num_ended: HasAStateOfObjects cannot be part of a checkpoint"),
        (ForgetsItsState, "an instance that continues from the state of another one has a different state"),
        (CountsInSecret, "an instance that continues from the state of another one reports different values"),
        (DrawsFromElsewhere, "an instance that continues from the state of another one reports different values"),
    ],
)
def test_refuses(callback_class: Any, message: str) -> None:
    with pytest.raises(BrokenContract, match=message) as caught:
        check_callback(callback_class)
    assert str(caught.value).startswith(f"{callback_class.__name__} breaks ")


def test_a_callback_of_another_environment() -> None:
    check_callback(Counts, ["env.env=Acrobot-v1"])
