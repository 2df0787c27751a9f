"""Facts that a run prints first: its environment and its algorithm."""

from __future__ import annotations

import pytest

from runner.config.algorithms import algorithm_name
from runner.config.compose import compose_experiment
from runner.experiment.run_facts import data_source
from tests.support.configs import config_from

NAMES = {
    **{"ppo": "PPO", "a3c": "A3C", "ippo": "IPPO", "mappo": "MAPPO", "td3": "TD3", "ddpg": "DDPG"},
    **{"dqn": "DQN", "rainbow": "Rainbow", "vdn": "VDN", "qmix": "QMIX"},
}
COPIES = {(0, 1): "1 copy in this process", (1, 1): "1 env runner with 1 copy"} | {
    (2, 1): "2 env runners with 1 copy each",
    (1, 2): "1 env runner with 2 copies",
}


@pytest.mark.parametrize(("algorithm", "name"), NAMES.items(), ids=list(NAMES))
def test_algorithms_have_the_names_of_their_papers(algorithm: str, name: str) -> None:
    env = {"vdn": "two_step_game", "qmix": "two_step_game"}.get(algorithm)
    chosen = "env=CartPole-v1" if env is None else f"env={env}"
    values = compose_experiment([f"algorithm={algorithm}", chosen]).values["algorithm"]
    schema = values["schema"].rpartition(".")[2].removesuffix("Config")
    assert (values["name"] or schema) == name


def test_the_name_is_shown_instead_of_the_class() -> None:
    config = config_from("experiment=ddpg_pendulum")
    assert algorithm_name(config.algorithm) == "DDPG"


@pytest.mark.parametrize(("counts", "text"), COPIES.items(), ids=str)
def test_the_number_of_sub_environments(counts: tuple[int, int], text: str) -> None:
    num_runners, num_envs = counts
    overrides = [f"env_runners.num_env_runners={num_runners}", f"env_runners.num_envs_per_env_runner={num_envs}"]
    config = config_from("experiment=ppo_cartpole", *overrides)
    assert data_source(config) == text
