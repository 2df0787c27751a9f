"""Decode pickled numpy arrays without pickle, by interpreting only the opcodes that such pickles use.

Nothing in the data is imported or called. Global names are compared with numpy's constructors, whose effect is
reproduced on checked types, shapes and byte counts. Everything else is rejected with its name: other globals, object
arrays, structured types, persistent ids and shared containers. Protocols 2 to 5 are supported. The opcodes and their
arguments are documented in `pickletools`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from runner.episodes.nested import Array

ALLOWED = "arrays and scalars of numbers, bools and text; dicts, lists and tuples of these"

_MAX_DEPTH = 32
_MAX_NDIM = 32
_MAX_EMPTY_ROWS = 2**24
_FREE_SHARED_BYTES = 2**16
_PLAIN_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,8}")
_DTYPE_STATE_SIZE = 8
_ARRAY_STATE_SIZE = 5


class PickleRefused(ValueError):
    """Error of a pickle that is damaged or holds more than plain data; `row` is its number among several pickles."""

    row: int | None = None


@dataclass(frozen=True)
class _Global:
    """Name of a global in the pickle, one of `_GLOBALS`; it is never resolved."""

    name: str


class _Span(NamedTuple):
    """Range of data bytes in the pickle, from `start` to `stop`."""

    start: int
    stop: int


@dataclass
class _DType:
    """A numpy dtype. Its state, which follows, only adds the byte order."""

    code: str
    dtype: np.dtype[Any]


@dataclass
class _Shell:
    """Result of numpy's `_reconstruct`: an array whose state follows."""

    array: Array | None = None


_FROM_BUFFER, _RECONSTRUCT, _SCALAR = _Global("_frombuffer"), _Global("_reconstruct"), _Global("scalar")
_NDARRAY, _DTYPE, _ENCODE, _BYTES = _Global("ndarray"), _Global("dtype"), _Global("encode"), _Global("bytes")
_GLOBALS = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("_codecs", "encode"): _ENCODE,  # non-empty bytes in protocol 2
    ("__builtin__", "bytes"): _BYTES,  # empty bytes in protocol 2
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _SCALAR for core in ("core", "_core")},
}
_ATOMS = (type(None), bool, int, float, str)


def unpickle(data: bytes) -> Any:
    """Decode one pickle of arrays, scalars, or nested dicts, lists and tuples of them.

    Raises:
        PickleRefused: the pickle contains anything else, or is damaged.
    """
    return PickleMachine(data).run()


class PickleMachine:
    """Interprets one pickle. Used directly by `rllib_tables`; otherwise use `unpickle`.

    Attributes:
        window: location of the array's bytes if the value is one array in C order and native byte order, else None.
    """

    _operations: ClassVar[dict[int, Callable[[PickleMachine], None]]]
    _constructors: ClassVar[dict[str, Callable[..., Any]]]

    def __init__(self, data: bytes) -> None:
        self.window: _Span | None = None
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._num_arrays = 0
        self._shared_bytes = 4 * len(data) + _FREE_SHARED_BYTES

    def run(self) -> Any:
        """Return the value."""
        data, operations = self._data, self._operations
        try:
            while True:
                code = data[self._at]
                self._at += 1
                if code == 0x2E:  # STOP
                    break
                operation = operations.get(code)
                if operation is None:
                    raise PickleRefused(f"opcode {_opcode_name(code)} is not allowed; expected: {ALLOWED}")
                operation(self)
            value = self._pop()
        except (IndexError, struct.error):
            raise PickleRefused(f"the pickle is damaged: it is truncated at byte {self._at}") from None
        except (UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise PickleRefused(f"the pickle is damaged: {error}") from None
        if self._stack or self._marks or self._at != len(data):
            raise PickleRefused("the pickle is damaged: it contains more than one value")
        value = self._plain(value, 0)
        if type(value) is not np.ndarray or self._num_arrays != 1:
            self.window = None
        return value

    # --- reading the bytes ---

    def _unpack(self, format_: struct.Struct) -> int:
        (number,) = format_.unpack_from(self._data, self._at)
        self._at += format_.size
        return int(number)

    def _span(self, size: int) -> _Span:
        if not 0 <= size <= len(self._data) - self._at:
            what = f"{size} bytes expected at byte {self._at} of {len(self._data)}"
            raise PickleRefused(f"the pickle is damaged: {what}")
        span = _Span(self._at, self._at + size)
        self._at = span.stop
        return span

    def _text(self, size: int) -> str:
        span = self._span(size)
        return self._data[span.start : span.stop].decode("utf-8", "surrogatepass")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise IndexError
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    # --- the stack ---

    def _pop(self) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError
        return self._stack.pop()

    def _pop_many(self, count: int) -> tuple[Any, ...]:
        items = [self._pop() for _ in range(count)]
        return tuple(reversed(items))

    def _pop_to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _top(self, kind: type) -> Any:
        if (self._marks and len(self._stack) <= self._marks[-1]) or type(self._stack[-1]) is not kind:
            raise PickleRefused(f"the pickle is damaged: a {kind.__name__} is missing")
        return self._stack[-1]

    def _memoize(self, key: int) -> None:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError
        self._memo[key] = self._stack[-1]

    def _recall(self, key: int) -> None:
        if key not in self._memo:
            raise PickleRefused(f"the pickle is damaged: memo {key} is undefined")
        value = self._memo[key]
        if type(value) in (list, dict) or (type(value) is tuple and not _is_flat(value)):
            raise PickleRefused(f"a {type(value).__name__} that is used twice is not allowed")
        self._shared_bytes -= _byte_count(value)
        if self._shared_bytes < 0:
            raise PickleRefused("the pickle repeats more bytes than it contains")
        self._stack.append(value)

    # --- operations with arguments from the bytes ---

    def _protocol(self) -> None:
        version = self._unpack(_U1)
        if not 2 <= version <= 5:
            raise PickleRefused(f"pickle protocol {version} is not supported; expected: 2 to 5")

    def _global(self, module: Any, name: Any) -> None:
        known = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            shown = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "an unnamed global"
            raise PickleRefused(f"the pickle uses {shown:.100}, which is not allowed; expected: {ALLOWED}")
        self._stack.append(known)

    def _long(self) -> None:
        span = self._span(self._unpack(_U1))
        self._stack.append(int.from_bytes(self._data[span.start : span.stop], "little", signed=True))

    def _append_items(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise PickleRefused("the pickle is damaged: a key of a dict does not have a value")
        target, keys = self._top(dict), items[::2]
        if not all(type(key) in (str, int) for key in keys):
            raise PickleRefused("keys of dicts must be text or integers")
        target.update(zip(keys, items[1::2], strict=True))

    # --- operations that replace calls ---

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if type(function) is not _Global or type(arguments) is not tuple:
            raise PickleRefused("the pickle calls something other than a numpy constructor")
        constructor = self._constructors.get(function.name)
        if constructor is None:
            raise PickleRefused(f"the pickle calls {function.name}, which is not allowed")
        self._stack.append(constructor(self, *self._checked(function, arguments)))

    def _checked(self, function: _Global, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        patterns = _SIGNATURES[function.name]
        for kinds in patterns:
            if len(kinds) == len(arguments) and all(map(isinstance, arguments, kinds)):
                return arguments
        raise PickleRefused(f"the pickle is damaged: wrong arguments of {function.name}")

    def _make_dtype(self, code: str, *_flags: Any) -> _DType:
        if not _PLAIN_DTYPE.fullmatch(code):
            raise PickleRefused(f"arrays of dtype {_dtype_name(code)} are not allowed; expected: {ALLOWED}")
        return _DType(code, np.dtype(code))

    def _make_scalar(self, dtype: _DType, raw: Any) -> Any:
        return self._array(raw, dtype, (), "C")[()]

    def _make_array(self, raw: Any, dtype: _DType, shape: Any, order: str, axes: Any = None) -> Array:
        if order == "K":
            if type(axes) is not tuple or set(map(type, axes)) - {int} or sorted(axes) != list(range(len(shape))):
                raise PickleRefused("the pickle is damaged: the axes of an array are not a permutation")
            array = self._array(raw, dtype, shape, "C").transpose(axes)
            self.window = None
            return array
        if order not in ("C", "F"):
            raise PickleRefused("the pickle is damaged: the order of an array is neither C nor F")
        return self._array(raw, dtype, shape, order)

    def _make_shell(self, kind: _Global, shape: Any, code: Any) -> _Shell:
        if kind is not _NDARRAY:
            raise PickleRefused(f"an array of the class numpy.{kind.name} is not allowed")
        return _Shell()

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise PickleRefused(f"the pickle uses the encoding {encoding!r:.40}; expected: latin1")
        try:
            return text.encode("latin1")
        except UnicodeEncodeError as error:
            raise PickleRefused(f"the pickle is damaged: {error}") from None

    def _build(self) -> None:
        state = self._pop()
        if not self._stack or (self._marks and len(self._stack) <= self._marks[-1]):
            raise IndexError
        target = self._stack[-1]
        if type(target) is _DType and type(state) is tuple:
            self._set_dtype_state(target, state)
        elif type(target) is _Shell and type(state) is tuple and target.array is None:
            self._set_array_state(target, state)
        else:
            raise PickleRefused("the pickle sets the state of something other than an array")

    def _set_dtype_state(self, target: _DType, state: tuple[Any, ...]) -> None:
        plain = len(state) == _DTYPE_STATE_SIZE and state[0] == 3 and state[2:5] == (None, None, None)
        if not plain or state[1] not in ("<", ">", "|"):
            raise PickleRefused(f"structured or extended arrays of dtype {target.code} are not allowed")
        size = state[5]
        if size not in (-1, target.dtype.itemsize):
            raise PickleRefused(f"the pickle is damaged: items of {target.code} with {size!r:.40} bytes")
        if state[1] != "|":
            target.dtype = target.dtype.newbyteorder(state[1])

    def _set_array_state(self, target: _Shell, state: tuple[Any, ...]) -> None:
        if len(state) != _ARRAY_STATE_SIZE or type(state[2]) is not _DType or type(state[3]) not in (bool, int):
            raise PickleRefused("the pickle is damaged: wrong state of an array")
        _, shape, dtype, is_fortran, raw = state
        target.array = self._array(raw, dtype, shape, "F" if is_fortran else "C")

    def _array(self, raw: Any, dtype: _DType, shape: Any, order: str) -> Array:
        """Return a writable array in native byte order."""
        if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
            raise PickleRefused("the pickle is damaged: the shape of an array is not a tuple of sizes")
        if len(shape) > _MAX_NDIM or (0 in shape and max(shape) > _MAX_EMPTY_ROWS):
            raise PickleRefused(f"the pickle is damaged: an array of shape {shape!r:.80}")
        if type(raw) not in (_Span, bytes):
            raise PickleRefused("object arrays are not allowed")
        source, span = (self._data, raw) if type(raw) is _Span else (raw, _Span(0, len(raw)))
        start, count = span.start, math.prod(shape)
        if count * dtype.dtype.itemsize != span.stop - start:
            what = f"{span.stop - start} bytes for {dtype.dtype} of shape {shape}"
            raise PickleRefused(f"the pickle is damaged: {what}")
        values = np.frombuffer(source, dtype.dtype, count, start) if count else np.empty(0, dtype.dtype)
        _check_items(values)
        array = values.astype(dtype.dtype.newbyteorder("=")).reshape(shape, order="F" if order == "F" else "C")
        self._num_arrays += 1
        self.window = raw if type(raw) is _Span and order == "C" and dtype.dtype.isnative else None
        return array

    # --- the result ---

    def _plain(self, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise PickleRefused(f"nested deeper than {_MAX_DEPTH} levels")
        if type(value) is _Shell and value.array is not None:
            return value.array
        if type(value) is _Span:
            return self._data[value.start : value.stop]
        if type(value) is dict:
            return {key: self._plain(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple):
            items = [self._plain(item, depth + 1) for item in value]
            return items if type(value) is list else tuple(items)
        if isinstance(value, (np.ndarray, np.generic, bytes, *_ATOMS)):
            return value
        raise PickleRefused(f"{value.name if type(value) is _Global else 'a type'} is not data")


def _is_flat(items: tuple[Any, ...]) -> bool:
    return len(items) <= _MAX_NDIM and all(type(item) in _ATOMS for item in items)


def _byte_count(value: Any) -> int:
    """Return the cost of using a stored value again, in bytes; names and dtypes are free."""
    if type(value) is _Span:
        return value.stop - value.start
    if type(value) is _Shell:
        return 0 if value.array is None else int(value.array.nbytes)
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    return len(value) if isinstance(value, (str, bytes)) else 1


def _check_items(values: Array) -> None:
    """Reject bytes that are not valid values of their dtype."""
    if values.dtype.kind == "b" and (values.view(np.uint8) > 1).any():
        raise PickleRefused("the pickle is damaged: a bool is neither 0 nor 1")
    if values.dtype.kind == "U":
        points = values.view(np.dtype("u4").newbyteorder(values.dtype.byteorder))
        if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
            raise PickleRefused("the pickle is damaged: text is not valid Unicode")


def _dtype_name(code: str) -> str:
    return "object" if code.startswith("O") else f"{code:.40}"


def _opcode_name(code: int) -> str:
    import pickletools

    return next((known.name for known in pickletools.opcodes if known.code == chr(code)), f"0x{code:02x}")


_U1, _U2, _U4, _U8 = (struct.Struct(code) for code in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
# Types of the arguments of each constructor. Protocol 2 writes flags as integers and bytes as encoded text.
_RAW = (_Span, bytes)
_FLAG = (bool, int)
_SIGNATURES: dict[str, list[tuple[Any, ...]]] = {
    "dtype": [(str, _FLAG, _FLAG)],
    "scalar": [(_DType, _RAW)],
    "_frombuffer": [(_RAW, _DType, tuple, str), (_RAW, _DType, tuple, str, tuple)],
    "_reconstruct": [(_Global, tuple, _RAW)],
    "encode": [(str, str)],
    "bytes": [()],
}
PickleMachine._constructors = {
    "dtype": PickleMachine._make_dtype,
    "scalar": PickleMachine._make_scalar,
    "_frombuffer": PickleMachine._make_array,
    "_reconstruct": PickleMachine._make_shell,
    "encode": PickleMachine._encode,
    "bytes": lambda machine: b"",
}


def _push(read: Callable[[PickleMachine], Any]) -> Callable[[PickleMachine], None]:
    return lambda machine: machine._stack.append(read(machine))


def _push_float(machine: PickleMachine) -> None:
    (number,) = _F8.unpack_from(machine._data, machine._at)
    machine._at += _F8.size
    machine._stack.append(number)


def _skip_frame(machine: PickleMachine) -> None:
    machine._unpack(_U8)  # the frame size is only needed for streaming


def _stack_global(machine: PickleMachine) -> None:
    name, module = machine._pop(), machine._pop()
    machine._global(module, name)


PickleMachine._operations = {
    ord(code): operation
    for code, operation in {
        "\x80": PickleMachine._protocol,
        "\x95": _skip_frame,
        "(": lambda m: m._marks.append(len(m._stack)),
        "N": _push(lambda m: None),
        "\x88": _push(lambda m: True),
        "\x89": _push(lambda m: False),
        "J": _push(lambda m: m._unpack(_I4)),
        "K": _push(lambda m: m._unpack(_U1)),
        "M": _push(lambda m: m._unpack(_U2)),
        "\x8a": PickleMachine._long,
        "G": _push_float,
        "\x8c": _push(lambda m: m._text(m._unpack(_U1))),
        "X": _push(lambda m: m._text(m._unpack(_U4))),
        "\x8d": _push(lambda m: m._text(m._unpack(_U8))),
        "C": _push(lambda m: m._span(m._unpack(_U1))),
        "B": _push(lambda m: m._span(m._unpack(_U4))),
        "\x8e": _push(lambda m: m._span(m._unpack(_U8))),
        "\x96": _push(lambda m: m._span(m._unpack(_U8))),
        ")": _push(lambda m: ()),
        "t": _push(lambda m: tuple(m._pop_to_mark())),
        "\x85": _push(lambda m: m._pop_many(1)),
        "\x86": _push(lambda m: m._pop_many(2)),
        "\x87": _push(lambda m: m._pop_many(3)),
        "]": _push(lambda m: []),
        "a": lambda m: m._append_items([m._pop()]),
        "e": lambda m: m._append_items(m._pop_to_mark()),
        "}": _push(lambda m: {}),
        "s": lambda m: m._set_items(list(m._pop_many(2))),
        "u": lambda m: m._set_items(m._pop_to_mark()),
        "\x94": lambda m: m._memoize(len(m._memo)),
        "q": lambda m: m._memoize(m._unpack(_U1)),
        "r": lambda m: m._memoize(m._unpack(_U4)),
        "h": lambda m: m._recall(m._unpack(_U1)),
        "j": lambda m: m._recall(m._unpack(_U4)),
        "c": lambda m: m._global(m._line(), m._line()),
        "\x93": _stack_global,
        "R": PickleMachine._reduce,
        "b": PickleMachine._build,
    }.items()
}
