"""The checker and its table of rules: each rule is a function of a `Checker` that raises `Failure` or `Skip`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runner.episodes.spaces import space_from_dict
from runner.rllink.check import sample_items
from runner.rllink.check.wire import Failure, Target, Wire, expect, short

if TYPE_CHECKING:
    from runner.rllink.check.sample_items import Space


def read_onnx(content: bytes) -> Any:
    """Read an ONNX model; raise `ValueError` if the content is not one."""
    import onnx  # not at the start, because it takes half a second
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise ValueError(f"not an ONNX model: {error}") from None
    if not model.HasField("graph"):
        raise ValueError("not an ONNX model: it does not contain a graph")
    return model


_EVERY_EXTENSION: Mapping[str, Mapping[str, Any]] = {
    "msgpack": {},
    "large_frames": {},
    "compression": {"methods": ["gzip"]},
    "session": {"id": None},
    "heartbeat": {"interval_s": 0.2},
    "agents": {},
    "actions": {},
    "weights": {"format": "safetensors"},
    "shared_memory": {},
}
_SPACES = ("observation_space", "action_space")
_FIRST_STATE_TIMEOUTS = 6  # the server may have to export the weights first
_MOST_REFUSALS = 5
_SILENCE_S = 0.2


class CannotCheck(Exception):
    """The server cannot be checked."""


class Skip(Exception):
    """A rule cannot be checked here; the message gives the reason."""


@dataclass(frozen=True)
class Rule:
    """One line of the report.

    Attributes:
        number: number in the specification, such as `F4`, or the name of an extension or error code.
        what: the rule in words.
        check: raises `Failure` or `Skip`.
        needs_episodes: whether it sends episodes from which the server would learn.
        extension: extension that must be granted, or None for the base protocol.
    """

    number: str
    what: str
    check: Callable[[Checker], None]
    needs_episodes: bool = False
    extension: str | None = None


Check = Callable[["Checker"], None]


class Rules(list[Rule]):
    """Rules in the order of their functions in the source."""

    def rule(
        self, number: str, what: str, *, needs_episodes: bool = False, extension: str | None = None
    ) -> Callable[[Check], Check]:
        """Decorate a function as the check of a rule; see `Rule` for the arguments."""

        def add(check: Check) -> Check:
            self.append(Rule(number, what, check, needs_episodes, extension))
            return check

        return add


@dataclass
class Checker:
    """Provides rules with connections, and with episodes that fit the server's spaces.

    Attributes:
        target: address of the server.
        config: the server's `SET_CONFIG`; empty if it sent none.
        granted: extensions that the server grants, with their options.
        limits: limits in the server's `PONG`.
        rng: draws the ids of episodes.
    """

    target: Target
    config: dict[str, Any] = field(default_factory=dict)
    granted: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _wires: list[Wire] = field(default_factory=list)

    @property
    def silence_s(self) -> float:
        """Return the seconds of silence after which no further answer is expected."""
        return min(_SILENCE_S, self.target.timeout_s / 10)

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self) -> Wire:
        """Open a connection without sending anything."""
        wire = Wire(self.target)
        self._wires.append(wire)
        return wire

    def open(self, **extensions: Mapping[str, Any]) -> Wire:
        """Open a connection with the token and these extensions, and with `agents` if the run has several."""
        if "agents" in self.granted:
            extensions = {**extensions, "agents": {}}
        wire = self.connect()
        if self.target.token is not None:
            wire.pong = wire.ask(self.ping())
        if extensions:
            wire.pong = wire.ask({"type": "PING", "protocol": 1, "extensions": extensions})
            wire.granted = dict(wire.pong.get("extensions", {}))
        missing = [name for name in extensions if name not in wire.granted]
        expect(not missing, f"the previously granted extensions {', '.join(extensions)}", wire.pong)
        return wire

    def ping(self, **more: Any) -> dict[str, Any]:
        """Return a PING with the token, if the server requires one, and further keys."""
        token = {} if self.target.token is None else {"token": self.target.token}
        return {"type": "PING", **more, **token}

    def close_all(self) -> str:
        """Close all connections and return the last message sent, for reports."""
        last = self._wires[-1].last_sent if self._wires else "nothing"
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        return last

    def meet(self) -> None:
        """Request the server's configuration, extensions and limits.

        Raises:
            CannotCheck: the server cannot be reached, or rejects this client.
        """
        where = f"{self.target.host}:{self.target.port}"
        try:
            self._knock(where)
            with suppress(Failure):  # the rules report it
                self._learn(where)
            import gymnasium  # noqa: F401  now, and not while a connection waits
        finally:
            self.close_all()

    def _knock(self, where: str) -> None:
        try:
            pong = self.connect().ask(self.ping())
        except OSError as error:
            raise CannotCheck(f"cannot connect to {where}: {error}") from None
        except Failure as failure:
            raise CannotCheck(f"{where} does not answer PING: {failure.got}; is it an RLlink server?") from None
        if pong.get("code") == "unauthorized":
            raise CannotCheck(f"{where} rejects the token: {pong.get('message')}")

    def _learn(self, where: str) -> None:
        wire = self.open()
        config = wire.ask({"type": "GET_CONFIG"})
        if config.get("code") == "unauthorized":
            raise CannotCheck(f"{where} requires a token: use --token TOKEN")
        pong = self.connect().ask(self.ping(protocol=1, extensions=_EVERY_EXTENSION))
        granted, limits = pong.get("extensions"), pong.get("limits")
        self.granted = granted if isinstance(granted, dict) else {}
        self.limits = limits if isinstance(limits, dict) else {}
        if config.get("code") == "not_granted":
            wire = self.open()
            config = wire.ask({"type": "GET_CONFIG"})
        self.config = config if config["type"] == "SET_CONFIG" else {}
        state = wire.ask({"type": "GET_STATE"}, _FIRST_STATE_TIMEOUTS * self.target.timeout_s)
        if state.get("code") == "not_exportable":
            raise CannotCheck(f"the policy of {where} cannot be exported to ONNX, which most rules need")

    # -- episodes ----------------------------------------------------------------------------------------------------

    @property
    def is_on_policy(self) -> bool:
        """Return whether the server accepts only the newest weights."""
        return bool(self.config.get("force_on_policy"))

    @property
    def agent(self) -> str | None:
        """Return the agent whose episodes are sent, or None with a single agent."""
        return next(iter(self.config.get("agents", {})), None)

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Return the observation and the action space of `agent`; raise `Skip` if they are malformed."""
        described = self.config if self.agent is None else self.config["agents"][self.agent]
        for name in _SPACES:
            mistake = sample_items.find_mistake(described.get(name), f"$.{name}")
            if mistake:
                raise Skip(f"the space is malformed: {mistake}")
        obs_space, action_space = (space_from_dict(described[name]) for name in _SPACES)
        obs_space.seed(0)
        action_space.seed(0)
        return obs_space, action_space

    def obs(self) -> Any:
        """Draw an observation."""
        return sample_items.draw_item(self.spaces[0])

    def action(self) -> Any:
        """Draw an action."""
        return sample_items.draw_item(self.spaces[1])

    def chunk(self, length: int = 2, *, is_done: bool = True, first: Any = None, **more: Any) -> dict[str, Any]:
        """Draw a chunk of an episode.

        Args:
            length: number of steps.
            is_done: whether the chunk ends as terminated.
            first: first observation, or None to draw one.
            more: further keys.
        """
        obs = [self.obs() for _ in range(length + 1)]
        if first is not None:
            obs[0] = first
        chunk = {
            "obs": obs,
            "actions": [self.action() for _ in range(length)],
            "rewards": [1.0] * length,
            "is_terminated": is_done,
            "is_truncated": False,
        }
        if self.agent is not None:
            chunk |= {"agent_id": self.agent, "id": f"check-{self.rng.getrandbits(40):x}"}
        return {**chunk, **more}

    def send_episodes(
        self, wire: Wire, chunks: Sequence[Mapping[str, Any]], *, msgpack: bool = False, **more: Any
    ) -> dict[str, Any]:
        """Send `EPISODES`, again if the weights were updated meanwhile; return the answer."""
        message = {"type": "EPISODES", "episodes": list(chunks), **more}
        return self.send_until_fresh(wire, message, msgpack=msgpack)

    def send_until_fresh(self, wire: Wire, message: dict[str, Any], msgpack: bool = False) -> dict[str, Any]:
        """Send a message with episodes, again if its weights have become outdated; return the answer."""
        for _ in range(_MOST_REFUSALS):
            answer = wire.ask(message, msgpack=msgpack)
            if answer.get("code") != "stale_weights":
                break
            wire.ask({"type": "GET_STATE"} | _next_number(message))
        return answer

    def accepted(self, wire: Wire, chunks: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """Send episodes that must be accepted; return the `ACK`."""
        answer = self.send_episodes(wire, chunks, **more)
        expect(answer["type"] == "ACK", "ACK", answer)
        return answer

    def newest(self, wire: Wire) -> int:
        """Request the number of the newest weights."""
        answer = wire.ask({"type": "GET_STATE"})
        expect(answer["type"] == "SET_STATE", "SET_STATE", answer)
        seq_no = answer.get("weights_seq_no")
        if not isinstance(seq_no, int):
            raise Failure("an integer weights_seq_no", short(answer))
        return seq_no

    def limit(self, name: str) -> float:
        """Return a limit of the server; raise `Skip` if the server does not report it."""
        value = self.limits.get(name)
        if not isinstance(value, (int, float)):
            raise Skip(f"the server does not report {name}")
        return value

    def time_limit(self, name: str) -> float:
        """Return a limit in seconds; raise `Skip` if the server does not report it, or reaching it takes too long."""
        seconds = self.limit(name)
        if seconds > self.target.timeout_s:
            raise Skip(f"takes {seconds:g} s; use --timeout {seconds + 1:g} to check it")
        return seconds


def _next_number(message: dict[str, Any]) -> dict[str, Any]:
    """Give the number of the rejected message to the request in between, and the next number to the message."""
    if "request" not in message:
        return {}
    message["request"] += 1
    return {"request": message["request"] - 1}


def expect_error(answer: Mapping[str, Any], code: str, path: str | None = None) -> None:
    """Expect an `ERROR` with this code and, if given, a path that starts with `path`."""
    wanted = f"ERROR {code}" + (f" with the path {path}" if path else "")
    expect(answer["type"] == "ERROR" and answer.get("code") == code, wanted, answer)
    expect(set(answer) <= {"type", "code", "message", "path", "request"}, f"{wanted}, no other keys", answer)
    expect(isinstance(answer.get("message"), str), f"{wanted}, with a message", answer)
    if path is not None:
        expect(str(answer.get("path")).startswith(path), wanted, answer)


def expect_pong(wire: Wire) -> None:
    """Expect that the connection still answers PING."""
    answer = wire.ask({"type": "PING"})
    expect(answer == {"type": "PONG"}, "PONG on the same connection", answer)
