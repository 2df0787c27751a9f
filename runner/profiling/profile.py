"""Profile of some iterations: samples of every process, by category and by function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from runner.config.errors import Problem, RunFailure, UserError
from runner.config.schemas import ExperimentConfig
from runner.experiment.trainer import Trainer
from runner.learners.remote_learner_group import RemoteLearnerGroup
from runner.profiling.sampler import Frame, Sampler, Samples, Stack, start_in_actor, stop_in_actor


@dataclass(frozen=True)
class Category:
    """A kind of work.

    Attributes:
        title: title of its column.
        meaning: work that it includes.
        colour: colour of its frames, for dark text.
        is_optional: whether its column is left out if no time was spent.
    """

    title: str
    meaning: str
    colour: str
    is_optional: bool = False


ENVIRONMENT = Category("environment", "steps and resets of the environments, including their waits", "#f4b183")
ENV_TO_MODULE = Category("env to module", "env-to-module pipelines", "#a9d18e")
FORWARD = Category("forward", "forward passes that choose actions", "#9dc3e6")
MODULE_TO_ENV = Category("module to env", "module-to-env pipelines", "#c9e2b0")
ROWS = Category("rows", "storing observations, actions and rewards", "#d9c3a5")
REPLAY = Category("replay", "replay buffers: storing, sampling, priorities", "#f2a7c3", is_optional=True)
LEARNER_PIPELINE = Category("learner pipeline", "learner pipelines, and train batches from recorded rows", "#7cc9bd")
UPDATE = Category("update", "loss, gradient, optimiser and target networks", "#b4a7d6")
TRANSFER = Category("transfer", "sending weights, rows and gradients between processes or devices", "#ffe08a")
WAITING = Category("waiting", "waiting for other processes, recorded data or a call", "#d5d9de")
EVALUATION = Category("evaluation", "all of the evaluation in this process", "#e6b8af", is_optional=True)
REST = Category("rest", "everything else: the plan, metrics, callbacks", "#c7b8a8")

CATEGORIES = (
    *(ENVIRONMENT, ENV_TO_MODULE, FORWARD, MODULE_TO_ENV, ROWS, REPLAY),
    *(LEARNER_PIPELINE, UPDATE, TRANSFER, WAITING, EVALUATION, REST),
)

# Methods that user classes override are recognised by name, in any file.
_BY_FUNCTION = {
    **dict.fromkeys(("forward_exploration", "forward_inference"), FORWARD),
    **dict.fromkeys(
        ("get_weights", "set_weights", "broadcast_weights", "broadcast_policy", "use_shared_state"), TRANSFER
    ),
    **dict.fromkeys(("concat_rollouts", "split_rollout", "with_writable_rows"), TRANSFER),
    "_run_pipelines": LEARNER_PIPELINE,
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
_PIPELINES, _ROWS, _LEARNERS = "runner/pipelines/", "runner/rows/", "runner/learners/"
_ENV_RUNNERS = tuple(
    f"runner/env_runners/{name}.py"
    for name in (
        *("env_runner", "stepping_env_runner", "module_runner", "multi_agent_env_runner"),
        *("running_agents", "gradient_runner"),
    )
)
_OBSERVED = ("_run_env_to_module", "prepare")  # functions of env runners that call env-to-module pipelines
_TAKEN_OVER = ("_use_policy",)
_WRITTEN = ("act", "_cut", "cut", "write", "_stacked", "update", "_add_results")
_OF_STATES = ("get_state", "get_unshared_state", "set_state", "state")
_TRANSFERRING = ("serialization.py", "cloudpickle")
_PUT = ("put", "put_object", "deserialize_objects")
_WAITS = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/", "multiprocessing/connection.py")
_EVALUATION = ("Evaluator.evaluate", "Evaluator.evaluate_offline", "Evaluator.submit")


@cache
def category_of(stack: Stack) -> Category:
    """Return the category of a stack, which is ordered from the outermost to the running function."""
    if any(frame.function in _EVALUATION for frame in stack):
        return EVALUATION
    held: Category | None = None  # category unless an outer frame is more specific
    is_in_runner, in_pipeline = False, False
    for frame in reversed(stack):
        found = _BY_FUNCTION.get(frame.function.rpartition(".")[2]) or _of_libraries(frame)
        if found is WAITING and is_in_runner:  # Ray frames around a working actor
            found = None
        if found is WAITING and not frame.file.startswith("ray/"):
            held = held or WAITING  # an environment that waits still counts as environment
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
    """Return the category of a library frame that calls no frame of `runner`."""
    if frame.file.startswith("ray/"):
        is_transferring = frame.function in _PUT or any(name in frame.file for name in _TRANSFERRING)
        return TRANSFER if is_transferring else WAITING
    return WAITING if frame.file.startswith(_WAITS) else None


def _of_part(frame: Frame, in_pipeline: bool) -> Category | None:
    """Return the category of a frame of a run's part. A connector's category depends on the caller of its pipeline."""
    name = frame.function.rpartition(".")[2]
    for beginning, category in _BY_FILE.items():
        if frame.file.startswith(beginning):
            return LEARNER_PIPELINE if in_pipeline and beginning.startswith("runner/offline/") else category
    if frame.file.startswith(_LEARNERS):
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
    """Return whether unknown code, such as a user-defined env runner, steps an environment."""
    return any(frame.file.startswith("gymnasium/") and "/spaces/" not in frame.file for frame in stack)


DRIVER = "driver"


@dataclass(frozen=True)
class ProcessProfile:
    """Samples of one process.

    Attributes:
        name: driver, env runner 0, learner 0, ...
        samples: samples of its main thread.
    """

    name: str
    samples: Samples

    @property
    def role(self) -> str:
        """Name without its number."""
        return self.name.rstrip("0123456789").rstrip()

    @cached_property
    def seconds(self) -> dict[Category, float]:
        """Seconds by category. Their sum is the sampled time."""
        seconds: defaultdict[Category, float] = defaultdict(float)
        for stack, of_stack in self.samples.by_stack().items():
            seconds[category_of(stack)] += of_stack
        return dict(seconds)


@dataclass(frozen=True)
class HotFunction:
    """A function and its own time, without the functions it calls.

    Attributes:
        process: name of the process.
        frame: the function.
        line: its line with the most time.
        seconds: own time.
        share: fraction of the process's time.
    """

    process: str
    frame: Frame
    line: int
    seconds: float
    share: float

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.frame.file}:{self.line}"


@dataclass(frozen=True)
class Profile:
    """Samples of all processes of a run over some iterations.

    Attributes:
        num_iterations, num_warmup: sampled iterations, and iterations before them.
        processes: profiles of the processes, driver first.
    """

    num_iterations: int
    num_warmup: int
    processes: Sequence[ProcessProfile]

    @property
    def wall_s(self) -> float:
        """Duration of the sampled iterations in seconds."""
        return self.processes[0].samples.wall_s

    @property
    def num_samples(self) -> int:
        """Number of samples in all processes."""
        return sum(process.samples.num_samples for process in self.processes)

    @property
    def categories(self) -> list[Category]:
        """Columns of the table."""
        spent = {category for process in self.processes for category in process.seconds}
        return [category for category in CATEGORIES if not category.is_optional or category in spent]

    def hottest(self, count: int = 10) -> list[HotFunction]:
        """Return the functions with the longest own time in any process, except functions that wait."""
        found = [hot for process in self.processes for hot in _hot_functions(process)]
        return sorted(found, key=lambda hot: -hot.seconds)[:count]


def _hot_functions(process: ProcessProfile) -> list[HotFunction]:
    seconds: defaultdict[Frame, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (stack, line), of_stack in process.samples.seconds.items():
        if stack and category_of(stack) is not WAITING:
            seconds[stack[-1]][line] += of_stack
    wall_s = process.samples.wall_s
    hot = []
    for frame, lines in seconds.items():
        own_s = sum(lines.values())
        hot.append(HotFunction(process.name, frame, max(lines, key=lambda line: lines[line]), own_s, own_s / wall_s))
    return hot


def check_can_profile(config: ExperimentConfig) -> None:
    """Raise `UserError` for a run that cannot be profiled."""
    if config.env.is_external:
        problem = Problem(
            "profile does not support external simulators: it would wait for one and cannot sample its process",
            "env",
            config.env.name,
            fix="use an environment that runner steps itself",
        )
        raise UserError(problem)


def profile_iterations(trainer: Trainer, num_iterations: int, num_warmup: int = 1) -> Profile:
    """Train some iterations and sample all processes. The results of the training do not change.

    Args:
        trainer: trainer that is ready to train.
        num_iterations: number of sampled iterations.
        num_warmup: iterations before them, in which processes and episodes start and libraries initialise.

    Raises:
        UserError: the process cannot be sampled.
        RunFailure: the run failed, or a process died.
    """
    for _ in range(num_warmup):
        trainer.train()
    actors = _actors_of(trainer)
    for call in actors.values():
        call(start_in_actor)
    sampler = Sampler()
    sampler.start()
    try:
        _train(trainer, num_iterations)
    finally:
        samples = sampler.stop()
    processes = [ProcessProfile(DRIVER, samples.inside_of(_train.__name__))]
    for role, call in actors.items():
        for index, of_actor in enumerate(call(stop_in_actor)):
            if of_actor is None:
                raise RunFailure(Problem(f"{role} {index} died and was replaced during the profile", "profile"))
            processes.append(ProcessProfile(f"{role} {index}", of_actor))
    return Profile(num_iterations, num_warmup, processes)


def _train(trainer: Trainer, num_iterations: int) -> None:
    for _ in range(num_iterations):
        trainer.train()


def _actors_of(trainer: Trainer) -> Mapping[str, Callable[[Callable[[Any], Any]], list[Any]]]:
    """Return role -> function that calls a function in all processes of the role. Local roles return no results."""
    actors: dict[str, Callable[[Callable[[Any], Any]], list[Any]]] = {}
    for group in (trainer.parts.env_runners, trainer.evaluator.env_runners):
        if group is not None:
            actors[group.actors.role] = group.actors.call_processes
    if isinstance(trainer.learners, RemoteLearnerGroup):
        actors["learner"] = trainer.learners.gang.call_processes
    return actors
