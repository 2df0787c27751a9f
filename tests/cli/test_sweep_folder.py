"""The folder of a sweep is named by `hydra.sweep.dir`, by `sweep.name` or by the search space."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli.arguments import Arguments
from runner.cli.sweep import _checked_space, _folder_of

SWEPT = ("experiment=ppo_cartpole", "seed=1,2")


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ((), "outputs/ppo_cartpole/sweeps/0123abcd"),
        (("sweep.name=mine",), "outputs/ppo_cartpole/sweeps/mine"),
        (("hydra.sweep.dir=elsewhere",), "elsewhere"),
        (("hydra.sweep.dir='a b/${sweep.name}'", "sweep.name=mine"), "a b/mine"),
    ],
)
def test_names(overrides: tuple[str, ...], folder: str) -> None:
    arguments = Arguments("sweep", overrides=(*SWEPT, *overrides))
    assert _folder_of(_checked_space(arguments), arguments, "0123abcd") == Path(folder)
