"""`profile`: where the time of an iteration goes, in every process of a run, as a table and as flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments, UsageError, take_options
from runner.cli.validate import Checked, check_experiments, check_memory
from runner.config.errors import Problem, UserError

if TYPE_CHECKING:
    from runner.experiment.run_folder import RunFolder
    from runner.profiling.profile import Profile

_ITERATIONS, _WARMUP, _OUTPUT, _CONFIG_DIR = "--iterations", "--warmup", "--output", "--config-dir"
_DEFAULTS = {_ITERATIONS: "5", _WARMUP: "1"}
_FEWEST = {_ITERATIONS: 1, _WARMUP: 0}
_USAGE = f"python -m runner profile +experiment=NAME [OVERRIDES] [{_ITERATIONS} 5] [{_WARMUP} 1] [{_OUTPUT} FILE]"
_PAGE = "profile.html"


def main(argv: Sequence[str]) -> int:
    """Train some iterations, print the table, and write the page into the run dir."""
    options, rest = take_options(argv, (_ITERATIONS, _WARMUP, _OUTPUT, _CONFIG_DIR))
    words = [text for text in rest if "=" not in text and not text.startswith("~")]
    if words:
        raise UsageError(f"{words[0]} is no override\n   expected      {_USAGE}")
    num_iterations, num_warmup = _number(options, _ITERATIONS), _number(options, _WARMUP)
    config_dir = Path(options[_CONFIG_DIR]) if _CONFIG_DIR in options else None
    output = Path(options[_OUTPUT]).absolute() if _OUTPUT in options else None
    if output is not None and output.is_dir():
        raise UserError(Problem("the file cannot be written: this is a folder", str(output)).render_alone())
    [checked] = check_experiments(Arguments(overrides=tuple(rest), config_dir=config_dir))
    check_memory([checked[1]])
    return _profile(checked, num_iterations, num_warmup, output)


def _number(options: Mapping[str, str], name: str) -> int:
    text, fewest = options.get(name, _DEFAULTS[name]), _FEWEST[name]
    if not (text.isascii() and text.isdigit() and int(text) >= fewest):
        raise UsageError(f"{name} {text}\n   expected      an integer of {fewest} or more")
    return int(text)


def _profile(checked: Checked, num_iterations: int, num_warmup: int, output: Path | None) -> int:
    from runner.experiment.run import own_errors_told
    from runner.experiment.run_folder import claim_run_dir, opened_run_folder
    from runner.experiment.run_records import check_unused
    from runner.experiment.trainer import Trainer
    from runner.profiling.profile import check_can_profile, profile_iterations

    composed, config = checked
    check_can_profile(config)
    run_dir = claim_run_dir(composed)
    if run_dir is None:
        problem = Problem("profile does not know where to write", "hydra.run.dir", expected="hydra.run.dir=DIR")
        raise UserError(problem.render_alone())
    with opened_run_folder(run_dir) as folder, own_errors_told(folder.path):
        check_unused(folder.path)
        folder.write_configuration(composed)
        with Trainer(config, note=_note, run_dir=folder.path) as trainer:
            profile = profile_iterations(trainer, num_iterations, num_warmup)
        _tell(profile, config.experiment_name or "custom", folder, output)
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(profile: Profile, title: str, folder: RunFolder, output: Path | None) -> None:
    from runner.pages.page import render
    from runner.profiling.profile_page import profile_lines, profile_page
    from runner.profiling.sampler import collapsed_lines
    from runner.tracking.progress_log import write_atomically

    plural = "" if profile.num_iterations == 1 else "s"
    print(
        f"{title}: {profile.num_iterations} iteration{plural} in {profile.wall_s:.2f} s, after {profile.num_warmup} of "
        f"warm-up; {profile.num_samples:,} samples\n",
        *profile_lines(profile),
        sep="\n",
    )
    page = folder.path / _PAGE
    with folder.writing():
        write_atomically(page, render(profile_page(profile, title, folder.path)).encode())
    print(f"\npage     {page}")
    if output is not None:
        stacks = {process.name: process.samples for process in profile.processes}
        try:
            write_atomically(output, "".join(f"{line}\n" for line in collapsed_lines(stacks)).encode())
        except OSError as error:
            expected = f"{_OUTPUT} FILE, a file in a folder that can be written"
            problem = Problem("the stacks cannot be written", str(output), str(error), expected)
            raise UserError(problem.render_alone()) from error
        print(f"stacks   {output}")
