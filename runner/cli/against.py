"""`evaluate RUN_DIR --against OTHER`: another policy as the opponent, a policy file or another run's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from runner.checkpoints.trust import EXPORTING, TRUST
from runner.cli.stored_run import StoredRun, open_run
from runner.config.errors import ConfigError, Problem, UserError
from runner.config.module_ids import DEFAULT_MODULE_ID, declared_module_ids

OPTION = "--against"
_MODULE = "--module"  # of exports
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
        ConfigError: modules of a run do not act alone.
    """
    from runner.module_parts import check_acts_alone  # imports torch

    config = stored.config
    check_acts_alone(config, "meet an opponent")
    modules = config.league.modules or list(declared_module_ids(config)) or [DEFAULT_MODULE_ID]
    path, of_modules = Path(other), ", ".join(modules)
    if path.suffix != _POLICY:
        policies = _exported(path, modules, folder, is_trusting)
    elif len(modules) > 1:
        what = "a policy file plays one module's part, and this run has several modules"
        allowed = "RUN_DIR, which has a policy for each, or league.fixed with one for some of them"
        raise UserError(Problem(what, OPTION, f"{other} for {of_modules}", allowed).render_alone())
    elif not path.is_file():
        raise UserError(Problem("there is no such policy file", OPTION, other, "POLICY.onnx or RUN_DIR").render_alone())
    else:
        policies = {modules[0]: str(path.absolute())}
    league = replace(config.league, modules=modules, fixed={_PLAYER: policies})
    league = replace(league, train_against=[], evaluate_against=[_PLAYER])
    return replace(stored, config=replace(config, league=league))


@contextmanager
def naming_opponent(other: str) -> Iterator[None]:
    """Let a problem within name the option that the opponent came from, not the place that it has in the league."""
    places = re.compile(rf"league\.fixed\.{_PLAYER}|{_MODULE}")
    with _relocating(lambda where: where and places.sub(lambda _: f"{OPTION} {other}", where)):
        yield


def naming_run(run_dir: Path) -> AbstractContextManager[None]:
    """Let a problem within say that its key is one of another run."""
    return _relocating(
        lambda where: where if where == _MODULE else f"{OPTION} {run_dir}{f': {where}' if where else ''}"
    )


@contextmanager
def _relocating(new_place: Callable[[str | None], str | None]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError([replace(one, where=new_place(one.where)) for one in error.problems]) from error


def _exported(run_dir: Path, modules: Sequence[str], folder: Path, is_trusting: bool) -> dict[str, str]:
    """Export policies of a run's newest checkpoint: the modules with these ids, or its only one for all of them."""
    from runner.policy.stored_policy import StoredPolicy  # imports torch

    stored = open_run([str(run_dir), *([TRUST] if is_trusting else [])], {}, EXPORTING)
    known, policies = declared_module_ids(stored.config), {}
    for module_id in modules:
        chosen = module_id if module_id in known or len(known) > 1 else None
        path = folder / f"{module_id}{_POLICY}"
        with naming_run(run_dir):
            path.write_bytes(StoredPolicy.load(stored.checkpoint, stored.config, chosen).to_onnx().content)
        policies[module_id] = str(path)
    return policies
