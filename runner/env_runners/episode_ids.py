"""The source of an episode, from its id."""

from __future__ import annotations

import re

# Ids of episodes from env runners and from RLlink's servers.
_OF_ENV_RUNNER = re.compile(r"\d+-env_runner-(?P<runner>\d+)(\.(?P<generation>\d+))?-(?P<env>\d+)-\d+(-.*)?", re.DOTALL)
_OF_CLIENT = re.compile(r"(?P<client>\d+-[0-9a-f]{6}-\d+)-\d+(-.*)?", re.DOTALL)


def runner_of(episode_id: str) -> tuple[int, int] | None:
    """Return index and generation of the env runner of an episode, or None if its id does not contain them."""
    match = _OF_ENV_RUNNER.fullmatch(episode_id)
    return None if match is None else (int(match["runner"]), int(match["generation"] or 0))


def source_of(episode_id: str) -> str | None:
    """Return the runner and sub-environment, or the client, of an episode; None if its id does not contain them."""
    if match := _OF_ENV_RUNNER.fullmatch(episode_id):
        return f"env runner {match['runner']}, sub-environment {match['env']}"
    match = _OF_CLIENT.fullmatch(episode_id)
    return f"client {match['client']}" if match else None
