"""Actors that live and end together."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runner.cluster.actor_gang import ActorGang
from runner.cluster.actors import Role
from runner.restarts import Restarts


class Caller:
    """An actor that answers with its arguments."""

    def submit(self, method: str, *args: Any) -> Any:
        """Return the call."""
        return (method, *args)


def test_each_actor_gets_its_own_arguments() -> None:
    gang = ActorGang(cast(Role, None), lambda index, generation: None, 2, Restarts(0, ""), lambda: None)
    assert gang.begin("update", [(1,), (2,)]) == [], "they have to be started"
    gang.actors = cast(Any, [Caller(), Caller()])
    assert cast(Any, gang.begin("update", [(1,), (2,)])) == [("update", 1), ("update", 2)]
    with pytest.raises(ValueError, match="zip"):
        gang.begin("update", [(1,)])
