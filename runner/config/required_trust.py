"""Permissions that a stored configuration needs: imports, network, files, resolvers, options of Ray.

An untrusted configuration gets none of them; see `docs/explanation/trust.md`. This module imports only gymnasium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.blocks import TRACKERS
from runner.config.errors import show_value
from runner.config.features import FEATURE_BLOCKS, OWNERS_OF_ENVS
from runner.config.offline import OWN_WRITE_METHODS
from runner.config.source_definitions import find_ancestors
from runner.config.targets import PACKAGES, is_known_kind, names_code

_REFERENCE = re.compile(r"\$\{\.*[A-Za-z_][\w./\[\]-]*\}")  # ${algorithm.gamma}; a resolver has a colon
_PRODUCT = re.compile(r"\$\{product:[^${}]*\}")  # of numbers and references, which are removed first
MASK = "$ {"  # prefix of masked resolvers
_PETTING_ZOO = "runner.environments.other_packages.PettingZooEnv"  # imports the module in its argument
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_READ_METHODS = ("auto", "read_parquet", "read_json", "read_csv")
# Options of Ray that only request resources.
_HARMLESS_OF_RAY = (
    *("concurrency", "num_cpus", "num_gpus", "memory", "zero_copy_batch", "accelerator_type"),
    *("prefetch_batches", "local_shuffle_buffer_size", "local_shuffle_seed", "drop_last"),
)
_OF_RAY = r"offline\.(map_batches_kwargs|iter_batches_kwargs)\.([^.]+)"
_RAY_WORDS = ("runtime_env", "ray_remote_args", "ray_actor_options", "ray_actor_kwargs")
# Free constructor arguments, which may contain addresses and paths.
_FREE = re.compile(
    r"(env\.env_config|module\.model_config|multi_agent\.(modules\.[^.]+\.model_config|agent_to_module)"
    rf"|{'|'.join(filter(None, FEATURE_BLOCKS.values()))}"
    r"|offline\.(prelearner(_buffer)?_kwargs|input_read_method_kwargs|output_write_method_kwargs))\..+"
    r"|(.+\.)?(connectors|\w+_pipeline|wrappers|callbacks)\..+"
)
_PLACE_WORDS = {"path", "folder", "dir", "directory", "file", "filename", "uri", "url", "host", "address"}
_CONTACTS = ("tracking.tracking_uri", "ray.address", "offline.input_filesystem", "offline.output_filesystem")
_READS = "|".join(
    (
        r"(offline\.input_|evaluation\.offline_evaluation_input_)(\.\d+)?",
        r"rllink\.tls_(certificate|key)",
        r"league\.fixed\.[^.]+",
    )
)
_ENV_NAMES = rf"({'|'.join(OWNERS_OF_ENVS)})\.env_config\.name"
_WRITES = r"offline\.output|tracking\.artifact_location|checkpoint\.upload_to"
# Key -> verb, and whether the value requires it, given all values.
_VERB_OF_KEY: Mapping[str, tuple[str, Callable[[str, Mapping[str, Any]], bool]]] = {
    "env.env": ("imports", lambda text, _: not _is_of_gymnasium(text)),
    "env.host": ("listens at", lambda _, values: _is_open(values)),
    "experiment": ("writes", lambda text, _: _leaves_its_folder(text)),
    "experiment_name": ("writes", lambda text, _: _leaves_its_folder(text)),
    "offline.input_read_method": ("contacts", lambda text, _: text not in _READ_METHODS),
    "offline.output_write_method": ("contacts", lambda text, _: text not in OWN_WRITE_METHODS),
    **dict.fromkeys(_CONTACTS, ("contacts", lambda text, _: text != "local")),
    **{f"tracking.extra_trackers.{n}": ("contacts", lambda text, _: text == "wandb") for n in range(len(TRACKERS))},
}


@dataclass(frozen=True)
class TrustRequirement:
    """One requirement of a configuration: `imports`, `algorithm.loss`, `their_package.Loss`."""

    verb: str
    key: str
    value: str


def mask_resolvers(values: Any, key: str = "") -> tuple[Any, list[TrustRequirement]]:
    """Split values into masked values and the requirements of their resolvers; references to other keys stay.

    `${oc.env:HOME}` becomes a text without a reference.
    """
    requirements: list[TrustRequirement] = []
    if isinstance(values, Mapping):
        masked: dict[str, Any] = {}
        for name, value in values.items():
            masked[name], found = mask_resolvers(value, f"{key}.{name}" if key else str(name))
            requirements += found
        return masked, requirements
    if isinstance(values, list):
        items = [mask_resolvers(item, f"{key}.{index}") for index, item in enumerate(values)]
        return [item for item, _ in items], [requirement for _, found in items for requirement in found]
    if isinstance(values, str) and "${" in _PRODUCT.sub("", _REFERENCE.sub("", values)):
        return values.replace("${", MASK), [TrustRequirement("resolves", key, values)]
    return values, requirements


def find_trust_requirements(
    values: Mapping[str, Any], is_used: Callable[[str], bool] = lambda key: True
) -> list[TrustRequirement]:
    """Find the requirements of resolved values.

    Args:
        values: complete configuration.
        is_used: returns whether the command uses the value of a dotted key.
    """
    found = [
        TrustRequirement(verb, key, show_value(value).replace(MASK, "${"))
        for key, value in leaves_of(values, "")
        if is_used(key)
        for verb in _verbs(key, value, values)
    ]
    return list(dict.fromkeys(found))


def _verbs(key: str, value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a verb per requirement of the value at a key."""
    option = re.match(_OF_RAY, key)
    is_filesystem = key.startswith(("offline.input_filesystem_kwargs.", "offline.output_filesystem_kwargs."))
    if any(word in key.split(".") for word in _RAY_WORDS) or (option and option.group(2) not in _HARMLESS_OF_RAY):
        yield "sets Ray"
    elif is_filesystem and value is not None:
        yield "contacts"
    elif isinstance(value, str):
        yield from _verbs_of_text(key, value, values)


def _verbs_of_text(key: str, text: str, values: Mapping[str, Any]) -> Iterator[str]:
    if names_code(key):
        yield from () if is_known_kind(key, text) else ("imports",)
    elif key in ("offline.input_read_method", "offline.output_write_method") and "." in text:
        yield "imports"
    elif key in _VERB_OF_KEY:
        verb, is_required = _VERB_OF_KEY[key]
        yield from (verb,) if is_required(text, values) else ()
    elif re.fullmatch(_ENV_NAMES, key) and _PETTING_ZOO in _lineage_of_env(values):
        yield "imports"
    elif "://" in text:
        yield "contacts"
    elif re.fullmatch(_WRITES, key):
        yield "writes"
    elif re.fullmatch(_READS, key) or _is_policy_file(key, values) or (_FREE.fullmatch(key) and _is_place(key, text)):
        yield "reads"


def _block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = values.get(name)
    return block if isinstance(block, Mapping) else {}


def _lineage_of_env(values: Mapping[str, Any]) -> list[str]:
    target = _block(values, "env").get("_target_")
    return find_ancestors(target) if isinstance(target, str) else []


def _is_open(values: Mapping[str, Any]) -> bool:
    env = _block(values, "env")
    return env.get("port") is not None and env.get("host") not in _LOCAL_HOSTS


def _leaves_its_folder(name: str) -> bool:
    parts: Sequence[str] = re.split(r"[/\\]", name)
    return ".." in parts or parts[0] in ("", "~") or ":" in name


def _is_place(key: str, text: str) -> bool:
    return "/" in text or "\\" in text or bool(_PLACE_WORDS & set(key.rpartition(".")[2].lower().split("_")))


def _is_policy_file(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether a key belongs to a fixed player that is a policy file per module instead of a class."""
    match = re.fullmatch(r"league\.fixed\.([^.]+)\.[^.]+", key)
    return match is not None and "_target_" not in values["league"]["fixed"][match[1]]


def _is_of_gymnasium(name: str) -> bool:
    """Return whether gymnasium registers an id, so that no other module would be imported."""
    if ":" in name:
        return False
    import gymnasium  # 0.2 s

    spec = gymnasium.registry.get(name)
    if spec is None:
        return True  # nothing to import; other checks report the id
    points = [point for point in (spec.entry_point, spec.vector_entry_point) if point is not None]
    wrappers = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    return all(isinstance(point, str) and point.partition(".")[0] in PACKAGES for point in [*points, *wrappers])


def leaves_of(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each leaf of nested values; `key` is the key of the root."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaves_of(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves_of(item, f"{key}.{index}")
    else:
        yield key, value
