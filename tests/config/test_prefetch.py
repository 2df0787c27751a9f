"""`learners.prefetch` in runs that cannot prepare train batches during updates."""

from __future__ import annotations

import pytest

from runner.config.errors import ConfigError
from tests.support.configs import config_from

AHEAD = ("learners.prefetch=true", "learners.num_learners=1")
SAMPLE, JOIN = "{ParallelRollouts: {mode: async}}", "{ConcatBatches: {min_env_steps: 100}}"
TWICE = f"[{SAMPLE}, {JOIN}, {{Duplicate: {{plans: [[TrainOneStep], [TrainOneStep]]}}}}]"
MIX = "{MixInReplay: {replay_proportion: 0.5}}"
PRIORITISED = f"[{SAMPLE}, {JOIN}, {MIX}, TrainOneStep, UpdatePriorities]"
TARGETS = "[{Dequeue: {queue: results}}, UpdateTargetNetwork]"
BESIDE = (
    f"[{{Concurrently: {{plans: [[{SAMPLE}, {JOIN}, TrainOneStep, {{Enqueue: {{queue: results}}}}], {TARGETS}]}}}}]"
)


@pytest.mark.parametrize(
    ("experiment", "overrides", "reason"),
    [
        ("ppo_cartpole", [], r"does not sample\s+asynchronously"),
        ("a3c_cartpole", [], r"does not contain\s+TrainOneStep"),
        ("impala_cartpole", ["learners.num_learners=0"], "the learner runs in the driver"),
        ("apex_cartpole", [], "from replayed samples only"),
        ("impala_cartpole", [f"algorithm.plan={TWICE}"], r"cannot\s+run TrainOneStep\s+\(algorithm.plan.2"),
        ("appo_cartpole", [f"algorithm.plan={BESIDE}"], r"cannot\s+run\s+UpdateTargetNetwork"),
        ("appo_cartpole", [f"algorithm.plan={PRIORITISED}"], "rows would be drawn before UpdatePriorities"),
    ],
)
def test_runs_without_a_batch_to_be_made_in_an_update(experiment: str, overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config_from(f"+experiment={experiment}", *AHEAD, *overrides)


@pytest.mark.parametrize("experiment", ["impala_cartpole", "appo_cartpole", "appo_multi_agent_cartpole"])
def test_runs_with_batches_made_ahead(experiment: str) -> None:
    config = config_from(f"+experiment={experiment}", *AHEAD)
    assert config.learners.prefetch
    assert not config.learners.in_driver().prefetch
