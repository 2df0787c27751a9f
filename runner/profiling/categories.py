"""What a stack is at work on: told by the innermost function that belongs to a known part of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from runner.profiling.stacks import Frame, Stack


@dataclass(frozen=True)
class Category:
    """A kind of work.

    Attributes:
        title: of its column.
        meaning: what is counted there.
        colour: of its frames, for dark text.
        is_optional: there is a column only where time was spent.
    """

    title: str
    meaning: str
    colour: str
    is_optional: bool = False


ENVIRONMENT = Category("environment", "steps and resets of the environments, their waits included", "#f4b183")
ENV_TO_MODULE = Category("env to module", "env-to-module pipelines", "#a9d18e")
FORWARD = Category("forward", "forward passes that choose actions", "#9dc3e6")
MODULE_TO_ENV = Category("module to env", "module-to-env pipelines", "#c9e2b0")
ROWS = Category("rows", "observations, actions and rewards written down", "#d9c3a5")
REPLAY = Category("replay", "replay buffers: storing, sampling, priorities", "#f2a7c3", is_optional=True)
LEARNER_PIPELINE = Category("learner pipeline", "learner pipelines, and recorded rows made train batches", "#7cc9bd")
UPDATE = Category("update", "loss, gradient and optimiser, also targets", "#b4a7d6")
TRANSFER = Category("transfer", "weights, rows and gradients on their way between processes or devices", "#ffe08a")
WAITING = Category("waiting", "for other processes, for recorded data, for a call", "#d5d9de")
EVALUATION = Category("evaluation", "evaluation in this process, all of it", "#e6b8af", is_optional=True)
REST = Category("rest", "everything else: the plan, metrics, callbacks", "#c7b8a8")

CATEGORIES = (
    *(ENVIRONMENT, ENV_TO_MODULE, FORWARD, MODULE_TO_ENV, ROWS, REPLAY),
    *(LEARNER_PIPELINE, UPDATE, TRANSFER, WAITING, EVALUATION, REST),
)

# What a class of the user's overrides is known by its name, wherever it stands.
_BY_FUNCTION = {
    **dict.fromkeys(("forward_exploration", "forward_inference"), FORWARD),
    **dict.fromkeys(
        ("get_weights", "set_weights", "broadcast_weights", "broadcast_policy", "use_shared_state"), TRANSFER
    ),
    **dict.fromkeys(("concat_rollouts", "split_rollout", "with_writable_rows"), TRANSFER),
}
_BY_FILE = {
    "runner/env_runners/vector_envs.py": ENVIRONMENT,
    "runner/env_runners/multi_agent_envs.py": ENVIRONMENT,
    "runner/replay/": REPLAY,
    "runner/plans/operators/replay.py": REPLAY,
    "runner/learners/remote_learner_group.py": TRANSFER,
    "runner/learners/learner_actors.py": TRANSFER,
    "runner/learners/train_batch.py": TRANSFER,
    "runner/offline/training/batch_readers.py": TRANSFER,
    "runner/offline/": LEARNER_PIPELINE,
}
_SHARED = _PIPELINES, _ROWS, _LEARNERS = "runner/pipelines/", "runner/rows/", "runner/learners/"
_ENV_RUNNERS = tuple(
    f"runner/env_runners/{name}.py"
    for name in ("env_runner", "module_runner", "multi_agent_env_runner", "running_agents", "gradient_runner")
)
_OBSERVED = ("_run_env_to_module", "prepare")  # functions of env runners that call env-to-module pipelines
_TAKEN_OVER = ("_take_over",)
_WRITTEN = ("act", "_cut_checked", "_cut", "cut", "write", "_stacked", "sort_in", "_take_in")
_OF_STATES = ("get_state", "get_unshared_state", "set_state", "state")
_TRANSFERRING = ("serialization.py", "cloudpickle")
_PUT = ("put", "put_object", "deserialize_objects")
_WAITS = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/", "multiprocessing/connection.py")
_EVALUATION = ("Evaluator.evaluate", "Evaluator.evaluate_offline", "Evaluator.submit")


@cache
def category_of(stack: Stack) -> Category:
    """Return what a stack, from the outermost function to the one that runs, is at work on."""
    if any(frame.function in _EVALUATION for frame in stack):
        return EVALUATION
    held: Category | None = None  # what it is unless a frame further out says more
    is_in_runner, in_pipeline = False, False
    for frame in reversed(stack):
        found = _of_shared(frame) or _of_libraries(frame)
        if found is WAITING and is_in_runner:  # Ray around what it has called: an actor that is at work
            found = None
        if found is WAITING and not frame.file.startswith("ray/"):
            held = held or WAITING  # an environment that waits is the environment still
            continue
        found = found or _of_part(frame, in_pipeline)
        if found is not None:
            return held if held is WAITING and found is not ENVIRONMENT else found
        in_pipeline = in_pipeline or frame.file.startswith(_PIPELINES)
        if held is None and not in_pipeline and frame.file.startswith(_ROWS):
            held = ROWS
        is_in_runner = is_in_runner or frame.file.startswith("runner/")
    return held or (ENVIRONMENT if _is_gymnasium(stack) else REST)


def _of_libraries(frame: Frame) -> Category | None:
    """Return what a frame of a library means that no frame of ours has called on."""
    if frame.file.startswith("ray/"):
        is_transferring = frame.function in _PUT or any(name in frame.file for name in _TRANSFERRING)
        return TRANSFER if is_transferring else WAITING
    return WAITING if frame.file.startswith(_WAITS) else None


def _of_shared(frame: Frame) -> Category | None:
    name = frame.function.rpartition(".")[2]
    return _BY_FUNCTION.get(name)


def _of_part(frame: Frame, in_pipeline: bool) -> Category | None:
    """Return what a frame of a part of a run means; a connector's work is known by who has called the pipeline."""
    name = frame.function.rpartition(".")[2]
    for beginning, category in _BY_FILE.items():
        if frame.file.startswith(beginning):
            return LEARNER_PIPELINE if in_pipeline and beginning.startswith("runner/offline/") else category
    if frame.file.startswith(_LEARNERS):
        if name == "batch_of":
            return LEARNER_PIPELINE
        return TRANSFER if name in _OF_STATES or frame.function.startswith("ProcessGroup.") else UPDATE
    if frame.file in _ENV_RUNNERS:
        return _of_env_runner(name, in_pipeline)
    return None


def _of_env_runner(name: str, in_pipeline: bool) -> Category | None:
    if name in _OBSERVED:
        return ENV_TO_MODULE
    if in_pipeline:
        return MODULE_TO_ENV
    if name in _TAKEN_OVER:
        return TRANSFER
    return ROWS if name in _WRITTEN else None


def _is_gymnasium(stack: Stack) -> bool:
    """Whether an environment is stepped by code that nothing here knows, such as an env runner of the user's own."""
    return any(frame.file.startswith("gymnasium/") and "/spaces/" not in frame.file for frame in stack)


def shown_categories(found: Iterator[Category]) -> list[Category]:
    """Return the categories that have a column, where time was spent on the ones that were found."""
    known = set(found)
    return [category for category in CATEGORIES if not category.is_optional or category in known]
