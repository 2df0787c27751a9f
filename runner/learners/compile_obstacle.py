"""The reason why a machine cannot compile updates."""

from __future__ import annotations

from runner.compat.libraries import LibraryChangedError
from runner.config.errors import ConfigError


def find_compile_obstacle() -> str | None:
    """Return the reason why this machine cannot compile updates, with the fix, or None."""
    import torch  # a sweep's driver process does not need it

    try:
        from runner.fast.compiled_loss import check_compiler, check_torch  # importing torch's compilers takes seconds

        check_torch()
        if not torch.cuda.is_available():
            check_compiler()
    except LibraryChangedError as error:
        return str(error)
    except ConfigError as error:
        [problem] = error.problems
        return f"{problem.what}; {problem.fix or problem.expected}"
    return None
