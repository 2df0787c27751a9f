"""PettingZoo's environments by the names of their modules, as a `MultiAgentEnv`."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from runner.config.errors import nearest_match
from runner.env_runners.petting_zoo import PettingZooAdapter

# A checkpoint's configuration may name an environment; only modules of these packages are imported for it.
_PACKAGES = ("pettingzoo", "mpe2")


class PettingZooEnv(PettingZooAdapter):
    """An environment of the PettingZoo library.

    Args:
        name: its module, for example `pettingzoo.sisl.pursuit_v5` or `mpe2.simple_spread_v3`.
        kind: `parallel` (all agents act in each step), `turn_based` (PettingZoo's AEC: one agent a step), or `auto`:
            parallel where the module offers it.
        state: put the environment's state into each agent's info, for critics that read it.
        others: keyword arguments of the environment's constructor.

    Attributes:
        state_space: of the state; None: infos have none.

    Raises:
        ValueError: another package, an unknown module or kind, or an environment without a state.
    """

    def __init__(self, name: str, kind: str = "auto", state: bool = False, **others: Any) -> None:
        module = _import_module(name)
        if kind not in ("auto", "parallel", "turn_based"):
            raise ValueError(f"kind is auto, parallel or turn_based, not {kind!r}")
        is_parallel = hasattr(module, "parallel_env") if kind == "auto" else kind == "parallel"
        if is_parallel and not hasattr(module, "parallel_env"):
            raise ValueError(f"{name} has no parallel form, use kind: turn_based")
        super().__init__((module.parallel_env if is_parallel else module.env)(**others), state)


def _import_module(name: str) -> Any:
    package = name.partition(".")[0]
    if package not in _PACKAGES:
        raise ValueError(
            f"{name} is no module of {' or '.join(_PACKAGES)}; wrap other environments in a class of yours"
        )
    try:
        with warnings.catch_warnings():
            # 1.27 deprecates these modules for a registry, which the oldest version that we admit has not.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not name.startswith(missing):
            raise ValueError(f"{name} needs the package {missing}: pip install {missing}") from error
        hint = nearest_match(name.rpartition(".")[2], _siblings(name))
        raise ValueError(f"there is no {name}" + (f"; did you mean {hint}?" if hint else "")) from error
    if not (callable(getattr(module, "env", None)) or hasattr(module, "parallel_env")):
        raise ValueError(f"{name} is no environment: it has neither env nor parallel_env")
    return module


def _siblings(name: str) -> list[str]:
    import pkgutil

    try:
        parent = importlib.import_module(name.rpartition(".")[0])
    except ImportError:
        return []
    return [module.name for module in pkgutil.iter_modules(parent.__path__)]
