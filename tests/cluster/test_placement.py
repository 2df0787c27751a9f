"""What remote actors ask of Ray: custom resources, and places that a placement group holds."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cluster.placement import Placement
from runner.config.errors import ConfigError
from runner.config.schemas import ExperimentConfig
from runner.experiment.ray_resources import bundles_of, strategy_of, total
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, ROOT, WAIT_S
from tests.support.configs import config_from

RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"

SPREAD_PRELEARNERS = "offline.map_batches_kwargs={ray_remote_args: {scheduling_strategy: SPREAD}}"
TWO_RUNNERS = ("env_runners.num_env_runners=2", "env_runners.num_cpus_per_env_runner=0.5")


def config_of(*overrides: str, experiment: str = "ppo_cartpole") -> ExperimentConfig:
    not_evaluated = [] if experiment == "bc_cartpole" else ["evaluation=none"]  # its stop is one of evaluations
    return config_from(f"+experiment={experiment}", *not_evaluated, *overrides)


def test_a_trial_asks_for_custom_resources_too() -> None:
    of_runners = (*TWO_RUNNERS, "env_runners.custom_resources_per_env_runner={license: 0.5}")
    of_learners = ("learners.num_learners=1", "learners.custom_resources_per_learner={rack: 2}")
    bundles = bundles_of(config_of(*of_runners, *of_learners))
    runner, learner = {"CPU": 0.5, "GPU": 0.0, "license": 0.5}, {"CPU": 1.0, "GPU": 0.0, "rack": 2.0}
    assert bundles == [{"CPU": 1.0, "GPU": 0.0}, runner, runner, learner]
    assert total(bundles) == {"CPU": 3.0, "GPU": 0.0, "license": 1.0, "rack": 2.0}


def test_a_trial_that_learns_in_its_process_asks_for_its_gpu() -> None:
    assert bundles_of(config_of("learners.num_gpus_per_learner=0.5")) == [{"CPU": 1.0, "GPU": 0.5}]


@pytest.mark.parametrize(
    ("experiment", "overrides", "strategy"),
    [
        ("ppo_cartpole", ["env_runners.scheduling_strategy=SPREAD"], "SPREAD"),
        ("ppo_cartpole", ["learners.num_learners=1", "learners.scheduling_strategy=SPREAD"], "SPREAD"),
        ("bc_cartpole", [f"offline.input_={RECORDED}", SPREAD_PRELEARNERS], "SPREAD"),
        ("bc_cartpole", [f"offline.input_={RECORDED}"], "PACK"),
        ("ppo_cartpole", ["env_runners.scheduling_strategy=PACK"], "PACK"),
        ("ppo_cartpole", [], "PACK"),
    ],
)
def test_the_group_of_a_trial_spreads_where_its_actors_do(experiment: str, overrides: list[str], strategy: str) -> None:
    assert strategy_of(config_of(*TWO_RUNNERS, *overrides, experiment=experiment)) == strategy


@pytest.mark.ray
@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        ("ppo_cartpole", [*QUICK, *TWO_RUNNERS, "env_runners.custom_resources_per_env_runner={license: 1}"]),
        ("bc_cartpole", [f"offline.input_={RECORDED}", "offline.map_batches_kwargs={resources: {license: 2}}"]),
    ],
)
def test_resources_that_no_node_has_are_refused(ray_cluster: None, experiment: str, overrides: list[str]) -> None:
    message = r"does not have the resources[\s\S]*got +license 2[\s\S]*expected +license 0"
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment(experiment, overrides)


class Occupant:
    """Has a place."""

    def __init__(self, options: Any = None) -> None:
        self._options = options

    def is_there(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.ray
def test_packed_places_are_reserved_until_the_last_actor_has_left(ray_cluster: None) -> None:
    import ray

    def states() -> list[str]:
        return sorted(one["state"] for one in ray.util.placement_group_table().values())

    before = states()
    placement = Placement({"CPU": 0.5, "GPU": 0.0}, 2, "PACK")
    actors = [ray.remote(Occupant).options(**placement.place()).remote() for _ in range(2)]
    assert ray.get([actor.is_there.remote() for actor in actors], timeout=WAIT_S) == [True, True]
    assert states() == sorted([*before, "CREATED"])
    for left in (1, 0):
        ray.kill(actors.pop())
        placement.leave()
        assert states() == sorted([*before, "CREATED" if left else "REMOVED"])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD", "PACK"])
def test_actors_of_a_trial_take_the_places_of_its_group(strategy: str, ray_cluster: None) -> None:
    """The group has all four CPUs: an actor that leaves it finds no place."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def trial(strategy: str) -> bool:
        placement = Placement({"CPU": 2.0, "GPU": 0.0}, 1, strategy)
        actor = ray.remote(Occupant).options(**placement.place()).remote()
        is_there: bool = ray.get(actor.is_there.remote(), timeout=20)
        placement.leave()
        return is_there

    group = ray.util.placement_group([{"CPU": 2}, {"CPU": 2}])
    in_group = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    try:
        assert ray.get(
            ray.remote(trial).options(num_cpus=2, scheduling_strategy=in_group).remote(strategy), timeout=WAIT_S
        )
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_prelearners_of_a_trial_take_the_places_of_its_group(ray_cluster: None) -> None:
    """The group has all four CPUs: what leaves it waits for ever."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def trial(overrides: list[str]) -> int:
        with Trainer.from_experiment("bc_cartpole", overrides) as trainer:
            return int(trainer.train()["num_env_steps_sampled"] or 0)

    overrides = [
        f"offline.input_={RECORDED}",
        SPREAD_PRELEARNERS,
        "offline.dataset_num_iters_per_learner=1",
        "algorithm.train_batch_size_per_learner=64",
        "module.fcnet_hiddens=[16]",
        "evaluation.evaluation_interval=null",
        "checkpoint.metric=training_iteration",
        "~stop.evaluation.env_runners.episode_return_mean",
    ]
    group = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}, {"CPU": 1}])
    in_group = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    try:
        call = ray.remote(trial).options(num_cpus=2, scheduling_strategy=in_group).remote(overrides)
        assert ray.get(call, timeout=WAIT_S) == 64
    finally:
        ray.util.remove_placement_group(group)
