"""A restored state beside the one that was saved: what the user should know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.operators import ENV_RUNNERS, REPLAY_BUFFERS
from runner.plans import Resources


def what_differs(state: Mapping[str, Any], resources: Resources, emptied: Sequence[str]) -> Iterator[str]:
    """Yield a line about each part that does not go on as it was.

    Args:
        state: that was set.
        resources: that go on from it.
        emptied: replay buffers that begin empty, because they have other arguments.
    """
    plan = state["plan"]
    if "salt" in plan:
        changed = list(resources.digests.with_salt(plan["salt"]).changed(plan["references"]))
        if changed:
            yield f"other values than in the checkpoint, and what depends on them begins again: {', '.join(changed)}"
    if emptied:
        what = "replay buffers with other arguments than in the checkpoint begin empty, and learning waits for them"
        yield f"{what}: {', '.join(emptied)}"
    left_out = [name for name, buffer in state.get(REPLAY_BUFFERS, {}).items() if not buffer["has_experiences"]]
    if left_out:
        what = "the checkpoint has no experiences (checkpoint.save_replay_buffers=none)"
        yield f"{what}: learning waits until enough are stored in {', '.join(left_out)} again"
    num_too_long = _count_too_long(state.get(ENV_RUNNERS, {}))
    if num_too_long and state["plan"]["settings"].get(ENV_RUNNERS) == resources.env_runners.settings:
        begins = (
            "1 sub-environment begins a new episode"
            if num_too_long == 1
            else f"{num_too_long} sub-environments begin new episodes"
        )
        why = "the running one had more env steps than env.max_replayed_steps, so it cannot be stepped again"
        yield f"{begins}: {why}; to continue it, give the environment `get_state` and `set_state`"
    if resources.config.env_runners.is_elastic:
        yield from _other_number(state, resources)


def _other_number(state: Mapping[str, Any], resources: Resources) -> Iterator[str]:
    """Yield a line about a checkpoint whose env runners go on, and are now more or fewer."""
    if not resources.continues_episodes:
        return
    num_before, num_now = len(state[ENV_RUNNERS]["runners"]), resources.env_runners.num_runners
    if num_now != num_before:
        rest = (
            f"{num_before} go on, {num_now - num_before} begin new episodes"
            if num_now > num_before
            else f"episodes of {num_before - num_now} are broken off"
        )
        runners = f"{num_before} env runner{'' if num_before == 1 else 's'}"
        yield f"the checkpoint has {runners}, and the cluster has room for {num_now}: {rest}"


def _count_too_long(state: Mapping[str, Any]) -> int:
    """Return the number of sub-environments whose running episodes are too long to be stepped again."""
    runners = [of_runner.get("runner", of_runner) for of_runner in state.get("runners", {}).values()]
    return sum(name.startswith("too_long_") for runner in runners for name in runner.get("env", {}))
