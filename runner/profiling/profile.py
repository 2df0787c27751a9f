"""The profile of some iterations: samples of every process, by category and by function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.config.errors import Problem, RunFailure, UserError
from runner.config.schemas import ExperimentConfig
from runner.experiment.trainer import Trainer
from runner.learners.remote_learner_group import RemoteLearnerGroup
from runner.profiling.categories import WAITING, Category, category_of, shown_categories
from runner.profiling.sampler import Sampler, start_in_actor, stop_in_actor
from runner.profiling.stacks import Frame, Samples

DRIVER = "driver"


@dataclass(frozen=True)
class ProcessProfile:
    """What one process did.

    Attributes:
        name: driver, env runner 0, learner 0, ...
        samples: of its main thread.
    """

    name: str
    samples: Samples

    @property
    def role(self) -> str:
        """The name without its number."""
        return self.name.rstrip("0123456789").rstrip()

    @cached_property
    def seconds(self) -> dict[Category, float]:
        """Seconds by category; their sum is the time that was sampled."""
        seconds: defaultdict[Category, float] = defaultdict(float)
        for stack, of_stack in self.samples.by_stack().items():
            seconds[category_of(stack)] += of_stack
        return dict(seconds)


@dataclass(frozen=True)
class HotFunction:
    """A function by the time that it runs itself, without the functions that it calls.

    Attributes:
        process: in which.
        frame: the function.
        line: of it that took most.
        seconds: its own.
        share: of the process's time.
    """

    process: str
    frame: Frame
    line: int
    seconds: float
    share: float

    @property
    def place(self) -> str:
        """The file and that line."""
        return f"{self.frame.file}:{self.line}"


@dataclass(frozen=True)
class Profile:
    """What all processes of a run did in some iterations.

    Attributes:
        num_iterations, num_warmup: that were sampled, and that ran before.
        processes: the driver first.
    """

    num_iterations: int
    num_warmup: int
    processes: Sequence[ProcessProfile]

    @property
    def wall_s(self) -> float:
        """Seconds of the sampled iterations."""
        return self.processes[0].samples.wall_s

    @property
    def num_samples(self) -> int:
        """Samples in all processes."""
        return sum(process.samples.num_samples for process in self.processes)

    @property
    def categories(self) -> list[Category]:
        """The columns of the table."""
        return shown_categories(category for process in self.processes for category in process.seconds)

    def hottest(self, count: int = 10) -> list[HotFunction]:
        """Return the functions that run longest themselves, in whatever process; ones that wait are left out."""
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
            "profile serves no simulators: it would wait for one to connect, and cannot see what that does",
            "env",
            config.env.name,
            "an environment that is stepped here",
        )
        raise UserError(problem.render_alone())


def profile_iterations(trainer: Trainer, num_iterations: int, num_warmup: int = 1) -> Profile:
    """Train some iterations and sample all processes meanwhile; the numbers are the ones of any other run.

    Args:
        trainer: ready to train.
        num_iterations: that are sampled.
        num_warmup: before them: processes start, episodes begin, libraries get ready.

    Raises:
        UserError: the process cannot be sampled.
        RunFailure: the run failed, or lost a process meanwhile.
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
                raise RunFailure(Problem(f"{role} {index} was lost and replaced while it was profiled", "profile"))
            processes.append(ProcessProfile(f"{role} {index}", of_actor))
    return Profile(num_iterations, num_warmup, processes)


def _train(trainer: Trainer, num_iterations: int) -> None:
    for _ in range(num_iterations):
        trainer.train()


def _actors_of(trainer: Trainer) -> Mapping[str, Callable[[Callable[[Any], Any]], list[Any]]]:
    """Return what calls a function in the processes of a role, by role; a process-local role gives no answers."""
    actors: dict[str, Callable[[Callable[[Any], Any]], list[Any]]] = {}
    groups = [] if trainer.parts.env_runners is None else [trainer.parts.env_runners]
    for group in (*groups, trainer.evaluation_runners):
        if group is not None:
            actors[group.role] = group.call_processes
    if isinstance(trainer.learners, RemoteLearnerGroup):
        actors["learner"] = trainer.learners.call_processes
    return actors
