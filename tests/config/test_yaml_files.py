"""YAML that a program writes has the values that Hydra reads."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from runner.config.yaml_files import dump_yaml

VALUES = ("1e3", "1_000", "nan", "inf", "12", "1.", "on", "null", "2020-01-01", "1:30", "a: b", "ppo", 1e-5, 3, None)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_texts_that_look_like_numbers_stay_texts(value: object) -> None:
    content = {"env": {"env_config": {"level": value, "levels": [value, {"inner": value}]}}}
    read = OmegaConf.to_container(OmegaConf.create(dump_yaml(content)))
    assert read == content
    assert isinstance(read, dict)
    assert type(read["env"]["env_config"]["level"]) is type(value)
