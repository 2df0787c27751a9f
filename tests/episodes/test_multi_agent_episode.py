"""MultiAgentEpisode: each documented case by hand, and every refusal. Random schedules are in `..._properties`."""

import gymnasium as gym
import numpy as np
import pytest

from runner.episodes import MultiAgentEpisode, SingleAgentEpisode
from tests.support.agent_histories import episode_of

STEPS = [
    {"observations": {"a": 0, "b": 100}, "infos": {"a": {"i": 0}}},
    {
        "observations": {"a": 1},
        "infos": {"a": {"i": 1}},
        "actions": {"a": 10, "b": 110},
        "rewards": {"a": 0.5, "b": 1.0},
        "extra": {"a": {"v": -1}, "b": {"w": -2}},
    },
    {
        "observations": {"b": 102, "c": 202},
        "actions": {"a": 11},
        "rewards": {"a": 0.25, "b": 2.0},
        "extra": {"a": {"v": -3}},
    },
    {
        "observations": {"a": 3},
        "infos": {"a": {"i": 3}},
        "actions": {"b": 112, "c": 212},
        "rewards": {"a": 0.125, "b": 4.0, "c": 8.0},
        "extra": {"b": {"w": -4}, "c": {"w": -5}},
    },
    {"observations": {"b": 104, "c": 204}},
]


def whole(**kwargs):
    """Three agents: `a` is observed at the env steps 0, 1, 3, `b` at 0, 2, 4, `c` at 2, 4."""
    return episode_of(STEPS, **kwargs)


def turns(**kwargs):
    """The same without the last env step, so that the newest steps of `b` and `c` hang."""
    return whole(**kwargs)[:-1]


def columns(episode):
    own = (episode.get_observations(), episode.get_actions(), episode.get_rewards())
    return tuple(map(list, own))


class TestViews:
    @staticmethod
    def own(rows, lookback=0, **kwargs):
        return SingleAgentEpisode.from_columns(
            id_=None,
            observations=np.arange(rows + 1.0),
            actions=np.arange(rows),
            rewards=np.ones(rows),
            extra_model_outputs=None,
            **{"terminated": False, "truncated": False, "t_started": 0, "len_lookback_buffer": lookback, **kwargs},
        )

    def test_view(self):
        agents = {"a": self.own(4, 1, module_id="m", truncated=True), "b": self.own(1, terminated=True)}
        episode = MultiAgentEpisode(
            "e",
            agent_episodes=agents,
            env_t_of_obs={"a": np.array([8, 10, 11, 12, 14]), "b": [11, 13]},
            env_t_started=10,
            env_t=14,
            is_truncated=True,
        )
        episode.validate()
        assert episode.agent_episodes["a"] is agents["a"]
        assert (agents["a"].agent_id, agents["b"].multi_agent_episode_id, episode.module_for("a")) == ("a", "e", "m")
        assert episode.env_t_to_agent_t["a"].data == [-1, "S", 0, 1, 2, "S", 3]
        assert (episode.is_truncated, episode.get_truncateds()) == (True, {"a": True, "b": False, "__all__": True})
        assert episode.get_terminateds() == {"a": False, "b": True, "__all__": False}
        assert episode.get_observations(1) == {"a": 2.0, "b": 0.0}

    def test_misfits(self):
        def make(times, env_t=9):
            return MultiAgentEpisode(
                None, agent_episodes={"a": self.own(2)}, env_t_of_obs=times, env_t_started=0, env_t=env_t
            )

        assert len(make({"a": [0, 1, 2]}).id_) == 32
        with pytest.raises(ValueError, match="agent 'a' has 3 observations, but env_t_of_obs has 2 for it"):
            make({"a": [0, 1]})
        with pytest.raises(ValueError, match="agent 'a' has 3 observations, but env_t_of_obs has 0 for it"):
            make({})
        with pytest.raises(ValueError, match="env_t_of_obs of agent 'a' goes to 2, beyond env_t=1"):
            make({"a": [0, 1, 2]}, env_t=1)
        with pytest.raises(ValueError, match="agent 'a': env steps of observations must ascend"):
            make({"a": [0, 2, 2]}).validate()
        replaced = make({"a": [0, 1, 2]})
        replaced.agent_episodes["a"] = self.own(2)
        with pytest.raises(ValueError, match=r"agent_episodes\['a'\] was added, removed or replaced"):
            replaced.validate()

    @pytest.mark.parametrize("lookback", [0, 2, 4])
    def test_lookback(self, lookback):
        episode = whole(num_lookback=lookback, offset=20)
        episode.validate()
        assert (episode.env_t_started, episode.env_t, len(episode)) == (20 + lookback, 24, 4 - lookback)
        assert episode.env_t_to_agent_t["a"].lookback == lookback
        assert episode.env_t_to_agent_t["a"].data == [0, 1, "S", 2, "S"]
        steps = {0: (2, 2), 2: (1, 1), 4: (0, 0)}[lookback]
        assert (len(episode.agent_episodes["a"]), len(episode.agent_episodes["b"])) == steps
        assert episode.agent_t_started == {"a": 2 - steps[0], "b": 2 - steps[1], "c": 1 if lookback == 4 else 0}

    def test_agents(self):
        episode = whole()
        assert episode.agent_ids == {"a", "b", "c"}
        assert episode.get_agents_to_act() == episode.get_agents_that_stepped() == {"b", "c"}
        assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.env_t) == (4, 4, 5, 4)
        assert episode.get_return() == 15.875
        last = {"actions": {"a": 0}, "extra": {"a": {"v": 0}}, "terminateds": {"a": True}}
        ended = episode_of([*STEPS, last])
        assert ended.get_agents_that_stepped() == {"a"}
        assert ended.get_agents_to_act() == set()

    def test_wrong_arguments(self):
        episode = turns()
        with pytest.raises(TypeError, match=r"indexed with a slice such as episode\[3:4\], got 0"):
            episode[0]
        with pytest.raises(ValueError, match="can only be sliced with step 1, got 2"):
            episode[::2]
        with pytest.raises(KeyError, match=r"agent 'z' is not in episode e; its agents: \['a', 'b', 'c'\]"):
            episode.set_rewards(new_data={"a": [1.0, 1.0], "z": [1.0]})
        with pytest.raises(
            ValueError, match=r"no agent of .* e has extra_model_outputs named 'x'; known: \['v', 'w'\]"
        ):
            episode.get_extra_model_outputs("x")
        with pytest.raises(ValueError, match="get_rewards: return_list=True is one dict per env step"):
            episode.get_rewards(env_steps=False, return_list=True)
        with pytest.raises(IndexError, match=r"get_actions: index 3 is outside of the episode: 3 env steps from 0 on"):
            episode.get_actions(3)
        with pytest.raises(IndexError, match="get_observations: index -5 is outside"):
            episode.get_observations([0, -5])
        with pytest.raises(IndexError, match="get_actions: agent 'c': index 1 is outside of the buffer"):
            episode.get_actions(1, env_steps=False)
        with pytest.raises(TypeError, match="indices must be None, an int, a slice or a list of ints, got str"):
            episode.get_actions("a")


class TestGetters:
    def test_one_env_step(self):
        episode = turns()
        assert episode.get_observations(0) == {"a": 0, "b": 100}
        assert episode.get_observations(-1) == {"a": 3}
        assert episode.get_observations(2, fill=-7) == {"a": -7, "b": 102, "c": 202}
        assert episode.get_observations(9, fill=-7) == {"a": -7, "b": -7, "c": -7}
        assert episode.get_observations(2, agent_ids="b") == {"b": 102}
        assert episode.get_observations(2, agent_ids=["c", "gone"]) == {"c": 202}
        assert episode.get_observations(2, agent_ids=[]) == {}
        assert episode.get_actions(-1) == {"b": 112, "c": 212}
        assert episode.get_rewards(1) == {"a": 0.375}
        assert episode.get_infos(1) == {"a": {"i": 1}}
        assert episode.get_extra_model_outputs(indices=-1) == {"b": {"w": -4}, "c": {"w": -5}}

    def test_many_env_steps(self):
        episode = turns()
        assert episode.get_observations() == {"a": [0, 1, 3], "b": [100, 102], "c": [202]}
        assert episode.get_observations([3, 0]) == {"a": [3, 0], "b": [100]}
        assert episode.get_observations(slice(1, 3)) == {"a": [1], "b": [102], "c": [202]}
        assert episode.get_observations(slice(None, None, -2)) == {"a": [3, 1]}
        assert episode.get_actions() == {"a": [10, 11], "b": [110, 112], "c": [212]}
        assert episode.get_rewards(slice(-2, None)) == {"a": [0.375], "b": [4.0], "c": [8.0]}
        assert episode.get_actions(slice(1, 5), fill=0) == {
            "a": [11, 0, 0, 0],
            "b": [0, 112, 0, 0],
            "c": [0, 212, 0, 0],
        }
        assert episode.get_infos(slice(-1, None), fill="?") == {"a": [{"i": 3}], "b": ["?"], "c": ["?"]}
        assert episode.get_extra_model_outputs("w") == {"b": [-2, -4], "c": [-5]}
        assert episode.get_extra_model_outputs() == {"a": {"v": [-1, -3]}, "b": {"w": [-2, -4]}, "c": {"w": [-5]}}

    def test_return_list(self):
        episode = turns()
        assert episode.get_observations(return_list=True) == [
            {"a": 0, "b": 100},
            {"a": 1},
            {"b": 102, "c": 202},
            {"a": 3},
        ]
        assert episode.get_actions([0, -1], return_list=True) == [{"a": 10, "b": 110}, {"b": 112, "c": 212}]
        assert episode.get_rewards(0, return_list=True) == [{"a": 0.5, "b": 3.0}]
        assert episode.get_actions(slice(2, 4), fill=0, return_list=True) == [
            {"a": 0, "b": 112, "c": 212},
            {"a": 0, "b": 0, "c": 0},
        ]
        assert episode.get_extra_model_outputs(return_list=True) == [
            {"a": {"v": -1}, "b": {"w": -2}},
            {"a": {"v": -3}},
            {"b": {"w": -4}, "c": {"w": -5}},
        ]
        without_outputs = episode_of([{"observations": {"a": 0}}, {"observations": {"a": 1}, "actions": {"a": 0}}])
        assert without_outputs.get_extra_model_outputs(indices=-1, return_list=True) == [{}]
        assert without_outputs[:0].get_extra_model_outputs(return_list=True) == []

    def test_agent_steps(self):
        episode = turns()
        assert episode.get_observations(-1, env_steps=False) == {"a": 3, "b": 102, "c": 202}
        assert episode.get_actions(-1, env_steps=False) == {"a": 11, "b": 112, "c": 212}
        assert episode.get_actions(env_steps=False) == {"a": [10, 11], "b": [110, 112], "c": [212]}
        assert episode.get_rewards([0, 1], ["a", "b"], env_steps=False) == {"a": [0.5, 0.375], "b": [3.0, 4.0]}
        assert episode.get_rewards(slice(-3, None), env_steps=False, fill=0.0) == {
            "a": [0.0, 0.5, 0.375],
            "b": [0.0, 3.0, 4.0],
            "c": [0.0, 0.0, 8.0],
        }
        assert episode.get_observations(slice(1, 2), env_steps=False) == {"a": [1], "b": [102]}
        assert episode.get_extra_model_outputs("w", -1, env_steps=False) == {"b": -4, "c": -5}

    def test_lookback(self):
        episode = turns(num_lookback=2)
        assert episode.get_observations(0) == {"b": 102, "c": 202}
        assert episode.get_observations(-1, neg_index_as_lookback=True) == {"a": 1}
        assert episode.get_observations(slice(-2, 1), neg_index_as_lookback=True, return_list=True) == [
            {"a": 0, "b": 100},
            {"a": 1},
            {"b": 102, "c": 202},
        ]
        assert episode.get_actions(slice(-3, 0), neg_index_as_lookback=True, fill=0)["a"] == [0, 10, 11]
        assert episode.get_actions(-1, ["a"], env_steps=False, neg_index_as_lookback=True) == {"a": 10}

    def test_numpy_mode(self):
        episode = turns().to_numpy()
        assert episode.is_numpy
        view = episode.get_observations(slice(0, 2))["a"]
        assert np.shares_memory(view, episode.agent_episodes["a"].observations.data)
        assert episode.get_actions()["b"].tolist() == [110, 112]
        assert episode.get_actions(-1) == {"b": 112, "c": 212}
        assert episode.get_actions([0, 2], fill=0)["c"].tolist() == [0, 212]
        assert episode.get_rewards(return_list=True)[1] == {"a": 0.375}

    @pytest.mark.parametrize("numpy", [False, True])
    def test_one_hot(self, numpy):
        spaces = {"a": gym.spaces.Discrete(4), "b": gym.spaces.MultiDiscrete([2, 2])}
        steps = [
            {"observations": {"a": 2, "b": np.array([0, 1])}},
            {"observations": {"a": 3}, "actions": {"a": 1, "b": np.array([1, 1])}},
            {"observations": {"b": np.array([0, 0])}},
        ]
        episode = episode_of(steps, spaces=spaces)
        episode = (episode.to_numpy() if numpy else episode)[:1]
        assert np.array(episode.get_observations(one_hot_discrete=True)["a"]).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
        assert episode.get_actions(-1, one_hot_discrete=True)["b"].tolist() == [0, 1, 0, 1]
        filled = episode.get_observations([0, 1], fill=0, one_hot_discrete=True)["b"]
        assert np.array(filled).tolist() == [[1, 0, 0, 1], [0, 0, 0, 0]]
        own = episode.get_actions(-1, one_hot_discrete=True, env_steps=False)
        assert own["b"].tolist() == [0, 1, 0, 1]

    @pytest.mark.parametrize("numpy", [False, True])
    def test_setters(self, numpy):
        episode = turns().to_numpy() if numpy else turns()
        episode.set_observations(new_data={"a": [7, 8, 9], "b": [1, 2]})
        episode.set_actions(new_data={"a": 70}, at_indices=-1)
        episode.set_rewards(new_data={"a": [4.0], "b": [5.0]}, at_indices=slice(0, 1))
        episode.set_extra_model_outputs(key="v", new_data={"a": [5, 6]})
        assert list(episode.get_observations()["a"]) == [7, 8, 9]
        assert list(episode.get_actions()["a"]) == [10, 70]
        assert list(episode.get_rewards(env_steps=False)["b"]) == [5.0, 4.0]
        assert list(episode.get_extra_model_outputs("v")["a"]) == [5, 6]


class TestSlices:
    def test_slices(self):
        episode = turns()
        part = episode[1:3]
        a, c = part.agent_episodes["a"], part.agent_episodes["c"]
        assert (columns(a), a.t_started) == (([1, 3], [11], [0.375]), 1)
        assert columns(c) == ([202], [], [])
        assert part.get_infos(return_list=True) == [{"a": {"i": 1}}, {"b": {}, "c": {}}, {"a": {"i": 3}}]
        assert part.get_actions(-1) == {"b": 112, "c": 212}
        begun = episode[:1]
        assert columns(begun.agent_episodes["b"]) == ([100], [], [])
        assert begun.get_actions() == {"a": [10], "b": [110]}
        assert begun.get_rewards() == {"a": [0.5], "b": [3.0]}
        assert begun.agent_ids == {"a", "b"}
        assert (begun.env_t, part.env_t_started, len(episode[-1:]), len(episode[5:])) == (1, 1, 1, 0)

    def test_slices_of_arrays_are_views(self):
        episode = whole().to_numpy()
        part = episode.slice(slice(1, None), len_lookback_buffer=1)
        part.validate()
        a = part.agent_episodes["a"]
        assert np.shares_memory(a.rewards.data, episode.agent_episodes["a"].rewards.data)
        assert (a.rewards.lookback, a.get_rewards(-1, neg_index_as_lookback=True)) == (1, 0.5)

    def test_agents_that_ended_are_not_in_later_slices(self):
        steps = [
            {"observations": {"a": 0, "b": 0}},
            {"observations": {"a": 1, "b": 1}, "actions": {"a": 0, "b": 0}, "terminateds": {"a": True}},
            {"observations": {"b": 2}, "actions": {"b": 0}, "truncateds": {"b": True}},
        ]
        episode = episode_of(steps)
        assert (episode.is_terminated, episode.is_truncated) == (False, True)
        part = episode[1:]
        assert part.agent_ids == {"b"}
        assert part.is_truncated
        assert not episode[:1].is_done
        assert episode[:1].agent_episodes["a"].is_terminated

    def test_custom_data(self):
        episode = turns()
        episode.custom_data["n"] = 1
        part = episode[1:]
        part.custom_data["n"] += 1
        assert (episode.custom_data, part.custom_data) == ({"n": 1}, {"n": 2})


class TestText:
    def test_repr(self):
        assert repr(turns()) == "MultiAgentEpisode(id_='e', len=3, env_t=0..3, agents=['a', 'b', 'c'], ongoing)"

    def test_print(self, capsys):
        turns(offset=9, num_lookback=1).print()
        assert capsys.readouterr().out == (
            "env_t  9  10  11  12\na      x   x   .   x\nb      x   .   x   .\nc      .   .   x   .\n"
        )
