"""Contract of modules, built-in and user-defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from runner.config.errors import Problem
from runner.episodes import nested
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.testing.rules import Rule, are_equal, check_rules, outline
from runner.testing.sampled_items import are_close, memory_of, process_streams, tensors_of

_ROWS, _STEPS = 5, 4
_PASSES = ("forward_exploration", "forward_inference")
_NUMBER = gym.spaces.Box(-1.0, 1.0, (), np.float32)  # of a column such as `rewards`
_FLAG = gym.spaces.Box(0, 1, (), np.bool_)  # type: ignore[arg-type]
_IS_FIRST = "is_first"
_OF_COLUMNS = {"terminateds": _FLAG, "truncateds": _FLAG, "n_step": gym.spaces.Discrete(3, start=1)}


def check_module(make: Callable[[], RLModule]) -> None:
    """Check a module on random items of its spaces, on the CPU.

    Of an auxiliary module, whose `train_outputs` lack `action_dist_inputs`, only `forward_train` is checked.

    Args:
        make: makes the module with torch's random generator, which is seeded before each call.

    Raises:
        BrokenContract: the module breaks rules; the message lists all of them.
    """
    contract = _ModuleContract(make)
    check_rules(type(contract.module).__name__, contract.rules())


class _ModuleContract:
    def __init__(self, make: Callable[[], RLModule]) -> None:
        self._make = make
        self._sampled: dict[tuple[int, ...], dict[str, Any]] = {}
        self.module = self._made(0)
        self._is_acting = "action_dist_inputs" in (self.module.train_outputs or ())
        self._passes = _PASSES if self._is_acting else ()

    def _made(self, seed: int) -> RLModule:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._make().eval()

    def rules(self) -> Iterator[Rule]:
        """Yield the rules that apply to the module."""
        yield from (self.declares_columns, self.learns, self.values_states)
        yield from (
            self.sees_observations,
            self.computes_each_row_by_itself,
            self.repeats_itself,
            self.leaves_inputs_alone,
        )
        yield from (self.keeps_all_in_its_weights, self.is_made_from_its_seed, self.groups_parameters)
        yield from (self.follows_targets, self.draws_its_noise)
        if self._is_acting:
            yield from (self.acts, self.fits_its_action_space)
        if self._is_acting and self.module.is_stateful:
            yield from (self.begins_with_a_memory, self.remembers_step_by_step)
        if _IS_FIRST in self.module.train_inputs:
            yield self.begins_anew

    # -- batches -------------------------------------------------------------------------------------------------------

    def _batch(self, *leading: int) -> dict[str, Any]:
        """Return a new batch (*leading, ...); a batch of sequences also contains `state_in`."""
        if leading not in self._sampled:
            self._sampled[leading] = self._sample(leading)
        return {column: nested.map_leaves(torch.clone, value) for column, value in self._sampled[leading].items()}

    def _sample(self, leading: tuple[int, ...]) -> dict[str, Any]:
        module = self.module
        batch: dict[str, Any] = {"obs": tensors_of(module.observation_space, *leading)}
        if module.num_noise:
            batch["noise"] = torch.from_numpy(module.draw_noise(np.random.default_rng(0), leading))
        if module.is_stateful:
            batch["state_in"] = memory_of(module, leading[0])
        spaces = {"actions": module.action_space, "new_obs": module.observation_space} | _OF_COLUMNS
        if _IS_FIRST in module.train_inputs:
            batch[_IS_FIRST] = torch.zeros(leading, dtype=torch.bool)
        for seed, column in enumerate(module.learner_inputs, start=1):
            if column not in batch:
                batch[column] = tensors_of(spaces.get(column, _NUMBER), *leading, seed=seed)
        return batch

    def _acting(self) -> dict[str, Any]:
        return self._batch(_ROWS, 1) if self.module.is_stateful else self._batch(_ROWS)

    def _learning(self) -> dict[str, Any]:
        return self._batch(_ROWS, _STEPS) if self.module.is_stateful else self._batch(_ROWS)

    def _outputs(self) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any]]]:
        for name in self._passes:
            batch = self._acting()
            yield name, batch, getattr(self.module, name)(batch)
        batch = self._learning()
        yield "forward_train", batch, self.module.forward_train(batch)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def declares_columns(self) -> Iterator[Problem]:
        """Check that columns are declared as tuples, and that states are named `state_in` and `state_out`."""
        module = self.module
        for attribute in ("inputs", "train_inputs", "outputs", "train_outputs"):
            columns = getattr(module, attribute)
            if not isinstance(columns, tuple) or not all(isinstance(column, str) for column in columns):
                yield Problem(f"{attribute} is not a tuple of column names", attribute, repr(columns), '("obs",)')
        of_states = (("inputs", "state_in"), ("outputs", "state_out"))
        for attribute, column in of_states if self._is_acting else of_states[:1]:
            if (column in getattr(module, attribute)) != module.is_stateful:
                what = f"`{attribute}` must contain {column} if and only if the module is stateful"
                yield Problem(what, attribute, f"is_stateful {module.is_stateful}, {getattr(module, attribute)}")
        if module.is_stateful != bool(module.get_initial_state()):
            what = "get_initial_state must be empty if and only if the module is stateless"
            yield Problem(what, "get_initial_state", f"is_stateful {module.is_stateful}")

    def acts(self) -> Iterator[Problem]:
        """Check that both acting passes return `outputs`, with one row per row of the batch."""
        leading = (_ROWS, 1) if self.module.is_stateful else (_ROWS,)
        for name in self._passes:
            outputs = getattr(self.module, name)(self._acting())
            if set(outputs) != set(self.module.outputs):
                got, expected = ", ".join(outputs), f"{', '.join(self.module.outputs)}, as declared in `outputs`"
                yield Problem(f"{name} does not return the columns in `outputs`", name, got, expected)
            yield from self._unfit(outputs, name, leading)

    def learns(self) -> Iterator[Problem]:
        """Check that `forward_train` returns `train_outputs` with gradients, equal to the outputs while exploring."""
        leading = (_ROWS, _STEPS) if self.module.is_stateful else (_ROWS,)
        outputs = self.module.forward_train(self._learning())
        missing = [column for column in self._train_outputs() if column not in outputs]
        if missing:
            what = f"forward_train does not return {', '.join(missing)}"
            yield Problem(what, "forward_train", ", ".join(outputs), "all of `train_outputs`")
        if not self._is_acting and "action_dist_inputs" in outputs:
            what = "`train_outputs` lacks action_dist_inputs, which forward_train returns"
            yield Problem(what, "train_outputs", repr(self.module.train_outputs), "all outputs of forward_train")
        yield from self._unfit(outputs, "forward_train", leading)
        if not any(leaf.requires_grad for leaf in nested.leaves(dict(outputs)) if isinstance(leaf, Tensor)):
            yield Problem(
                "no output of forward_train has a gradient",
                "forward_train",
                expected="outputs that depend on parameters",
            )
        if not self._is_acting:
            return
        batch = self._acting()
        both = (self.module.forward_train, self.module.forward_exploration)
        of_both = [forward(batch).get("action_dist_inputs") for forward in both]
        if all(one is not None for one in of_both) and not are_close(*of_both):
            what = "forward_train and forward_exploration return different action_dist_inputs for the same rows"
            yield Problem(what, "forward_train", expected="equal outputs, because losses compare them")

    def _unfit(self, outputs: Mapping[str, Any], name: str, leading: tuple[int, ...]) -> Iterator[Problem]:
        """Yield outputs with wrong shapes or dtypes, and outputs that are not finite."""
        widths = {"action_dist_inputs": (self.module.action_dist.num_inputs,), "vf_preds": ()}
        for column, width in widths.items():
            shape = (*leading, *width)
            if column in outputs and (outputs[column].shape != shape or outputs[column].dtype != torch.float32):
                got = outline(outputs[column])
                yield Problem(f"{name} returns {column} with a wrong shape or dtype", name, got, f"{shape} float32")
        for column, output in outputs.items():
            if not all(leaf.isfinite().all() for leaf in nested.leaves(output)):
                yield Problem(f"{column} returned by {name} is not finite", name, expected="finite numbers")

    def _train_outputs(self) -> tuple[str, ...]:
        """Return the required outputs of `forward_train`; without `vf_preds` if `compute_values` is overridden."""
        kind, outputs = type(self.module), self.module.train_outputs
        is_inherited = outputs == RLModule.train_outputs and kind.compute_values is not RLModule.compute_values
        if is_inherited and "vf_preds" not in self.module.forward_train(self._learning()):
            return tuple(name for name in outputs if name != "vf_preds")
        return outputs

    def values_states(self) -> Iterator[Problem]:
        """Check that `compute_values` returns the `vf_preds` of `forward_train`."""
        if "vf_preds" not in self._train_outputs():
            return
        batch = self._learning()
        values, expected = self.module.compute_values(batch), self.module.forward_train(batch)["vf_preds"]
        if values.shape != expected.shape or not are_close(values, expected):
            what = "compute_values does not return the `vf_preds` of forward_train"
            yield Problem(what, "compute_values", outline(values), f"{outline(expected)}, the same values")

    def sees_observations(self) -> Iterator[Problem]:
        """Check that `forward_train` depends on the observation; weights are changed, since a head may start at 0."""
        module, generator = self._made(0), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        batch = self._learning()
        others = nested.map_leaves(lambda leaf: leaf.roll(1, 0), batch["obs"])
        if are_equal(batch["obs"], others) or "obs" not in module.inputs:  # the space has only one item
            return
        outputs, of_others = module.forward_train(batch), module.forward_train(batch | {"obs": others})
        needed = [name for name in ("action_dist_inputs", "vf_preds") if self._is_acting and name in outputs]
        same = [name for name in needed or outputs if are_equal(_detached(outputs[name]), _detached(of_others[name]))]
        if needed or len(same) == len(outputs):  # an auxiliary module needs one output that depends on `obs`
            for column in same:
                what = f"forward_train returns the same {column} for different observations"
                yield Problem(what, "forward_train", expected="outputs that depend on `obs`")

    def computes_each_row_by_itself(self) -> Iterator[Problem]:
        """Check that a row of a batch has the same outputs as the row alone."""
        for name, batch, outputs in self._outputs():
            one = getattr(self.module, name)(_row(batch, 2))
            for column in one:
                if not are_close(one[column], _row(outputs[column], 2)):
                    what = f"{name} returns a different {column} for a row alone than for the row in a batch"
                    yield Problem(what, name, expected="rows that do not depend on each other")

    def repeats_itself(self) -> Iterator[Problem]:
        """Check that the same batch gives the same outputs, and that no global random number is drawn."""
        for name, batch, outputs in self._outputs():
            before = process_streams()
            again = getattr(self.module, name)(batch)
            if not are_equal(process_streams(), before):
                what = f"{name} draws from the global random generators"
                yield Problem(what, name, fix="read column `noise`, with `num_noise` numbers per row")
            elif not all(are_close(again[column], outputs[column]) for column in outputs):
                yield Problem(
                    f"{name} returns different outputs for the same batch",
                    name,
                    expected="outputs that depend only on the batch",
                )

    def leaves_inputs_alone(self) -> Iterator[Problem]:
        """Check that no pass writes into its batch."""
        for name in (*self._passes, "forward_train"):
            batch = self._learning() if name == "forward_train" else self._acting()
            kept = {column: nested.map_leaves(torch.clone, value) for column, value in batch.items()}
            getattr(self.module, name)(batch)
            columns = dict.fromkeys([*kept, *batch])
            changed = [c for c in columns if c not in batch or c not in kept or not are_equal(batch[c], kept[c])]
            if changed:
                what = f"{name} writes into {', '.join(changed)} of its batch"
                yield Problem(what, name, fix="write to new tensors")

    def keeps_all_in_its_weights(self) -> Iterator[Problem]:
        """Check that a module with copied weights returns equal outputs, since env runners receive only weights."""
        other = self._made(1)
        FlatParameters(other).load(FlatParameters(self._made(0)).to_numpy())
        name, batch, expected = next(self._outputs())
        got = getattr(other, name)(batch)
        if not all(are_close(got[column], expected[column]) for column in expected):
            what = f"{name} of a module with the weights of another one returns different outputs"
            fix = "store everything that outputs depend on in nn.Parameters or float buffers (register_buffer)"
            yield Problem(what, "parameters", fix=fix)

    def is_made_from_its_seed(self) -> Iterator[Problem]:
        """Check that modules made with the same seed of torch are equal."""
        first, second = (FlatParameters(self._made(0)).to_numpy() for _ in range(2))
        if not np.array_equal(first, second):
            what = "two modules made with the same seed differ"
            yield Problem(what, "__init__", fix="draw initial values from torch's generator, which a run seeds")

    def groups_parameters(self) -> Iterator[Problem]:
        """Check that each learned parameter is in one group, and that parameters of target networks are not learned."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        learned = [id(parameter) for parameter in self.module.parameters() if parameter.requires_grad]
        grouped = [id(one) for parameters in self.module.parameter_groups().values() for one in parameters]
        for parameter in dict.fromkeys([*learned, *grouped]):
            count, expected = grouped.count(parameter), int(parameter in learned)
            if count != expected:
                what = f"parameter {names.get(parameter, 'of another module')} is in {count} groups"
                advice = "1" if expected else "0, because it is frozen or belongs to another module"
                yield Problem(what, "parameter_groups", str(count), advice)
        for target, _ in self.module.target_networks():
            for name in [name for name, parameter in target.named_parameters() if parameter.requires_grad]:
                yield Problem(
                    f"parameter {name} of a target network is learned",
                    "target_networks",
                    fix="make the target network with target_of",
                )

    def follows_targets(self) -> Iterator[Problem]:
        """Check that targets equal the networks that they follow after an update with tau 1."""
        module = self._made(0)
        with torch.no_grad():
            for target, _ in module.target_networks():
                for parameter in target.parameters():
                    parameter.add_(1.0)
        module.update_targets(1.0)
        for target, network in module.target_networks():
            pairs = zip(target.parameters(), network.parameters(), strict=True)
            if not all(torch.allclose(one, other) for one, other in pairs):
                yield Problem("targets differ from their networks after update_targets(1)", "update_targets")

    def draws_its_noise(self) -> Iterator[Problem]:
        """Check that `noise` is float32 with `num_noise` numbers per row, and a function of the stream."""
        module = self.module
        first, second = (module.draw_noise(np.random.default_rng(7), (2, 3)) for _ in range(2))
        shape = (2, 3, module.num_noise)
        if first.shape != shape or first.dtype != np.float32:
            yield Problem("draw_noise returns a wrong shape or dtype", "draw_noise", outline(first), f"{shape} float32")
        elif not np.array_equal(first, second):
            yield Problem(
                "draw_noise returns different noise for the same stream",
                "draw_noise",
                expected="noise drawn from `stream`",
            )

    def fits_its_action_space(self) -> Iterator[Problem]:
        """Check that the mode has the shape of the action space, and its log probability one number per row."""
        if "action_dist_inputs" not in self.module.outputs:
            return
        inputs = self.module.forward_exploration(self._acting())["action_dist_inputs"].reshape(_ROWS, -1)
        action = self.module.action_dist.mode(inputs)
        like = tensors_of(self.module.action_space, _ROWS)
        if outline(_without_dtype(action)) != outline(_without_dtype(like)):
            what = "actions of action_dist do not have the shape of the action space"
            yield Problem(what, "action_dist", outline(action), outline(like))
        logp = self.module.action_dist.log_prob(inputs, action)
        if logp.shape != (_ROWS,):
            yield Problem(
                "log_prob does not return one number per row", "action_dist", outline(logp), f"shape ({_ROWS},)"
            )

    # -- states --------------------------------------------------------------------------------------------------------

    def begins_with_a_memory(self) -> Iterator[Problem]:
        """Check that the initial state is float32 without batch axis, and that acting returns states of equal form."""
        for leaf in nested.leaves(self.module.get_initial_state()):
            if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32:
                yield Problem("the initial state is not a float32 tensor", "get_initial_state", outline(leaf))
        batch = self._acting()
        state_in, state_out = batch["state_in"], self.module.forward_exploration(batch)["state_out"]
        if outline(state_in) != outline(state_out):
            what = "state_out does not match state_in"
            yield Problem(what, "forward_exploration", outline(state_out), outline(state_in))

    def remembers_step_by_step(self) -> Iterator[Problem]:
        """Check that a pass over sequences equals acting step by step."""
        batch = self._learning()
        at_once = self.module.forward_train(batch)
        has_values = "vf_preds" in self._train_outputs()
        state = batch["state_in"]
        for t in range(_STEPS):
            step = {c: _steps(value, t) for c, value in batch.items() if c != "state_in"} | {"state_in": state}
            outputs = self.module.forward_exploration(step)
            by_step = [("action_dist_inputs", outputs["action_dist_inputs"], "acting")]
            if has_values:
                by_step += [
                    ("vf_preds", self.module.compute_values(step), "compute_values"),
                    ("vf_preds", self.module.forward_train(step)["vf_preds"], "forward_train"),
                ]
            misfits = [one for one in by_step if not are_close(one[1], _steps(at_once[one[0]], t))]
            for column, _, way in misfits:
                what = f"forward_train over a sequence returns different {column} than {way} step by step"
                yield Problem(
                    what,
                    "forward_train",
                    f"first at step {t}",
                    "equal outputs, since `state_out` is the next `state_in`",
                )
            if misfits:
                return
            state = outputs["state_out"]

    def begins_anew(self) -> Iterator[Problem]:
        """Check that `forward_train` begins with the initial state at each step of `is_first`."""
        batch, start = self._learning(), _STEPS // 2
        batch[_IS_FIRST][:, start] = True
        steps = {column: value for column, value in batch.items() if column != "state_in"}
        end = nested.take(steps, (slice(None), slice(start, None)))
        state = self.module.get_initial_state()
        end["state_in"] = nested.map_leaves(lambda leaf: leaf.expand(_ROWS, *leaf.shape).clone(), state)
        outputs, of_end = self.module.forward_train(batch), self.module.forward_train(end)
        for column in self._train_outputs():
            if column in outputs and not are_close(outputs[column][:, start:], of_end[column]):
                what = f"{column} returned by forward_train depends on the steps before `is_first`"
                expected = "the outputs of a sequence that begins there with the initial state"
                yield Problem(what, "forward_train", expected=expected)


def _detached(tree: Any) -> Any:
    return nested.map_leaves(Tensor.detach, tree)


def _row(tree: Any, row: int) -> Any:
    return nested.map_leaves(lambda leaf: leaf[row : row + 1], tree)


def _steps(tree: Any, t: int) -> Any:
    return nested.map_leaves(lambda leaf: leaf[:, t : t + 1], tree)


def _without_dtype(tree: Any) -> Any:
    return nested.map_leaves(lambda leaf: leaf.float(), tree)
