"""Checkpoints with an earlier layout of a learner's state are read."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from runner.learners.trained_network import in_present_layout
from runner.modules.multi_rl_module import ALL_MODULES
from tests.conftest import without_times
from tests.support.joint_modules import SharedEncoder
from tests.system.test_modules_of_modules import ENCODER, trainer_of


def earlier(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state in the layout that had the values of modules beside the parameters."""
    learners = {}
    for key, of_network in state["learners"].items():
        network = dict(of_network)
        modules = network.pop("modules")
        if key == ALL_MODULES:
            network |= {name: {id_: one[name] for id_, one in modules.items()} for name in next(iter(modules.values()))}
        else:
            network |= modules[key]
            if "rows_since_target_update" in network:
                network["rows_since_target_update"] = network["rows_since_target_update"][key]
        learners[key] = network
    return {**state, "learners": learners}


@pytest.mark.parametrize("overrides", [(), ENCODER], ids=["independent", SharedEncoder.__name__])
def test_a_run_resumes_from_the_earlier_layout(overrides: tuple[str, ...]) -> None:
    with trainer_of(*overrides) as trainer:
        trainer.train()
        state = copy.deepcopy(trainer.get_state())
        expected = without_times(trainer.train())
    state["learners"] = earlier(state["learners"])
    assert all(not {"modules"} & one.keys() for one in state["learners"]["learners"].values())
    with trainer_of(*overrides) as trainer:
        trainer.set_state(state)
        assert without_times(trainer.train()) == expected


@pytest.mark.parametrize("key", ["p0", ALL_MODULES])
@pytest.mark.parametrize("is_complete", [True, False])
def test_states_of_first_learners_and_of_their_peers_are_converted(key: str, is_complete: bool) -> None:
    modules = {
        module_id: {"loss": {"count": number}, "stream": {"state": number}, "loss_stream": {"state": number}}
        for number, module_id in enumerate(["p0"] if key == "p0" else ["p0", "p1"])
    }
    shared = {"module": {"w": np.ones(2)}, "optimizer": {}, "rows_since_target_update": dict.fromkeys(modules, 3)}
    state = {"learners": {key: {**(shared if is_complete else {}), "modules": modules}}, "pipelines": {}}
    assert in_present_layout(earlier(state)) == state
    assert in_present_layout(state) == state
