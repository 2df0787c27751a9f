"""The messages of clients as typed structures, with the observations and actions of agents in them.

Specification: docs/reference/rllink.md. An invalid body becomes a `MessageError` with the path of the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import gymnasium as gym
import msgspec
import numpy as np
from msgspec import UNSET as UNSET
from msgspec import Meta, Raw, Struct, UnsetType

from runner.config.errors import nearest_match
from runner.env_runners.observation_checks import ObservationChecks
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import replace_leaf_spaces
from runner.rllink.arrays import Block, SpaceCodec

PROTOCOL_VERSION = 1
Format = Literal["json", "msgpack"]
Answer = dict[str, Any]
AgentKey = tuple[str | None, str]  # agent (None with a single agent) and id of a client's episode


class NamedChunk(NamedTuple):
    """A chunk of a message without its steps; `is_env_done` is true if its env episode ends with it."""

    agent_id: str | None
    id: str
    is_env_done: bool = False

    @property
    def key(self) -> AgentKey:
        """Return the key of its episode in the client."""
        return self.agent_id, self.id


JSON: Final = "json"
MSGPACK: Final = "msgpack"

# The largest integer that all JSON parsers read exactly. Time steps up to here cannot overflow 64 bits in sums.
_LARGEST_COUNT = 2**53
_Count = Annotated[int, Meta(ge=0, le=_LARGEST_COUNT)]
_Positive = Annotated[int, Meta(ge=1)]
_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class MessageError(ValueError):
    """An invalid request, which is answered with `ERROR`.

    Args:
        code: error code of the specification.
        message: text for users.
        path: location of the mistake in the body, such as `$.episodes[0].obs`.
    """

    def __init__(self, code: str, message: str, path: str | None = None) -> None:
        self.code, self.path = code, path
        super().__init__(message)

    def answer(self) -> dict[str, Any]:
        """Make the body of the answer."""
        body = {"type": "ERROR", "code": self.code, "message": str(self)}
        return body if self.path is None else {**body, "path": self.path}


class _Request(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """A request.

    Attributes:
        request: number of the request in its session.
    """

    request: _Count | UnsetType = UNSET


class Ping(_Request, tag="PING"):
    """The handshake."""

    protocol: _Positive | UnsetType = UNSET
    extensions: dict[str, dict[str, Any]] | UnsetType = UNSET
    token: str | UnsetType = UNSET


class GetConfig(_Request, tag="GET_CONFIG"):
    """Requests the spaces and the sampling options."""


class GetState(_Request, tag="GET_STATE"):
    """Requests the newest weights."""


class Episode(Struct, forbid_unknown_fields=True, kw_only=True):
    """One chunk of an episode; `obs` (T + 1) and `actions` (T) are decoded when the agent's spaces are known."""

    obs: Raw
    actions: Raw
    rewards: list[float] | Block
    is_terminated: bool
    is_truncated: bool
    id: _Name | UnsetType = UNSET
    t_started: _Count | UnsetType = UNSET
    weights_seq_no: _Integer | UnsetType = UNSET
    action_logp: list[float] | Block | UnsetType = UNSET
    action_dist_inputs: list[list[float]] | Block | UnsetType = UNSET
    agent_id: _Name | UnsetType = UNSET
    task: _Name | UnsetType = UNSET
    env_t: list[int] | Block | UnsetType = UNSET
    is_env_done: bool = False


class Columns(Struct, forbid_unknown_fields=True, kw_only=True):
    """Many chunks, as one array block per column (extension `msgpack`)."""

    lengths: list[int] | Block
    obs: Raw
    actions: Raw
    rewards: list[float] | Block
    is_terminated: list[bool] | Block
    is_truncated: list[bool] | Block
    ids: list[_Name] | UnsetType = UNSET
    action_logp: list[float] | Block | UnsetType = UNSET
    action_dist_inputs: list[list[float]] | Block | UnsetType = UNSET


class Episodes(_Request, tag="EPISODES"):
    """Sampled data; exactly one of `episodes` and `columns`."""

    episodes: list[Episode] | UnsetType = UNSET
    columns: Columns | UnsetType = UNSET
    weights_seq_no: _Integer | UnsetType = UNSET
    env_steps: _Count | UnsetType = UNSET

    @property
    def num_env_steps(self) -> int:
        """Return the client's count of env steps; by default, the steps of the longest agent of each id."""
        if self.env_steps is not UNSET:
            return self.env_steps
        if self.columns is not UNSET:
            return len(self.columns.rewards)
        by_id: dict[Any, dict[Any, int]] = {}
        for number, chunk in enumerate([] if self.episodes is UNSET else self.episodes):
            by_agent = by_id.setdefault(number if chunk.id is UNSET else chunk.id, {})
            by_agent[chunk.agent_id] = by_agent.get(chunk.agent_id, 0) + len(chunk.rewards)
        return sum(max(by_agent.values()) for by_agent in by_id.values())


class EpisodesAndGetState(Episodes, tag="EPISODES_AND_GET_STATE"):
    """Sampled data and a request for newer weights."""


class NewObservation(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new observation of an episode in which the server chooses the actions."""

    id: _Name
    obs: Raw
    reward: float = 0.0
    is_terminated: bool = False
    is_truncated: bool = False
    is_env_done: bool = False
    agent_id: _Name | UnsetType = UNSET
    task: _Name | UnsetType = UNSET

    @property
    def key(self) -> AgentKey:
        """Return the key of the episode in the client."""
        return (None if self.agent_id is UNSET else self.agent_id), self.id

    @property
    def ends(self) -> bool:
        """Return whether the episode ends with this observation."""
        return self.is_terminated or self.is_truncated


class GetActionsRequest(_Request, tag="GET_ACTIONS"):
    """Requests one action per episode (extension `actions`)."""

    episodes: Annotated[list[NewObservation], Meta(min_length=1)]
    explore: bool = True


Request = Ping | GetConfig | GetState | Episodes | EpisodesAndGetState | GetActionsRequest
_REQUESTS: dict[str, type[Struct]] = {str(one.__struct_config__.tag): one for one in get_args(Request)}


class _Typed(Struct):
    """Any message."""

    type: str


_DECODERS: Mapping[str, Any] = {
    JSON: (msgspec.json.Decoder(Request), msgspec.json.Decoder(_Typed)),
    MSGPACK: (msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(_Typed)),
}
_ENCODERS = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


_NO_BODY = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def format_of(body: bytes) -> Format:
    """Return the format of a body; unknown formats count as JSON, whose decoder reports the mistake."""
    first = body[0] if body else 0
    return MSGPACK if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF) else JSON


def decode_request(body: bytes, body_format: Format) -> Request:
    """Decode the request in a body.

    Raises:
        MessageError: `bad_body`, `unknown_type` or `bad_message`.
    """
    decoder, type_decoder = _DECODERS[body_format]
    try:
        request: Request = decoder.decode(body)
    except msgspec.ValidationError as error:
        try:
            raise _invalid(error, body, type_decoder) from None
        except _NO_BODY as no_body:  # the body is broken after the wrong value
            raise _not_valid(no_body, body_format) from None
    except _NO_BODY as error:
        raise _not_valid(error, body_format) from None
    return request


def _not_valid(error: Exception, body_format: Format) -> MessageError:
    name = {JSON: "JSON", MSGPACK: "MessagePack"}[body_format]
    return MessageError("bad_body", f"the body is not valid {name}: {error}")


def _invalid(error: msgspec.ValidationError, body: bytes, type_decoder: Any) -> MessageError:
    try:
        named = type_decoder.decode(body).type
    except msgspec.ValidationError as no_type:
        is_object = "Expected `object`" not in str(no_type) or "$" in str(no_type)
        return describe(no_type, "bad_message" if is_object else "bad_body")
    if named in _REQUESTS:
        return describe(error)
    nearest = nearest_match(named, _REQUESTS)
    hint = f"; did you mean {nearest}?" if nearest else ""
    known = ", ".join(_REQUESTS)
    return MessageError("unknown_type", f"unknown request type {named!r:.80}{hint}; expected one of {known}", "$.type")


_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`$")


def describe(error: Exception, code: str = "bad_message", root: str = "$") -> MessageError:
    """Turn an error of msgspec into a `MessageError`.

    Args:
        error: an error of a decoder.
        code: error code of the answer.
        root: path of the decoded value.
    """
    text, _, place = str(error).partition(" - at `")
    path = root + place.rstrip("`").removeprefix("$")
    field = _FIELD.match(text)
    if field:
        path += f".{field[1]}"
    return MessageError(code, text, path)


def encode_answer(answer: Mapping[str, Any], body_format: Format) -> bytes:
    """Encode the body of an answer; in JSON, bytes become Base64."""
    return _ENCODERS[body_format](answer)


_WIDTHS = 10.0


@dataclass(frozen=True)
class AgentSpaces:
    """An agent of the run, as needed to decode messages.

    Attributes:
        module_id: the module that acts for it.
        obs, actions: decode its observations and actions.
        num_dist_inputs: width of `action_dist_inputs`.
        to_module: converts actions (R, ...) of the environment to actions of the module.
        bounds: finds invalid observations; None allows observations outside of a Box.
        action_bounds: finds invalid actions; None allows actions outside of a Box.
    """

    module_id: str
    obs: SpaceCodec
    actions: SpaceCodec
    num_dist_inputs: int
    to_module: Callable[[Column], Column]
    bounds: ObservationChecks | None = None
    action_bounds: ObservationChecks | None = None

    def read_obs(self, decode: Callable[[], Column], path: str) -> Column:
        """Decode observations (K, ...); raise `MessageError` if one is invalid."""
        obs = read(path, decode)
        _check(self.bounds, obs, "an observation", path)
        return obs

    def read_one_obs(self, raw: Any, body_format: str, path: str) -> Any:
        """Decode one observation as arrays without a leading axis; raise `MessageError` if it is invalid."""
        obs = read(path, self.obs.item, raw, body_format)
        if self.bounds is not None:
            _check(self.bounds, nested.map_leaves(lambda leaf: leaf[None], obs), "an observation", path)
        return obs

    def read_actions(self, decode: Callable[[], Column], path: str) -> Column:
        """Decode actions (R, ...) and convert them to module actions; raise `MessageError` if one is invalid."""
        actions = read(path, decode)
        _check(self.action_bounds, actions, "an action", path)
        return read(path, self.to_module, actions)


def _check(bounds: ObservationChecks | None, items: Column, what: str, path: str) -> None:
    misfit = None if bounds is None else bounds.find_misfit(items)
    if misfit is not None:
        problem = misfit.problem
        got = str(problem.got).replace("obs", "action" if what == "an action" else "obs", 1)
        text = f"{what} is outside of its space: {got}, expected {problem.expected} (item {misfit.row})"
        raise MessageError("bad_message", text, path)


def widened(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an action space that also contains unclipped samples, which clients send (specification, E3).

    A Box of floats with bounds is extended by ten times its width on each side.
    """
    return replace_leaf_spaces(_widened_leaf, space)


def _widened_leaf(space: gym.Space[Any]) -> gym.Space[Any]:
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    largest = np.finfo(space.dtype).max
    low, high = (np.clip(bound.astype(np.float64), -largest, largest) for bound in (space.low, space.high))
    margin = _WIDTHS * (high - low)
    low, high = (np.clip(bound, -largest, largest).astype(space.dtype) for bound in (low - margin, high + margin))
    return gym.spaces.Box(low, high, dtype=space.dtype.type)


def read(path: str, decode: Callable[..., Any], *arguments: Any) -> Any:
    """Return `decode(*arguments)`; raise its errors as a `MessageError` with the path of the invalid value."""
    try:
        return decode(*arguments)
    except msgspec.DecodeError as error:
        raise describe(error, root=path) from None
    except (ValueError, OverflowError, TypeError) as error:
        raise MessageError("bad_message", str(error), path) from None
