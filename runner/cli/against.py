"""`evaluate RUN_DIR --against OTHER`: another policy as the opponent, a policy file or another run's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from runner.checkpoints.trust import EXPORTING, TRUST
from runner.cli.stored_run import StoredRun, open_run
from runner.config.errors import ConfigError, Problem, UserError
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids

OPTION = "--against"
_POLICY, _PLAYER = ".onnx", "other"


def with_opponent(stored: StoredRun, other: str, folder: Path, is_trusting: bool) -> StoredRun:
    """Return the run with a league in which its modules meet one opponent.

    Args:
        stored: the run that is evaluated.
        other: a policy file, a run dir, or one of its checkpoints.
        folder: for the policy file of another run.
        is_trusting: follow the other run's files, whoever wrote them.

    Raises:
        UserError: there is no such run or file, or a run has no module of the same name to play with.
    """
    config = stored.config
    modules = config.league.modules or list(declared_module_ids(config)) or [DEFAULT_MODULE_ID]
    path = Path(other)
    if len(modules) > 1 or config.multi_agent.multi_rl_module is not None:
        what = "one policy can be the opponent where one module plays all parts by itself"
        raise UserError(Problem(what, OPTION, ", ".join(modules), "a run with one module").render_alone())
    policy = path if path.suffix == _POLICY else _exported(path, modules[0], folder, is_trusting)
    if not policy.is_file():
        raise UserError(Problem("there is no such policy file", OPTION, other, "POLICY.onnx or RUN_DIR").render_alone())
    league = replace(
        config.league, modules=modules, fixed={_PLAYER: str(policy.absolute())}, evaluate_against=[_PLAYER]
    )
    return replace(stored, config=replace(config, league=league))


@contextmanager
def naming_opponent(other: str) -> Iterator[None]:
    """Let a problem within name the option that the opponent came from, not the place that it has in the league."""
    try:
        yield
    except ConfigError as error:
        in_league, given = f"league.fixed.{_PLAYER}", f"{OPTION} {other}"
        problems = [replace(one, where=one.where and one.where.replace(in_league, given)) for one in error.problems]
        raise ConfigError(problems) from error


def _exported(run_dir: Path, module_id: str, folder: Path, is_trusting: bool) -> Path:
    """Export the policy of a run's newest checkpoint, of the module with this id or of the only one."""
    from runner.policy.stored_policy import StoredPolicy  # imports torch

    stored = open_run([str(run_dir), *([TRUST] if is_trusting else [])], {}, EXPORTING)
    known = declared_module_ids(stored.config)
    chosen = module_id if module_id in known else None
    path = folder / f"{_PLAYER}{_POLICY}"
    path.write_bytes(StoredPolicy.load(stored.checkpoint, stored.config, chosen).to_onnx().content)
    return path
