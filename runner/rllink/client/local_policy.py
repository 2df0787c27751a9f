"""The policy of a client, which needs only onnxruntime and numpy.

The manifest of a policy file (of `runner export`, or of an RLlink server) describes its inputs, its outputs and how to
sample actions. Dimension letters: B episodes, K width of `action_dist_inputs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import onnxruntime
except ImportError as error:
    raise ImportError('policies need onnxruntime: pip install onnxruntime; or use client.sampler("server")') from error

Array = npt.NDArray[Any]
State = dict[str, Array]

MANIFEST_KEY = "runner_manifest"
FORMAT_VERSION = 1
_LOG_2PI = math.log(2 * math.pi)
_LOG_2 = math.log(2.0)
# Actions at the bounds of a squashed Gaussian are treated as slightly inside.
_LARGEST_TANH = 1.0 - 1e-6


class PolicyFileError(ValueError):
    """This version cannot use the policy file."""


class LocalPolicy:
    """Chooses actions with an ONNX policy.

    Args:
        onnx_bytes: content of the file.
        num_threads: threads of onnxruntime; one is fastest for small networks.

    Attributes:
        manifest: the manifest of the file.

    Raises:
        PolicyFileError: the file is not an ONNX file, lacks a manifest, or has a later format version.
    """

    def __init__(self, onnx_bytes: bytes, num_threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = num_threads
        try:
            self._session = onnxruntime.InferenceSession(onnx_bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the exceptions of onnxruntime do not share a base class
            raise PolicyFileError(f"onnxruntime cannot load the policy: {error}") from error
        text = self._session.get_modelmeta().custom_metadata_map.get(MANIFEST_KEY)
        if text is None:
            raise PolicyFileError(f"the ONNX file does not contain {MANIFEST_KEY}, so it was not written by runner")
        try:
            self._use(json.loads(text))
        except PolicyFileError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolicyFileError(f"the policy's manifest cannot be read: {type(error).__name__}: {error}") from error
        declared = {one["name"] for one in (*self._obs_inputs, *self._state_inputs)}
        found = {one.name for one in self._session.get_inputs()}
        if declared != found or not self._obs_inputs:
            raise PolicyFileError(
                f"the manifest names the inputs {sorted(declared)}, but the graph has {sorted(found)}"
            )

    def _use(self, manifest: dict[str, Any]) -> None:
        """Use a manifest; an invalid one raises PolicyFileError, ValueError, KeyError, TypeError or AttributeError."""
        self.manifest = manifest
        version = self.manifest.get("format_version")
        if version != FORMAT_VERSION:
            raise PolicyFileError(f"the policy has format version {version}, but this client supports {FORMAT_VERSION}")
        inputs = self.manifest["inputs"]
        self._obs_inputs = [one for one in inputs if one["role"] == "obs"]
        self._state_inputs = [one for one in inputs if one["role"] != "obs"]
        self._output_names = [one["name"] for one in self.manifest["outputs"]]

    def initial_state(self, batch_size: int = 1) -> State:
        """Return the initial state of `batch_size` episodes: input name -> array (B, ...); empty without memory."""
        return {
            one["name"]: np.broadcast_to(
                np.asarray(_numbers(one["initial"]), one["dtype"]), (batch_size, *one["shape"])
            ).copy()
            for one in self._state_inputs
        }

    def act(
        self,
        obs: Any,
        state: State | None = None,
        explore: bool = False,
        rng: np.random.Generator | None = None,
        rewards: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Choose actions for the environment.

        Args:
            obs: an observation, nested like the space, or a batch (B, ...) of observations.
            state: `extra["state_out"]` of the previous step, or None at the start of all episodes. If only some
                episodes start, take their rows from `initial_state`.
            explore: whether to sample, for training; otherwise the most likely actions are chosen, as in `evaluate`.
            rng: random generator for samples, or None to make one.
            rewards: reward of the previous step, a number or (B,), for policies that use past rewards.

        Returns:
            The actions, nested like the action space, without a batch axis if the observation lacks it; and a dict with
            `action_dist_inputs` (B, K), `action_logp` (B,), `module_actions` (before scaling and clipping; record these
            as actions), `unclipped_actions` (scaled and not clipped; send these in RLlink's episodes), and `state_out`,
            which always has a batch axis.

        Raises:
            ValueError: observations or states do not fit the policy, or its distribution cannot be sampled.
        """
        feeds, is_single = self._observation_feeds(obs)
        num_rows = len(next(iter(feeds.values())))
        feeds |= self._state_feeds(state, rewards, num_rows)
        outputs = self._run(feeds)
        dist_inputs = outputs["action_dist_inputs"]
        distribution = self.manifest["distribution"]
        if explore:
            module_actions, actions = self._sampled(dist_inputs, rng)
        else:
            module_actions = mode(distribution, dist_inputs) if _is_known(distribution) else None
            actions = self._actions_of(outputs)
        logp = log_prob(distribution, dist_inputs, module_actions) if _is_known(distribution) else None
        is_opaque = module_actions is None or self.manifest["action_scaling"] is None
        extra = {
            "action_dist_inputs": dist_inputs,
            "action_logp": logp,
            "module_actions": module_actions,
            "unclipped_actions": actions if is_opaque else self._scaled(module_actions, clips=False),
        }
        state_out = {
            one["name"]: outputs[one["next_from"]] for one in self._state_inputs if one.get("next_from") is not None
        }
        if module_actions is not None:
            state_out = self.with_actions(state_out, module_actions)
        if is_single:
            actions = _map(lambda leaf: leaf[0], actions)
            extra = {
                name: None if value is None else _map(lambda leaf: leaf[0], value) for name, value in extra.items()
            }
        return actions, extra | {"state_out": state_out}

    def choose(self, obs: Any, explore: bool = False, rng: np.random.Generator | None = None) -> Any:
        """Return the actions of `act` for a batch (B, ...) of observations; only for policies without memory."""
        feeds, _ = self._observation_feeds(obs)
        outputs = self._run(feeds)
        return self._sampled(outputs["action_dist_inputs"], rng)[1] if explore else self._actions_of(outputs)

    def _sampled(self, dist_inputs: Array, rng: np.random.Generator | None) -> tuple[Any, Any]:
        """Return actions of the module and of the environment."""
        module_actions = sample(self.manifest["distribution"], dist_inputs, rng or np.random.default_rng())
        return module_actions, self._scaled(module_actions)

    def with_actions(self, state_out: State, module_actions: Any) -> State:
        """Return the state if actions (B, ...) of the module replace the actions of `act`."""
        return state_out | {
            one["name"]: np.asarray(_at(module_actions, one["path"]), one["dtype"])
            for one in self._state_inputs
            if one["role"] == "prev_action"
        }

    def _run(self, feeds: State) -> dict[str, Array]:
        """Return the outputs of the graph by name."""
        return dict(zip(self._output_names, self._session.run(self._output_names, feeds), strict=True))

    # -- inputs and outputs ----------------------------------------------------------------------------------------

    def _observation_feeds(self, obs: Any) -> tuple[dict[str, Array], bool]:
        feeds: dict[str, Array] = {}
        singles = set()
        for one in self._obs_inputs:
            try:
                leaf = np.asarray(_at(obs, one["path"]))
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"the observation lacks {one['name']}") from error
            shape = tuple(one["shape"])
            is_single = leaf.shape == shape
            if not is_single and leaf.shape[1:] != shape:
                raise ValueError(
                    f"{one['name']} has the shape {list(leaf.shape)}, this policy needs {list(shape)} or a batch of it"
                )
            singles.add(is_single)
            feeds[one["name"]] = _as_dtype(leaf[None] if is_single else leaf, one["dtype"], one["name"])
        if len(singles) > 1 or len({len(leaf) for leaf in feeds.values()}) > 1:
            raise ValueError("the parts of the observation differ in their number of rows")
        return feeds, singles == {True}

    def _state_feeds(self, state: State | None, rewards: Any, num_rows: int) -> State:
        if not self._state_inputs:
            return {}
        if state is None:
            return self.initial_state(num_rows)
        if rewards is not None:
            row_rewards = np.broadcast_to(np.asarray(rewards, np.float32), (num_rows,))
            state = state | {one["name"]: row_rewards for one in self._state_inputs if one["role"] == "prev_reward"}
        missing = [one["name"] for one in self._state_inputs if one["name"] not in state]
        if missing:
            if all(one["role"] == "prev_reward" for one in self._state_inputs if one["name"] in missing):
                raise ValueError("this policy uses past rewards: pass the reward of the previous step as rewards=")
            raise ValueError(f"the state lacks {', '.join(missing)}")
        feeds = {one["name"]: np.ascontiguousarray(state[one["name"]], one["dtype"]) for one in self._state_inputs}
        for one in self._state_inputs:
            expected = (num_rows, *one["shape"])
            if feeds[one["name"]].shape != expected:
                got = list(feeds[one["name"]].shape)
                raise ValueError(f"{one['name']} has the shape {got}, this step needs {list(expected)}")
        return feeds

    def _actions_of(self, outputs: Mapping[str, Array]) -> Any:
        return _build(self.manifest["action_space"], lambda path: outputs["/".join(["actions", *map(str, path)])])

    def _scaled(self, module_actions: Any, clips: bool = True) -> Any:
        scaling = self.manifest["action_scaling"]
        if scaling is None:
            raise ValueError(
                "custom connectors of the run change actions only inside the graph: use explore=False, or make the "
                "server choose actions"
            )
        return _scale(scaling, module_actions, clips)


# -- nested values -----------------------------------------------------------------------------------------------------


def _at(tree: Any, path: list[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _build(space: Mapping[str, Any], leaf: Callable[[list[Any]], Any], path: tuple[Any, ...] = ()) -> Any:
    """Build values in the structure of a space of the manifest."""
    if space["space"] == "dict":
        return {key: _build(part, leaf, (*path, key)) for key, part in space["spaces"]}
    if space["space"] == "tuple":
        return tuple(_build(part, leaf, (*path, index)) for index, part in enumerate(space["spaces"]))
    return leaf(list(path))


def _map(fn: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map(fn, part) for key, part in tree.items()}
    return tuple(_map(fn, part) for part in tree) if isinstance(tree, tuple) else fn(tree)


def _as_dtype(leaf: Array, dtype: str, name: str) -> Array:
    """Cast an array; floats may lose precision, but integers and booleans must keep their values."""
    wanted = np.dtype(dtype)
    if leaf.dtype == wanted:
        return np.ascontiguousarray(leaf)
    cast = leaf.astype(wanted)
    if wanted.kind in "iub" and not np.array_equal(cast, leaf):
        raise ValueError(f"{name} needs {dtype}, got {leaf.dtype} with other values")
    return cast


def _numbers(plain: Any) -> Any:
    """Turn nested lists of the manifest, in which infinities are text, into numbers."""
    if isinstance(plain, list):
        return [_numbers(part) for part in plain]
    return float(plain) if isinstance(plain, str) else plain


def _scale(scaling: Mapping[str, Any], actions: Any, clips: bool) -> Any:
    """Scale actions to the range of the environment."""
    kind = scaling["kind"]
    if kind == "dict":
        return {key: _scale(part, actions[key], clips) for key, part in scaling["parts"]}
    if kind == "tuple":
        return tuple(_scale(part, actions[key], clips) for key, part in scaling["parts"])
    if kind == "none":
        return actions
    low, high = (np.asarray(_numbers(scaling[side]), actions.dtype) for side in ("low", "high"))
    if kind == "unsquash":
        actions = _unsquashed(np.clip(actions, -1.0, 1.0) if clips else actions, low, high)
    return np.clip(actions, low, high) if clips else actions


def _unsquashed(units: Array, low: Array, high: Array) -> Array:
    """Scale numbers from [-1, 1] to bounds, even if the distance of the bounds exceeds the range of their dtype."""
    half = 0.5 * high - 0.5 * low
    with np.errstate(over="ignore"):
        is_wide = not np.isfinite(high - low).all()
    return (0.5 * high + 0.5 * low) + units * half if is_wide else low + (units + 1.0) * half


# -- distributions: `dist` is the manifest's description, `dist_inputs` (B, K) float32 ---------------------------------


def _is_known(dist: Mapping[str, Any]) -> bool:
    if dist["name"] == "nested":
        return all(_is_known(part) for _, part in dist["parts"])
    return dist["name"] in _FAMILIES


def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Any:
    """Sample actions (B, ...) of the module, nested.

    Raises:
        ValueError: this client does not know the distribution.
    """
    return _of_parts(dist, lambda part, inputs: _FAMILIES[part["name"]].sample(part, inputs, rng), dist_inputs)


def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Any:
    """Return the most likely actions (B, ...) of the module, nested; raises as `sample` does."""
    return _of_parts(dist, lambda part, inputs: _FAMILIES[part["name"]].mode(part, inputs), dist_inputs)


def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Any) -> Array:
    """Return the log probabilities (or densities) (B,) float32 of actions; raises as `sample` does."""
    total = np.zeros(len(dist_inputs), np.float32)
    for part, path in _leaf_distributions(dist):
        inputs = dist_inputs[:, slice(*part["slice"])]
        total = total + _FAMILIES[part["name"]].log_prob(part, inputs, np.asarray(_at(actions, path)))
    return total.astype(np.float32)


def _of_parts(dist: Mapping[str, Any], choose: Callable[[Mapping[str, Any], Array], Any], dist_inputs: Array) -> Any:
    if dist["name"] == "nested":
        parts = {key: _of_parts(part, choose, dist_inputs) for key, part in dist["parts"]}
        return parts if dist["kind"] == "dict" else tuple(parts.values())
    _check_known(dist)
    return choose(dist, dist_inputs[:, slice(*dist["slice"])])


def _leaf_distributions(
    dist: Mapping[str, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Mapping[str, Any], list[Any]]]:
    if dist["name"] == "nested":
        for key, part in dist["parts"]:
            yield from _leaf_distributions(part, (*path, key))
    else:
        _check_known(dist)
        yield dist, list(path)


def _check_known(dist: Mapping[str, Any]) -> None:
    if dist["name"] not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        name = dist.get("class", dist["name"])
        raise ValueError(f"actions of {name} cannot be sampled here; known: {known}; act with explore=False")


def _log_softmax_at(logits: Array, chosen: Array) -> Array:
    """Return the log probability (B,) of the chosen index (B,) of each row."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs: Array = shifted[np.arange(len(chosen)), chosen] - np.log(np.exp(shifted).sum(-1))
    return log_probs


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    exponential = rng.standard_exponential(shape, dtype=np.float32)
    return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))


class _Categorical:
    """One of `num_actions` actions, numbered from `start`."""

    @staticmethod
    def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Array:
        return _Categorical.mode(dist, dist_inputs + _gumbel(rng, dist_inputs.shape))

    @staticmethod
    def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Array:
        actions: Array = (dist_inputs.argmax(-1) + dist["start"]).astype(dist["dtype"])
        return actions

    @staticmethod
    def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Array) -> Array:
        return _log_softmax_at(dist_inputs, actions.astype(np.int64) - dist["start"])


class _MultiCategorical:
    """Independent choices, each one of `sizes[d]` actions numbered from `starts[d]`."""

    @staticmethod
    def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Array:
        return _MultiCategorical.mode(dist, dist_inputs + _gumbel(rng, dist_inputs.shape))

    @staticmethod
    def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Array:
        chosen = np.stack([logits.argmax(-1) for logits in _choices(dist, dist_inputs)], -1) + np.array(dist["starts"])
        actions: Array = chosen.astype(dist["dtype"]).reshape(len(dist_inputs), *dist["shape"])
        return actions

    @staticmethod
    def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Array) -> Array:
        chosen = actions.reshape(len(dist_inputs), -1).astype(np.int64) - np.array(dist["starts"])
        parts = [_log_softmax_at(logits, chosen[:, place]) for place, logits in enumerate(_choices(dist, dist_inputs))]
        total: Array = np.sum(parts, axis=0)
        return total


def _choices(dist: Mapping[str, Any], dist_inputs: Array) -> list[Array]:
    return np.split(dist_inputs, np.cumsum(dist["sizes"])[:-1], -1)


class _Bernoulli:
    """Independent bits."""

    @staticmethod
    def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Array:
        return _Bernoulli._bits(dist, rng.random(dist_inputs.shape, np.float32) < np.exp(-_softplus(-dist_inputs)))

    @staticmethod
    def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Array:
        return _Bernoulli._bits(dist, dist_inputs > 0)

    @staticmethod
    def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Array) -> Array:
        is_one = actions.reshape(dist_inputs.shape) != 0
        total: Array = -_softplus(np.where(is_one, -dist_inputs, dist_inputs)).sum(-1)
        return total

    @staticmethod
    def _bits(dist: Mapping[str, Any], is_one: Array) -> Array:
        return is_one.astype(dist["dtype"]).reshape(len(is_one), *dist["shape"])


class _DiagGaussian:
    """Independent normal variables: means, then log standard deviations."""

    @staticmethod
    def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Array:
        return _shaped(dist, _DiagGaussian.draw(dist_inputs, rng))

    @staticmethod
    def draw(dist_inputs: Array, rng: np.random.Generator) -> Array:
        mean, log_std = np.split(dist_inputs, 2, -1)
        drawn: Array = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return drawn

    @staticmethod
    def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Array:
        return _shaped(dist, np.split(dist_inputs, 2, -1)[0])

    @staticmethod
    def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Array) -> Array:
        mean, log_std = np.split(dist_inputs, 2, -1)
        z = (actions.reshape(mean.shape).astype(mean.dtype) - mean) * np.exp(-log_std)
        total: Array = -(0.5 * z * z + log_std).sum(-1) - 0.5 * mean.shape[-1] * _LOG_2PI
        return total


class _SquashedGaussian:
    """tanh of normal variables, scaled to the bounds."""

    @staticmethod
    def sample(dist: Mapping[str, Any], dist_inputs: Array, rng: np.random.Generator) -> Array:
        return _SquashedGaussian._squashed(dist, _DiagGaussian.draw(dist_inputs, rng))

    @staticmethod
    def mode(dist: Mapping[str, Any], dist_inputs: Array) -> Array:
        return _SquashedGaussian._squashed(dist, np.split(dist_inputs, 2, -1)[0])

    @staticmethod
    def log_prob(dist: Mapping[str, Any], dist_inputs: Array, actions: Array) -> Array:
        center, scale = _SquashedGaussian._center_and_scale(dist)
        share = (actions.reshape(len(dist_inputs), -1).astype(np.float32) - center) / scale
        x = np.arctanh(np.clip(share, -_LARGEST_TANH, _LARGEST_TANH))
        log_slopes = 2.0 * (_LOG_2 - x - _softplus(-2.0 * x)) + np.log(scale)
        total: Array = _DiagGaussian.log_prob(dist, dist_inputs, x) - log_slopes.sum(-1)
        return total

    @staticmethod
    def _squashed(dist: Mapping[str, Any], x: Array) -> Array:
        center, scale = _SquashedGaussian._center_and_scale(dist)
        low, high = (np.asarray(_numbers(dist[side]), dist["dtype"]) for side in ("low", "high"))
        return np.clip(_shaped(dist, center + scale * np.tanh(x)), low, high)

    @staticmethod
    def _center_and_scale(dist: Mapping[str, Any]) -> tuple[Array, Array]:
        """Return center and scale of the bounds, (A,) float32 each."""
        low, high = (
            np.broadcast_to(np.asarray(_numbers(dist[side]), np.float32), dist["shape"]).reshape(-1)
            for side in ("low", "high")
        )
        return 0.5 * high + 0.5 * low, 0.5 * high - 0.5 * low


def _shaped(dist: Mapping[str, Any], flat: Array) -> Array:
    return flat.reshape(len(flat), *dist["shape"]).astype(dist["dtype"])


_FAMILIES: dict[str, Any] = {
    "categorical": _Categorical,
    "multi_categorical": _MultiCategorical,
    "bernoulli": _Bernoulli,
    "diag_gaussian": _DiagGaussian,
    "squashed_gaussian": _SquashedGaussian,
}
