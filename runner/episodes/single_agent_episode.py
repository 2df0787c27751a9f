"""One agent's trajectory, from a reset (or a cut) on: the central data structure of the library."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from runner.episodes.lookback_buffer import Indices, InfoBuffer, LookbackBuffer
from runner.episodes.nested import (
    check_columns,
    equal,
    map_leaves,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space

Slice = slice  # the class has a method of this name


class SingleAgentEpisode:
    """An episode, or a chunk of one, of T = `len(episode)` steps with H lookback rows from before it.

    | field                      | rows      | row i holds                                             |
    |----------------------------|-----------|---------------------------------------------------------|
    | `observations`, `infos`    | H + T + 1 | observation before step i (row T: after the last step)  |
    | `actions`, `rewards`       | H + T     | step i's action, and the reward it brought              |
    | `extra_model_outputs[key]` | H + T     | outputs that the module computed with action i          |

    Data start as lists of items (list mode); `to_numpy()` turns all but `infos` into arrays with a row axis, nested
    like the items. `t_started` is the global timestep of row 0, `t` the newest observation's.
    """

    __slots__ = (
        "_custom_data",
        "_infos",
        "_last_step_time",
        "_start_time",
        "action_space",
        "actions",
        "agent_id",
        "extra_model_outputs",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "observation_space",
        "observations",
        "rewards",
        "t",
        "t_started",
    )

    def __init__(  # noqa: PLR0913 - the signature of the specification
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: Space[Any] | None = None,
        infos: list[Any] | InfoBuffer | None = None,
        actions: Any = None,
        action_space: Space[Any] | None = None,
        rewards: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: str | int | None = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        """Make an empty episode, or one around given data: lists of items, columns, or `LookbackBuffer`s.

        `len_lookback_buffer` is the number of given steps that are lookback (at most all of them). "auto" means all of
        them, so that the episode's length is 0. `id_` defaults to a new UUID's hex digits, `t_started` to 0. If any
        field is given as arrays, all become arrays. Raises `ValueError` if the fields' lengths do not fit together.
        """
        lookback = _lookback_of(rewards, len_lookback_buffer)
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_id, self.module_id, self.multi_agent_episode_id = (
            agent_id,
            module_id,
            multi_agent_episode_id,
        )
        self.observation_space, self.action_space = observation_space, action_space
        self.observations = _as_buffer(observations, lookback, observation_space)
        self.actions = _as_buffer(actions, lookback, action_space)
        self.rewards = _as_buffer(rewards, lookback, None)
        extra = extra_model_outputs or {}
        self.extra_model_outputs = {key: _as_buffer(data, lookback, None) for key, data in extra.items()}
        self._infos = _as_info_buffer(infos, lookback)
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.t_started = 0 if t_started is None else t_started
        self.t = self.t_started + len(self.rewards)
        self._custom_data: dict[Any, Any] | None = None
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        if any(buffer.finalized for buffer in self._buffers()):
            self.to_numpy()
        self.validate()

    @classmethod
    def from_columns(  # noqa: PLR0913 - one for each field of an episode
        cls,
        *,
        id_: str | None,
        observations: Any,
        actions: Any,
        rewards: Any,
        extra_model_outputs: dict[str, Any] | None,
        infos: list[Any] | None = None,
        terminated: bool,
        truncated: bool,
        t_started: int,
        len_lookback_buffer: int = 0,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        agent_id: str | int | None = None,
        module_id: str | None = None,
        custom_data: dict[Any, Any] | None = None,
    ) -> SingleAgentEpisode:
        """Return a finalized (numpy) episode around the given arrays: views, not copies; setters write into them.

        `observations` (and `infos`) have H + T + 1 rows, all others H + T with H = `len_lookback_buffer`. `infos`
        default to empty dicts. Made for slices of column blocks: only the rows of flat observations and actions are
        checked (`ValueError`); `validate()` checks everything.
        """
        rows = len(rewards)
        if type(observations) is np.ndarray and len(observations) != rows + 1 and (rows or len(observations)):
            raise ValueError(f"observations need {rows + 1} rows for {rows} rewards, got {len(observations)}")
        if type(actions) is np.ndarray and len(actions) != rows:
            raise ValueError(f"actions need {rows} rows for {rows} rewards, got {len(actions)}")
        if not 0 <= len_lookback_buffer <= rows:
            raise ValueError(
                f"len_lookback_buffer must be 0 to {rows}, the number of rewards, got {len_lookback_buffer}"
            )
        self = cls.__new__(cls)
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, None
        self.observation_space, self.action_space = observation_space, action_space
        self.observations = LookbackBuffer(observations, len_lookback_buffer, observation_space)
        self.actions = LookbackBuffer(actions, len_lookback_buffer, action_space)
        self.rewards = LookbackBuffer(rewards, len_lookback_buffer)
        self.extra_model_outputs = {}
        if extra_model_outputs:
            for key, column in extra_model_outputs.items():
                self.extra_model_outputs[key] = LookbackBuffer(column, len_lookback_buffer)
        self._infos = None if infos is None else InfoBuffer(infos, len_lookback_buffer)
        self.is_terminated, self.is_truncated = terminated, truncated
        self.t_started = t_started
        self.t = t_started + rows - len_lookback_buffer
        self._custom_data = custom_data
        self._start_time = self._last_step_time = None
        return self

    def join_lookback(self, past: Mapping[str, Any]) -> None:
        """Put the H steps before this chunk in front of its rows, as lookback; their infos are empty.

        Setters write into these arrays and into the chunk's. Arrays that getters return are copies from now on and
        therefore read-only, see `LookbackBuffer.join`.

        Args:
            past: `obs`, `actions`, `rewards` and every extra output as arrays (H, ...), nested like the rows.
        """
        for name, buffer in (("obs", self.observations), ("actions", self.actions), ("rewards", self.rewards)):
            buffer.join(past[name])
        for name, buffer in self.extra_model_outputs.items():
            buffer.join(past[name])
        if self._infos is not None:
            num_past = self.rewards.lookback
            self._infos = InfoBuffer([*({} for _ in range(num_past)), *self._infos.data], num_past)

    # --- collecting -------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: Any = None) -> None:
        """Add the reset observation and its infos; `ValueError` if the episode already has observations."""
        if self.is_reset:
            raise ValueError(f"add_env_reset: episode {self.id_} is already reset (t={self.t}); make a new episode")
        self.infos.append({} if infos is None else infos)
        self.observations.append(observation)
        self._start_time = self._last_step_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: Any = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
    ) -> None:
        """Add one step: the action with extra outputs, its reward, and the observation after it.

        Raises `ValueError`, with nothing added, before a reset, after the end, if the keys of
        `extra_model_outputs` differ from earlier steps, or (numpy mode) if an item's shape differs.
        """
        if self.is_terminated or self.is_truncated:
            raise ValueError(f"add_env_step: episode {self.id_} is done (t={self.t}); make a new episode")
        observations = self.observations.data
        in_lists = isinstance(observations, list)
        if not (observations if in_lists else self.is_reset):
            raise ValueError(
                f"add_env_step: episode {self.id_} does not have an observation; call add_env_reset() first"
            )
        extra = extra_model_outputs or {}
        if extra.keys() != self.extra_model_outputs.keys():
            self._adopt_extra_keys(extra)
        known_infos = self.infos if self._infos is None else self._infos
        if not in_lists:
            self._append_rows(observation, action, reward, extra)
        else:
            observations.append(observation)
            self.actions.data.append(action)
            self.rewards.data.append(reward)
            for key, output in extra.items():
                self.extra_model_outputs[key].data.append(output)
        known_infos.data.append({} if infos is None else infos)
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.t += 1
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def _adopt_extra_keys(self, extra: dict[str, Any]) -> None:
        if self.rewards.len_incl_lookback() > 0:
            raise ValueError(
                "add_env_step: the keys of extra_model_outputs are fixed by an episode's first step; "
                f"at t={self.t} new: {sorted(extra.keys() - self.extra_model_outputs.keys())}, "
                f"missing: {sorted(self.extra_model_outputs.keys() - extra.keys())}"
            )
        kept = self.extra_model_outputs
        self.extra_model_outputs = {key: kept[key] if key in kept else LookbackBuffer() for key in extra}
        if self.is_numpy:
            for buffer in self.extra_model_outputs.values():
                buffer.finalize()

    def _append_rows(self, observation: Any, action: Any, reward: Any, extra: dict[str, Any]) -> None:
        items = [observation, action, reward, *[extra[key] for key in self.extra_model_outputs]]
        buffers = self._buffers()
        if all(map(LookbackBuffer.has_room_for, buffers, items)):
            for buffer, item in zip(buffers, items, strict=True):
                buffer.append_fitting(item)
            return
        rows = []
        for (name, buffer), item in zip(self._columns(), items, strict=True):
            try:
                rows.append((buffer, buffer.as_row(item)))
            except (TypeError, ValueError) as error:
                raise type(error)(f"add_env_step: {name}: {error}") from None
        for buffer, row in rows:
            buffer.append_rows(row)

    # --- conversion and chunks --------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `ValueError` naming the field whose row count, lookback or mode does not fit the others."""
        expected = self.rewards.len_incl_lookback()
        has_observations = self.observations.len_incl_lookback() > 0
        if (expected > 0 or self.is_done) and not has_observations:
            raise ValueError(f"episode {self.id_}: {expected} rewards (done: {self.is_done}) but no observations")
        for name, buffer in [*self._columns(), *([] if self._infos is None else [("infos", self._infos)])]:
            rows = expected + (name in ("observations", "infos") and has_observations)
            if buffer.len_incl_lookback() != rows:
                got = buffer.len_incl_lookback()
                raise ValueError(f"episode {self.id_}: {name} need {rows} rows for {expected} rewards, got {got}")
            if buffer.lookback != self.rewards.lookback:
                got, lookback = buffer.lookback, self.rewards.lookback
                raise ValueError(f"episode {self.id_}: {name} have {got} lookback rows, rewards have {lookback}")
            if name != "infos" and buffer.finalized != self.is_numpy:
                raise ValueError(f"episode {self.id_}: {name} and observations differ in mode (list, numpy)")
        steps = self.t - self.t_started
        if steps != len(self.rewards):
            got = len(self.rewards)
            raise ValueError(f"episode {self.id_}: t - t_started is {steps}, but rewards have {got}")

    def to_numpy(self) -> SingleAgentEpisode:
        """Turn every field but `infos` into columns, in place, and return the episode itself.

        Raises `ValueError` or `TypeError`, with nothing changed, if a field's items cannot be stacked.
        """
        columns = []
        for name, buffer in self._columns():
            try:
                columns.append((buffer, buffer.to_columns()))
            except (TypeError, ValueError) as error:
                raise type(error)(f"to_numpy: {name} of episode {self.id_}: {error}") from None
        for buffer, data in columns:
            buffer.data = data
        return self

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append `other`, the chunk that follows this one, without its lookback and its first observation.

        Raises `ValueError` if `other` has another `id_`, does not start at `self.t` with this chunk's last
        observation, or has other extra outputs, or if this chunk is done.
        """
        self._check_successor(other)
        infos = None if self._infos is None and other._infos is None else self.infos
        if len(other) > 0:
            if self.rewards.len_incl_lookback() == 0:
                self._adopt_extra_keys(other.extra_model_outputs)
            self._append_chunk(other)
        if infos is not None:
            infos.data[-1:] = other.infos._get(None)
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        if other._last_step_time is not None:
            self._last_step_time = other._last_step_time
        if other._custom_data:
            self.custom_data.update(other._custom_data)

    def _append_chunk(self, other: SingleAgentEpisode) -> None:
        rows, are_columns = self.rewards.len_incl_lookback(), self.is_numpy and other.is_numpy
        theirs = [other.observations, other.actions, other.rewards]
        theirs += [other.extra_model_outputs[key] for key in self.extra_model_outputs]
        for place, (buffer, their_buffer) in enumerate(zip(self._buffers(), theirs, strict=True)):
            try:
                added = take(their_buffer.data, Slice(their_buffer.lookback + (place == 0), None))
                if are_columns:
                    buffer.append_rows(added)
                else:
                    buffer.concat(LookbackBuffer(added))
            except (TypeError, ValueError) as error:
                for done in self._buffers():
                    done.truncate(rows + (done is self.observations))
                raise type(error)(f"concat_episode: {self._columns()[place][0]}: {error}") from None

    def _check_successor(self, other: SingleAgentEpisode) -> None:
        problem = None
        if other.id_ != self.id_:
            problem = f"its id_ is {other.id_}, expected {self.id_}"
        elif self.is_done:
            problem = f"episode {self.id_} is done (t={self.t})"
        elif other.t_started != self.t:
            problem = f"it starts at t={other.t_started}, expected t={self.t}"
        elif not self.is_reset or not other.is_reset:
            problem = "both chunks need an observation"
        elif not equal(self.observations._get(-1), other.observations._get(0)):
            problem = "its first observation is not the last one of this chunk"
        elif self._extra_keys_differ(other):
            keys, expected = sorted(other.extra_model_outputs), sorted(self.extra_model_outputs)
            problem = f"its extra_model_outputs are {keys}, expected {expected}"
        if problem is not None:
            raise ValueError(f"concat_episode: cannot append the chunk: {problem}")

    def _extra_keys_differ(self, other: SingleAgentEpisode) -> bool:
        if self.rewards.len_incl_lookback() == 0 or len(other) == 0:
            return False
        return other.extra_model_outputs.keys() != self.extra_model_outputs.keys()

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Return the chunk that continues this episode: length 0, starting at `t` with the last observation.

        It has copies of up to `len_lookback_buffer` of the last rows as lookback, and the same ids, mode and custom
        data. Raises `ValueError` if the episode is done.
        """
        if self.is_done:
            raise ValueError(f"cut: episode {self.id_} is done (t={self.t}); there is nothing to continue")
        end = self.rewards.len_incl_lookback()
        lookback = min(checked_lookback(len_lookback_buffer), end)
        chunk = self._chunk(end - lookback, end, lookback)
        if self.is_numpy:
            for buffer in chunk._buffers():
                flat = type(buffer.data) is np.ndarray
                buffer.data = buffer.data.copy() if flat else map_leaves(np.array, buffer.data)
        chunk.t_started = chunk.t = self.t
        chunk._start_time = chunk._last_step_time = self._last_step_time
        return chunk

    def slice(self, slice_: Slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Return the steps from `slice_.start` up to `slice_.stop` as an episode, with the observation after them.

        Negative values count from the end; the range is clipped to the steps 0 to T. The lookback has up to
        `len_lookback_buffer` rows (default: the same as this episode's). Done flags are kept only if the slice reaches
        the last step. Numpy mode: views, not copies. Raises `ValueError` for a step other than 1.
        """
        start, stop = slice_bounds(slice_, len(self))
        known = self.rewards.lookback
        lookback = min(known if len_lookback_buffer is None else checked_lookback(len_lookback_buffer), known + start)
        chunk = self._chunk(known + start - lookback, known + stop, lookback)
        chunk.t_started, chunk.t = self.t_started + start, self.t_started + stop
        if stop == len(self):
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        return chunk

    def _chunk(self, first: int, last: int, lookback: int) -> SingleAgentEpisode:
        """Return an unfinished episode with the rows `first` to `last` of the data (counted with the lookback)."""

        steps, extra = Slice(first, last), self.extra_model_outputs
        chunk = SingleAgentEpisode.from_columns(
            id_=self.id_,
            observations=take(self.observations.data, Slice(first, last + 1)),
            actions=take(self.actions.data, steps),
            rewards=take(self.rewards.data, steps),
            extra_model_outputs={key: take(buffer.data, steps) for key, buffer in extra.items()},
            infos=None if self._infos is None else self._infos.data[first : last + 1],
            terminated=False,
            truncated=False,
            t_started=0,
            len_lookback_buffer=lookback,
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_id=self.agent_id,
            module_id=self.module_id,
            custom_data=None if self._custom_data is None else dict(self._custom_data),
        )
        chunk.multi_agent_episode_id = self.multi_agent_episode_id
        return chunk

    def __getitem__(self, item: Slice) -> SingleAgentEpisode:
        """Return `episode[a:b]`, `episode.slice(slice(a, b))`; `TypeError` for an int."""
        if not isinstance(item, slice):
            raise TypeError(f"an episode is indexed with a slice such as episode[3:4], got {item!r}")
        return self.slice(item)

    def __len__(self) -> int:
        return self.t - self.t_started

    def __repr__(self) -> str:
        done = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        return f"SingleAgentEpisode(id_={self.id_!r}, len={len(self)}, t={self.t_started}..{self.t}, {done})"

    # --- reading (see LookbackBuffer.get for indices, fill and errors) ----------------------------

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return the observation at an index, several for a list or slice, or all T + 1 for None."""
        return self.observations._get(indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return the action at an index, several for a list or slice, or all T for None."""
        return self.actions._get(indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Return the reward at an index, several for a list or slice, or all T for None."""
        return self.rewards._get(indices, neg_index_as_lookback, fill)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Return the info at an index, a list of infos for a list or slice, or all T + 1 for None.

        A `fill` is used unchanged.
        """
        return self.infos._get(indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str | None = None, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Return the output named `key` at an index, several for a list or slice, or all T for None. Raises
        `ValueError` for an unknown key.

        Without a key, return a dict of all outputs by key, each for these indices.
        """
        if key is not None:
            return self._extra(key)._get(indices, neg_index_as_lookback, fill)
        return {
            name: buffer._get(indices, neg_index_as_lookback, fill) for name, buffer in self.extra_model_outputs.items()
        }

    def get_return(self) -> float:
        """Return the undiscounted sum of the T rewards (float64)."""
        rewards = self.rewards._get(None)
        if isinstance(rewards, list) and rewards and type(rewards[0]) is float:
            total = sum(rewards)
            if type(total) is float:  # otherwise there are numpy numbers among them, perhaps of a smaller dtype
                return total
        return float(np.add.reduce(rewards, axis=None, dtype=np.float64))

    def get_duration_s(self) -> float:
        """Return wall time from the reset (or the cut) to the last step, in seconds; 0 for episodes made from data."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def env_steps(self) -> int:
        """Return T."""
        return len(self)

    def agent_steps(self) -> int:
        """Return T, because there is a single agent."""
        return len(self)

    # --- writing (see LookbackBuffer.set; the number of rows never changes) -----------------------

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace the observation at an index, several observations, or all T + 1."""
        self.observations.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replace the action at an index, several actions, or all T."""
        self.actions.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replace the reward at an index, several rewards, or all T."""
        self.rewards.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace outputs named `key`, which must exist; to add one, set `extra_model_outputs[key]`."""
        self._extra(key).set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    # --- properties -------------------------------------------------------------------------------

    @property
    def infos(self) -> InfoBuffer:
        """The infos; empty dicts are made on first use if none were given."""
        if self._infos is None:
            count = self.observations.len_incl_lookback()
            self._infos = InfoBuffer([{} for _ in range(count)], self.rewards.lookback)
        return self._infos

    @property
    def custom_data(self) -> dict[Any, Any]:
        """A dict for values that callbacks and connectors remember; chunks and slices get a shallow copy."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    @property
    def is_reset(self) -> bool:
        """Whether there is a (reset) observation to act on."""
        return self.observations.len_incl_lookback() > 0

    @property
    def is_numpy(self) -> bool:
        """Whether the data are arrays, not lists."""
        return not isinstance(self.observations.data, list)

    @property
    def is_done(self) -> bool:
        """Whether the episode is terminated or truncated."""
        return self.is_terminated or self.is_truncated

    def _buffers(self) -> list[LookbackBuffer]:
        """Return every field that becomes an array, in the order of `_columns`."""
        return [self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()]

    def _columns(self) -> list[tuple[str, LookbackBuffer]]:
        """Return every field that becomes an array, by its name."""
        main = [("observations", self.observations), ("actions", self.actions), ("rewards", self.rewards)]
        return main + [(f"extra_model_outputs[{key!r}]", b) for key, b in self.extra_model_outputs.items()]

    def _extra(self, key: str) -> LookbackBuffer:
        if key not in self.extra_model_outputs:
            known = sorted(self.extra_model_outputs)
            raise ValueError(f"episode {self.id_} does not have extra_model_outputs named {key!r}; known: {known}")
        return self.extra_model_outputs[key]


# --- arguments ------------------------------------------------------------------------------------


def slice_bounds(slice_: Slice, length: int) -> tuple[int, int]:
    """Return start and end of a slice, clipped to `length`; raises `ValueError` for a step other than 1."""
    if slice_.step not in (None, 1):
        raise ValueError(f"slice: an episode can only be sliced with step 1, got {slice_.step}")
    start, stop, _ = slice_.indices(length)
    return start, max(start, stop)


def checked_lookback(length: Any) -> int:
    """Return a `len_lookback_buffer`; raises `ValueError` unless it is a non-negative int."""
    if not isinstance(length, int) or length < 0:
        raise ValueError(f"len_lookback_buffer must be a non-negative int, got {length!r}")
    return length


def _lookback_of(rewards: Any, length: int | Literal["auto"]) -> int:
    if isinstance(rewards, LookbackBuffer):
        return rewards.lookback
    given = 0 if rewards is None else LookbackBuffer(rewards).len_incl_lookback()
    return given if length == "auto" else min(checked_lookback(length), given)


def _as_buffer(data: Any, lookback: int, space: Space[Any] | None) -> LookbackBuffer:
    if isinstance(data, LookbackBuffer):
        return data
    if data is None or isinstance(data, list):
        return LookbackBuffer(list(data or ()), lookback, space)
    check_columns(data)
    return LookbackBuffer(data, lookback, space)


def _as_info_buffer(infos: Any, lookback: int) -> InfoBuffer | None:
    if infos is None or isinstance(infos, InfoBuffer):
        return infos
    if not isinstance(infos, list):
        raise TypeError(f"infos must be a list, one per observation, got {type(infos).__name__}")
    return InfoBuffer(list(infos), lookback)
