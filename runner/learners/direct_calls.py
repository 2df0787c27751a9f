"""Direct calls of compiled code: torch's checks of the code run, its search for the code does not."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._dynamo.eval_frame import _debug_get_cache_entry_list


class DirectCall:
    """Compiled code of a function, behind the checks that torch made with it.

    What `torch.compile` returns looks for the code of each call, which takes longer than all arithmetic of a small
    network. The code that it finds is a plain function, and its checks are one call into C++ that costs a tenth of the
    search.

    Args:
        function: that was compiled.
        entry: of torch's cache.
    """

    def __init__(self, function: Callable[..., Any], entry: Any) -> None:
        self._code = FunctionType(entry.code, function.__globals__, closure=function.__closure__)
        self._checks = entry.guard_manager
        self._names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> DirectCall | None:
        """Return the code that torch takes for these arguments; None where it has none.

        Args:
            function: that was compiled, by one `torch.compile` alone.
            arguments: of a call that it has answered.
        """
        found = (cls(function, entry) for entry in _debug_get_cache_entry_list(function.__code__))
        return next((one for one in found if one.takes(*arguments)), None)

    def takes(self, *arguments: Any) -> bool:
        """Return whether torch still keeps the code, and all values that it was compiled for are as they were."""
        checks = self._checks
        return checks.cache_entry is not None and checks.check(dict(zip(self._names, arguments, strict=True)))

    def __call__(self, *arguments: Any) -> Any:
        """Run the code; `takes` comes first."""
        return self._code(*arguments)
