"""The optimiser of an algorithm: its block, and the check of its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.errors import Problem, Where, list_names, show_value
from runner.config.fields import option
from runner.config.targets import OPTIMIZERS, Given, find_target_problems

# Optimiser -> its options.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "adam": ("epsilon", "betas", "weight_decay"),
    "adamw": ("epsilon", "betas", "weight_decay"),
    "rmsprop": ("epsilon", "alpha", "momentum", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """What steps the parameters; learning rates are fields of the algorithm. A null option has torch's default."""

    name: str = option("adam", "optimiser; without effect where _target_ names one", choices=tuple(OPTIONS))
    epsilon: float | None = option(None, "adam, adamw, rmsprop: added to the root of the mean squares", minimum=0)
    betas: list[float] | None = option(
        None, "adam, adamw: decay rates of the means of gradients and of their squares", minimum=0, below=1
    )
    alpha: float | None = option(None, "rmsprop: decay rate of the mean of squares", minimum=0, maximum=1)
    momentum: float | None = option(None, "rmsprop, sgd: share of the last step that is kept", minimum=0)
    weight_decay: float | None = option(
        None, "pull of the parameters to 0: in the gradient, for adamw beside it", minimum=0
    )
    _target_: str | None = option(None, "dotted path of a torch optimiser, for example torch.optim.RAdam; null: name")
    arguments: dict[str, Any] = option({}, "keyword arguments of the class that _target_ names")

    def given_options(self) -> dict[str, Any]:
        """Return the options that are not null."""
        names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def with_overrides(optimizer: OptimizerConfig, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a block with some replaced; where they name another optimiser, of the default block."""
    is_other = any(name in fields and fields[name] != getattr(optimizer, name) for name in ("name", "_target_"))
    if optimizer._target_ is not None and "name" in fields and "_target_" not in fields:
        is_other = True
    return {**vars(OptimizerConfig() if is_other else optimizer), **fields}


def find_optimizer_problems(optimizer: OptimizerConfig, key: str, where: Where) -> Iterator[Problem]:
    """Yield options that the optimiser does not have, and faults of its `_target_`."""
    given = optimizer.given_options()
    if optimizer._target_ is not None:
        for name, value in given.items():
            what = f"{key}.{name} is set beside {key}._target_"
            yield Problem(what, where(f"{key}.{name}"), show_value(value), f"{key}.arguments")
        yield from _find_target_problems(optimizer, key, where)
        return
    options = OPTIONS[optimizer.name]
    for name, value in given.items():
        if name not in options:
            what = f"{key}.{name} is set, and {optimizer.name} has no such option"
            having = [one for one, names in OPTIONS.items() if name in names]
            expected = f"null; options of {optimizer.name}: {list_names(options)}; {name} is of {list_names(having)}"
            yield Problem(what, where(f"{key}.{name}"), show_value(value), expected)
    if optimizer.betas is not None and len(optimizer.betas) != 2:
        what = f"{key}.betas are two decay rates"
        yield Problem(what, where(f"{key}.betas"), show_value(optimizer.betas), "[0.9, 0.999], for example")
    if optimizer.arguments:
        what = f"{key}.arguments are of the class that {key}._target_ names, and it names none"
        yield Problem(what, where(f"{key}.arguments"), show_value(optimizer.arguments), "{}")


def _find_target_problems(optimizer: OptimizerConfig, key: str, where: Where) -> Iterator[Problem]:
    assert optimizer._target_ is not None
    for name in ("params", "lr"):
        if name in optimizer.arguments:
            what = f"{key}.arguments.{name} is given by the learner"
            got, expected = show_value(optimizer.arguments[name]), "learning rates are fields of the algorithm block"
            yield Problem(what, where(f"{key}.arguments"), got, expected)
            return
    names = [str(name) for name in optimizer.arguments]
    given = Given(1, ("lr",))
    yield from find_target_problems(f"{key}._target_", optimizer._target_, where, names, OPTIMIZERS, given)
