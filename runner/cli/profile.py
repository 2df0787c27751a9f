"""`profile`: measure the time of an iteration in every process, as a table and as flame graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments
from runner.cli.checked_experiments import Checked, check_experiments, check_memory
from runner.cli.output_files import check_new_file, write_file

if TYPE_CHECKING:
    from runner.experiment.run_folder import RunFolder
    from runner.profiling.profile import Profile

_PAGE = "profile.html"


def main(arguments: Arguments) -> int:
    """Train some iterations, print the table, and write the page into the run dir."""
    num_iterations = arguments.integer("--iterations", 5)
    num_warmup = arguments.integer("--warmup", 1, least=0)
    output = None if (file := arguments.path("--output")) is None else file.absolute()
    if output is not None:
        check_new_file(output, arguments.has("--force"))
    [checked] = check_experiments(arguments)
    check_memory([checked[1]])
    return _profile(checked, num_iterations, num_warmup, output)


def _profile(checked: Checked, num_iterations: int, num_warmup: int, output: Path | None) -> int:
    from runner.config.references import hiding_values
    from runner.experiment.run import internal_errors_reported
    from runner.experiment.run_folder import check_unused, claim_run_dir, opened_run_folder
    from runner.experiment.trainer import Trainer
    from runner.profiling.profile import check_can_profile, profile_iterations

    composed, config = checked
    check_can_profile(config)
    with opened_run_folder(claim_run_dir(composed)) as folder, internal_errors_reported(folder.path):
        check_unused(folder.path)
        folder.write_configuration(composed)
        with (
            hiding_values(composed.values, composed.references),
            Trainer(config, note=_note, run_dir=folder.path) as trainer,
        ):
            profile = profile_iterations(trainer, num_iterations, num_warmup)
        _tell(profile, config.experiment_name or "custom", folder, output)
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(profile: Profile, title: str, folder: RunFolder, output: Path | None) -> None:
    from runner.durable_files import write_atomically
    from runner.pages.page import render
    from runner.profiling.profile_page import profile_lines, profile_page
    from runner.profiling.sampler import collapsed_lines

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
        write_file(output, "".join(f"{line}\n" for line in collapsed_lines(stacks)).encode(), "stacks")
        print(f"stacks   {output}")
