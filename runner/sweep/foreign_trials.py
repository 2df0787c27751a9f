"""Trials that somebody else wrote down: a sweep that goes on runs only values that its command line searches."""

from __future__ import annotations

from runner.checkpoints.trust import UntrustedError, find_links
from runner.config.errors import show_value
from runner.config.required_trust import TrustRequirement
from runner.sweep.space import SearchSpace
from runner.sweep.trials import SweepFolder


def check_trials(space: SearchSpace, folder: SweepFolder) -> None:
    """Raise `UntrustedError` for values of somebody else that are not searched, and for symbolic links."""
    requirements = []
    for trial in folder.trials:
        for key, value in trial.values.items() if trial.number in folder.foreign else ():
            if not space.holds(key, value):
                requirements.append(TrustRequirement("sets", f"trial {trial.number}: {key}", show_value(value)))
    reasons = [reason for reason in (folder.origin, *folder.foreign.values()) if reason is not None]
    requirements += find_links(folder.path) if reasons else []
    if requirements:
        reason = reasons[0]
        raise UntrustedError("this sweep", folder.path, reason, requirements)
