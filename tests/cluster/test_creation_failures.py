"""The message of an error that an actor's constructor raises survives in full, as does whose fault it is."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cluster.creation_failures import creation_failure
from runner.config.errors import ConfigError, Problem, RunFailure, UserError

_TRACE = """The actor died because of an error raised in its creation task, \x1b[36mray::Actor.__init__()\x1b[39m
  File "/a/b.py", line 3, in __init__
    raise ConfigError([problem])
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}"""


def test_a_configuration_error_keeps_its_text() -> None:
    error = ConfigError([Problem("no such option", "a.b", "1", "2\n3"), Problem("another", "c")])
    found = creation_failure(_TRACE.format(error=f"runner.config.errors.ConfigError: {error}"), "it cannot be created")
    assert isinstance(found, UserError)
    assert str(found) == str(error)


@pytest.mark.parametrize("text", ["ValueError: first\n  second", "KeyError: 'a'", "runner.nothing.Error: x"])
def test_any_other_error_is_a_failure_of_the_run(text: str) -> None:
    found = creation_failure(_TRACE.format(error=text), "env runner 1 cannot be created")
    assert isinstance(found, RunFailure)
    assert found.problem.what == f"env runner 1 cannot be created: {text}"


def test_a_text_without_a_stack_trace() -> None:
    assert "cannot be created: it died" in str(creation_failure("first\nit died", "it cannot be created"))


class _Refusing:
    def __init__(self) -> None:
        raise ConfigError([Problem("the table lacks a row", "env.env_config.table", "[]", "a row per task")])

    def ready(self) -> None:
        pass


@pytest.mark.ray
def test_what_ray_makes_of_it(ray_cluster: None) -> None:
    import ray

    actor: Any = ray.remote(_Refusing).remote()
    with pytest.raises(ray.exceptions.RayError) as failure:
        ray.get(actor.ready.remote())
    found = creation_failure(failure.value, "an actor cannot be created")
    assert isinstance(found, UserError)
    expected = ConfigError([Problem("the table lacks a row", "env.env_config.table", "[]", "a row per task")])
    assert str(found) == str(expected)
