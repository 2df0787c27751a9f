"""Every form of Hydra's sweep grammar as a search space."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.errors import ConfigError
from runner.config.overrides import parse_overrides
from runner.config.paths import search_dirs
from runner.sweep.space import Choices, Interval, SearchSpace, difference, override_text, read_search_space


def read(*texts: str) -> SearchSpace:
    return read_search_space(texts, search_dirs(None), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("algorithm.lr=1e-4,3e-4", ("0.0001", "0.0003")),
        ("algorithm.lr=choice(1e-4,3e-4)", ("0.0001", "0.0003")),
        ("algorithm.num_epochs=range(1,4)", ("1", "2", "3")),
        ("algorithm.num_epochs=range(8,0,-4)", ("8", "4")),
        ("algorithm.gamma=range(0.5,1.0,0.25)", ("0.5", "0.75")),
        ("algorithm.lr=sort(3,1,2)", ("1", "2", "3")),
        ("algorithm.lr=float(range(1,3))", ("1.0", "2.0")),
        ("module.fcnet_hiddens=[64,64],[256]", ("[64,64]", "[256]")),
        ("env.env_config={a:1},{a:2}", ("{a:1}", "{a:2}")),
        ("experiment_name='a,b',c", ("'a,b'", "c")),
        ("experiment=glob(ppo_c*,exclude=*_*_*)", ("ppo_cartpole", "ppo_catch")),
    ],
)
def test_values_one_by_one(text: str, values: tuple[str, ...]) -> None:
    (domain,) = read(text).domains
    assert isinstance(domain, Choices)
    assert domain.values == values
    assert domain.is_ordered == ("range" in text)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("a=interval(1e-5,1e-2)", Interval("a", 1e-5, 1e-2)),
        ("a=interval(1,10)", Interval("a", 1.0, 10.0)),
        ("a=int(interval(1,10))", Interval("a", 1, 10, is_integer=True)),
        ("a=tag(log,interval(1e-5,1e-2))", Interval("a", 1e-5, 1e-2, is_log=True)),
        ("a=int(tag(log,interval(1,100)))", Interval("a", 1, 100, is_integer=True, is_log=True)),
    ],
)
def test_intervals(text: str, interval: Interval) -> None:
    assert read(text).domains == (interval,)


def test_a_grid_and_its_seeds() -> None:
    space = read("+experiment=ppo_cartpole", "algorithm.lr=1,2", "seed=range(2)", "b=int(interval(1,2))")
    assert space.fixed == ("+experiment=ppo_cartpole",)
    assert [tuple(one.values()) for one in space.grid()] == [("1", 1), ("1", 2), ("2", 1), ("2", 2)]
    assert list(space.with_seeds({"a": 1})) == [{"a": 1, "seed": "0"}, {"a": 1, "seed": "1"}]
    assert len(list(space.examples())) == 8


def test_the_same_command_means_the_same_order() -> None:
    first, second = (read("algorithm.num_epochs=shuffle(range(20))") for _ in range(2))
    assert first == second
    assert first.domains[0].values != tuple(map(str, range(20)))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a=tag(lg,interval(1,2))"], "unknown tag lg"),
        (["a=tag(log,choice(1,2))"], "unknown tag log"),
        (["a=interval(2,1)"], "must go from a number to a greater one"),
        (["a=tag(log,interval(0,1))"], "logarithms need numbers above 0"),
        (["a=range(0)"], "does not have a value to try"),
        (["a=range(1,2,0)"], "does not have a value to try"),
        (["a=glob(nothing*)"], "does not have a value to try"),
        (["a=1,2,1"], "contains the value 1 twice"),
        (["a=1,2", "a=3"], "given twice"),
        (["seed=int(interval(0,9))"], "seeds must be listed"),
        (["a=range(1000000)"], "more than 10000 values"),
    ],
)
def test_mistakes(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*texts)


def test_a_grid_cannot_try_every_number_of_an_interval() -> None:
    with pytest.raises(ConfigError, match="a grid cannot try every number"):
        read("a=interval(1,2)").grid()


@given(
    start=st.floats(1e-6, 1e3),
    width=st.floats(1e-3, 1e4),
    is_integer=st.booleans(),
    is_log=st.booleans(),
    seed=st.integers(0, 10),
)
def test_what_is_drawn_lies_in_the_interval_and_can_be_read_again(
    start: float, width: float, is_integer: bool, is_log: bool, seed: int
) -> None:
    ends = (max(1, int(start)), max(1, int(start)) + max(1, int(width))) if is_integer else (start, start + width)
    interval = Interval("a", *ends, is_integer=is_integer, is_log=is_log)
    generator = np.random.default_rng(seed)
    for _ in range(5):
        value = interval.sample(generator)
        assert isinstance(value, int if is_integer else float)
        assert ends[0] <= value <= ends[1]
        lines, problems = parse_overrides([override_text("a", value)], [Path()])
        assert not problems
        assert lines[0].parsed.value() == value


def test_only_the_override_of_a_package_keeps_its_plus() -> None:
    place = "+algorithm@multi_agent.modules.p1.algorithm"
    assert override_text("+experiment", "ppo_cartpole") == "experiment=ppo_cartpole"
    assert override_text(place, "dqn") == f"{place}=dqn"


def test_each_whole_number_is_as_likely_as_the_others_and_each_decade_by_logarithm() -> None:
    generator = np.random.default_rng(0)
    drawn = [Interval("a", 1, 4, is_integer=True).sample(generator) for _ in range(4000)]
    assert np.allclose([drawn.count(number) / 4000 for number in (1, 2, 3, 4)], 0.25, atol=0.03)
    by_log = np.array([Interval("a", 1e-4, 1.0, is_log=True).sample(generator) for _ in range(4000)], np.float64)
    counts, _ = np.histogram(np.log10(by_log), bins=4, range=(-4, 0))
    assert np.allclose(counts / 4000, 0.25, atol=0.03)


def test_draws_are_those_of_the_seed() -> None:
    space = read("a=interval(0,1)", "b=1,2")
    first, second = (list(itertools.islice(space.samples(np.random.default_rng(3)), 4)) for _ in range(2))
    assert first == second


def test_what_differs_between_two_sweeps() -> None:
    before, now = (read(*texts).to_dict() for texts in (["x=1", "a=1,2"], ["x=2", "a=1,2,3", "seed=1,2"]))
    assert difference(before, before) == []
    assert difference(before, now) == [
        "- x=1",
        "+ x=2",
        '- a: ["1", "2"]',
        '+ a: ["1", "2", "3"]',
        '+ seed: ["1", "2"]',
    ]
