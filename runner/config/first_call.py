"""A check of the first call, or of every call, of a user-defined object against a contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from runner.config.errors import Problem, RunFailure
from runner.config.user_code import is_bad_call, is_unimplemented, is_user_defined

R = TypeVar("R")


def _nothing(*arguments: Any, **options: Any) -> None:
    """Remember nothing."""


@dataclass(frozen=True)
class Contract(Generic[R]):
    """The contract of the first call of an object.

    Attributes:
        where: location of the call in the configuration and in its source file.
        form: signature of the call for messages.
        find_problems: yields problems, given the copies of `remember`, the result and the arguments.
        remember: copies arguments that the call must not change.
    """

    where: str
    form: str
    find_problems: Callable[..., Iterable[Problem]]
    remember: Callable[..., Any] = _nothing


class FirstCall(Generic[R]):
    """A call with a check of its first result.

    Args:
        call: method or object to call.
        contract: contract of the first call.
        use: called with the unchecked call after the first call has passed; by default, later calls are checked too.
    """

    def __init__(
        self, call: Callable[..., R], contract: Contract[R], use: Callable[[Callable[..., R]], None] = _nothing
    ) -> None:
        self._call, self._contract, self._use = call, contract, use

    def __call__(self, *arguments: Any, **options: Any) -> R:
        """Call the object and check the result.

        Raises:
            RunFailure: the call is not implemented, takes other arguments, or breaks the contract.
        """
        contract = self._contract
        before = contract.remember(*arguments, **options)
        try:
            result = self._call(*arguments, **options)
        except NotImplementedError as error:
            if not is_unimplemented(error):
                raise
            raise RunFailure(Problem(str(error), contract.where)) from error
        except TypeError as error:
            if not is_bad_call(error):
                raise
            raise RunFailure(Problem(str(error), contract.where, expected=contract.form)) from error
        for problem in contract.find_problems(before, result, *arguments, **options):
            raise RunFailure(problem)
        self._use(self._call)
        return result


def use_checked(
    owner: object,
    call: Callable[..., R],
    make_contract: Callable[[], Contract[R]],
    use: Callable[[Callable[..., R]], None],
) -> None:
    """Pass a call to `use`, with a check of its first result if its owner is user-defined."""
    use(FirstCall(call, make_contract(), use) if is_user_defined(type(owner)) else call)
