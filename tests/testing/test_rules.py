"""How contracts compare values, and what they leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from runner.config.errors import Problem
from runner.config.schemas import ModuleConfig
from runner.modules import ActorCriticModule, RLModule
from runner.testing import BrokenContract, check_module
from runner.testing.rules import are_equal, check_rules


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (np.float32([1, 2]), np.float64([1, 2]), False),
        (np.int64([1]), np.int32([1]), False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        ({"mean": np.zeros(2)}, {"mean": np.zeros(2, np.float32)}, False),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True),
        (np.float64(1), 1.0, True),
        ([1, 2], (1, 2), True),
    ],
)
def test_arrays_of_other_dtypes_are_not_equal(first: Any, second: Any, expected: bool) -> None:
    assert are_equal(first, second) is expected


def test_an_error_after_a_broken_rule_is_its_consequence() -> None:
    def breaks() -> Any:
        yield Problem("it returns nothing")

    def raises() -> Any:
        raise KeyError("vf_preds")

    with pytest.raises(BrokenContract) as caught:
        check_rules("Part", [breaks, raises, raises])
    assert [problem.what for problem in caught.value.problems] == ["it returns nothing"]
    with pytest.raises(BrokenContract, match="KeyError: 'vf_preds'"):
        check_rules("Part", [raises, breaks])


class NoValues(ActorCriticModule):
    compute_values = RLModule.compute_values

    def forward_train(self, batch: Any) -> Any:
        return {"action_dist_inputs": super().forward_train(batch)["action_dist_inputs"]}


def test_a_module_without_values_breaks_one_rule() -> None:
    with pytest.raises(BrokenContract) as caught:
        check_module(lambda: NoValues(Box(-1, 1, (3,)), Discrete(2), ModuleConfig()))
    assert [problem.what for problem in caught.value.problems] == ["forward_train does not return vf_preds"]
