"""MultiAgentEpisode under random schedules: cut and joined, sliced, saved and read, equal to never touched."""

import base64
import json
import random
from itertools import pairwise

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import LookbackBuffer, MultiAgentEpisode, SingleAgentEpisode

AGENTS = ["a", "b", 7]


def random_schedule(rng, num_steps=None, agents=AGENTS, ends=True):
    """The reset observations and the arguments of each env step of a random episode.

    Agents come, wait for an answer, are not asked for some env steps, and end in every way there is. Values are
    unique; rewards are integers, so that every order of adding them up gives the same.
    """
    counter = iter(range(1, 10**6))
    seen, waiting, gone, steps = set(), set(), set(), []
    first = {agent: next(counter) for agent in agents if rng.random() < 0.7} or {agents[0]: next(counter)}
    seen |= first.keys()
    for _ in range(rng.randint(0, 9) if num_steps is None else num_steps):
        step = {
            name: {} for name in ("observations", "actions", "rewards", "infos", "terminateds", "truncateds", "extra")
        }
        everyone_ends = ends and rng.random() < 0.05
        kind = rng.choice(["terminateds", "truncateds"])
        for agent in agents:
            if agent in gone:
                continue
            if rng.random() < 0.5:
                step["rewards"][agent] = rng.randint(-9, 9)
            if agent not in seen:
                if rng.random() < 0.4:
                    step["observations"][agent] = next(counter)
                    seen.add(agent)
                continue
            acts = agent not in waiting and rng.random() < 0.8
            if acts:
                step["actions"][agent] = next(counter)
                step["extra"][agent] = {"logp": -next(counter)}
                waiting.add(agent)
            is_waiting, is_answered = agent in waiting, agent in waiting and rng.random() < 0.6
            agent_ends = everyone_ends or (ends and rng.random() < 0.08)
            if agent_ends and kind == "truncateds" and is_waiting:
                is_answered = True
            if is_answered:
                step["observations"][agent] = next(counter)
                step["rewards"].setdefault(agent, 0)
                waiting.discard(agent)
                if rng.random() < 0.5:
                    step["infos"][agent] = {"info": next(counter)}
            if agent_ends:
                gone.add(agent)
                waiting.discard(agent)
                if not everyone_ends:
                    step[kind][agent] = True
        if everyone_ends:
            step[kind]["__all__"] = True
        steps.append(step)
        if everyone_ends or (seen and seen <= gone):
            break
    return first, steps


def add(episode, step):
    names = ("observations", "actions", "rewards", "infos", "terminateds", "truncateds")
    arguments = {name: dict(step[name]) for name in names}
    episode.add_env_step(**arguments, extra_model_outputs=dict(step["extra"]))


def play(schedule, id_="e"):
    first, steps = schedule
    episode = MultiAgentEpisode(id_, agent_to_module_mapping_fn=lambda agent_id, _: f"module_{agent_id}")
    episode.add_env_reset(observations=first, infos={agent: {"reset": agent} for agent in first})
    for step in steps:
        add(episode, step)
    return episode


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def buffer_contents(buffer):
    return buffer.lookback, plain(list(LookbackBuffer(buffer.get(slice(-buffer.len_incl_lookback(), None)))))


def agent_contents(episode):
    extra = {key: buffer_contents(b) for key, b in episode.extra_model_outputs.items() if b.len_incl_lookback()}
    return {
        "columns": [
            buffer_contents(buffer)
            for buffer in (episode.observations, episode.actions, episode.rewards, episode.infos)
        ],
        "extra": extra,
        "t": (episode.t_started, episode.t),
        "done": (episode.is_terminated, episode.is_truncated),
        "ids": (episode.agent_id, episode.module_id, episode.multi_agent_episode_id),
    }


def obs_env_t(episode):
    return {agent_id: track.env_t for agent_id, track in episode._tracks.items()}


def hanging(episode):
    """The dicts by agent of what hangs: actions, extra model outputs, rewards, and the share that is carried."""
    tracks = episode._tracks.items()
    return (
        {agent_id: track.begun[0] for agent_id, track in tracks if track.begun is not None},
        {agent_id: track.begun[1] for agent_id, track in tracks if track.begun is not None},
        {agent_id: track.reward for agent_id, track in tracks if track.reward is not None},
        {agent_id: track.carried for agent_id, track in tracks if track.carried is not None},
    )


def contents(episode, *, carried=True):
    """All that an episode is, comparable with ==, but the random ids of the agents' episodes."""
    result = {
        "agents": {agent_id: agent_contents(e) for agent_id, e in episode.agent_episodes.items()},
        "mapping": {agent_id: buffer_contents(b) for agent_id, b in episode.env_t_to_agent_t.items()},
        "obs_env_t": obs_env_t(episode),
        "t": (episode.env_t_started, episode.env_t, len(episode)),
        "done": (episode.is_terminated, episode.is_truncated),
        "hanging": plain(hanging(episode)[:3]),
        "ended": episode._ended_agents,
        "custom_data": episode.custom_data,
        "to_act": episode.get_agents_to_act(),
    }
    if carried:
        result["before"] = plain([episode._hanging_rewards_begin, hanging(episode)[3]])
        result["returns"] = (episode.get_return(), episode.get_return(include_hanging_rewards=True))
    return result


schedules = st.integers(0, 2**32 - 1).map(lambda seed: random_schedule(random.Random(seed)))
lookbacks = st.integers(0, 3)


def play_in_chunks(schedule, cuts, lookback, numpy=False):
    """The chunks of the episode, cut before each step whose index is in `cuts`."""
    first, steps = schedule
    chunk = play((first, []))
    chunks = [chunk]
    for index, step in enumerate(steps):
        if index in cuts:
            chunk = chunk.cut(lookback)
            chunks[-1].validate()
            chunks[-1] = chunks[-1].to_numpy() if numpy else chunks[-1]
            chunks.append(chunk)
        add(chunk, step)
        chunk.validate()
    return chunks


@given(schedules)
def test_a_schedule_is_kept(schedule):
    episode = play(schedule)
    episode.validate()
    first, steps = schedule
    seen = [first, *(step["observations"] for step in steps)]
    listed = episode.get_observations(return_list=True)
    repeated = [{a: o for a, o in at.items() if a not in given_} for at, given_ in zip(listed, seen, strict=True)]
    assert [{a: o for a, o in at.items() if a in given_} for at, given_ in zip(listed, seen, strict=True)] == seen
    for at, step in zip(repeated[1:], steps, strict=True):  # the final observations that were repeated
        assert all(step["terminateds"].get(agent) or step["terminateds"].get("__all__") for agent in at)
    assert repeated[0] == {}
    given_rewards = sum(sum(step["rewards"].values()) for step in steps)
    assert episode.get_return(include_hanging_rewards=True) == given_rewards


@given(schedules, st.sets(st.integers(0, 9)), lookbacks, st.booleans())
@settings(max_examples=300)
def test_cut_and_concat_equals_never_cut(schedule, cuts, lookback, numpy):
    expected = play(schedule)
    chunks = play_in_chunks(schedule, cuts, lookback)
    rewards = [0 for _ in chunks]
    which = 0
    for index, step in enumerate(schedule[1]):
        which += index in cuts
        rewards[which] += sum(step["rewards"].values())
    assert [chunk.get_return(include_hanging_rewards=True) for chunk in chunks] == rewards
    assert (chunks[-1].is_terminated, chunks[-1].is_truncated) == (expected.is_terminated, expected.is_truncated)
    if numpy:
        for chunk in chunks:
            chunk.to_numpy()
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined.concat_episode(chunk)
        joined.validate()
    assert contents(joined) == contents(expected)


@given(schedules, st.integers(0, 9), lookbacks)
def test_a_joined_episode_goes_on_as_one_never_cut(schedule, cut, lookback):
    first, steps = schedule
    if cut >= len(steps):
        return
    joined = play((first, steps[:cut]))
    successor = joined.cut(lookback)
    add(successor, steps[cut])
    state = contents(successor)
    joined.concat_episode(successor)
    for step in steps[cut + 1 :]:
        add(joined, step)
    assert contents(joined) == contents(play(schedule))
    assert contents(successor) == state  # what is appended to the joined one does not reach it


@given(schedules, st.integers(0, 9), lookbacks)
def test_a_cut_chunk_equals_one_made_from_the_history(schedule, cut, lookback):
    first, steps = schedule
    if cut >= len(steps):
        return
    episode = play((first, steps[:cut]))
    if any(e.is_done for e in episode.agent_episodes.values()):
        return  # a history cannot say when an agent ended
    chunk = episode.cut(lookback)
    lookback = min(cut, lookback)
    made = MultiAgentEpisode(
        "e",
        observations=[first, *(step["observations"] for step in steps[:cut])],
        infos=[{agent: {"reset": agent} for agent in first}, *(step["infos"] for step in steps[:cut])],
        actions=[step["actions"] for step in steps[:cut]],
        rewards=[step["rewards"] for step in steps[:cut]],
        extra_model_outputs=[step["extra"] for step in steps[:cut]],
        env_t_started=cut,
        agent_t_started=chunk.agent_t_started,
        agent_to_module_mapping_fn=lambda agent_id, _: f"module_{agent_id}",
    )
    assert contents(made.cut(lookback)) == contents(chunk)


@given(schedules, st.integers(0, 9), lookbacks, st.booleans(), st.booleans())
def test_state_round_trip(schedule, cut, lookback, numpy, as_json):
    first, steps = schedule
    cut = min(cut, len(steps))
    episode = play((first, steps[:cut]))
    episode.custom_data["x"] = {1: (2, "three")}
    if cut < len(steps):
        chunk = episode.cut(lookback)
        read = round_trip(chunk, as_json)
        assert contents(read) == contents(chunk)
        assert read.agent_episode_ids == chunk.agent_episode_ids
        for step in steps[cut:]:
            add(read, step)
            add(chunk, step)
        assert contents(read) == contents(chunk)
    if numpy:
        episode.to_numpy()
    assert contents(round_trip(episode, as_json)) == contents(episode)
    assert round_trip(episode, as_json).is_numpy == episode.is_numpy


def round_trip(episode, as_json):
    state = episode.get_state()
    if as_json:
        text = json.dumps(state, default=lambda data: {"bytes": base64.b64encode(data).decode()})
        back = json.loads(text, object_hook=lambda d: base64.b64decode(d["bytes"]) if d.keys() == {"bytes"} else d)
    else:
        back = msgpack.unpackb(msgpack.packb(state, use_bin_type=True, strict_types=True), strict_map_key=False)
    return MultiAgentEpisode.from_state(back, lambda agent_id, _: f"module_{agent_id}")


@given(schedules, st.integers(-1, 10), st.integers(-1, 10), st.none() | lookbacks)
@settings(max_examples=300)
def test_slice_equals_an_episode_from_scratch(schedule, start, stop, lookback):
    """Defined where each agent steps through: no step crosses the borders, nothing is given out of turn."""
    schedule = stepwise(schedule)
    whole = play(schedule)
    part = whole.slice(slice(start, stop), len_lookback_buffer=lookback)
    part.validate()
    start, stop, _ = slice(start, stop).indices(len(whole))
    stop = max(start, stop)
    before = min(start, lookback or 0)
    part_of = slice(start - before, stop)
    listed = {
        name: getattr(whole, f"get_{name}")(indices=part_of, return_list=True)
        for name in ("actions", "rewards", "extra_model_outputs")
    }
    at = slice(start - before, stop + 1)
    terminateds, truncateds = final_flags(whole, stop)
    scratch = MultiAgentEpisode(
        "e",
        observations=whole.get_observations(at, return_list=True),
        infos=whole.get_infos(at, return_list=True),
        **listed,
        terminateds=terminateds,
        truncateds=truncateds,
        env_t_started=start,
        agent_t_started=part.agent_t_started,
        len_lookback_buffer=before,
        agent_to_module_mapping_fn=lambda agent_id, _: f"module_{agent_id}",
    )
    gone = scratch.agent_ids - part.agent_ids  # whose last observation is at or before the start
    assert all(obs_env_t(whole)[agent][-1] <= start for agent in gone)
    for agent in part.agent_ids:
        assert agent_contents(part.agent_episodes[agent]) == agent_contents(scratch.agent_episodes[agent])
        assert obs_env_t(part)[agent] == obs_env_t(scratch)[agent]
    assert part.get_return(True) == scratch.get_return(True)
    assert (part.is_terminated, part.is_truncated) == (
        (whole.is_terminated, whole.is_truncated) if stop == len(whole) else (False, False)
    )


def stepwise(schedule):
    """The schedule with an observation for each action at once, and rewards for nothing else."""
    first, steps = schedule
    observed, last, clean = set(first), dict(first), []
    for step in steps:
        acting = [agent for agent in AGENTS if agent in observed]
        clean.append(
            {
                **step,
                "observations": {
                    agent: step["observations"].get(agent, -1)
                    for agent in AGENTS
                    if agent in observed or agent in step["observations"]
                },
                "actions": {agent: step["actions"].get(agent, -2) for agent in acting},
                "rewards": {agent: step["rewards"].get(agent, -3) for agent in acting},
                "infos": {},
                "extra": {agent: step["extra"].get(agent, {"logp": -4}) for agent in acting},
            }
        )
        if step["terminateds"].get("__all__") or step["truncateds"].get("__all__"):
            break
        observed |= step["observations"].keys() & set(AGENTS)
        observed -= {agent for name in ("terminateds", "truncateds") for agent in step[name]}
        if not observed:
            break
        last |= step["observations"]
    return first, clean


def final_flags(whole, stop):
    flags = [{}, {}]
    for agent, episode in whole.agent_episodes.items():
        if obs_env_t(whole)[agent][-1] <= stop:
            flags[0][agent], flags[1][agent] = episode.is_terminated, episode.is_truncated
    return flags


@given(schedules, st.integers(0, 9), lookbacks, st.lists(st.integers(0, 10), max_size=3))
@settings(max_examples=300)
def test_slices_add_up(schedule, cut, lookback, borders):
    """A chunk's whole slice is the chunk, and each of its rewards is in one of the slices it is divided into."""
    first, steps = schedule
    chunk = play((first, steps[:cut]))
    if cut < len(steps):
        chunk = chunk.cut(lookback)
        for step in steps[cut:]:
            add(chunk, step)
    assert contents(chunk[:]) == contents(chunk)
    borders = sorted({0, len(chunk), *(min(border, len(chunk)) for border in borders)})
    parts = [chunk[a:b] for a, b in pairwise(borders)]
    for part in parts:
        part.validate()
    if parts:
        total = sum(part.get_return(include_hanging_rewards=True) for part in parts)
        assert total == chunk.get_return(include_hanging_rewards=True)
        assert sum(part.agent_steps() for part in parts) <= chunk.agent_steps()


@given(schedules, lookbacks)
def test_an_empty_slice_at_the_end_is_a_cut(schedule, lookback):
    episode = play(schedule)
    if episode.is_done or len(episode) == 0:
        return
    part = episode.slice(slice(len(episode), None), len_lookback_buffer=lookback)
    assert contents(part, carried=False) == contents(episode.cut(lookback), carried=False)
    assert part.get_return(True) == 0


@given(schedules, lookbacks, st.booleans())
def test_from_agent_episodes_makes_the_same_view(schedule, lookback, numpy):
    episode = play(schedule)
    if not episode.is_done:
        episode = episode.cut(lookback)
    if numpy:
        episode.to_numpy()
    actions, extra_model_outputs, rewards, carried_rewards = hanging(episode)
    view = MultiAgentEpisode.from_agent_episodes(
        "e",
        agent_episodes=episode.agent_episodes,
        env_t_of_obs={agent: np.array(times) for agent, times in obs_env_t(episode).items()},
        env_t_started=episode.env_t_started,
        env_t=episode.env_t,
        terminateds={"__all__": episode.is_terminated},
        truncateds=episode.is_truncated,
        len_lookback_buffer=episode._len_lookback_buffer,
        hanging_actions=actions,
        hanging_extra_model_outputs=extra_model_outputs,
        hanging_rewards=rewards,
        carried_rewards=carried_rewards,
    )
    view.validate()
    view._ended_agents, view._hanging_rewards_begin = episode._ended_agents, episode._hanging_rewards_begin
    assert contents(view) == contents(episode)
    for agent, own in view.agent_episodes.items():
        assert own.observations.data is episode.agent_episodes[agent].observations.data


@given(
    schedules,
    lookbacks,
    st.integers(-8, 8)
    | st.lists(st.integers(-8, 8), max_size=4)
    | st.builds(slice, *[st.none() | st.integers(-8, 8)] * 2, st.sampled_from([None, 2, -1]))
    | st.none(),
    st.booleans(),
    st.sampled_from([None, 3]),
)
@settings(max_examples=300)
def test_getters_agree_with_each_other(schedule, lookback, indices, neg, fill):
    """List mode with numpy mode, a dict of rows with a list of dicts, and single env steps with many."""
    episode = play(schedule)
    if not episode.is_done:
        episode = episode.cut(lookback)
    for name in ("observations", "actions", "rewards", "infos"):
        get = getattr(episode, f"get_{name}")
        options = {"neg_index_as_lookback": neg, "fill": fill}
        found = outcome(get, indices, **options)
        as_list = outcome(get, indices, **options, return_list=True)
        if isinstance(found, str):
            assert as_list == found
            continue
        if isinstance(indices, int):
            assert as_list == [found]
            assert found == {a: items[0] for a, items in outcome(get, [indices], **options).items()}
        else:
            rows = {}
            for at in as_list:
                for agent, item in at.items():
                    rows.setdefault(agent, []).append(item)
            assert found == {agent: rows[agent] for agent in episode.agent_episodes if agent in rows}
    if all(len(e) + e.rewards.lookback for e in episode.agent_episodes.values()):
        before = {name: outcome(getattr(episode, f"get_{name}"), indices) for name in ("observations", "actions")}
        own = outcome(episode.get_rewards, indices, env_steps=False, fill=fill)
        episode.to_numpy()
        assert before == {name: outcome(getattr(episode, f"get_{name}"), indices) for name in before}
        assert own == outcome(episode.get_rewards, indices, env_steps=False, fill=fill)


def outcome(get, indices, **options):
    try:
        return plain(get(indices, **options))
    except IndexError as error:
        return str(error)


def test_the_schedules_have_every_case():
    """The generator is worth nothing if it does not reach the cases that it is for."""
    seen = {name: 0 for name in ("hanging", "carried", "premature", "idle reward", "terminated", "truncated", "mixed")}
    for seed in range(300):
        schedule = random_schedule(random.Random(seed))
        for chunk in play_in_chunks(schedule, {3, 5}, 1):
            actions, _, rewards, carried_rewards = hanging(chunk)
            seen["hanging"] += bool(actions)
            seen["carried"] += any(carried_rewards.values())
            seen["premature"] += any(chunk._hanging_rewards_begin.values())
            seen["idle reward"] += bool(rewards.keys() - actions.keys())
            seen["terminated"] += chunk.is_terminated
            seen["truncated"] += chunk.is_truncated
            flags = [e.is_terminated for e in chunk.agent_episodes.values() if e.is_done]
            seen["mixed"] += len(set(flags)) == 2
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("numpy", [False, True])
def test_the_agents_own_episodes_can_be_used_alone(numpy):
    episode = play(random_schedule(random.Random(5), num_steps=6, ends=False))
    if numpy:
        episode.to_numpy()
    for agent_id, own in episode.agent_episodes.items():
        assert isinstance(own, SingleAgentEpisode)
        own.validate()
        assert (own.agent_id, own.multi_agent_episode_id, own.module_id) == (agent_id, "e", f"module_{agent_id}")
