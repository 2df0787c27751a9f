"""`dump_yaml` and `read_yaml` agree with Hydra about the values of YAML texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runner.config.yaml_files import dump_yaml, read_yaml

VALUES = ("1e3", "1_000", "nan", "inf", "12", "1.", "on", "null", "2020-01-01", "1:30", "a: b", "ppo", 1e-5, 3, None)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_texts_that_look_like_numbers_stay_texts(value: object) -> None:
    content = {"env": {"env_config": {"level": value, "levels": [value, {"inner": value}]}}}
    read = OmegaConf.to_container(OmegaConf.create(dump_yaml(content)))
    assert read == content
    assert isinstance(read, dict)
    assert type(read["env"]["env_config"]["level"]) is type(value)


@pytest.mark.parametrize("text", ["2026-01-31", "2026-02-30"])
def test_dates_are_text(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(f"start: {text}\n")
    assert read_yaml(file) == OmegaConf.to_container(OmegaConf.load(file)) == {"start": text}
