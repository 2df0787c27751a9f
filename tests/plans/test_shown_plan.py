"""Plans as a notebook shows them have in them what `show --plan` prints."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from runner.config.plans.drawing import draw_plan
from runner.config.plans.steps import read_plan, steps_of
from runner.plans.shown_plan import ShownPlan
from tests.support.configs import config_from


def shown(experiment: str, *overrides: str) -> ShownPlan:
    config = config_from(f"+experiment={experiment}", *overrides)
    return ShownPlan(read_plan(config.algorithm.plan))


def texts_of(plan: ShownPlan) -> list[str]:
    drawing = ElementTree.fromstring(plan._repr_svg_())
    return [text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    "experiment", ["ppo_cartpole", "dqn_cartpole", "ppo_dqn_multi_agent_cartpole", "a2c_replay_cartpole"]
)
def test_every_word_of_the_tree_is_drawn(experiment: str) -> None:
    plan = shown(experiment)
    assert str(plan) == repr(plan) == draw_plan(plan.steps)
    drawn = "\n".join(texts_of(plan))
    words = re.findall(r"[\w\[\]]+", str(plan).partition("\n")[2])
    assert len(words) > 5
    for word in words:
        assert word in drawn, word
    assert [text for text in texts_of(plan) if text in {step.name for step in steps_of(plan.steps)}] == [
        step.name for step in steps_of(plan.steps)
    ]


def test_chosen_options_stand_out() -> None:
    drawing = ElementTree.fromstring(shown("dqn_cartpole")._repr_svg_())
    colours = {text.text: text.attrib["fill"] for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    chosen, default = colours["300"], colours["td_error"]  # every=300; column=td_error
    assert chosen != default
    assert colours["env_steps"] == chosen


def test_a_plan_whose_items_are_dropped_gives_none() -> None:
    texts = texts_of(shown("dqn_cartpole"))
    after_store = texts[texts.index("StoreToReplayBuffer") : texts.index("plan 1, selected")]
    assert "Experiences" not in after_store
    assert "Experiences" in texts[: texts.index("StoreToReplayBuffer")]


def test_operators_and_functions_of_ones_own_are_drawn() -> None:
    own = "tests.support.own_plans."
    plan = f"[ParallelRollouts,{{_target_: {own}EverySecond, first: 41}},ConcatBatches,TrainOneStep]"
    texts = texts_of(shown("ppo_cartpole", f"algorithm.plan={plan}"))
    assert texts[texts.index(f"{own}EverySecond") + 1 :][:2] == ["first ", "41"]
    whole = texts_of(shown("ppo_cartpole", f"algorithm.plan=[{{_target_: {own}two_batches, every: 43}}]"))
    assert whole[whole.index(f"{own}two_batches") + 1 :][:2] == ["every ", "43"]
