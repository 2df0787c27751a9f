"""The tables of names: their fields and RLlib's keys exist, and a block has its bases' names."""

from __future__ import annotations

from itertools import chain

import pytest

from runner.config.algorithms import AlgorithmConfig, APPOConfig, DQNConfig, PPOConfig
from runner.config.fields import names_of
from runner.config.offline_evaluation import FittedQConfig
from runner.importing.rllib_algorithms import ALGORITHMS
from runner.importing.rllib_config import (
    ARGUMENTS,
    CONVERTED,
    OLDER_NAMES,
    RENAMED,
    names_in_rllib,
    renamed_fields,
    rllib_defaults,
)

KEYS = set().union(*rllib_defaults().values())
ENTRIES = [
    (block, name, key) for block, names in chain(RENAMED.items(), CONVERTED.items()) for name, key in names.items()
]


@pytest.mark.parametrize(("block", "name", "key"), ENTRIES)
def test_a_field_and_its_key(block: type, name: str, key: str) -> None:
    schemas = [block, *(counterpart.schema for counterpart in ALGORITHMS.values())]
    assert any(name in names_of(schema) for schema in schemas if issubclass(schema, block))
    assert key.partition(".")[0] in KEYS


def test_other_names_lead_to_keys() -> None:
    assert {*ARGUMENTS.values(), *OLDER_NAMES.values()} <= KEYS


def test_names_of_a_block_and_its_bases() -> None:
    assert renamed_fields(PPOConfig) == {"lambda_": "lambda"}
    assert "lambda_" not in names_in_rllib(PPOConfig)  # RLlib's methods have an argument of this name
    assert names_in_rllib(AlgorithmConfig)["loss"] == "learner_class"
    assert names_in_rllib(DQNConfig)["replay_capacity"] == "replay_buffer_config.capacity"
    assert names_in_rllib(APPOConfig)["replay_capacity"] == "circular_buffer_num_batches"
    assert names_in_rllib(FittedQConfig) == {}
