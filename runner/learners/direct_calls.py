"""Calls of what torch has compiled, without the work that torch does around each call to find it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list


class DirectCall:
    """Compiled code of a function, behind the checks that torch made with it.

    `torch.compile` looks for the code of each call, which takes longer than all arithmetic of a small network. The code
    it finds is a plain function, and its checks are one call into C++ that costs a tenth of the search.

    Args:
        function: that was compiled.
        entry: of torch's cache.
    """

    def __init__(self, function: Callable[..., Any], entry: Any) -> None:
        names = {name: function.__globals__[name] for name in entry.code.co_names if name in function.__globals__}
        self._code = FunctionType(entry.code, {**names, "__builtins__": builtins}, closure=function.__closure__)
        self._checks = entry.guard_manager
        self._names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> DirectCall | None:
        """Return the compiled code that torch takes for these arguments; None where it has none."""
        entries = _debug_get_cache_entry_list(function.__code__)
        found = (cls(function, entry) for entry in entries)
        return next((one for one in found if one.takes(*arguments)), None)

    def takes(self, *arguments: Any) -> bool:
        """Return whether all values that the code was compiled for are as they were."""
        return bool(self._checks.check(dict(zip(self._names, arguments, strict=True))))

    def __call__(self, *arguments: Any) -> Any:
        """Run the code; `takes` comes first."""
        return self._code(*arguments)
