"""The connectors in docs/guides/evaluate.md run, and their graphs do what they do; so do all of ours have one."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces

import runner.pipelines
from runner.pipelines import Connector
from runner.policy import OnnxPolicy
from runner.policy.stored_policy import largest_difference
from runner.rllink.client.local_policy import LocalPolicy
from tests.policy.policies import make_parts, random_weights, seen_state

DOCUMENT = Path(__file__).parents[2] / "docs/guides/evaluate.md"
VECTOR = spaces.Box(-5.0, 5.0, (4,), np.float32)
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


@pytest.fixture
def documented() -> Iterator[str]:
    """The name of a module with the documented connectors."""
    name = "documented_connectors"
    module = types.ModuleType(name)
    for block in BLOCKS:
        if "class " in block:
            exec(compile(block, str(DOCUMENT), "exec"), module.__dict__)
    sys.modules[name] = module
    yield name
    del sys.modules[name]


@pytest.mark.parametrize("connector", ["Squash", "Differences"])
def test_documented_connectors(documented: str, connector: str) -> None:
    edit = {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": f"{documented}.{connector}"},
    }
    parts, config = make_parts(VECTOR, spaces.Discrete(2), env_to_module=[edit])
    policy, weights = OnnxPolicy.of_module(parts, config), random_weights(parts)
    shared_state: dict[str, Any] = seen_state(parts)
    if connector == "Differences":
        shared_state = {"Differences": {"scale": 0.25}}
    model = policy.to_bytes(weights, shared_state)
    assert largest_difference(LocalPolicy(model), parts, weights, shared_state) < 1e-5


def test_documented_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, config = make_parts(VECTOR, spaces.Discrete(2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "clients" / "python")  # what a simulator installs
    Path("policy.onnx").write_bytes(OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {}))
    content = Path("policy.onnx").read_bytes()
    names: dict[str, Any] = {"content": content}
    for block in BLOCKS:
        if "policy.onnx" in block:
            closed = block.replace('open("policy.onnx", "rb").read()', "content")  # which leaves the file open
            exec(compile(closed, str(DOCUMENT), "exec"), names)
    assert isinstance(names["session"], onnxruntime.InferenceSession)
    assert names["actions"].shape == (1,)
    assert names["action"] in (0, 1)


def test_every_connector_of_ours_that_acts_has_a_graph() -> None:
    exported = [getattr(runner.pipelines, name) for name in runner.pipelines.__all__]
    bases = {
        "Connector",
        "EnvToModuleConnector",
        "ModuleToEnvConnector",
        "ObservationConnector",
        "SingleAgentObservationPreprocessor",
        "MultiAgentObservationPreprocessor",
    }
    missing = [
        connector.__name__
        for connector in exported
        if isinstance(connector, type)
        and issubclass(connector, Connector)
        and connector.__name__ not in bases
        and connector.requires.belongs_in != ("learner",)
        and connector.to_graph is Connector.to_graph
    ]
    assert missing == []
