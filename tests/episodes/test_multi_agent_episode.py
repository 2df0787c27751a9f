"""MultiAgentEpisode: each documented case by hand, and every refusal. Random schedules are in `..._properties`."""

import time

import gymnasium as gym
import numpy as np
import pytest

from runner.episodes import MultiAgentEpisode, SingleAgentEpisode, StateError
from runner.episodes.columns import DEFAULT_MODULE_ID


def turns(**kwargs):
    """Three agents: `a` is observed at the env steps 0, 1, 3, `b` at 0, 2, `c` comes at 2; at the end b and c hang."""
    return MultiAgentEpisode(
        **{
            "id_": "e",
            "observations": [{"a": 0, "b": 100}, {"a": 1}, {"b": 102, "c": 202}, {"a": 3}],
            "infos": [{"a": {"i": 0}}, {"a": {"i": 1}}, {}, {"a": {"i": 3}}],
            "actions": [{"a": 10, "b": 110}, {"a": 11}, {"b": 112, "c": 212}],
            "rewards": [{"a": 0.5, "b": 1.0}, {"a": 0.25, "b": 2.0}, {"a": 0.125, "b": 4.0, "c": 8.0}],
            "extra_model_outputs": [
                {"a": {"v": -1}, "b": {"w": -2}},
                {"a": {"v": -3}},
                {"b": {"w": -4}, "c": {"w": -5}},
            ],
            "len_lookback_buffer": 0,
            **kwargs,
        }
    )


def started(*agents):
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={agent: f"{agent}0" for agent in agents or ("a", "b")})
    return episode


def columns(episode):
    own = (episode.get_observations(), episode.get_actions(), episode.get_rewards())
    return tuple(map(list, own))


class TestSteps:
    def test_a_complete_step(self):
        episode = started()
        episode.add_env_step({"a": "a1", "b": "b1"}, {"a": 0, "b": 1}, {"a": 1.0, "b": 2.0}, {"b": {"x": 1}})
        assert columns(episode.agent_episodes["a"]) == (["a0", "a1"], [0], [1.0])
        assert episode.agent_episodes["b"].get_infos() == [{}, {"x": 1}]
        assert episode.get_agents_to_act() == episode.get_agents_that_stepped() == {"a", "b"}
        assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.env_t) == (1, 1, 2, 1)

    def test_a_hanging_action_is_completed_later(self):
        episode = started()
        outputs = {"b": {"logp": -1.0}}
        episode.add_env_step({"a": "a1"}, {"a": 0, "b": 1}, {"a": 1, "b": 2}, extra_model_outputs=outputs)
        assert columns(episode.agent_episodes["b"]) == (["b0"], [], [])
        assert episode.get_actions(-1) == {"a": 0, "b": 1}
        assert episode.get_rewards(0) == {"a": 1, "b": 2}
        assert episode.get_extra_model_outputs("logp", -1) == {"b": -1.0}
        assert (episode.get_return(), episode.get_return(include_hanging_rewards=True)) == (1, 3)
        assert episode.get_agents_to_act() == {"a"}
        episode.add_env_step({"a": "a2"}, {"a": 2}, {"a": 4, "b": 8})
        episode.add_env_step({"b": "b3"}, {"a": 3}, {"b": 16}, {"b": {"late": 1}})
        b = episode.agent_episodes["b"]
        assert columns(b) == (["b0", "b3"], [1], [26])
        assert b.get_extra_model_outputs("logp") == [-1.0]
        assert b.get_infos() == [{}, {"late": 1}]
        assert list(episode.env_t_to_agent_t["b"]) == [0, "S", "S", 1]
        assert episode.get_return(True) == 31

    def test_rewards_between_observation_and_action_go_to_the_next_step(self):
        episode = started()
        episode.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1, "b": 2})
        episode.add_env_step({"a": "a2", "b": "b2"}, {"a": 0, "b": 1}, {"a": 1, "b": 4})
        assert columns(episode.agent_episodes["b"]) == (["b0", "b2"], [1], [6])
        assert list(episode.env_t_to_agent_t["b"]) == [0, "S", 1]

    def test_the_first_observation_comes_late(self):
        episode = started("a")
        episode.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1, "b": 2})
        assert episode.agent_ids == {"a"}
        episode.add_env_step({"a": "a2", "b": "b2"}, {"a": 0}, {"a": 1, "b": 4}, {"b": {"hello": 1}})
        b = episode.agent_episodes["b"]
        assert (columns(b), b.t_started, b.t, b.get_infos()) == ((["b2"], [], []), 0, 0, [{"hello": 1}])
        assert list(episode.env_t_to_agent_t["b"]) == ["S", "S", 0]
        assert episode.get_agents_to_act() == {"a", "b"}

    def test_rewards_before_the_first_observation_are_in_no_step(self):
        episode = started("a")
        episode.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1, "b": 2})
        episode.add_env_step({"a": "a2", "b": "b2"}, {"a": 0}, {"a": 1, "b": 4})
        episode.add_env_step({"a": "a3", "b": "b3"}, {"a": 0, "b": 0}, {"a": 1, "b": 8})
        assert list(episode.agent_episodes["b"].get_rewards()) == [8]
        assert (episode.get_return(), episode.get_return(True)) == (11, 17)
        assert episode.cut().get_return(True) == 0

    def test_termination_without_final_observation_repeats_the_last_one(self):
        episode = started()
        episode.add_env_step({"a": "a1"}, {"a": 0, "b": 1}, {"a": 1, "b": 2}, {"b": {"dropped": 1}})
        episode.add_env_step({"a": "a2"}, {"a": 0}, {"a": 1, "b": 4}, terminateds={"b": True})
        b = episode.agent_episodes["b"]
        assert columns(b) == (["b0", "b0"], [1], [6])
        assert (b.is_terminated, b.is_truncated, episode.is_done) == (True, False, False)
        assert list(episode.env_t_to_agent_t["b"]) == [0, "S", 1]
        assert episode.get_agents_that_stepped() == {"a", "b"}
        assert episode.get_agents_to_act() == {"a"}
        same_step = started()
        same_step.add_env_step({}, {"a": 0}, {"a": 1}, {"a": {"final": 1}}, terminateds={"a": True})
        assert columns(same_step.agent_episodes["a"]) == (["a0", "a0"], [0], [1])
        assert same_step.agent_episodes["a"].get_infos() == [{}, {"final": 1}]

    def test_an_agent_that_ends_out_of_turn_ends_at_its_newest_observation(self):
        episode = started()
        episode.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1, "b": 2}, truncateds={"b": True})
        b = episode.agent_episodes["b"]
        assert (columns(b), b.is_truncated, b.is_terminated) == ((["b0"], [], []), True, False)
        assert (episode.get_return(), episode.get_return(True)) == (1, 3)

    def test_an_agent_may_come_and_end_at_once(self):
        episode = started("a")
        episode.add_env_step({"a": "a1", "b": "b1"}, {"a": 0}, {"a": 1}, terminateds={"b": True})
        assert episode.agent_episodes["b"].is_terminated
        assert not episode.is_done
        assert episode.get_agents_to_act() == {"a"}

    def test_data_of_strangers_is_ignored(self):
        episode = started("a")
        episode.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1}, {"__common__": 1, "z": 2}, terminateds={"z": True})
        assert episode.agent_ids == {"a"}
        assert not episode.is_done

    def test_numpy_mode_goes_on(self):
        episode = MultiAgentEpisode("e")
        episode.add_env_reset(observations={"a": np.zeros(2, np.float32)})
        assert episode.to_numpy() is episode
        for t in (1, 2):
            observations = {"a": np.full(2, t, np.float32), "b": np.full(3, t, np.int64)}
            actions = {"a": 1} if t == 1 else {"a": 1, "b": 2}
            episode.add_env_step(observations, actions, {agent: 0.5 for agent in actions})
        assert episode.is_numpy
        assert episode.get_observations()["b"].tolist() == [[1] * 3, [2] * 3]
        assert episode.get_observations(fill=0.0, return_list=True)[0]["b"].tolist() == [0, 0, 0]

    def test_modules_are_asked_for_once(self):
        asked = []

        def mapping(agent_id, episode):
            asked.append((agent_id, episode.id_))
            return f"module_{agent_id}"

        episode = MultiAgentEpisode("e", agent_to_module_mapping_fn=mapping, agent_module_ids={"b": "fixed"})
        episode.add_env_reset(observations={"a": 0, "b": 0})
        assert (episode.module_for("a"), episode.module_for("b"), episode.module_for("c")) == (
            "module_a",
            "fixed",
            "module_c",
        )
        episode.add_env_step({"a": 1, "b": 1, "c": 1}, {"a": 0, "b": 0}, {"a": 0, "b": 0})
        assert [e.module_id for e in episode.cut().agent_episodes.values()] == ["module_a", "fixed", "module_c"]
        assert asked == [("a", "e"), ("c", "e")]
        assert started().module_for("a") == DEFAULT_MODULE_ID

    def test_duration(self):
        episode = started("a")
        time.sleep(0.01)
        episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0})
        assert 0.01 <= episode.get_duration_s() < 5
        chunk = episode.cut()
        assert chunk.get_duration_s() == 0
        chunk.add_env_step({"a": 2}, {"a": 0}, {"a": 0})
        parts = episode.get_duration_s() + chunk.get_duration_s()
        episode.concat_episode(chunk)
        assert episode.get_duration_s() == pytest.approx(parts)
        assert MultiAgentEpisode().get_duration_s() == 0


class TestEnds:
    @pytest.mark.parametrize(
        ("flags", "agents", "expected"),
        [
            ({"terminateds": {"a": True, "b": True}}, {"a": "T", "b": "T"}, (True, False)),
            ({"truncateds": {"a": True, "b": True}}, {"a": "t", "b": "t"}, (False, True)),
            ({"terminateds": {"a": True}, "truncateds": {"b": True}}, {"a": "T", "b": "t"}, (False, True)),
            ({"terminateds": {"a": True}}, {"a": "T", "b": ""}, (False, False)),
            ({"terminateds": {"__all__": True}}, {"a": "T", "b": "T"}, (True, False)),
            ({"truncateds": {"__all__": True}}, {"a": "t", "b": "t"}, (False, True)),
            ({"truncateds": {"__all__": True, "a": False}}, {"a": "t", "b": "t"}, (False, True)),
            # an environment that says "over" by terminateds, of agents that each ran out of time
            (
                {"terminateds": {"__all__": True}, "truncateds": {"a": True, "b": True}},
                {"a": "t", "b": "t"},
                (True, True),
            ),
            ({"terminateds": {"__all__": True}, "truncateds": {"a": True}}, {"a": "t", "b": "T"}, (True, True)),
            ({"truncateds": {"__all__": True}, "terminateds": {"a": True}}, {"a": "T", "b": "t"}, (False, True)),
            ({"terminateds": {"a": False, "__all__": False}}, {"a": "", "b": ""}, (False, False)),
        ],
    )
    def test_flags(self, flags, agents, expected):
        episode = started()
        episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0, "b": 0}, **flags)
        own = {a: "T" * e.is_terminated + "t" * e.is_truncated for a, e in episode.agent_episodes.items()}
        assert own == agents
        assert (episode.is_terminated, episode.is_truncated) == expected
        assert episode.get_terminateds() == {"a": "T" in own["a"], "b": "T" in own["b"], "__all__": expected[0]}
        assert episode.get_truncateds() == {"a": "t" in own["a"], "b": "t" in own["b"], "__all__": expected[1]}

    def test_agents_that_ended_in_an_earlier_chunk_count(self):
        for kind, expected in (("terminateds", (True, False)), ("truncateds", (False, True))):
            episode = started()
            episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0, "b": 0}, **{kind: {"a": True}})
            chunk = episode.cut()
            assert chunk.agent_ids == {"b"}
            chunk = chunk.cut(3)
            chunk.add_env_step({"b": 2}, {"b": 0}, {"b": 0}, terminateds={"b": True})
            assert (chunk.is_terminated, chunk.is_truncated) == expected

    def test_a_newcomer_keeps_the_episode_going(self):
        episode = started("a")
        episode.add_env_step({"a": 1, "b": 0}, {"a": 0}, {"a": 0}, terminateds={"a": True})
        assert not episode.is_done

    def test_all_ends_whoever_waits_or_is_idle(self):
        episode = started("a", "b", "c")
        episode.add_env_step({"a": 1}, {"a": 0, "b": 1}, {"a": 0, "b": 1})
        episode.add_env_step({"a": 2}, {"a": 0}, {"a": 0}, terminateds={"__all__": True})
        assert all(e.is_terminated for e in episode.agent_episodes.values())
        assert columns(episode.agent_episodes["b"]) == (["b0", "b0"], [1], [1])
        assert columns(episode.agent_episodes["c"]) == (["c0"], [], [])


class TestMisuse:
    @pytest.fixture
    def episode(self):
        """`a` is to act; `b` hangs; `c` has ended."""
        episode = started("a", "b", "c")
        episode.add_env_step(
            {"a": 1, "c": 1},
            {"a": 0, "b": 0, "c": 0},
            {"a": 0, "b": 0, "c": 0},
            terminateds={"c": True},
            extra_model_outputs={"a": {"v": 1}},
        )
        return episode

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (({"c": 2}, {}, {}), r"agent 'c' has ended, but got observations; expected no further data"),
            (({}, {"c": 2}, {"c": 1}), r"agent 'c' has ended, but got actions, rewards"),
            (({}, {"z": 2}, {}), r"agent 'z' acted without an observation to act on"),
            (({}, {"b": 2}, {}), r"agent 'b' acted again before it got an observation for its last action"),
            (({"a": 2}, {}, {}), r"agent 'a' got an observation, but has not acted on the previous one"),
            (({"a": 2}, {"a": 2}, {}, None, {"a": {"v": 1}}), r"agent 'a' acted and got an observation, but no reward"),
            (({"a": 2}, {"a": 2}, {"a": 1}), r"agent 'a' has the extra_model_outputs \[\]; expected .*\['v'\]"),
            (({}, {"a": 2}, {"a": 1}, None, {"a": {"x": 1}}), r"agent 'a' has the extra_model_outputs \['x'\]"),
            (({}, {}, {}, None, {"b": {"v": 1}}), r"agent 'b' has extra_model_outputs without an action"),
            (({}, {}, {}, {"b": True}, None), r"agent 'b' is truncated after it acted, but got no final observation"),
            (({}, {}, {}, {"__all__": True}, None), r"agent 'b' is truncated after it acted"),
        ],
    )
    def test_no_such_step(self, episode, step, message):
        observations, actions, rewards, truncateds, extra = (*step, None, None)[:5]
        before = episode.get_state()
        everyone = {"d": "comes", **observations}  # nor is anything added of the agents before the wrong one
        with pytest.raises(ValueError, match=rf"^add_env_step: {message}.* \(env step 2 of episode e\)$"):
            episode.add_env_step(everyone, actions, rewards, truncateds=truncateds, extra_model_outputs=extra)
        assert episode.get_state() == before

    def test_numpy_mode_refuses_other_shapes_and_adds_nothing(self):
        episode = MultiAgentEpisode("e")
        episode.add_env_reset(observations={"a": np.zeros(2), "b": np.zeros(2)})
        actions, rewards = {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}
        episode.add_env_step({"a": np.ones(2), "b": np.ones(2)}, actions, rewards)
        episode.to_numpy()
        with pytest.raises(ValueError, match=r"'b' has observations that do not fit .* \(2,\), got .* \(3,\)"):
            episode.add_env_step({"a": np.ones(2), "b": np.ones(3)}, actions, rewards)
        assert (len(episode), episode.agent_steps()) == (1, 2)

    def test_order_of_calls(self):
        empty = MultiAgentEpisode("e")
        with pytest.raises(ValueError, match=r"episode e does not have an observation; call add_env_reset\(\) first"):
            empty.add_env_step({}, {}, {})
        with pytest.raises(ValueError, match=r"cut: episode e \(env_t=0\) is not reset"):
            empty.cut()
        episode = started()
        with pytest.raises(ValueError, match=r"add_env_reset: episode e is already reset \(env_t=0\)"):
            episode.add_env_reset(observations={"a": 0})
        episode.add_env_step({}, {}, {}, terminateds={"__all__": True})
        with pytest.raises(ValueError, match=r"add_env_step: episode e is done \(env_t=1\)"):
            episode.add_env_step({}, {}, {})
        with pytest.raises(ValueError, match=r"cut: episode e \(env_t=1\) is done"):
            episode.cut()
        with pytest.raises(ValueError, match="len_lookback_buffer must be a non-negative int, got -1"):
            started().cut(-1)

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


class TestConstructor:
    def test_history(self):
        episode = turns()
        assert columns(episode.agent_episodes["a"]) == ([0, 1, 3], [10, 11], [0.5, 0.375])
        assert columns(episode.agent_episodes["b"]) == ([100, 102], [110], [3.0])
        assert columns(episode.agent_episodes["c"]) == ([202], [], [])
        mapping = {agent: list(buffer) for agent, buffer in episode.env_t_to_agent_t.items()}
        assert mapping == {"a": [0, 1, "S", 2], "b": [0, "S", 1, "S"], "c": ["S", "S", 0, "S"]}
        assert episode.get_return(True) == 15.875
        assert (episode.env_t_started, episode.env_t, episode.is_reset) == (0, 3, True)

    @pytest.mark.parametrize(("lookback", "expected"), [("auto", 3), (0, 0), (2, 2), (9, 3)])
    def test_lookback(self, lookback, expected):
        episode = turns(len_lookback_buffer=lookback, env_t_started=20, agent_t_started={"a": 7})
        episode.validate()
        assert (episode.env_t_started, episode.env_t, len(episode)) == (20, 23 - expected, 3 - expected)
        assert episode.env_t_to_agent_t["a"].lookback == expected
        assert episode.agent_t_started == {"a": 7, "b": 0, "c": 0}
        steps = {0: (2, 1), 2: (1, 0), 3: (0, 0)}[expected]
        assert (len(episode.agent_episodes["a"]), len(episode.agent_episodes["b"])) == steps

    def test_ids_and_spaces(self):
        spaces = gym.spaces.Dict({"a": gym.spaces.Discrete(4), "b": gym.spaces.Discrete(200)})
        episode = turns(agent_episode_ids={"a": "own"}, agent_module_ids={"b": "m"}, observation_space=spaces)
        assert episode.agent_episode_ids["a"] == "own"
        assert episode.agent_episodes["b"].module_id == "m"
        assert episode.agent_episodes["a"].observation_space == gym.spaces.Discrete(4)
        assert episode.agent_episodes["c"].observation_space is None
        assert len(MultiAgentEpisode().id_) == 32

    def test_flags(self):
        over = turns(terminateds=True)
        assert over.is_terminated
        assert columns(over.agent_episodes["c"]) == ([202, 202], [212], [8.0])
        ended = turns(terminateds={"b": True}, truncateds={"a": True})
        assert not ended.is_done
        assert ended.get_terminateds() == {"a": False, "b": True, "c": False, "__all__": False}
        assert ended.get_truncateds() == {"a": True, "b": False, "c": False, "__all__": False}
        with pytest.raises(ValueError, match="agent 'b' is truncated after it acted"):
            turns(truncateds=True)
        assert MultiAgentEpisode(observations=[{"a": 0}], truncateds=True).agent_episodes["a"].is_truncated

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"actions": [{}]}, "actions need one dict less than observations, 3, got 1"),
            ({"rewards": [{}] * 4}, "rewards need one dict less than observations, 3, got 4"),
            ({"extra_model_outputs": [{}]}, "extra_model_outputs need one dict less than observations, 3, got 1"),
            ({"infos": [{}]}, "infos need one dict for each observation, 4, got 1"),
            ({"observations": None, "infos": None}, "actions need one dict less than observations, 0, got 3"),
            ({"len_lookback_buffer": "all"}, "len_lookback_buffer must be a non-negative int, got 'all'"),
        ],
    )
    def test_lengths(self, given, message):
        with pytest.raises(ValueError, match=message):
            turns(**given)


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
        assert started().get_extra_model_outputs(return_list=True) == []
        without_outputs = started()
        without_outputs.add_env_step({"a": "a1"}, {"a": 0}, {"a": 1})
        assert without_outputs.get_extra_model_outputs(indices=-1, return_list=True) == [{}]

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
        episode = turns(len_lookback_buffer=2)
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
        episode = MultiAgentEpisode(observation_space=spaces, action_space=spaces)
        episode.add_env_reset(observations={"a": 2, "b": np.array([0, 1])})
        episode.add_env_step({"a": 3}, {"a": 1, "b": np.array([1, 1])}, {"a": 0.0})
        episode = episode.to_numpy() if numpy else episode
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


class TestChunks:
    def test_cut_with_a_hanging_action(self):
        chunk = turns().cut()
        assert (len(chunk), chunk.env_t_started, chunk.env_t) == (0, 3, 3)
        assert chunk.agent_t_started == {"a": 2, "b": 1, "c": 0}
        assert chunk.get_observations(0) == {"a": 3}
        assert chunk.get_observations(-1, env_steps=False) == {"a": 3, "b": 102, "c": 202}
        assert chunk.get_actions(-1, ["b", "c"], env_steps=False) == {"b": 112, "c": 212}
        assert (chunk.get_return(), chunk.get_return(True)) == (0, 0)
        chunk.add_env_step({"b": 104}, {"a": 13}, {"b": 16.0}, extra_model_outputs={"a": {"v": -6}})
        assert columns(chunk.agent_episodes["b"]) == ([102, 104], [112], [20.0])
        assert chunk.get_return(True) == 16

    def test_lookback_of_a_cut(self):
        chunk = turns().cut(2)
        assert chunk.env_t_to_agent_t["a"].data == [1, "S", 2]
        assert chunk.env_t_to_agent_t["b"].data == ["S", 1, "S"]
        assert chunk.get_observations(slice(-2, 1), neg_index_as_lookback=True) == {"a": [1, 3], "b": [102], "c": [202]}
        assert chunk.agent_episodes["a"].rewards.lookback == 1
        assert chunk.agent_episodes["b"].rewards.lookback == 0

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
        episode = turns().to_numpy()
        part = episode.slice(slice(1, None), len_lookback_buffer=1)
        part.validate()
        a = part.agent_episodes["a"]
        assert np.shares_memory(a.rewards.data, episode.agent_episodes["a"].rewards.data)
        assert (a.rewards.lookback, a.get_rewards(-1, neg_index_as_lookback=True)) == (1, 0.5)

    def test_slices_remember_who_ended(self):
        episode = started()
        episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1, "b": 1}, terminateds={"a": True})
        episode.add_env_step({"b": 2}, {"b": 0}, {"b": 1})
        part = episode[1:]
        assert part.agent_ids == {"b"}
        with pytest.raises(ValueError, match="agent 'a' has ended, but got observations"):
            part.add_env_step({"a": 1}, {}, {})
        part.add_env_step({"b": 3}, {"b": 0}, {"b": 1}, truncateds={"b": True})
        assert (part.is_terminated, part.is_truncated) == (False, True)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda e, c: setattr(c, "id_", "x"), "its id_ is x, expected e"),
            (lambda e, c: setattr(e, "is_truncated", True), r"episode e is done \(env_t=3\)"),
            (lambda e, c: setattr(c, "env_t_started", 2), "it starts at env_t=2, expected env_t=3"),
            (lambda e, c: c.agent_episodes.pop("b"), r"agent 'b' has not ended \(t=1\), but is not in it"),
            (
                lambda e, c: setattr(e.agent_episodes["a"], "is_terminated", True),
                r"agent 'a' has ended \(t=2\), but continues",
            ),
            (
                lambda e, c: c.agent_episodes["c"].set_observations(new_data=[9]),
                "agent 'c': .* its first observation is not the last one",
            ),
            (lambda e, c: setattr(c, "_is_reset", False), "both chunks need a reset"),
        ],
    )
    def test_chunks_that_do_not_fit(self, change, message):
        episode = turns()
        chunk = episode.cut()
        change(episode, chunk)
        with pytest.raises(ValueError, match=f"concat_episode: cannot append the chunk: {message}"):
            episode.concat_episode(chunk)

    def test_custom_data(self):
        episode = turns()
        episode.custom_data["n"] = 1
        chunk = episode.cut()
        chunk.custom_data["n"] += 1
        assert (episode.custom_data, episode[1:].custom_data) == ({"n": 1}, {"n": 1})
        episode.concat_episode(chunk)
        assert episode.custom_data == {"n": 2}


class TestFromAgentEpisodes:
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
        agents = {"a": self.own(4, 1, module_id="m"), "b": self.own(1, terminated=True)}
        episode = MultiAgentEpisode.from_agent_episodes(
            "e",
            agent_episodes=agents,
            env_t_of_obs={"a": np.array([8, 10, 11, 12, 14]), "b": [11, 13]},
            env_t_started=10,
            env_t=14,
            terminateds=False,
            truncateds={"a": True, "__all__": True},
        )
        episode.validate()
        assert episode.agent_episodes["a"] is agents["a"]
        assert (agents["a"].agent_id, agents["b"].multi_agent_episode_id, episode.module_for("a")) == ("a", "e", "m")
        assert episode.env_t_to_agent_t["a"].data == [-1, "S", 0, 1, 2, "S", 3]
        assert (episode.is_truncated, episode.get_truncateds()) == (True, {"a": True, "b": False, "__all__": True})
        assert episode.get_observations(1) == {"a": 2.0, "b": 0.0}

    def test_misfits(self):
        def make(times, env_t=9, **hanging):
            return MultiAgentEpisode.from_agent_episodes(
                None,
                agent_episodes={"a": self.own(2)},
                env_t_of_obs=times,
                env_t_started=0,
                env_t=env_t,
                terminateds=False,
                truncateds=False,
                **hanging,
            )

        with pytest.raises(ValueError, match="agent 'a' has 3 observations, but env_t_of_obs has 2 for it"):
            make({"a": [0, 1]})
        with pytest.raises(ValueError, match="agent 'a' has 3 observations, but env_t_of_obs has 0 for it"):
            make({})
        with pytest.raises(ValueError, match="env_t_of_obs of agent 'a' goes to 2, beyond env_t=1"):
            make({"a": [0, 1, 2]}, env_t=1)
        with pytest.raises(ValueError, match="agent 'a': env steps of observations must ascend"):
            make({"a": [0, 2, 2]}).validate()
        with pytest.raises(
            ValueError, match=r"hanging actions or rewards of agents that are not in the episode: \['z'\]"
        ):
            make({"a": [0, 1, 2]}, hanging_rewards={"z": 1.0})
        replaced = make({"a": [0, 1, 2]})
        replaced.agent_episodes["a"] = self.own(2)
        with pytest.raises(ValueError, match=r"agent_episodes\['a'\] was added, removed or replaced"):
            replaced.validate()


class TestState:
    def test_no_function_and_no_spare_keys(self):
        state = turns(observation_space={"a": gym.spaces.Discrete(4)}).get_state()
        assert not any(callable(value) for value in state.values())
        read = MultiAgentEpisode.from_state(state)
        assert read.observation_space == {"a": gym.spaces.Discrete(4)}
        assert read.agent_episodes["a"].observation_space == gym.spaces.Discrete(4)
        assert read.module_for("new") == DEFAULT_MODULE_ID

    def test_duration_goes_on(self):
        episode = started("a")
        time.sleep(0.01)
        episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0})
        read = MultiAgentEpisode.from_state(episode.get_state())
        assert read.get_duration_s() == pytest.approx(episode.get_duration_s())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"bad": 1}, r"unknown keys \['bad'\]; expected: "),
            ({"id_": 1}, "episode.id_: expected str, got int"),
            ({"env_t": None}, "episode.env_t: expected int"),
            ({"env_t": 2**70}, "episode.env_t: expected an env step"),
            ({"env_t": -1}, "env_t is -1, before env_t_started=0"),
            ({"env_t": 1}, "env steps of observations must ascend to at most env_t=1"),
            ({"len_lookback_buffer": -1}, "episode.len_lookback_buffer: expected an env step of at least 0"),
            ({"agent_episodes": [["a"]]}, "episode.agent_episodes: expected lists of 2, each beginning with another"),
            ({"agent_episodes": []}, r"env steps of observations are for the agents \['a', 'b', 'c'\], expected \[\]"),
            ({"env_t_of_obs": [["a", [0, 1]], ["a", [0]]]}, "episode.env_t_of_obs: expected lists of 2"),
            ({"env_t_of_obs": [["a", "xyz"]]}, "episode.env_t_of_obs: agent 'a': expected a list of ints, got 'xyz'"),
            (
                {"env_t_of_obs": [["a", [0, 1]], ["b", [0, 2]], ["c", [2]]]},
                "agent 'a': 3 observations, but 2",
            ),
            ({"ended_agents": [["a", True, False]]}, "agent 'a': it ended before env_t_started"),
            ({"_hanging_actions_end": {"c": 1}}, "each of _hanging_actions_end .* needs one of"),
            ({"_hanging_rewards_begin": {"tuple": []}}, "episode._hanging_rewards_begin: expected a dict, got tuple"),
            ({"_hanging_rewards_begin": {"a": "x"}}, "episode._hanging_rewards_begin: agent 'a': expected a number"),
            (
                {"_carried_rewards": {"z": 1.0}},
                r"hanging actions or rewards of agents that are not in the episode: \['z'\]",
            ),
            ({"_agent_to_module_mapping": {"a": 1}}, "episode._agent_to_module_mapping: agent 'a': expected str"),
            ({"_hanging_extra_model_outputs_end": {"b": 1, "c": {}}}, "agent 'b': expected a dict, got int"),
            ({"custom_data": 3}, "episode.custom_data: expected dict, got int"),
        ],
    )
    def test_refusals(self, change, message):
        state = {**turns().get_state(), **change}
        with pytest.raises(StateError, match=message):
            MultiAgentEpisode.from_state(state)

    def test_not_a_dict(self):
        with pytest.raises(StateError, match="episode: expected a dict, got list"):
            MultiAgentEpisode.from_state([])


class TestText:
    def test_repr(self):
        assert repr(turns()) == "MultiAgentEpisode(id_='e', len=3, env_t=0..3, agents=['a', 'b', 'c'], ongoing)"

    def test_print(self, capsys):
        turns(env_t_started=10, len_lookback_buffer=1).print()
        assert capsys.readouterr().out == (
            "env_t  9  10  11  12\na      x   x   .   x\nb      x   .   x   .\nc      .   .   x   .\n"
        )
        MultiAgentEpisode().print()
        assert capsys.readouterr().out == "env_t  0\n"
