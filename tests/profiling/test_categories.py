"""What stacks count as, where the innermost function alone would not tell."""

from __future__ import annotations

import pytest

from runner.profiling import categories
from runner.profiling.categories import category_of
from runner.profiling.stacks import Frame
from tests.conftest import ROOT


def stack(*places: str) -> tuple[Frame, ...]:
    """Make a stack of texts like `file.py: function`, the outermost first."""
    return tuple(Frame(place.split(": ")[1], place.split(": ")[0], 1) for place in places)


ACTOR = "ray/_private/worker.py: Worker.main_loop"
SAMPLE = "runner/env_runners/env_runner.py: SingleAgentEnvRunner.sample"
STEP = "runner/env_runners/env_runner.py: SingleAgentEnvRunner._step"
OBSERVE = "runner/env_runners/env_runner.py: SingleAgentEnvRunner._run_env_to_module"
PIPELINE = "runner/pipelines/pipeline.py: ConnectorPipeline.__call__"
ENVS = "runner/env_runners/vector_envs.py: BatchedEnvironments.step"
UPDATE = "runner/learners/learner.py: Learner.update"
WAIT = "threading.py: Condition.wait"


@pytest.mark.parametrize(
    ("places", "title"),
    [
        ([ACTOR], "waiting"),
        ([ACTOR, SAMPLE], "rest"),
        ([ACTOR, "ray/_private/serialization.py: deserialize", "runner/rows/chunks.py: Chunks.__init__"], "transfer"),
        (["runner/plans/operator.py: step", "ray/_private/worker.py: get"], "waiting"),
        (["runner/plans/operator.py: step", "ray/_private/worker.py: put", "ray/cloudpickle/x.py: dump"], "transfer"),
        ([SAMPLE, STEP, ENVS, "multiprocessing/connection.py: recv"], "environment"),
        ([SAMPLE, STEP, ENVS, WAIT], "environment"),
        (["runner/plans/operator.py: step", WAIT], "waiting"),
        (
            [UPDATE, "runner/learners/collective.py: ProcessGroup.mean", "torch/distributed/x.py: all_reduce"],
            "transfer",
        ),
        ([UPDATE, "runner/learners/collective.py: Alone.mean"], "update"),
        ([UPDATE, "runner/pipelines/advantages.py: compute_gae"], "update"),
        (["runner/learners/learner_group.py: batch_of", PIPELINE, "numpy/x.py: where"], "learner pipeline"),
        ([SAMPLE, STEP, PIPELINE, "mine.py: Connector.__call__"], "module to env"),
        ([SAMPLE, STEP, OBSERVE, PIPELINE, "mine.py: Connector.__call__", "runner/rows/x.py: take"], "env to module"),
        ([SAMPLE, STEP, "mine.py: MyModule.forward_exploration", "torch/nn/x.py: linear"], "forward"),
        ([SAMPLE, STEP, "runner/rows/lock_step_rows.py: LockStepRows.add_step"], "rows"),
        (["mine.py: MyRunner.sample", "gymnasium/core.py: Wrapper.step", "maze.py: step"], "environment"),
        (["mine.py: MyRunner.sample", "gymnasium/spaces/box.py: Box.contains"], "rest"),
        (["runner/experiment/evaluator.py: Evaluator.evaluate", SAMPLE, STEP, ENVS], "evaluation"),
    ],
)
def test_category(places: list[str], title: str) -> None:
    assert category_of(stack(*places)).title == title


def test_files_that_are_known_by_name_exist() -> None:
    files = (*categories._BY_FILE, *categories._ENV_RUNNERS, *categories._SHARED)
    assert [file for file in files if not (ROOT / file).exists()] == []
