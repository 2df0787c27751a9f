"""The commands in the docs run, page by page and one after the other, at reduced size; `make documented` runs them.

A run takes one iteration, an evaluation or a recording two episodes; a sweep is validated. What a page begins with,
such as a run dir of the reader's, is prepared once. Commands that wait for a simulator are validated, too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt

from runner.cli.arguments import split_verb
from tests.conftest import ROOT, WAIT_S
from tests.documented import outputs
from tests.documented.outputs import Block

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "adr" not in path.parts
)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
TRACKED = "stop.training_iteration=1"
SHORT = f"{TRACKED} tracking=none"
GO_ON, WHOLE_EPISODES = "stop.training_iteration=2", "stop.training_iteration=5"
FEW_EPISODES, EPISODES = "evaluation.evaluation_duration=2", "evaluation.evaluation_duration=30"
OTHER_EPISODES = "evaluation.evaluation_duration=3"  # so many are not what a run has, and its difference is printed
# Words of a command that stand for something of the reader's, and what the tests put there.
STAND_INS = {
    " [overrides]": "",
    "RUN_DIR": "outputs/run",
    "OTHER_RUN": "outputs/run",
    "SWEEP_DIR": "outputs/sweep",
    "outputs/ppo_cartpole/sweeps/NAME": "outputs/sweep",
    "my_package.Maze": "maze.Maze",
    "sb3-zoo ppo.yml": "sb3-zoo hyperparams/ppo.yml",
    "policy.onnx env=lunarlander": "policy.onnx env=cartpole",
}
# What `latest` and `ppo_cartpole` stand for until a command of the page has run another experiment.
NEWEST_RUN = "ppo_cartpole/2026-01-01/00-00-00"
# Columns of steps, and their names in a table of the reader's.
FEATURES = ("x", "x_dot", "theta", "theta_dot")
THEIRS = {"obs": "o_t", "actions": "a_t", "rewards": "r_t", "new_obs": "o_tp1", "terminateds": "d_t"}
# Commands that are not run, and why.
NOT_RUN = {
    "...": "has an ellipsis",
    "my_package.": "names a class of the reader's",
    "my_ppo": "names an experiment of the reader's",
    "_client.py": "tests/rllink and tests/learning run the clients",
    "envpool": "needs EnvPool, which tests/env_runners/test_native.py runs where it is installed",
    "ray.address=auto": "joins a cluster, as tests/cluster/test_nodes.py does",
    "s3://": "needs a bucket; tests/storage has stores of its own",
    "--watch": "tests/report/test_watch.py runs it",
    "runner autotune": "takes up to two minutes; tests/cli/test_autotune.py runs it",
}
MISTAKES = {"algorithm.gama=0.9", "tracking=mlfow"}
# Blocks of which nothing is compared with what a command prints: a page, how a line of the block begins, and why.
TWO_TERMINALS = "a server and a client print it side by side; tests/rllink/test_runs.py runs both"
NOT_COMPARED = {
    ("docs/guides/sweeps.md", "assert iqm("): "a sweep of ten runs; tests/cli/test_trained.py compares this line",
    ("docs/guides/performance.md", "current settings"): "speeds of a machine; tests/cli/test_autotune.py measures",
    ("docs/guides/cluster.md", "run=$!"): "a script, which prints nothing",
    ("docs/guides/external_simulators.md", "  RLlink       listens at"): TWO_TERMINALS,
    ("docs/guides/external_simulators.md", "the run is over"): TWO_TERMINALS,
    ("docs/guides/external_simulators.md", "recorded 500 episodes"): "tests/rllink/test_recording.py has simulators",
}
ZOO = (
    "LunarLander-v3:\n  n_envs: 2\n  n_timesteps: !!float 1e5\n  policy: 'MlpPolicy'\n  n_steps: 64\n  batch_size: 64\n"
)


def fences_of(page: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each code block of a page."""
    for token in MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type == "fence":
            yield token.info.strip(), token.content


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page, in the place of words stand-ins, and commands one by one."""
    blocks = []
    for block in outputs.blocks_of(page):
        commands = block.commands
        for word, stand_in in STAND_INS.items():
            commands = [command.replace(word, stand_in) for command in commands]
        blocks.append(Block([part for command in commands for part in command.split(" && ")], block.printed))
    return blocks


def commands_of(page: str) -> list[str]:
    return [command for block in blocks_of(page) for command in block.commands]


def write_files_of(page: str, folder: Path) -> None:
    """Write the code blocks with a comment that names their file, `# my_conf/experiment/mine.yaml: what it is`."""
    for _, text in fences_of(page):
        named = re.search(r"^# (\w+/[\w/]+\.yaml)", text, re.MULTILINE)
        if named is not None:
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(text, encoding="utf-8")


def is_only_validated(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `runner` are a sweep's, or a run's that waits for simulators."""
    verb = split_verb(arguments)[0]
    is_external = verb == "train" and any("external" in argument for argument in arguments)
    return verb == "sweep" or "-m" in arguments or is_external


def why_not_run(command: str) -> str | None:
    return next((why for part, why in NOT_RUN.items() if part in command), None)


def is_run_otherwise(command: str) -> bool:
    arguments = arguments_of(command)
    return why_not_run(command) is not None or (arguments is not None and is_only_validated(arguments))


def arguments_of(command: str) -> list[str] | None:
    """The arguments of a command `runner` or `python -m runner`; None for another command."""
    words = words_of(command.removeprefix("PYTHONPATH=. "))
    for program in (["runner"], ["python", "-m", "runner"]):
        if words[: len(program)] == program:
            return words[len(program) :]
    return None


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def with_comparison(blocks: Sequence[Block]) -> Iterator[tuple[Block, bool]]:
    """Blocks, each with whether all commands were run, in it or in the block before it, that print what it shows."""
    is_complete = False
    for block in blocks:
        if block.commands:
            is_complete = not any(is_run_otherwise(command) for command in block.commands)
        yield block, is_complete


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages begin with: runs, a sweep, recorded data, a policy file."""
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("examples", "tests/data"):
        shutil.copytree(ROOT / name, folder / name)
    for source in (folder / "examples").glob("*/*.py"):
        shutil.copy(source, folder)  # pages outside of an example's folder name its classes
    (folder / "hyperparams").mkdir()
    (folder / "hyperparams" / "ppo.yml").write_text(ZOO)
    shutil.copy(ROOT / "tests" / "data" / "rllib_configs" / "ppo_cartpole.json", folder / "config.json")
    commands = [
        f"train ppo_cartpole {SHORT} {FEW_EPISODES} hydra.run.dir=outputs/run",
        f"sweep ppo_cartpole seed=0,1 {SHORT} hydra.sweep.dir=outputs/sweep",
        *(f"record outputs/run -o data/{name} {EPISODES}" for name in ("expert", "held_out", "cartpole")),
        f"train ppo_pendulum {SHORT} {WHOLE_EPISODES} offline.output=data/pendulum hydra.run.dir=outputs/pendulum",
        f"train ppo_multi_agent_cartpole {SHORT} offline.output=data/agents hydra.run.dir=outputs/agents",
        f"train ppo_cartpole {TRACKED} {FEW_EPISODES} hydra.run.dir=outputs/cartpole",
        "convert data/expert theirs offline.output_write_episodes=false",
        "export outputs/run -o policy.onnx",
    ]
    for command in commands:
        run(folder, ["-m", "runner", *command.split()])
    (folder / "features").mkdir()
    for path in (folder / "theirs").iterdir():
        steps = pq.read_table(path).replace_schema_metadata(None)
        obs = np.array(steps["obs"].to_pylist())
        features = {name: pa.array(obs[:, place]) for place, name in enumerate(FEATURES)}
        others = {name: steps[name] for name in ("actions", "rewards", "terminateds")}
        pq.write_table(pa.table(features | others), folder / "features" / path.name)
        pq.write_table(steps.select(list(THEIRS)).rename_columns(list(THEIRS.values())), path)
    for name in ("expert", "bc", "maze", NEWEST_RUN):
        shutil.copytree(folder / "outputs" / "run", folder / "outputs" / name)
    for path in (folder / "outputs").glob("*/*"):
        os.utime(path, (0, 0))  # so that `latest` is NEWEST_RUN
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "folder"))


def run(folder: Path, arguments: Sequence[str], codes: Sequence[int] = (0,)) -> str:
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert ended.returncode in codes, f"{shlex.join(command)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def reduced(arguments: list[str]) -> tuple[list[str], Sequence[int]]:
    """The same arguments of `runner` at a size for tests, and the exit codes that are right."""
    verb, rest = split_verb(arguments)
    if is_only_validated(arguments):
        return ["validate", *(["-m"] if verb == "sweep" else []), *without_judgement(rest)], [0]
    if verb == "validate":
        return arguments, [2 if MISTAKES.intersection(arguments) else 0]
    if verb in ("train", "resume"):
        short = [GO_ON] if verb == "resume" and "--module-only" not in arguments else SHORT.split()
        if any(argument.startswith("offline.output=") for argument in arguments):
            short += [WHOLE_EPISODES]
        return [*arguments, *short, FEW_EPISODES], [0, 3] if "--assert" in arguments else [0]
    if verb == "register":
        return arguments, [0, 3]
    if "--episodes" in arguments:
        place = arguments.index("--episodes")
        return [*arguments[: place + 1], "3", *arguments[place + 2 :]], [0]
    return [*arguments, OTHER_EPISODES] if verb in ("evaluate", "record") else arguments, [0]


def make_room(folder: Path, arguments: Sequence[str]) -> None:
    """Remove what the command writes, where it is there already."""
    written = [word.partition("=")[2] for word in arguments if word.startswith(("hydra.run.dir=", "offline.output="))]
    written += [word for before, word in pairwise(arguments) if before in ("-o", "--output")]
    for path in map(folder.joinpath, written):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def without_judgement(arguments: Sequence[str]) -> list[str]:
    """Leave out what `validate` does not take."""
    left, names = list(arguments), ("--assert", "--budget", "--junit")
    for name in names:
        while name in left:
            place = left.index(name)
            del left[place : place + 2]
    return left


@pytest.mark.documented
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_of(page: str, prepared: Path, folder: Path) -> None:
    write_files_of(page, folder)
    printed = ""
    for block, is_complete in with_comparison(blocks_of(page)):
        if block.commands:
            printed = run_block(folder, [command for command in block.commands if not why_not_run(command)])
            printed = printed.replace(f"{folder}/", "").replace(f"{prepared}/", "")
        missing = outputs.first_line_not_printed(block.printed, printed)
        if block.commands and is_complete:
            assert missing is None, f"{block.commands} do not print {missing!r}, but\n{printed}"
        elif is_complete and missing is not None:
            assert outputs.is_message(block.printed), f"nothing prints {missing!r}"


def run_block(here: Path, commands: Sequence[str]) -> str:
    """Run commands one after the other; the next block begins in the first folder again. Returns what they print."""
    printed = []
    for command in commands:
        words = words_of(command.removeprefix("PYTHONPATH=. "))
        if words[0] == "cd":
            here = here / words[1]
        elif (typed := arguments_of(command)) is not None:
            arguments, codes = reduced(typed)
            if arguments[0] != "validate":
                make_room(here, arguments)
            printed.append(run(here, ["-m", "runner", *arguments], codes))
        else:
            printed.append(run(here, words[1:]))
    return "\n".join(printed)


@pytest.mark.parametrize("page", [page for page in PAGES if not commands_of(page)])
def test_messages_of(page: str) -> None:
    assert all(outputs.is_message(block.printed) for block in blocks_of(page))


@pytest.mark.parametrize("page", PAGES)
def test_yaml_can_be_read(page: str) -> None:
    for language, text in fences_of(page):
        if language == "yaml":
            yaml.safe_load(text)


def test_only_messages_that_tests_expect_are_accepted() -> None:
    shown = ["the run dir cannot be written: permission denied", "   where         /.../run"]
    assert outputs.is_message(shown)
    assert not outputs.is_message(["the run dir cannot be created: permission denied", *shown[1:]])
    assert not outputs.is_message([*shown, "   expected      another folder"])


def test_nothing_is_shown_that_is_not_compared() -> None:
    unchecked = [
        (page, block.printed)
        for page in PAGES
        for block, is_complete in with_comparison(blocks_of(page))
        if block.printed and not is_complete and not outputs.is_message(block.printed)
    ]

    def is_excused(page: str, printed: list[str], excuse: tuple[str, str]) -> bool:
        return page == excuse[0] and any(line.startswith(excuse[1]) for line in printed)

    assert not [one for one in unchecked if not any(is_excused(*one, excuse) for excuse in NOT_COMPARED)]
    assert not [excuse for excuse in NOT_COMPARED if not any(is_excused(*one, excuse) for one in unchecked)]


def test_no_excuse_is_left_over() -> None:
    commands = [command for page in PAGES for command in commands_of(page)]
    assert len(commands) > 80
    assert not [part for part in NOT_RUN if not any(part in command for command in commands)]
