"""SingleAgentEpisode: the documented examples, cutting, slicing and joining, states, and every refusal."""

import pickle
import time

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import LookbackBuffer, SingleAgentEpisode
from runner.episodes.lookback_buffer import InfoBuffer

MODES = ["list", "numpy"]
IDS = {"agent_id": "a", "module_id": "m", "multi_agent_episode_id": "ma"}


def make_episode(mode="list", steps=5, lookback=0, t_started=0, **kwargs):
    """Row i (counted from the first lookback row) holds observation i, action 10 + i, reward 0.5 + i."""
    rows = steps + lookback
    defaults = {
        "id_": "e",
        "observations": [np.array([i, -i], np.float32) for i in range(rows + 1)],
        "actions": [10 + i for i in range(rows)],
        "rewards": [0.5 + i for i in range(rows)],
        "infos": [{"i": i} for i in range(rows + 1)],
        "extra_model_outputs": {
            "logp": [-float(i) for i in range(rows)],
            "v": [(i, {"x": i}) for i in range(rows)],
        },
        "t_started": t_started,
        "len_lookback_buffer": lookback,
    }
    episode = SingleAgentEpisode(**{**defaults, **IDS, **kwargs})
    return episode.to_numpy() if mode == "numpy" else episode


def add_step(episode, i, **kwargs):
    episode.add_env_step(
        np.array([i + 1, -i - 1], np.float32),
        10 + i,
        0.5 + i,
        {"i": i + 1},
        extra_model_outputs={"logp": -float(i), "v": (i, {"x": i})},
        **kwargs,
    )


def plain(value):
    """Nested plain values of dicts, lists, arrays and numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def buffer_contents(buffer):
    """The lookback of a buffer, and all its items."""
    return buffer.lookback, plain(list(LookbackBuffer(buffer.get(slice(-buffer.len_incl_lookback(), None)))))


def contents(episode):
    """All that an episode is, comparable with ==, whatever its mode."""
    return {
        "obs": buffer_contents(episode.observations),
        "actions": buffer_contents(episode.actions),
        "rewards": buffer_contents(episode.rewards),
        "infos": buffer_contents(episode.infos),
        "extra": {key: buffer_contents(buffer) for key, buffer in episode.extra_model_outputs.items()},
        "ids": (episode.id_, episode.agent_id, episode.module_id, episode.multi_agent_episode_id),
        "t": (episode.t_started, episode.t),
        "done": (episode.is_terminated, episode.is_truncated),
        "custom_data": episode.custom_data,
    }


class TestDocumentedExamples:
    """The examples of the episodes' specification."""

    @pytest.fixture
    def episode(self):
        episode = SingleAgentEpisode()
        assert len(episode) == 0
        episode.add_env_reset(observation="obs_0", infos="info_0")
        assert len(episode) == 0
        for i in range(5):
            episode.add_env_step(
                observation=f"obs_{i + 1}",
                action=f"act_{i}",
                reward=f"rew_{i}",
                terminated=False,
                truncated=False,
                infos=f"info_{i + 1}",
            )
        assert len(episode) == 5
        return episode

    def test_getters(self, episode):
        assert episode.get_observations(0) == episode.observations[0] == "obs_0"
        assert episode.get_observations([1, 2]) == ["obs_1", "obs_2"]
        assert episode.get_observations(slice(1, 3)) == ["obs_1", "obs_2"]
        assert episode.get_rewards(-1) == episode.rewards[-1] == "rew_4"
        assert episode.get_actions(0) == episode.actions[0] == "act_0"
        assert episode.get_infos([0, -1]) == ["info_0", "info_5"]

    def test_slice(self, episode):
        part = episode[3:4]
        assert list(part.observations) == ["obs_3", "obs_4"]
        assert list(part.actions) == ["act_3"]
        assert list(part.rewards) == ["rew_3"]

    def test_to_numpy(self, episode):
        assert episode.is_numpy is False
        assert episode.to_numpy() is episode
        assert episode.is_numpy is True
        assert episode.get_observations([1, -1]).tolist() == ["obs_1", "obs_5"]

    def test_cut(self, episode):
        assert episode.is_done is False
        continuation = episode.cut()
        assert (len(episode), len(continuation)) == (5, 0)
        assert continuation.get_observations(-1) == "obs_5"

    def test_a_lookback_of_one_step(self, episode):
        continuation = episode.cut(len_lookback_buffer=1)
        assert continuation.get_actions(-1) == "act_4"
        assert continuation.get_rewards(-1) == "rew_4"
        assert continuation.get_observations([-2, -1]) == ["obs_4", "obs_5"]

    def test_lookback_and_fill(self):
        episode = SingleAgentEpisode(
            observations=["o0", "o1", "o2", "o3"],
            actions=["a0", "a1", "a2"],
            rewards=[0.0, 1.0, 2.0],
            len_lookback_buffer=3,
        )
        assert len(episode) == 0
        with pytest.raises(IndexError, match="index 0 is outside of the buffer"):
            episode.get_rewards(0)
        assert episode.get_rewards(slice(-3, None)) == [0.0, 1.0, 2.0]
        assert episode.get_rewards(slice(-5, None), fill=0.0) == [0.0, 0.0, 0.0, 1.0, 2.0]

    def test_neg_index_as_lookback(self):
        episode = SingleAgentEpisode(
            observations=["o-3", "o-2", "o-1", "o0", "o1", "o2", "o3"],
            actions=["a-3", "a-2", "a-1", "a0", "a1", "a2"],
            rewards=[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0],
            len_lookback_buffer=3,
        )
        assert len(episode) == 3
        seen = [episode.get_rewards(slice(ts - 2, ts + 1), neg_index_as_lookback=True) for ts in range(3)]
        assert seen == [[-2.0, -1.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 1.0, 2.0]]

    def test_complex_observations(self):
        episode = SingleAgentEpisode()
        episode.add_env_reset({"d": 0, "t": (np.zeros(2), np.ones((2, 2)))})
        for i in (1, 2):
            episode.add_env_step({"d": i, "t": (np.full(2, i), np.ones((2, 2)))}, 0, 1.0)
        assert episode.get_observations(1)["d"] == 1
        observations = episode.to_numpy().get_observations()
        assert observations["d"].tolist() == [0, 1, 2]
        assert (observations["t"][0].shape, observations["t"][1].shape) == ((3, 2), (3, 2, 2))


class TestConstructor:
    @pytest.mark.parametrize(
        ("lookback", "t_started", "expected"),
        [
            ("auto", None, (0, 0, 0, 5)),
            ("auto", 7, (7, 7, 0, 5)),
            (0, None, (0, 5, 5, 0)),
            (2, 7, (7, 10, 3, 2)),
            (5, 0, (0, 0, 0, 5)),
            (9, 7, (7, 7, 0, 5)),
        ],
    )
    def test_lookback_and_timesteps(self, lookback, t_started, expected):
        episode = make_episode(len_lookback_buffer=lookback, t_started=t_started)
        assert (episode.t_started, episode.t, len(episode), episode.observations.lookback) == expected
        assert episode.env_steps() == episode.agent_steps() == len(episode)
        assert len(episode.get_infos()) == len(episode) + 1

    def test_defaults(self):
        a, b = SingleAgentEpisode(), SingleAgentEpisode()
        assert a.id_ != b.id_
        assert len(a.id_) == 32
        assert (a.is_reset, a.is_done, a.is_numpy, a.agent_id, a.module_id) == (
            False,
            False,
            False,
            None,
            None,
        )
        assert (a.multi_agent_episode_id, a.observation_space, a.action_space) == (None, None, None)
        assert a.get_duration_s() == 0
        assert (a.get_infos(), a.get_observations(), a.custom_data) == ([], [], {})
        assert a.get_return() == 0

    def test_does_not_keep_the_given_lists(self):
        rewards = [1.0]
        episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=rewards, len_lookback_buffer=0)
        episode.add_env_step(2, 1, 3.0)
        assert rewards == [1.0]

    def test_arrays_make_it_numpy(self):
        episode = SingleAgentEpisode(
            observations={"a": np.zeros((3, 2))}, actions=[1, 2], rewards=np.ones(2), len_lookback_buffer=1
        )
        assert episode.is_numpy
        assert episode.get_actions().tolist() == [2]

    def test_buffers_are_used_as_they_are(self):
        buffers = {
            "observations": LookbackBuffer([0, 1, 2], 1),
            "actions": LookbackBuffer([0, 1], 1),
            "rewards": LookbackBuffer([0.0, 1.0], 1),
            "infos": InfoBuffer([{}, {}, {}], 1),
            "extra_model_outputs": {"x": LookbackBuffer([0, 1], 1)},
        }
        episode = SingleAgentEpisode(**buffers)
        assert len(episode) == 1
        assert episode.observations is buffers["observations"]
        assert episode.extra_model_outputs["x"] is buffers["extra_model_outputs"]["x"]

    @pytest.mark.parametrize(
        ("kwargs", "error", "message"),
        [
            ({"observations": [1, 2]}, ValueError, "observations need 6 rows for 5 rewards, got 2"),
            ({"actions": [1]}, ValueError, "actions need 5 rows for 5 rewards, got 1"),
            ({"infos": [{}]}, ValueError, "infos need 6 rows for 5 rewards, got 1"),
            ({"infos": ({},)}, TypeError, "infos must be a list, one per observation, got tuple"),
            ({"extra_model_outputs": {"x": [1]}}, ValueError, r"extra_model_outputs\['x'\] need 5 rows"),
            ({"observations": None}, ValueError, "5 rewards .* but no observations"),
            ({"rewards": None, "len_lookback_buffer": 0}, ValueError, "need 1 rows for 0 rewards, got 6"),
            (
                {"len_lookback_buffer": -1},
                ValueError,
                "len_lookback_buffer must be a non-negative int, got -1",
            ),
            ({"len_lookback_buffer": "all"}, ValueError, "must be a non-negative int, got 'all'"),
            ({"actions": ("a",) * 5}, TypeError, r"must be a list of items or array\(s\), got tuple of 5"),
            (
                {"actions": LookbackBuffer([1] * 5, 1)},
                ValueError,
                "actions have 1 lookback rows, rewards have 0",
            ),
        ],
    )
    def test_data_that_do_not_fit_together(self, kwargs, error, message):
        with pytest.raises(error, match=message):
            make_episode(**kwargs)

    def test_validate_finds_what_was_broken_later(self):
        episode = make_episode()
        episode.t += 1
        with pytest.raises(ValueError, match="t - t_started is 6, but rewards have 5"):
            episode.validate()
        episode = make_episode()
        episode.actions.finalize()
        with pytest.raises(ValueError, match="actions and observations differ in mode"):
            episode.validate()
        episode = make_episode()
        episode.extra_model_outputs["new"] = LookbackBuffer([1])
        with pytest.raises(ValueError, match=r"extra_model_outputs\['new'\] need 5 rows for 5 rewards, got 1"):
            episode.validate()
        with pytest.raises(ValueError, match=r"0 rewards \(done: True\) but no observations"):
            SingleAgentEpisode(terminated=True)


class TestCollecting:
    @pytest.mark.parametrize("mode", MODES)
    def test_steps_are_appended(self, mode):
        episode = SingleAgentEpisode("e", **IDS)
        episode.add_env_reset(np.array([0, 0], np.float32), {"i": 0})
        if mode == "numpy":
            episode.to_numpy()
        for i in range(5):
            assert (len(episode), episode.t) == (i, i)
            add_step(episode, i, terminated=i == 4)
        expected = make_episode(terminated=True)
        assert contents(episode) == contents(expected)
        assert episode.is_numpy is (mode == "numpy")
        episode.validate()
        assert episode.is_done

    def test_infos_default_to_empty_dicts(self):
        episode = SingleAgentEpisode()
        episode.add_env_reset(0)
        episode.add_env_step(1, 0, 0.0)
        assert episode.get_infos() == [{}, {}]
        assert episode.infos[0] is not episode.infos[1]

    @pytest.mark.parametrize("mode", MODES)
    def test_refusals_add_nothing(self, mode):
        episode = make_episode(mode, steps=2)
        before = contents(episode)
        with pytest.raises(ValueError, match="add_env_reset: episode e is already reset"):
            episode.add_env_reset(0)
        with pytest.raises(ValueError, match=r"fixed by an episode's first step; at t=2 new: \['late'\], missing: \["):
            episode.add_env_step(0, 0, 0.0, extra_model_outputs={"late": 1})
        with pytest.raises(ValueError, match=r"new: \[\], missing: \['logp', 'v'\]"):
            episode.add_env_step(0, 0, 0.0)
        assert contents(episode) == before
        episode.is_truncated = True
        with pytest.raises(ValueError, match="add_env_step: episode e is done"):
            add_step(episode, 2)
        with pytest.raises(ValueError, match=r"does not have an observation; call add_env_reset\(\) first"):
            SingleAgentEpisode().add_env_step(0, 0, 0.0)
        with pytest.raises(ValueError, match=r"does not have an observation; call add_env_reset\(\) first"):
            SingleAgentEpisode().to_numpy().add_env_step(0, 0, 0.0)

    def test_numpy_mode_refuses_other_shapes_and_adds_nothing(self):
        episode = make_episode("numpy")
        before = contents(episode)
        extra = {"logp": 0.0, "v": (0, {"x": np.zeros(3)})}
        message = r"add_env_step: extra_model_outputs\['v'\]: rows have shape \(\), got an item of shape \(3,\)"
        with pytest.raises(ValueError, match=message):
            episode.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs=extra)
        assert contents(episode) == before

    def test_the_first_step_of_a_cut_chunk_may_change_the_extra_outputs(self):
        for mode in MODES:
            chunk = make_episode(mode).cut()
            assert list(chunk.extra_model_outputs) == ["logp", "v"]
            chunk.add_env_step(np.zeros(2, np.float32), 0, 0.0, extra_model_outputs={"v": (1, {"x": 2}), "new": 3})
            chunk.validate()
            assert list(chunk.extra_model_outputs) == ["v", "new"]
            assert chunk.get_extra_model_outputs("new", 0) == 3
            with pytest.raises(ValueError, match="extra_model_outputs are fixed"):
                make_episode(mode).cut(1).add_env_step(0, 0, 0.0)

    def test_an_extra_output_may_be_named_like_a_field(self):
        for mode in MODES:
            episode = SingleAgentEpisode()
            episode.add_env_reset(0)
            if mode == "numpy":
                episode.to_numpy()
            for _ in range(2):
                episode.add_env_step(1, 2, 3.0, extra_model_outputs={"actions": 4, "rewards": 5})
            assert episode.get_actions(-1) == 2
            assert episode.get_extra_model_outputs("actions", -1) == 4

    def test_extra_outputs_without_a_key_are_all_of_them(self):
        for mode in MODES:
            episode = make_episode(mode)
            all_outputs = episode.get_extra_model_outputs(indices=-1)
            assert list(all_outputs) == ["logp", "v"]
            assert all_outputs["logp"] == episode.get_extra_model_outputs("logp", -1)
            assert len(episode.get_extra_model_outputs()["logp"]) == len(episode)
        assert SingleAgentEpisode().get_extra_model_outputs() == {}

    def test_list_appends_do_not_copy(self):
        episode = make_episode()
        observations = episode.observations.data
        first = observations[0]
        add_step(episode, 5)
        assert episode.observations.data is observations
        assert observations[0] is first

    def test_duration(self):
        episode = SingleAgentEpisode()
        episode.add_env_reset(0)
        time.sleep(0.01)
        episode.add_env_step(1, 0, 0.0)
        assert 0.01 <= episode.get_duration_s() < 5
        chunk = episode.cut()
        assert chunk.get_duration_s() == 0
        time.sleep(0.01)
        chunk.add_env_step(2, 0, 0.0)
        parts = episode.get_duration_s() + chunk.get_duration_s()
        episode.concat_episode(chunk)
        assert episode.get_duration_s() == pytest.approx(parts)


class TestGettersAndSetters:
    @given(
        lookback=st.integers(0, 4),
        steps=st.integers(0, 4),
        indices=st.integers(-9, 9)
        | st.lists(st.integers(-9, 9), max_size=4)
        | st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.sampled_from([None, 2, -1]))
        | st.none(),
        neg=st.booleans(),
        fill=st.none() | st.just(3),
    )
    def test_list_mode_equals_numpy_mode(self, lookback, steps, indices, neg, fill):
        pair = [make_episode(mode, steps, lookback) for mode in MODES]
        getters = [
            lambda e, **kw: e.get_observations(indices, **kw),
            lambda e, **kw: e.get_actions(indices, **kw),
            lambda e, **kw: e.get_rewards(indices, **kw),
            lambda e, **kw: e.get_extra_model_outputs("logp", indices, **kw),
        ]
        for getter in getters:
            results = []
            for episode in pair:
                try:
                    results.append(np.array(getter(episode, neg_index_as_lookback=neg, fill=fill)).tolist())
                except IndexError as error:
                    results.append(str(error))
            if steps + lookback > 0:  # else the items' shape is unknown to the numpy'ized one
                assert results[0] == results[1]

    @pytest.mark.parametrize("mode", MODES)
    def test_infos_and_nested_outputs(self, mode):
        episode = make_episode(mode, steps=2, lookback=1)
        assert episode.get_infos() == [{"i": 1}, {"i": 2}, {"i": 3}]
        assert episode.get_infos(-1, neg_index_as_lookback=True) == {"i": 0}
        assert episode.get_infos(slice(-5, -3), fill="none") == ["none", {"i": 0}]
        assert episode.get_extra_model_outputs("v", -1) == (2, {"x": 2})
        assert episode.get_extra_model_outputs("v", 5, fill=9) == (9, {"x": 9})

    @pytest.mark.parametrize("mode", MODES)
    def test_setters(self, mode):
        episode = make_episode(mode, steps=3, lookback=1)
        episode.set_observations(new_data=np.array([7, 7], np.float32), at_indices=0)
        episode.set_actions(new_data=[1, 2], at_indices=slice(0, 2))
        episode.set_rewards(new_data=[8.0, 9.0], at_indices=[-1, -4])
        episode.set_rewards(new_data=6.0, at_indices=-1, neg_index_as_lookback=True)
        episode.set_extra_model_outputs(key="logp", new_data=[1.0, 2.0, 3.0])
        assert episode.get_observations(0).tolist() == [7, 7]
        assert list(episode.get_actions()) == [1, 2, 13]
        assert list(episode.get_rewards(slice(-4, None))) == [6.0, 1.5, 2.5, 8.0]
        assert list(episode.get_extra_model_outputs("logp", slice(-4, None))) == [0.0, 1.0, 2.0, 3.0]

    @pytest.mark.parametrize("mode", MODES)
    def test_unknown_extra_outputs(self, mode):
        episode = make_episode(mode)
        with pytest.raises(ValueError, match=r"does not have extra_model_outputs named 'x'; known: \['logp', 'v'\]"):
            episode.get_extra_model_outputs("x")
        with pytest.raises(ValueError, match="does not have extra_model_outputs named 'x'"):
            episode.set_extra_model_outputs(key="x", new_data=[])

    @pytest.mark.parametrize("mode", MODES)
    def test_one_hot(self, mode):
        spaces = {"observation_space": gym.spaces.Discrete(3), "action_space": gym.spaces.Discrete(2)}
        episode = make_episode(mode, 2, observations=[0, 1, 2], actions=[1, 0], **spaces)
        assert np.array(episode.get_observations(one_hot_discrete=True)).tolist() == np.eye(3).tolist()
        assert np.array(episode.get_actions([-1, 5], one_hot_discrete=True, fill=0)).tolist() == [
            [1, 0],
            [0, 0],
        ]

    @pytest.mark.parametrize("mode", MODES)
    def test_return_leaves_the_lookback_out(self, mode):
        assert make_episode(mode, 2, lookback=2).get_return() == 2.5 + 3.5

    def test_return_is_float64_whatever_the_rewards_are(self):
        episode = make_episode(rewards=[1.0, np.float32(0.1), 2, True, np.float64(0.5)])
        assert episode.get_return() == 1.0 + float(np.float32(0.1)) + 2 + 1 + 0.5
        assert type(episode.get_return()) is float

    def test_indexing_and_repr(self):
        with pytest.raises(TypeError, match=r"indexed with a slice such as episode\[3:4\], got 3"):
            make_episode()[3]
        assert repr(make_episode(truncated=True)) == "SingleAgentEpisode(id_='e', len=5, t=0..5, truncated)"

    def test_to_numpy_names_the_field_and_changes_nothing(self):
        episode = make_episode(actions=[1, 2, 3, 4, None])
        with pytest.raises(TypeError, match="to_numpy: actions of episode e: items must be numbers"):
            episode.to_numpy()
        assert not episode.is_numpy
        episode.validate()


class TestCutSliceConcat:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("lookback", [0, 1, 3, 9])
    def test_cut(self, mode, lookback):
        episode = make_episode(mode, 3, lookback=1, t_started=4)
        episode.custom_data["k"] = 1
        chunk = episode.cut(lookback)
        kept = min(lookback, 4)
        expected = make_episode(mode, 0, lookback=kept, t_started=7)
        assert (len(chunk), chunk.t_started, chunk.t, chunk.actions.lookback) == (0, 7, 7, kept)
        assert chunk.get_observations(-1).tolist() == [4, -4]
        assert list(chunk.get_rewards(slice(-9, None))) == list(episode.get_rewards(slice(-9, None)))[4 - kept :]
        assert contents(chunk)["ids"] == contents(expected)["ids"] == contents(episode)["ids"]
        assert (chunk.is_numpy, chunk.is_done, chunk.custom_data) == (episode.is_numpy, False, {"k": 1})
        chunk.validate()
        chunk.custom_data["k"] = 2
        chunk.set_observations(new_data=np.zeros(2, np.float32), at_indices=0)
        assert episode.custom_data == {"k": 1}
        assert episode.get_observations(-1).tolist() == [4, -4]

    def test_cut_refuses(self):
        with pytest.raises(ValueError, match="cut: episode e is done"):
            make_episode(terminated=True).cut()
        with pytest.raises(ValueError, match="len_lookback_buffer must be a non-negative int, got -1"):
            make_episode().cut(-1)

    @pytest.mark.parametrize("mode", MODES)
    def test_an_episode_before_its_reset_can_be_cut(self, mode):
        episode = SingleAgentEpisode("e")
        chunk = (episode.to_numpy() if mode == "numpy" else episode).cut(1)
        assert (chunk.id_, len(chunk), chunk.is_reset) == ("e", 0, False)
        chunk.add_env_reset(3)
        assert chunk.get_observations(0) == 3

    @settings(deadline=None)
    @given(
        modes=st.tuples(st.sampled_from(MODES), st.sampled_from(MODES)),
        cuts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=4),
        terminated=st.booleans(),
    )
    def test_cut_anywhere_and_joined_is_as_if_never_cut(self, modes, cuts, terminated):
        whole = SingleAgentEpisode("e", **IDS)
        whole.add_env_reset(np.array([0, 0], np.float32), {"i": 0})
        chunks = [SingleAgentEpisode("e", **IDS)]
        chunks[0].add_env_reset(np.array([0, 0], np.float32), {"i": 0})
        for i in range(6):
            for _, lookback in [cut for cut in cuts if cut[0] == i]:
                chunks.append(chunks[-1].cut(lookback))
                if modes[1] == "numpy":
                    chunks[-2].to_numpy()
            for episode in (whole, chunks[-1]):
                add_step(episode, i, terminated=terminated and i == 5)
        joined = chunks[0].to_numpy() if modes[0] == "numpy" else chunks[0]
        for chunk in chunks[1:]:
            joined.concat_episode(chunk)
        joined.validate()
        assert contents(joined) == contents(whole)

    @given(
        mode=st.sampled_from(MODES),
        lookback=st.integers(0, 3),
        outer=st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9)),
        inner=st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9)),
    )
    def test_slice_of_slice(self, mode, lookback, outer, inner):
        episode = make_episode(mode, 5, lookback, t_started=3, truncated=True)
        steps = range(5)[slice(*outer)][slice(*inner)]
        twice = episode.slice(slice(*outer)).slice(slice(*inner))
        twice.validate()
        assert list(twice.get_actions()) == [10 + lookback + i for i in steps]
        assert twice.t - twice.t_started == len(steps)
        if len(steps) > 0:
            assert twice.t_started == 3 + steps[0]
            assert contents(twice) == contents(episode[steps[0] : steps[-1] + 1])
            assert twice.is_truncated is (steps[-1] == 4)

    @pytest.mark.parametrize("mode", MODES)
    def test_slice_keeps_what_belongs_to_it(self, mode):
        episode = make_episode(mode, 5, lookback=2, t_started=10, terminated=True)
        episode.custom_data["k"] = [1]
        part = episode.slice(slice(1, 3), len_lookback_buffer=1)
        expected = {
            **contents(episode),
            "obs": (1, [[2, -2], [3, -3], [4, -4], [5, -5]]),
            "actions": (1, [12, 13, 14]),
            "rewards": (1, [2.5, 3.5, 4.5]),
            "infos": (1, [{"i": i} for i in range(2, 6)]),
            "extra": {"logp": (1, [-2.0, -3.0, -4.0]), "v": (1, [[i, {"x": i}] for i in range(2, 5)])},
            "t": (11, 13),
            "done": (False, False),
        }
        assert contents(part) == expected
        assert part.is_numpy is (mode == "numpy")
        assert episode[-2:].is_terminated
        assert contents(episode[:]) == contents(episode)
        assert episode.slice(slice(None), len_lookback_buffer=99).actions.lookback == 2
        assert episode[3:].actions.lookback == 2
        assert (len(episode[9:]), len(episode[3:1]), len(episode[-99:])) == (0, 0, 5)

    def test_numpy_slices_are_views(self):
        episode = make_episode("numpy")
        assert np.shares_memory(episode[1:3].observations.data, episode.observations.data)

    def test_slice_refuses(self):
        with pytest.raises(ValueError, match="can only be sliced with step 1, got 2"):
            make_episode()[::2]
        with pytest.raises(ValueError, match="must be a non-negative int, got -1"):
            make_episode().slice(slice(0, 1), len_lookback_buffer=-1)

    @pytest.mark.parametrize("mode", MODES)
    def test_concat_refuses_what_is_no_successor_and_changes_nothing(self, mode):
        def successor(**kwargs):
            observations = [np.array([i, -i], np.float32) for i in (3, 4)]
            extra = {"logp": [0.0], "v": [(0, {"x": 0})]}
            defaults = {"observations": observations, "extra_model_outputs": extra, "t_started": 3}
            return make_episode("list", 1, **{**defaults, **kwargs})

        refusals = [
            (successor(id_="other"), "its id_ is other, expected e"),
            (successor(t_started=4), "it starts at t=4, expected t=3"),
            (successor(observations=[np.zeros(2), np.zeros(2)]), "its first observation is not the last one"),
            (successor(observations=[3, 4]), "its first observation is not the last one"),
            (
                successor(extra_model_outputs={"x": [1]}),
                r"its extra_model_outputs are \['x'\], expected \['logp', 'v'\]",
            ),
            (SingleAgentEpisode("e", t_started=3), "both chunks need an observation"),
        ]
        episode = make_episode(mode, 3)
        before = contents(episode)
        for other, message in refusals:
            with pytest.raises(ValueError, match="concat_episode: cannot append the chunk: " + message):
                episode.concat_episode(other)
        if mode == "numpy":
            with pytest.raises(ValueError, match=r"concat_episode: rewards: rows have shape \(\), got an item of"):
                episode.concat_episode(successor(rewards=[np.zeros(2)]))
        assert contents(episode) == before
        episode.concat_episode(successor())
        assert len(episode) == 4
        episode.is_terminated = True
        with pytest.raises(ValueError, match="episode e is done"):
            episode.concat_episode(successor(t_started=4))

    @pytest.mark.parametrize("mode", MODES)
    def test_concat_merges_custom_data_and_flags_and_takes_the_later_info(self, mode):
        episode = make_episode(mode, 2)
        episode.custom_data.update(a=1, b=1)
        chunk = episode.cut(1)
        chunk.custom_data.update(b=2, c=2)
        chunk.infos.set({"i": "later"}, at_indices=0)
        add_step(chunk, 2, truncated=True)
        episode.concat_episode(chunk)
        assert episode.custom_data == {"a": 1, "b": 2, "c": 2}
        assert (episode.is_terminated, episode.is_truncated) == (False, True)
        assert episode.get_infos() == [{"i": 0}, {"i": 1}, {"i": "later"}, {"i": 3}]

    def test_joining_many_short_numpy_chunks_copies_rarely(self):
        episode = make_episode("numpy", 1)
        storages = set()
        for i in range(1, 500):
            chunk = episode.cut()
            add_step(chunk, i)
            episode.concat_episode(chunk)
            storages.add(id(episode.observations._storage[1]))
        assert len(storages) < 12
        assert contents(episode) == contents(make_episode(steps=500))

    def test_observations_with_nan_can_be_joined(self):
        episode = SingleAgentEpisode()
        episode.add_env_reset(np.array([np.nan]))
        chunk = episode.cut()
        chunk.add_env_step(np.zeros(1), 0, 0.0)
        episode.concat_episode(chunk)
        assert len(episode) == 1


class TestFromColumns:
    @staticmethod
    def columns(rows=5):
        return {
            "observations": np.arange(2.0 * rows + 2).reshape(rows + 1, 2),
            "actions": np.arange(rows),
            "rewards": np.arange(rows, dtype=np.float32),
            "extra_model_outputs": {"logp": np.zeros(rows)},
        }

    def make(self, **kwargs):
        flags = {"id_": "e", "terminated": False, "truncated": True, "t_started": 7}
        return SingleAgentEpisode.from_columns(**{**flags, **self.columns(), **kwargs})

    def test_is_a_view(self):
        columns = self.columns()
        episode = self.make(**columns, len_lookback_buffer=2, agent_id="a", module_id="m", custom_data={"k": 1})
        episode.validate()
        assert episode.is_numpy
        assert (len(episode), episode.t_started, episode.t, episode.is_truncated) == (3, 7, 10, True)
        assert (episode.id_, episode.agent_id, episode.module_id, episode.custom_data) == (
            "e",
            "a",
            "m",
            {"k": 1},
        )
        assert episode.observations.data is columns["observations"]
        episode.set_rewards(new_data=9.0, at_indices=0)
        episode.set_extra_model_outputs(key="logp", new_data=[1.0], at_indices=[-1])
        assert columns["rewards"].tolist() == [0, 1, 9, 3, 4]
        assert columns["extra_model_outputs"]["logp"].tolist() == [0, 0, 0, 0, 1]

    def test_equals_an_episode_made_step_by_step(self):
        stepwise = make_episode("numpy", 4, lookback=1)
        columns = {
            "observations": stepwise.observations.data,
            "actions": stepwise.actions.data,
            "rewards": stepwise.rewards.data,
            "extra_model_outputs": {k: b.data for k, b in stepwise.extra_model_outputs.items()},
            "infos": stepwise.infos.data,
        }
        flags = {
            "id_": "e",
            "terminated": False,
            "truncated": False,
            "t_started": 0,
            "len_lookback_buffer": 1,
        }
        viewed = SingleAgentEpisode.from_columns(**columns, **flags, agent_id="a", module_id="m")
        viewed.multi_agent_episode_id = "ma"
        assert contents(viewed) == contents(stepwise)

    def test_infos(self):
        assert self.make().get_infos() == [{}] * 6
        assert self.make(len_lookback_buffer=2).get_infos([-1, -6]) == [{}, {}]
        infos = [{"i": i} for i in range(6)]
        assert self.make(infos=infos).get_infos(5) == {"i": 5}
        episode = self.make(truncated=False)
        episode.add_env_step(np.zeros(2), 0, 0.0, {"new": 1}, extra_model_outputs={"logp": 0.0})
        assert episode.get_infos() == [{}] * 6 + [{"new": 1}]

    def test_growing_leaves_the_block_alone(self):
        block = self.columns(8)
        episode = self.make(
            observations=block["observations"][:4],
            actions=block["actions"][:3],
            rewards=block["rewards"][:3],
            extra_model_outputs=None,
            truncated=False,
        )
        episode.add_env_step(np.full(2, 99.0), 99, 99.0)
        assert episode.get_rewards().tolist() == [0, 1, 2, 99]
        assert episode.rewards.data.dtype == np.float32
        assert block["rewards"].tolist() == list(range(8))
        assert block["observations"].max() == 17

    def test_an_id_is_made_if_none_is_given(self):
        assert len(self.make(id_=None).id_) == 32

    def test_row_counts_are_checked(self):
        with pytest.raises(ValueError, match="observations need 6 rows for 5 rewards, got 5"):
            self.make(observations=np.zeros((5, 2)))
        with pytest.raises(ValueError, match="actions need 5 rows for 5 rewards, got 4"):
            self.make(actions=np.zeros(4))
        with pytest.raises(ValueError, match="len_lookback_buffer must be 0 to 5, the number of rewards, got 6"):
            self.make(len_lookback_buffer=6)


@pytest.mark.parametrize("mode", MODES)
def test_pickles_for_ray(mode):
    episode = make_episode(mode)
    assert contents(pickle.loads(pickle.dumps(episode))) == contents(episode)
