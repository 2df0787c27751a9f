"""Facts that a run shows at its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.algorithms import algorithm_name
from runner.config.blocks import ASYNC
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.needs import needs_of
from runner.config.plans.training_ratio import describe_updates, find_few_updates
from runner.config.schemas import ExperimentConfig

if TYPE_CHECKING:  # a sweep's driver process does not import torch
    from runner.experiment.loaded_modules import LoadedModule
    from runner.experiment.replay_memory import BufferMemory


def run_facts(
    config: ExperimentConfig,
    run_dir: Path,
    upload_url: str | None,
    loaded_modules: Sequence[LoadedModule],
    replay_memory: Sequence[BufferMemory],
) -> dict[str, str]:
    """Return label -> text of the facts, in the order in which they are shown.

    Args:
        config: configuration of the experiment.
        run_dir: run dir.
        upload_url: URL to which the run dir is uploaded, or None.
        loaded_modules, replay_memory: see the attributes of `Trainer`.
    """
    facts = {
        "environment": f"{config.env.name}, {data_source(config)}",
        "algorithm": f"{_names_of_algorithms(config)}, seed {config.seed}",
        "run dir": str(run_dir),
    }
    if updates := describe_updates(config):
        facts["updates"] = updates
    if warning := find_few_updates(config):
        facts["warning"] = warning
    if upload_url is not None:
        facts["upload to"] = upload_url
    for module in loaded_modules:
        facts["module" if len(loaded_modules) == 1 else f"module {module.module_id}"] = str(module)
    for buffer in replay_memory:
        facts["replay" if len(replay_memory) == 1 else f"replay {buffer.name}"] = str(buffer)
    return facts


def data_source(config: ExperimentConfig) -> str:
    """Describe the source of a run's experience."""
    if ENV_RUNNERS not in needs_of(config):
        source = config.offline.input_ or config.offline.offline_data_class
        return f"recorded data in {', '.join(source) if isinstance(source, list) else source}"
    if config.env.is_external:
        return "external simulators"
    runners, num_envs = config.env_runners, config.env_runners.num_envs_per_env_runner
    copies = "1 copy" if num_envs == 1 else f"{num_envs} copies"
    if runners.max_env_runners:
        count = _range_text(runners.min_env_runners, runners.max_env_runners)
        return f"1 env runner with {copies}" if count == "1" else f"{count} env runners with {copies} each"
    is_apart = runners.gym_env_vectorize_mode == ASYNC
    return f"{copies}, each in a process" if is_apart else f"{copies} in this process"


def starting_text(config: ExperimentConfig) -> str | None:
    """Return the line to show while remote env runners start, or None.

    With recorded data there is none: the trainer shows a line when it has found the data.
    """
    num_evaluating = config.evaluation.evaluation_num_env_runners
    most = config.env_runners.max_env_runners + num_evaluating
    if not most or config.engine == "inline" or RECORDED_DATA in needs_of(config):
        return None
    number = _range_text(config.env_runners.min_env_runners + num_evaluating, most)
    return f"starting {number} env runner{'' if most == 1 else 's'} ..."


def _names_of_algorithms(config: ExperimentConfig) -> str:
    """Return the name of the run's algorithm, and the names of algorithms of single modules."""
    names = {key: algorithm_name(algorithm) for key, algorithm in config.algorithms.items()}
    own = {key.split(".")[2]: name for key, name in names.items() if key != "algorithm"}
    return ", ".join([names["algorithm"], *(f"{name} for {module_id}" for module_id, name in own.items())])


def _range_text(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"
