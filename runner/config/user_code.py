"""Locations in user code: lines of classes and methods, and the line that raised an error."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from runner.config.errors import Problem, list_names, nearest_match

# User code may also call `sys.exit`, which must not end the process without a message.
USER_ERRORS = (Exception, SystemExit)

_PACKAGE_DIR = Path(__file__).resolve().parents[1]
_LIBRARY_DIRS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MOST_ARGUMENTS = 4
_UNEXPECTED = re.compile(r"(?P<called>\w+)(\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'")


def is_user_defined(part: type) -> bool:
    """Return whether a class is user-defined."""
    return part.__module__.partition(".")[0] != _PACKAGE_DIR.name


def is_user_defined_method(part: type, method: str) -> bool:
    """Return whether a method of a class is user-defined."""
    return _is_user_code(getattr(getattr(part, method, None), "__code__", None))


def line_of(part: Any) -> str | None:
    """Return file:line of a class or function; None if its source cannot be found."""
    try:
        code = inspect.unwrap(part).__code__ if not isinstance(part, type) else None
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
        return f"{inspect.getsourcefile(part)}:{inspect.getsourcelines(part)[1]}"
    except (AttributeError, OSError, TypeError):
        return None


def place_of(part: type, *methods: str) -> str:
    """Return file:line and name of the first user-defined method, or of the class if there is none."""
    for method in methods:
        if is_user_defined_method(part, method):
            return f"{line_of(getattr(part, method))}, {part.__name__}.{method}"
    return ", ".join(filter(None, (line_of(part), part.__name__)))


def problem_of(error: BaseException, where: str | None = None) -> Problem:
    """Describe an error by the innermost line of user code in its traceback, and by the arguments of its function.

    Args:
        error: exception with its traceback; only frames below the catching one count.
        where: name of the failed component, for example a configuration key, or ""; it is the only place for an error
            without user code in its traceback. None: use the line that raised such an error.
    """
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    found = _innermost_user_code(error)
    if found is None:
        lines = traceback.extract_tb(error.__traceback__) if where is None else []
        return Problem(what, f"runner itself, {lines[-1].filename}:{lines[-1].lineno}" if lines else where or None)
    frame, line = found
    name = frame.f_code.co_qualname.replace("<locals>.", "")
    place = ", ".join(filter(None, (where, f"{frame.f_code.co_filename}:{line}", name)))
    names, wanted = _names_for(error, frame)
    is_listed = names and not isinstance(error, AttributeError)
    expected = list_names(names, wanted) if is_listed else None
    return Problem(what, place, _arguments_of(frame), expected, nearest_match(wanted, names))


def is_bad_call(error: BaseException) -> bool:
    """Return whether a call with invalid arguments raised this, in the line of the caller."""
    tb = error.__traceback__
    return isinstance(error, TypeError) and tb is not None and tb.tb_next is None


def is_unimplemented(error: BaseException) -> bool:
    """Return whether a base class raised this in place of a missing user-defined method."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, NotImplementedError) and not any(_is_user_code(frame.f_code) for frame in frames)


def outline(value: Any) -> str | None:
    """Return shape and dtype of an array or tensor, or of each one in a dict or tuple; None for other values."""
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        parts = {key: outline(part) for key, part in value.items()}
        return ", ".join(f"{key} {text}" for key, text in parts.items() if text) or None
    if isinstance(value, tuple):
        return ", ".join(filter(None, map(outline, value))) or None
    return None


def _innermost_user_code(error: BaseException) -> tuple[FrameType, int] | None:
    """Return the innermost frame of user code in a traceback, and its line; None without user code.

    gymnasium replaces a TypeError of a constructor, and only the traceback of the replaced error has the user's line.
    """
    places = list(traceback.walk_tb(error.__traceback__))
    replaced = error.__cause__ or error.__context__
    earlier = list(traceback.walk_tb(replaced.__traceback__)) if replaced is not None else []
    if earlier and any(frame is earlier[0][0] for frame, _ in places):  # replaced below the catching frame
        places = earlier + places
    return next((place for place in reversed(places) if _is_user_code(place[0].f_code)), None)


def _names_for(error: BaseException, frame: FrameType) -> tuple[list[str], str]:
    """Return the valid names and the wrong name of an error about a name; nothing for other errors."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        wanted = error.args[0]
        mappings = [value for value in frame.f_locals.values() if isinstance(value, Mapping) and wanted not in value]
        lists = [list(one) for one in mappings if one and all(isinstance(key, str) for key in one)]
        return next((one for one in lists if nearest_match(wanted, one)), lists[0] if lists else []), wanted
    if isinstance(error, AttributeError) and error.name is not None:
        return [name for name in dir(error.obj) if not name.startswith("_")], error.name
    match = _UNEXPECTED.match(str(error)) if isinstance(error, TypeError) else None
    called = frame.f_locals.get(match["called"], frame.f_globals.get(match["called"])) if match else None
    if match is None or not callable(called):
        return [], ""
    return [name for name in inspect.signature(called).parameters if name != "self"], match["name"]


def _arguments_of(frame: FrameType) -> str | None:
    """Return shapes and dtypes of the arguments of a frame's function, or None."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    outlined = [(name, outline(frame.f_locals[name])) for name in names if name in frame.f_locals]
    texts = [f"{name}: {text}" for name, text in outlined if text]
    return "\n".join(texts[:_MOST_ARGUMENTS]) or None


def _is_user_code(code: CodeType | None) -> bool:
    if code is None or code.co_filename.startswith("<"):
        return False
    path = Path(code.co_filename)
    is_installed = any(path.is_relative_to(folder) for folder in _LIBRARY_DIRS) or "site-packages" in path.parts
    return not path.is_relative_to(_PACKAGE_DIR) and not is_installed
