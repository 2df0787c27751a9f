"""The origin of files: signed by this installation, or untrusted.

A digest detects damaged files, but anyone who alters a file can recompute it. An HMAC needs the key.
The key is `RUNNER_KEY`, the file that `RUNNER_KEY_FILE` names, or `runner/key` in the user's state folder, which the
first run creates. Files signed with any of these keys are trusted; the first of them signs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

KEY, KEY_FILE = "RUNNER_KEY", "RUNNER_KEY_FILE"
SIGNATURE = "hmac"
_FEWEST_LETTERS = 16
_MOST_BYTES = 4096


class KeyUnavailableError(Exception):
    """No key is available for signing; the message gives the reason in one line."""


def signed(content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return JSON-serialisable content with this installation's signature, or unsigned if there is no key.

    Args:
        content: dict with string keys.
        kind: kind of content, for example `checkpoint`; a signature for another kind is invalid.
    """
    unsigned = {name: value for name, value in content.items() if name != SIGNATURE}
    try:
        return {**unsigned, SIGNATURE: _signature(_signing_key(), unsigned, kind)}
    except KeyUnavailableError:
        return unsigned


def foreign_reason(content: Mapping[str, Any], kind: str) -> str | None:
    """Return the reason why content is untrusted; None if a key of this installation has signed it."""
    given = content.get(SIGNATURE)
    if not isinstance(given, str):
        return "not signed: written by a run without a key"
    unsigned = {name: value for name, value in content.items() if name != SIGNATURE}
    expected = [_signature(key, unsigned, kind) for key in _known_keys()]
    if any([hmac.compare_digest(given.encode("utf-8", "replace"), one.encode()) for one in expected]):
        return None
    return "signed with another key" if expected else "signed, but this installation does not have a key"


def prepare_key() -> str | None:
    """Create the key if there is none; return a line with the reason if nothing can be signed, or None."""
    try:
        _signing_key()
    except KeyUnavailableError as error:
        return f"checkpoints are not signed, so later commands will need --trust: {error}"
    return None


def _signature(key: bytes, unsigned: Mapping[str, Any], kind: str) -> str:
    text = json.dumps([f"runner {kind}", unsigned], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _signing_key() -> bytes:
    """Return the first of the three keys, and create it if needed; raises `KeyUnavailableError`."""
    if KEY in os.environ:
        return _checked(os.environ[KEY], KEY)
    if KEY_FILE in os.environ:
        return _read(Path(os.environ[KEY_FILE]))
    path = _default_key_file()
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise KeyUnavailableError(f"the key cannot be created: {error}") from None
    return _read(path)


def _known_keys() -> Iterator[bytes]:
    """Yield all readable keys without creating any."""
    if KEY in os.environ:
        with suppress(KeyUnavailableError):
            yield _checked(os.environ[KEY], KEY)
    if KEY_FILE in os.environ:
        with suppress(KeyUnavailableError):
            yield _read(Path(os.environ[KEY_FILE]))
    with suppress(KeyUnavailableError):
        yield _read(_default_key_file())


def _default_key_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    if not folder.is_absolute():
        raise KeyUnavailableError(f"this user does not have a home folder; set {KEY} or {KEY_FILE}")
    return folder / "runner" / "key"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise KeyUnavailableError(f"the key cannot be read: {error}") from None
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeyUnavailableError(f"other users can write the key {path}; run chmod 600 {path}")
    return _checked(content.decode("utf-8", "replace"), str(path))


def _checked(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) < _FEWEST_LETTERS:
        raise KeyUnavailableError(f"{where} has {len(text)} characters; expected at least {_FEWEST_LETTERS}")
    return text.encode()


def _make(path: Path) -> None:
    """Write a new key, unless another process has written one first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
