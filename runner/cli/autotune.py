"""`autotune`: measure settings that change only the speed of a run, and write an experiment with the fastest."""

from __future__ import annotations

import io
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.cli.arguments import Arguments, experiment_in
from runner.cli.checked_experiments import check_experiments, check_memory
from runner.cli.experiment_files import check_experiment_file, command_for, config_dir_of, write_experiment
from runner.cli.short_runs import NotMeasuredError, ShortRuns, TooSlowError, overrides_of_short_run
from runner.config.blocks import ASYNC, EnvConfig
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem, RunFailure, UserError
from runner.config.experiment_file import experiment_text
from runner.config.operators import ENV_RUNNERS
from runner.config.paths import find_config, search_dirs
from runner.config.plans.compilation import FEWEST_COMPILED_UPDATES, compiles, planned_updates
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.config.targets import VECTOR_ENV, is_subclass
from runner.config.validation import UNNAMED_EXPERIMENT, build_experiment_config
from runner.interrupts import interrupts

_SECONDS, _FEWEST_SECONDS = 120, 10
_LEAST_GAIN = 1.05
# A setting whose first gain is between these two is measured again, next to the current one.
_POSSIBLE_GAIN, _CLEAR_GAIN = 0.95, 1.5
_NUM_REPEATS = 2
_MODE, _NUM_ENVS = "env_runners.gym_env_vectorize_mode", "env_runners.num_envs_per_env_runner"
_THREADS, _COMPILE = "learners.torch_num_threads", "learners.compile"
_AUTO, _SYNC = "auto", "sync"
_PRESENT = "current settings"
_WIDTH = 120
_PART_OF_FIRST = 0.4  # of the time limit, for the first run
_SLOWEST = 2.0  # duration of a run, relative to the first one, after which its settings count as slower
_COMPILE_S = 35.0  # additional time for the first compiled update


@dataclass(frozen=True)
class Candidate:
    """A setting to measure.

    Attributes:
        is_hint: whether it changes the data of an iteration, so that it is only reported.
    """

    key: str
    value: str
    is_hint: bool = False

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass
class Measurement:
    """A line of the table.

    Attributes:
        setting: the override.
        env_steps_per_s: median of the measurements, or None.
        gain: speed divided by the speed of the settings that were kept before, or None.
        verdict: what follows.
    """

    setting: str
    env_steps_per_s: float | None = None
    gain: float | None = None
    verdict: str = ""


def main(arguments: Arguments) -> int:
    """Measure, print the table, and write the experiment."""
    started_s, seconds = time.monotonic(), arguments.integer("--seconds", _SECONDS, least=_FEWEST_SECONDS)
    file = arguments.path("--output")
    if file is not None:
        _check_file(file, arguments)
    [(_, config)] = check_experiments(arguments)
    if file is not None:
        experiment_text(arguments.overrides, "", arguments.config_dir)  # reports overrides that a file cannot contain
    _check_can_tune(config)
    check_memory([config])
    window_s = min(4.0, max(0.5, seconds / 30))
    runs = ShortRuns(arguments.config_dir, window_s, started_s + 0.95 * seconds)
    tuner = Tuner(config, arguments.overrides, runs, is_quiet=arguments.has("--quiet"))
    with interrupts():
        tuner.run()
    is_written = file is not None and bool(tuner.kept)
    if file is not None and is_written:
        about = f"{_name(arguments)} with the settings that were fastest on this machine."
        write_experiment(file, experiment_text(tuner.overrides, about, arguments.config_dir))
    seconds_used = time.monotonic() - started_s
    if arguments.has("--json"):
        print(json.dumps(_described(tuner, seconds_used, file if is_written else None), indent=2))
    else:
        print(*_lines(tuner, arguments, seconds_used, file if is_written else None), sep="\n")
    return 0


def _name(arguments: Arguments) -> str:
    return arguments.experiment or UNNAMED_EXPERIMENT


def _check_file(file: Path, arguments: Arguments) -> None:
    """Raise `UserError` if the experiment cannot be written, or could not find the experiment that it builds on."""
    check_experiment_file(file, arguments.has("--force"))
    name, folder = f"experiment/{_name(arguments)}", config_dir_of(file)
    base = find_config(search_dirs(arguments.config_dir), name)
    if base is None:
        return  # composing reports it
    if base.resolve() == file.resolve():
        fix = f"-o {file.with_stem(f'{file.stem}_fast')}"
        raise UserError(Problem("the experiment would build on itself", "--output", str(file), fix=fix))
    if find_config(search_dirs(folder if folder and folder.is_dir() else None), name) is None:
        what = "an experiment in this folder cannot build on one in another folder"
        raise UserError(Problem(what, "--output", str(file), str(base.with_stem(f"{base.stem}_fast"))))


def _check_can_tune(config: ExperimentConfig) -> None:
    """Raise `UserError` for an experiment whose speed does not depend on this machine alone."""
    fix = "use an environment that runner steps itself"
    if config.env.is_external:
        what = "autotune does not support external simulators: it would wait for one"
        raise UserError(Problem(what, "env", config.env.name, fix=fix))
    if ENV_RUNNERS not in needs_of(config):
        what = "autotune measures env steps per second, and this experiment learns from recorded data"
        fix = "runner profile shows where its time is spent"
        raise UserError(Problem(what, "offline.input_", str(config.offline.input_), fix=fix))


@dataclass
class Tuner:
    """Improve one key after the other, beginning with the settings of the experiment.

    Attributes:
        kept: key -> value of the settings that are faster.
        rows: all candidates, in the order of their measurement.
        gain: speed of the settings that are kept, divided by the experiment's.
    """

    config: ExperimentConfig
    given: Sequence[str]
    runs: ShortRuns
    is_quiet: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    rows: list[Measurement] = field(default_factory=list)
    gain: float = 1.0
    _run_s: float = 0.0
    _speeds: list[float] = field(default_factory=list)

    @property
    def overrides(self) -> list[str]:
        """The overrides of the experiment with the settings that are faster."""
        return _merged(self.given, self.kept)

    def run(self) -> None:
        """Measure all candidates for which there is time.

        Raises:
            UserError: the experiment is too slow for the time limit.
            RunFailure: the experiment fails.
        """
        self._measure_present()
        for candidate in self._candidates():
            if not self._is_valid(candidate):
                continue
            row = Measurement(str(candidate))
            self.rows.append(row)
            if not self._has_time(1):
                row.verdict = "not measured: no time left"
                continue
            try:
                self._try(candidate, row)
            except TooSlowError as failure:
                row.verdict = f"slower: {failure}"
            except NotMeasuredError as failure:
                row.verdict = f"does not run: {failure}"

    def _measure_present(self) -> None:
        started_s = time.monotonic()
        try:
            self._speeds.append(self._measure({}, _PART_OF_FIRST * (self.runs.ends_s - started_s)))
        except TooSlowError as failure:
            what = f"the experiment is too slow for the time limit: {failure}"
            raise UserError(Problem(what, "--seconds", fix="increase --seconds")) from None
        except NotMeasuredError as failure:
            fix = "runner train shows the entire message"
            raise RunFailure(Problem(f"the experiment cannot be measured: {failure}", fix=fix)) from None
        self._run_s = time.monotonic() - started_s
        self.rows.append(Measurement(_PRESENT, self._speeds[0], 1.0))

    def _has_time(self, num_runs: int) -> bool:
        return time.monotonic() + num_runs * self._run_s < self.runs.ends_s

    def _measure(self, settings: Mapping[str, str], limit_s: float) -> float:
        if not self.is_quiet:
            changed = " ".join(f"{key}={value}" for key, value in settings.items())
            print(f"measuring {changed or _PRESENT} ...", file=sys.stderr, flush=True)
        # `auto` depends on `stop`, which a short run overrides.
        compiled = {_COMPILE: str(compiles(self.config)).lower()}
        extra = dict(text.split("=", 1) for text in overrides_of_short_run(self.config))
        overrides = _merged(self.given, {**extra, **compiled, **settings})
        return self.runs.measure(overrides, limit_s)

    def _try(self, candidate: Candidate, row: Measurement) -> None:
        """Measure a candidate, and keep it if it is faster."""
        changed = {**self.kept, candidate.key: candidate.value}
        limit_s = _SLOWEST * self._run_s + _COMPILE_S * (candidate.key == _COMPILE)
        speeds = [self._measure(changed, limit_s)]
        is_close = _POSSIBLE_GAIN <= speeds[0] / self._speeds[-1] < _CLEAR_GAIN
        if is_close and not candidate.is_hint and not self._repeat(changed, speeds):
            row.verdict = "not kept: no time left to repeat it"
        row.env_steps_per_s = statistics.median(speeds)
        row.gain = row.env_steps_per_s / statistics.median(self._speeds[-len(speeds) :])
        if row.gain < _LEAST_GAIN:
            row.verdict = "slower" if row.gain < 1 else "less than 5 % faster"
        elif candidate.is_hint:
            row.verdict = "hint: it changes the data of an iteration"
        elif not row.verdict:
            row.verdict = "faster"
            self._keep(candidate, row, speeds)

    def _repeat(self, changed: Mapping[str, str], speeds: list[float]) -> bool:
        """Measure the current and the changed settings alternately; return whether there was time for it."""
        for _ in range(_NUM_REPEATS):
            if not self._has_time(2):
                return False
            try:
                present, other = (
                    self._measure(settings, self.runs.ends_s - time.monotonic()) for settings in (self.kept, changed)
                )
            except TooSlowError:
                return False
            self._speeds.append(present)
            speeds.append(other)
        return True

    def _keep(self, candidate: Candidate, row: Measurement, speeds: list[float]) -> None:
        for earlier in self.rows:
            if earlier is not row and earlier.setting.startswith(f"{candidate.key}=") and earlier.verdict == "faster":
                earlier.verdict = f"replaced by {candidate.value}"
        self.kept[candidate.key] = candidate.value
        self.gain *= row.gain or 1.0
        self._speeds = speeds

    def _is_valid(self, candidate: Candidate) -> bool:
        """Return whether the experiment can have this setting."""
        settings = {**self.kept, candidate.key: candidate.value}
        try:
            build_experiment_config(compose_experiment(_merged(self.given, settings), self.runs.config_dir))
        except ConfigError:
            return False
        return True

    def _candidates(self) -> Iterator[Candidate]:
        """Yield single settings that differ from the experiment's; settings that it cannot have are among them."""
        yield from (Candidate(_MODE, mode) for mode in _modes(self.config))
        yield from self._compilation()
        yield from (Candidate(_THREADS, str(number)) for number in _numbers_of_threads(self.config))
        num_envs = self.config.env_runners.num_envs_per_env_runner
        yield from (Candidate(_NUM_ENVS, str(factor * num_envs), is_hint=True) for factor in (2, 4))

    def _compilation(self) -> Iterator[Candidate]:
        candidate = Candidate(_COMPILE, str(not compiles(self.config)).lower())
        num_updates = planned_updates(self.config)
        if num_updates >= FEWEST_COMPILED_UPDATES:
            yield candidate
        elif not compiles(self.config) and self._is_valid(candidate):
            reason = f"too few updates ({num_updates:,.0f} of {FEWEST_COMPILED_UPDATES:,})"
            self.rows.append(Measurement(str(candidate), verdict=f"not measured: {reason}"))


def _modes(config: ExperimentConfig) -> Iterator[str]:
    """Yield the other ways to step sub-environments."""
    runners, is_batched = config.env_runners, _is_batched(config.env)
    present = runners.gym_env_vectorize_mode
    if present == _AUTO and not is_batched:
        present = _SYNC
    possible = {_SYNC: True, _AUTO: is_batched, ASYNC: True} if runners.num_envs_per_env_runner > 1 else {}
    yield from (mode for mode, is_possible in possible.items() if is_possible and mode != present)


def _is_batched(env: EnvConfig) -> bool:
    """Return whether the environment has a batched implementation, which `auto` uses."""
    from runner.env_runners.env_makers import has_batched_implementation

    wrappers = [str(wrapper.get("_target_")) for wrapper in env.wrappers]
    is_named = env.env is not None and has_batched_implementation(env.env)
    return is_named and all(is_subclass(path, VECTOR_ENV) for path in wrappers)


def _numbers_of_threads(config: ExperimentConfig) -> list[int]:
    """Return 1, 2, 4 and so on, and the number of cores, without the present number."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    powers = {2**exponent for exponent in range(num_cores.bit_length())}
    return sorted((powers | {num_cores}) - {config.learners.torch_num_threads})


def _merged(given: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return overrides with these settings, each key once."""
    others = [text for text in given if text.lstrip("+").partition("=")[0] not in settings]
    return [*others, *(f"{key}={value}" for key, value in settings.items())]


def _described(tuner: Tuner, seconds: float, file: Path | None) -> dict[str, Any]:
    return {
        "measured": [asdict(row) for row in tuner.rows],
        "kept": tuner.kept,
        "gain": tuner.gain,
        "seconds": round(seconds, 1),
        "file": None if file is None else str(file),
    }


def _lines(tuner: Tuner, arguments: Arguments, seconds: float, file: Path | None) -> Iterator[str]:
    yield from _table(tuner.rows)
    yield ""
    kept = [f"{key}={value}" for key, value in tuner.kept.items()]
    yield f"{_name(arguments)}: measured in {seconds:.0f} s"
    if not kept:
        yield "  result   no setting is at least 5 % faster" + ("; nothing was written" * arguments.has("--output"))
        return
    yield f"  result   {tuner.gain:.2f} times as fast with {' '.join(kept)}"
    if file is None:
        folder = arguments.value("--config-dir")
        options = [] if folder is None else ["--config-dir", folder]
        yield f"  train    runner train {shlex.join([*_words(tuner.overrides), *options])}"
    else:
        yield f"  wrote    {file}"
        yield f"  train    {command_for('train', file)}"


def _words(overrides: Sequence[str]) -> list[str]:
    """Return overrides as they are typed, with the experiment's name alone."""
    return [experiment_in(text) if text.startswith("experiment=") else text for text in overrides]


def _table(rows: Sequence[Measurement]) -> Iterator[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("setting", min_width=max(len(row.setting) for row in rows))
    table.add_column("env steps/s", justify="right")
    table.add_column("gain", justify="right")
    table.add_column("")
    for row in rows:
        speed = "" if row.env_steps_per_s is None else f"{row.env_steps_per_s:,.0f}"
        gain = "" if row.gain is None or row.setting == _PRESENT else f"{100 * (row.gain - 1):+.0f} %"
        table.add_row(*map(Text, (row.setting, speed, gain, row.verdict)))
    file = io.StringIO()
    Console(file=file, width=_WIDTH, no_color=True, force_terminal=False).print(table)
    yield from (line.rstrip() for line in file.getvalue().splitlines())
