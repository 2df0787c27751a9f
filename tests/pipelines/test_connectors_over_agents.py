"""The example connectors with which agents hear and see each other, against a naive look at all running episodes."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from runner.pipelines import Connector, Requirements
from tests.conftest import ROOT
from tests.support.coded_agents import NUM_ACTIONS, CodedRun, make_coded_run

_SPEC = importlib.util.spec_from_file_location("agents_example", ROOT / "examples" / "agents" / "agents.py")
assert _SPEC is not None
assert _SPEC.loader is not None
example: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)

AGENTS = ["a2", "a0", "a4"]


class Compared(Connector):
    """Calls a connector for the module of flat observations, and keeps its rows beside what a loop over the slots
    finds.
    """

    requires = Requirements(num_lookback=1)

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self.run: CodedRun | None = None
        self.num_found = 0

    def __call__(self, *, batch: Any, episodes: Any = None, episodes_of_modules: Any = None, **kwargs: Any) -> Any:
        if episodes.module_id != "m0":
            return batch
        obs = episodes.current_obs
        made = self._connector(
            rl_module=None, batch={"obs": obs}, episodes=episodes, episodes_of_modules=episodes_of_modules
        )["obs"]
        np.testing.assert_array_equal(made[:, :5], obs)
        codes = obs.astype(int).tolist()
        for row, code in enumerate(codes):
            of_env = {f"a{other[1]}": other for other in codes if other[0] == code[0]}
            for place, agent in enumerate(AGENTS):
                width = self._connector.width
                got = made[row, 5 + place * width : 5 + (place + 1) * width].tolist()
                expected = self.expected(agent, of_env.get(agent))
                assert got == expected
                self.num_found += any(expected)
        return batch

    def expected(self, agent: str, code: list[int] | None) -> list[float]:
        if isinstance(self._connector, example.SeeOpponents):
            return [0.0] * 5 if code is None else [float(part) for part in code]
        assert self.run is not None
        said: list[int] = (
            []
            if code is None
            else [int(action) for n, k, _, who, action in self.run.log if (n, k, who) == (code[0], code[4], agent)]
        )
        assert code is None or len(said) == code[2]
        return np.eye(NUM_ACTIONS)[said[-1]].tolist() if said else [0.0] * NUM_ACTIONS


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "make",
    [lambda: example.HearOthers(AGENTS, NUM_ACTIONS), lambda: example.SeeOpponents(AGENTS, 5)],
    ids=["hear", "see"],
)
def test_each_agent_learns_of_the_others_of_its_env_step(make: Any, seed: int) -> None:
    compared = Compared(make())
    compared.run = run = make_coded_run(seed, 3, 6, 1, env_to_module=[compared])
    for _ in range(4):
        run.runner.sample(15, True, run.weights, {})
    assert compared.num_found > 20
