"""The JSON schema in the YAML language server that editors use: completion, descriptions and errors.

`make dist-check` runs these tests, for which npm installs the language server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

PACKAGE = "yaml-language-server@1.25.0"
CURSOR = "|"
INSTALL_S = 300.0

pytestmark = pytest.mark.dist


class LanguageServer:
    """A client of a language server, by the Language Server Protocol 3.17 on its standard streams."""

    def __init__(self, command: Path) -> None:
        self._process = subprocess.Popen([command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self._documents: dict[str, int] = {}
        self.request("initialize", processId=None, rootUri=None, capabilities={})
        self._send(method="initialized", params={})

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.communicate()

    def request(self, method: str, **params: Any) -> Any:
        """Return the result of a request."""
        self._number += 1
        self._send(id=self._number, method=method, params=params)
        return self._next(lambda message: message.get("id") == self._number and "method" not in message)["result"]

    def errors(self, file: Path, text: str) -> list[str]:
        """Return the messages about a document, in the order of their lines."""
        self._show(file, text)
        found = self._next(lambda message: message.get("method") == "textDocument/publishDiagnostics")["params"]
        ordered = sorted(found["diagnostics"], key=lambda one: one["range"]["start"]["line"])
        return [one["message"] for one in ordered]

    def at_cursor(self, method: str, file: Path, text: str) -> Any:
        """Return the answer to a request about the place of the cursor, which is a `|` in the text."""
        before, _, after = text.partition(CURSOR)
        self._show(file, before + after)
        line, character = before.count("\n"), len(before.rpartition("\n")[2])
        place = {"line": line, "character": character}
        return self.request(f"textDocument/{method}", textDocument={"uri": file.as_uri()}, position=place)

    def _show(self, file: Path, text: str) -> None:
        """Open a document, or replace its text."""
        uri = file.as_uri()
        version = self._documents[uri] = self._documents.get(uri, 0) + 1
        document = {"uri": uri, "version": version}
        if version == 1:
            opened = {**document, "languageId": "yaml", "text": text}
            self._send(method="textDocument/didOpen", params={"textDocument": opened})
        else:
            change = {"textDocument": document, "contentChanges": [{"text": text}]}
            self._send(method="textDocument/didChange", params=change)

    def _next(self, is_wanted: Callable[[Any], bool]) -> Any:
        """Return the next message that is wanted, and answer the requests of the server before it."""
        while True:
            message = self._receive()
            if is_wanted(message):
                return message
            if "id" in message and "method" in message:
                items = message["params"].get("items", []) if message["method"] == "workspace/configuration" else []
                self._send(id=message["id"], result=[{} for _ in items] or None)

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        return json.loads(self._process.stdout.read(length))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "install", "--prefix", folder, PACKAGE], check=True, timeout=INSTALL_S)
    made = LanguageServer(folder / "node_modules" / ".bin" / "yaml-language-server")
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path, run_main: Run) -> Path:
    """An experiment file made by `new experiment`."""
    assert run_main("new", "experiment", "mine", "--env", "CartPole-v1", "--algorithm", "dqn").code == 0
    return tmp_path / "conf" / "experiment" / "mine.yaml"


def test_a_new_experiment_has_no_errors(server: LanguageServer, file: Path) -> None:
    assert server.errors(file, file.read_text()) == []


def test_a_typo_is_an_error(server: LanguageServer, file: Path) -> None:
    wrong = "algorithm:\n  gama: 0.9\n  n_step: 0\n  minibatching: shufled\nmodule: {fcnet_hiddens: wide}\n"
    unknown, range_, choice, type_ = server.errors(file, file.read_text() + wrong)
    assert unknown == "Property gama is not allowed."
    assert "below the minimum of 1" in range_
    assert '"shuffled"' in choice
    assert type_ == "expected a list of integers >= 1"


def test_keys_are_completed(server: LanguageServer, file: Path) -> None:
    def labels(text: str) -> set[str]:
        answer = server.at_cursor("completion", file, file.read_text() + text)
        return {item["label"] for item in answer["items"]}

    of_algorithm = labels("algorithm:\n  n|\n")
    assert {"n_step", "double_q", "replay_capacity"} <= of_algorithm
    assert "clip_param" not in of_algorithm  # PPO's
    assert {"env_runners", "module", "evaluation"} <= labels("e|\n")
    assert labels("engine: |\n") == {"ray", "inline"}


def test_options_of_groups_are_completed(server: LanguageServer, file: Path) -> None:
    text = file.read_text().replace("override /algorithm: dqn", "override /algorithm: |")
    answer = server.at_cursor("completion", file, text)
    assert {"ppo", "sac", "rainbow"} <= {item["label"] for item in answer["items"]}


def test_keys_are_described(server: LanguageServer, file: Path) -> None:
    answer = server.at_cursor("hover", file, file.read_text() + "algorithm:\n  gam|ma: 0.9\n")
    assert "discount factor" in answer["contents"]["value"]
    assert "default: 0.99" in answer["contents"]["value"]
