"""The Ray actors that hold the shards of a replay buffer."""

from __future__ import annotations

from functools import partial

from runner.cluster.actor_group import ActorGroup, MakeCaller
from runner.cluster.actors import Actor, RemoteActor, Role
from runner.cluster.placement import Placement
from runner.cluster.replaying_actor import ReplayingActor, ReplayRules
from runner.config.plans.needs import is_deterministic
from runner.config.schemas import ExperimentConfig
from runner.replay.shards import MakeShard
from runner.restarts import Restarts

_RESTART_KEYS = "env_runners.restart_failed_env_runners, env_runners.max_num_env_runner_restarts"
REPLAY = ReplayRules(
    calls_per_snapshot=1000,
    settings=("use_stream", "use_lookback"),
    reading=("__len__", "get_state", "is_full", "metrics"),
    put_once=("add", "set_state"),
    restores_unanswered=True,
)
_MAX_PENDING = 4


class ReplayShardActor(Actor):
    """Holds one shard."""


def build_shard_group(config: ExperimentConfig, make_shard: MakeShard, num_shards: int) -> ActorGroup:
    """Make shards in Ray actors. Deterministic runs restore a dead shard; in other runs it starts empty."""
    runners = config.env_runners
    restarts = Restarts(runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0, _RESTART_KEYS)
    return shard_group(make_shard, num_shards, restarts, REPLAY if is_deterministic(config) else None)


def shard_group(make_shard: MakeShard, num_shards: int, restarts: Restarts, replay: ReplayRules | None) -> ActorGroup:
    """Make shards in Ray actors, which reserve no CPU because they are mostly idle.

    Without `replay`, the replacement of a dead shard starts empty.
    """
    role = Role("replay shard", ReplayShardActor, Placement({}), start_timeout_s=None)
    make: MakeCaller = partial(RemoteActor, role, make_shard)
    if replay is not None:
        make = partial(ReplayingActor, role, make_shard, replay=replay)
    return ActorGroup(make, num_shards, role.name, restarts, max_pending=_MAX_PENDING, repeats_calls=False)
