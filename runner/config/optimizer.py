"""The `optimizer` block of algorithms, and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.errors import Problem, list_names, show_value
from runner.config.fields import option
from runner.config.targets import OPTIMIZERS, Given, find_target_problems

# Optimiser -> its options.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "adam": ("epsilon", "betas", "weight_decay"),
    "adamw": ("epsilon", "betas", "weight_decay"),
    "radam": ("epsilon", "betas", "weight_decay"),
    "rmsprop": ("epsilon", "alpha", "momentum", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser. Learning rates are fields of the algorithm. Null options use torch's defaults."""

    name: str = option("adam", "optimiser; no effect if _target_ is set", choices=tuple(OPTIONS))
    epsilon: float | None = option(None, "adam, adamw, radam, rmsprop: term added to the denominator", minimum=0)
    betas: list[float] | None = option(
        None, "adam, adamw, radam: decay rates of the averages of gradients and squared gradients", minimum=0, below=1
    )
    alpha: float | None = option(None, "rmsprop: decay rate of the average of squared gradients", minimum=0, maximum=1)
    momentum: float | None = option(None, "rmsprop, sgd: momentum", minimum=0)
    weight_decay: float | None = option(None, "weight decay; decoupled from the gradient with adamw", minimum=0)
    _target_: str | None = option(None, "dotted path of a torch optimiser, for example torch.optim.NAdam; null: name")
    arguments: dict[str, Any] = option({}, "keyword arguments of the class of _target_")

    def given_options(self) -> dict[str, Any]:
        """Return the options that are not null."""
        names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def with_overrides(optimizer: OptimizerConfig, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a block with some replaced; if they choose another optimiser, start from defaults."""
    is_other = any(name in fields and fields[name] != getattr(optimizer, name) for name in ("name", "_target_"))
    if optimizer._target_ is not None and "name" in fields and "_target_" not in fields:
        is_other = True
    return {**vars(OptimizerConfig() if is_other else optimizer), **fields}


def find_optimizer_problems(optimizer: OptimizerConfig, key: str) -> Iterator[Problem]:
    """Yield options that the optimiser does not support, and faults of its `_target_`."""
    given = optimizer.given_options()
    if optimizer._target_ is not None:
        for name, value in given.items():
            what = f"{key}.{name} has no effect with {key}._target_"
            yield Problem(what, f"{key}.{name}", show_value(value), f"{key}.arguments")
        yield from _find_target_problems(optimizer, key)
        return
    options = OPTIONS[optimizer.name]
    for name, value in given.items():
        if name not in options:
            what = f"{key}.{name} is not an option of {optimizer.name}"
            having = [one for one, names in OPTIONS.items() if name in names]
            expected = f"null; {optimizer.name} has {list_names(options)}; {name} belongs to {list_names(having)}"
            yield Problem(what, f"{key}.{name}", show_value(value), expected)
    if optimizer.betas is not None and len(optimizer.betas) != 2:
        what = f"{key}.betas must be two decay rates"
        yield Problem(what, f"{key}.betas", show_value(optimizer.betas), "for example [0.9, 0.999]")
    if optimizer.arguments:
        what = f"{key}.arguments needs {key}._target_"
        yield Problem(what, f"{key}.arguments", show_value(optimizer.arguments), "{}")


def _find_target_problems(optimizer: OptimizerConfig, key: str) -> Iterator[Problem]:
    assert optimizer._target_ is not None
    for name in ("params", "lr"):
        if name in optimizer.arguments:
            what = f"{key}.arguments must not contain {name}, which the learner sets"
            got, expected = show_value(optimizer.arguments[name]), "learning rates are fields of the algorithm block"
            yield Problem(what, f"{key}.arguments", got, expected)
            return
    names = [str(name) for name in optimizer.arguments]
    given = Given(1, ("lr",))
    yield from find_target_problems(f"{key}._target_", optimizer._target_, names, OPTIMIZERS, given)
