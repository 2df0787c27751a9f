"""MultiAgentEpisode under random schedules: sliced, equal to one made from these env steps only, and read."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import SingleAgentEpisode
from tests.episodes.test_single_agent_episode import buffer_contents, plain
from tests.support.agent_histories import episode_of

AGENTS = ["a", "b", 7]


def random_schedule(rng, num_steps=None, agents=AGENTS, ends=True):
    """The env steps of a random episode, as for `episode_of`.

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
    return [{"observations": first, "infos": {agent: {"reset": agent} for agent in first}}, *steps]


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
    """What hangs, by agent: actions, extra model outputs, rewards."""
    tracks = [(agent_id, track) for agent_id, track in episode._tracks.items() if track.begun is not None]
    return {agent_id: (*track.begun, track.reward) for agent_id, track in tracks}


def contents(episode):
    """All that an episode is, comparable with ==, but the random ids of the agents' episodes."""
    return {
        "agents": {agent_id: agent_contents(e) for agent_id, e in episode.agent_episodes.items()},
        "mapping": {agent_id: buffer_contents(b) for agent_id, b in episode.env_t_to_agent_t.items()},
        "obs_env_t": obs_env_t(episode),
        "t": (episode.env_t_started, episode.env_t, len(episode)),
        "done": (episode.is_terminated, episode.is_truncated),
        "hanging": plain(hanging(episode)),
        "custom_data": episode.custom_data,
        "to_act": episode.get_agents_to_act(),
        "return": episode.get_return(),
    }


schedules = st.integers(0, 2**32 - 1).map(lambda seed: random_schedule(random.Random(seed)))
lookbacks = st.integers(0, 3)


@given(schedules)
def test_a_schedule_is_kept(schedule):
    """All observations are there, and all rewards that an agent's action has brought."""
    episode = episode_of(schedule)
    episode.validate()
    seen = [step["observations"] for step in schedule]
    listed = episode.get_observations(return_list=True)
    assert [{a: o for a, o in at.items() if a in given_} for at, given_ in zip(listed, seen, strict=True)] == seen
    for at, given_, step in zip(listed, seen, schedule, strict=True):  # the final observations that were repeated
        repeated = at.keys() - given_.keys()
        assert all(step["terminateds"].get(agent) or step["terminateds"].get("__all__") for agent in repeated)
    actions = episode.get_actions(return_list=True)
    for at, step in zip(actions, schedule[1:], strict=True):
        assert all(step["actions"].get(agent, action) == action for agent, action in at.items())


@given(schedules, st.integers(0, 9), st.integers(0, 9), lookbacks)
@settings(max_examples=300)
def test_a_slice_equals_an_episode_of_these_steps(schedule, first, last, lookback):
    """Defined where each agent steps through: no step crosses the borders, nothing is given out of turn."""
    schedule = stepwise(schedule)
    whole = episode_of(schedule)
    start, stop = sorted((min(first, len(whole)), min(last, len(whole))))
    part = whole.slice(slice(start, stop), len_lookback_buffer=lookback)
    part.validate()
    reset = {"observations": whole.get_observations(start), "infos": whole.get_infos(start)}
    scratch = episode_of([reset, *schedule[start + 1 : stop + 1]], offset=start)
    gone = scratch.agent_ids - part.agent_ids  # whose last observation is at the start
    assert all(obs_env_t(whole)[agent][-1] <= start for agent in gone)
    for agent in part.agent_ids:
        own, expected = part.agent_episodes[agent], scratch.agent_episodes[agent]
        for name in ("observations", "actions", "rewards", "infos"):
            assert list(getattr(own, f"get_{name}")()) == list(getattr(expected, f"get_{name}")())
        assert (own.is_terminated, own.is_truncated) == (expected.is_terminated, expected.is_truncated)
        before = own.observations.lookback
        assert before == sum(start - lookback <= t < start for t in obs_env_t(whole)[agent])
        assert obs_env_t(part)[agent][before:] == obs_env_t(scratch)[agent]
        own_start = sum(t < start for t in obs_env_t(whole)[agent])
        assert own.t_started == own_start
    assert part.get_return() == scratch.get_return()
    assert hanging(part) == {}
    whole_flags = (whole.is_terminated, whole.is_truncated)
    assert (part.is_terminated, part.is_truncated) == (whole_flags if stop == len(whole) else (False, False))


def stepwise(schedule):
    """The schedule with an observation for each action at once, and rewards for nothing else."""
    first, *steps = schedule
    observed, clean = set(first["observations"]), []
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
    return [first, *clean]


@given(schedules, lookbacks, st.lists(st.integers(0, 10), max_size=3))
@settings(max_examples=300)
def test_slices_add_up(schedule, lookback, borders):
    """The slice of everything is the chunk, and a step that hangs in one slice is complete in none."""
    chunk = episode_of(schedule, num_lookback=min(lookback, len(schedule) - 1))
    assert contents(chunk[:]) == contents(chunk)
    borders = sorted({0, len(chunk), *(min(border, len(chunk)) for border in borders)})
    parts = [chunk[a:b] for a, b in pairwise(borders)]
    for part in parts:
        part.validate()
    if parts:
        num_hanging = sum(len(hanging(part)) for part in parts)
        assert sum(part.agent_steps() for part in parts) + num_hanging >= chunk.agent_steps()
        assert sum(part.agent_steps() for part in parts) <= chunk.agent_steps()


@given(schedules, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_slice_of_a_slice(schedule, first, second, third):
    """What hangs in a slice also hangs in its slices. Agents that wait at its end are in all slices that end there."""
    whole = episode_of(schedule)
    outer = whole[:first]
    start, stop = sorted((min(second, len(outer)), min(third, len(outer))))
    start = 0 if stop == len(outer) else start
    found, expected = outer[start:stop], whole[start:stop]
    assert hanging(found) == hanging(expected)
    assert found.get_actions(return_list=True) == expected.get_actions(return_list=True)
    assert found.get_rewards(return_list=True) == expected.get_rewards(return_list=True)


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
    episode = episode_of(schedule, num_lookback=min(lookback, len(schedule) - 1))
    episode = episode[: len(episode) - 1]  # so that steps hang
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
    seen = {name: 0 for name in ("hanging", "late", "terminated", "truncated", "mixed")}
    for seed in range(300):
        episode = episode_of(random_schedule(random.Random(seed)))
        seen["hanging"] += bool(hanging(episode[: len(episode) // 2]))
        seen["late"] += any(times[0] > 0 for times in obs_env_t(episode).values())
        seen["terminated"] += episode.is_terminated
        seen["truncated"] += episode.is_truncated
        flags = [e.is_terminated for e in episode.agent_episodes.values() if e.is_done]
        seen["mixed"] += len(set(flags)) == 2
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("numpy", [False, True])
def test_the_agents_own_episodes_can_be_used_alone(numpy):
    episode = episode_of(random_schedule(random.Random(5), num_steps=6, ends=False))
    if numpy:
        episode.to_numpy()
    for agent_id, own in episode.agent_episodes.items():
        assert isinstance(own, SingleAgentEpisode)
        own.validate()
        assert (own.agent_id, own.multi_agent_episode_id, own.module_id) == (agent_id, "e", f"module_{agent_id}")
