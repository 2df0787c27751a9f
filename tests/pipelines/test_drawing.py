"""Pipelines as a notebook shows them have in them what `show` prints."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from runner import Trainer
from runner.config.errors import UserError
from runner.pipelines.pipeline import ConnectorPipeline
from tests.conftest import QUICK


def texts_of(pipeline: ConnectorPipeline) -> list[str]:
    drawing = ElementTree.fromstring(pipeline._repr_svg_())
    return [text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text")]


def test_connectors_with_what_they_read_and_write() -> None:
    with Trainer.from_experiment("ppo_cartpole", QUICK) as trainer:
        pipelines = trainer.pipelines()
        texts = texts_of(pipelines.learner)
        names = [type(connector).__name__ for connector in pipelines.learner]
        assert [text for text in texts if text in names] == names
        estimation = texts[texts.index("GeneralAdvantageEstimation") :]
        assert estimation[1:7] == [
            *("reads ", "obs, rewards, terminateds, loss_mask"),
            *("writes ", "vf_preds, advantages, value_targets"),
            *("reports ", "advantages_mean, advantages_std"),
        ]
        assert texts[:2] == ["learner", "episode chunks"]
        assert texts[-1] == "train batch"
        html = pipelines._repr_html_()
        assert html.count("<svg") == 3
        assert "GetActions" in html


def test_a_space_that_a_connector_changes_stands_beside_the_arrow() -> None:
    connector = "{_target_: runner.pipelines.FrameStacking, num_frames: 4}"
    edit = f"{{insert_after: AddObservationsFromEpisodesToBatch, connector: {connector}}}"
    stacked = [f"connectors.{pipeline}=[{edit}]" for pipeline in ("env_to_module", "learner")]
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, *stacked]) as trainer:
        texts = texts_of(trainer.pipelines().env_to_module)
    (changed,) = (text for text in texts[4:] if text.startswith("observations Box"))
    assert texts[texts.index(changed) - 2 : texts.index(changed)] == ["writes ", "obs"]


def test_pipelines_are_named_by_their_module() -> None:
    with Trainer.from_experiment("ppo_multi_agent_cartpole", ["tracking=none"]) as trainer:
        assert "ModuleToAgentUnmapping" in texts_of(trainer.pipelines("p1").module_to_env)
        with pytest.raises(UserError, match="p11 is not a module of this run") as caught:
            trainer.pipelines("p11")
    assert "did you mean  p1" in str(caught.value)
