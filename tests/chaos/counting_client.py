"""`python -m tests.chaos.counting_client SCRIPT ARGUMENTS`: a client script that counts what the server acknowledged.

The script runs as it is, with a `Client` that prints a line of JSON when it ends: env steps (of each agent, where there
are several) in messages that were acknowledged, that were refused, and that got no answer; and actions that came.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from typing import Any

import runner.rllink
from runner.rllink.client import Client, RLlinkError

_counts: Counter[str] = Counter(acknowledged=0, refused=0, unanswered=0, actions=0)


class CountingClient(Client):
    """Counts the steps of each message by how it was answered."""

    def _ask(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        num_steps = sum(len(chunk["rewards"]) for chunk in message.get("episodes", ()) if "rewards" in chunk)
        try:
            answer = super()._ask(message, expected)
        except RLlinkError:
            _counts["refused"] += num_steps
            raise
        except ConnectionError:
            _counts["unanswered"] += num_steps
            raise
        _counts["acknowledged"] += num_steps
        _counts["actions"] += sum(action is not None for action in answer.get("actions", ()))
        return answer


if __name__ == "__main__":
    runner.rllink.Client = CountingClient  # type: ignore[misc]
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        print(json.dumps(_counts), flush=True)
