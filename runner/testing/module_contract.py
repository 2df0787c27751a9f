"""What every module keeps to, ours and yours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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


def check_module(make: Callable[[], RLModule]) -> None:
    """Check a module on random items of its spaces, on the CPU.

    Args:
        make: makes the module with torch's random generator, which is seeded before.

    Raises:
        BrokenContract: the module breaks rules; it lists all of them.
    """
    contract = _ModuleContract(make)
    check_rules(type(contract.module).__name__, contract.rules())


class _ModuleContract:
    """The rules of one module."""

    def __init__(self, make: Callable[[], RLModule]) -> None:
        self._make = make
        self._sampled: dict[tuple[int, ...], dict[str, Any]] = {}
        self.module = self._made(0)

    def _made(self, seed: int) -> RLModule:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._make().eval()

    def rules(self) -> Iterator[Rule]:
        """Yield the rules; what modules with memory promise is asked of them alone."""
        yield from (self.declares_columns, self.acts, self.learns, self.values_states)
        yield from (
            self.sees_observations,
            self.computes_each_row_by_itself,
            self.repeats_itself,
            self.leaves_inputs_alone,
        )
        yield from (self.keeps_all_in_its_weights, self.is_made_from_its_seed, self.groups_parameters)
        yield from (self.follows_targets, self.draws_its_noise, self.fits_its_action_space)
        if self.module.is_stateful:
            yield from (self.begins_with_a_memory, self.remembers_step_by_step)

    # -- batches -------------------------------------------------------------------------------------------------------

    def _batch(self, *leading: int) -> dict[str, Any]:
        """Return a batch (*leading, ...) that nobody has written into; one of sequences has `state_in` besides."""
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
        return batch

    def _acting(self) -> dict[str, Any]:
        return self._batch(_ROWS, 1) if self.module.is_stateful else self._batch(_ROWS)

    def _learning(self) -> dict[str, Any]:
        return self._batch(_ROWS, _STEPS) if self.module.is_stateful else self._batch(_ROWS)

    def _outputs(self) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any]]]:
        """Yield the name of each pass, its batch and its outputs."""
        for name in _PASSES:
            batch = self._acting()
            yield name, batch, getattr(self.module, name)(batch)
        batch = self._learning()
        yield "forward_train", batch, self.module.forward_train(batch)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def declares_columns(self) -> Iterator[Problem]:
        """Columns are named by tuples, and memory goes in and out by `state_in` and `state_out`."""
        module = self.module
        for attribute in ("inputs", "outputs", "train_outputs"):
            columns = getattr(module, attribute)
            if not isinstance(columns, tuple) or not all(isinstance(column, str) for column in columns):
                yield Problem(f"{attribute} is not a tuple of column names", attribute, repr(columns), '("obs",)')
        for attribute, column in (("inputs", "state_in"), ("outputs", "state_out")):
            if (column in getattr(module, attribute)) != module.is_stateful:
                what = f"{column} is among `{attribute}` of modules with memory, and of no others"
                yield Problem(what, attribute, f"is_stateful {module.is_stateful}, {getattr(module, attribute)}")
        if module.is_stateful != bool(module.get_initial_state()):
            what = "get_initial_state is empty for modules without memory, and for no others"
            yield Problem(what, "get_initial_state", f"is_stateful {module.is_stateful}")

    def acts(self) -> Iterator[Problem]:
        """Both acting passes return `outputs`, a row for each row of the batch."""
        leading = (_ROWS, 1) if self.module.is_stateful else (_ROWS,)
        for name in _PASSES:
            outputs = getattr(self.module, name)(self._acting())
            if set(outputs) != set(self.module.outputs):
                got, expected = ", ".join(outputs), f"{', '.join(self.module.outputs)}, as `outputs` says"
                yield Problem(f"{name} returns other columns than `outputs`", name, got, expected)
            yield from self._unfit(outputs, name, leading)

    def learns(self) -> Iterator[Problem]:
        """`forward_train` returns `train_outputs` with gradients, and what exploring has acted by."""
        leading = (_ROWS, _STEPS) if self.module.is_stateful else (_ROWS,)
        outputs = self.module.forward_train(self._learning())
        missing = [column for column in self._train_outputs() if column not in outputs]
        if missing:
            what = f"forward_train does not return {', '.join(missing)}"
            yield Problem(what, "forward_train", ", ".join(outputs), "all of `train_outputs`")
        yield from self._unfit(outputs, "forward_train", leading)
        if not any(leaf.requires_grad for leaf in nested.leaves(dict(outputs)) if isinstance(leaf, Tensor)):
            yield Problem(
                "no output of forward_train has a gradient", "forward_train", expected="outputs of parameters"
            )
        batch = self._acting()
        of_both = [forward(batch).get("action_dist_inputs") for forward in (self.module.forward_train, self._explore)]
        if all(one is not None for one in of_both) and not are_close(*of_both):
            what = "forward_train gives other action_dist_inputs than forward_exploration on the same rows"
            yield Problem(what, "forward_train", expected="equal ones: a loss compares both")

    def _explore(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self.module.forward_exploration(batch)

    def _unfit(self, outputs: Mapping[str, Any], name: str, leading: tuple[int, ...]) -> Iterator[Problem]:
        """Yield outputs of other shapes or dtypes, and ones that are not finite."""
        widths = {"action_dist_inputs": (self.module.action_dist.num_inputs,), "vf_preds": ()}
        for column, width in widths.items():
            shape = (*leading, *width)
            if column in outputs and (outputs[column].shape != shape or outputs[column].dtype != torch.float32):
                got = outline(outputs[column])
                yield Problem(f"{name} returns {column} of another shape or dtype", name, got, f"{shape} float32")
        for column, output in outputs.items():
            if not all(leaf.isfinite().all() for leaf in nested.leaves(output)):
                yield Problem(f"{name} returns {column} that is not finite", name, expected="finite numbers")

    def _train_outputs(self) -> tuple[str, ...]:
        """Return what `forward_train` must return; `vf_preds` is not needed if `compute_values` is overridden."""
        kind, outputs = type(self.module), self.module.train_outputs
        is_inherited = outputs == RLModule.train_outputs and kind.compute_values is not RLModule.compute_values
        if is_inherited and "vf_preds" not in self.module.forward_train(self._learning()):
            return tuple(name for name in outputs if name != "vf_preds")
        return outputs

    def values_states(self) -> Iterator[Problem]:
        """`compute_values` gives the `vf_preds` of `forward_train`."""
        if "vf_preds" not in self._train_outputs():
            return
        batch = self._learning()
        values, expected = self.module.compute_values(batch), self.module.forward_train(batch)["vf_preds"]
        if values.shape != expected.shape or not are_close(values, expected):
            what = "compute_values gives other values than `vf_preds` of forward_train"
            yield Problem(what, "compute_values", outline(values), f"{outline(expected)}, the same values")

    def sees_observations(self) -> Iterator[Problem]:
        """What `forward_train` gives depends on the observation; weights are moved, as a head may begin with zeros."""
        module, generator = self._made(0), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        batch = self._learning()
        others = nested.map_leaves(lambda leaf: leaf.roll(1, 0), batch["obs"])
        if are_equal(batch["obs"], others):  # a space of one item
            return
        outputs, of_others = module.forward_train(batch), module.forward_train(batch | {"obs": others})
        for column in ("action_dist_inputs", "vf_preds"):
            if column in outputs and torch.equal(outputs[column], of_others[column]):
                what = f"forward_train gives the same {column} for other observations"
                yield Problem(what, "forward_train", expected="outputs of `obs`")

    def computes_each_row_by_itself(self) -> Iterator[Problem]:
        """A row of a batch gives what it gives alone."""
        for name, batch, outputs in self._outputs():
            one = getattr(self.module, name)(_row(batch, 2))
            for column in one:
                if not are_close(one[column], _row(outputs[column], 2)):
                    what = f"{name} gives another {column} for a row alone than for the row in a batch"
                    yield Problem(what, name, expected="rows that do not depend on each other")

    def repeats_itself(self) -> Iterator[Problem]:
        """The same batch gives the same outputs, and no global random number is drawn."""
        for name, batch, outputs in self._outputs():
            before = process_streams()
            again = getattr(self.module, name)(batch)
            if not are_equal(process_streams(), before):
                what = f"{name} draws random numbers of the process"
                yield Problem(what, name, expected="column `noise`, of which `num_noise` says how many a row needs")
            elif not all(are_close(again[column], outputs[column]) for column in outputs):
                yield Problem(
                    f"{name} gives other outputs for the same batch", name, expected="a function of the batch"
                )

    def leaves_inputs_alone(self) -> Iterator[Problem]:
        """No pass writes into its batch."""
        for name in (*_PASSES, "forward_train"):
            batch = self._learning() if name == "forward_train" else self._acting()
            kept = {column: nested.map_leaves(torch.clone, value) for column, value in batch.items()}
            getattr(self.module, name)(batch)
            changed = [c for c in dict.fromkeys([*kept, *batch]) if not _is_kept(batch.get(c), kept.get(c))]
            if changed:
                what = f"{name} writes into {', '.join(changed)} of its batch"
                yield Problem(what, name, expected="outputs of its own")

    def keeps_all_in_its_weights(self) -> Iterator[Problem]:
        """A module with the weights of another one acts as it does: they are all that env runners get."""
        other = self._made(1)
        FlatParameters(other).load(FlatParameters(self._made(0)).to_numpy())
        batch = self._acting()
        expected, got = self.module.forward_exploration(batch), other.forward_exploration(batch)
        if not all(are_close(got[column], expected[column]) for column in expected):
            what = "a module with the weights of another one acts differently"
            advice = "nn.Parameters and float buffers (register_buffer) for all that outputs depend on"
            yield Problem(what, "parameters", expected=advice)

    def is_made_from_its_seed(self) -> Iterator[Problem]:
        """Modules that are made with one seed of torch are equal."""
        first, second = (FlatParameters(self._made(0)).to_numpy() for _ in range(2))
        if not np.array_equal(first, second):
            what = "two modules that are made with the same seed differ"
            yield Problem(what, "__init__", expected="initial values from torch's generator, which a run seeds")

    def groups_parameters(self) -> Iterator[Problem]:
        """Each learned parameter is in one group; parameters of target networks are learned by none."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        learned = [id(parameter) for parameter in self.module.parameters() if parameter.requires_grad]
        grouped = [id(one) for parameters in self.module.parameter_groups().values() for one in parameters]
        for parameter in dict.fromkeys([*learned, *grouped]):
            count, expected = grouped.count(parameter), int(parameter in learned)
            if count != expected:
                what = f"parameter {names.get(parameter, 'of elsewhere')} is in {count} groups"
                advice = "1" if expected else "0, as it needs no gradient or is none of the module's"
                yield Problem(what, "parameter_groups", str(count), advice)
        for target, _ in self.module.target_networks():
            for name in [name for name, parameter in target.named_parameters() if parameter.requires_grad]:
                yield Problem(
                    f"parameter {name} of a target network is learned", "target_networks", expected="target_of"
                )

    def follows_targets(self) -> Iterator[Problem]:
        """With tau 1 targets are equal to what they follow."""
        module = self._made(0)
        with torch.no_grad():
            for target, _ in module.target_networks():
                for parameter in target.parameters():
                    parameter.add_(1.0)
        module.update_targets(1.0)
        for target, network in module.target_networks():
            pairs = zip(target.parameters(), network.parameters(), strict=True)
            if not all(torch.allclose(one, other) for one, other in pairs):
                yield Problem("targets are not what they follow after update_targets(1)", "update_targets")

    def draws_its_noise(self) -> Iterator[Problem]:
        """Column `noise` is float32 of `num_noise` numbers a row, and a function of the stream."""
        module = self.module
        first, second = (module.draw_noise(np.random.default_rng(7), (2, 3)) for _ in range(2))
        shape = (2, 3, module.num_noise)
        if first.shape != shape or first.dtype != np.float32:
            yield Problem("draw_noise gives another shape or dtype", "draw_noise", outline(first), f"{shape} float32")
        elif not np.array_equal(first, second):
            yield Problem(
                "draw_noise gives other noise for the same stream", "draw_noise", expected="draws of `stream`"
            )

    def fits_its_action_space(self) -> Iterator[Problem]:
        """The likeliest action has the shape of the space, and its log probability one number a row."""
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
            yield Problem("log_prob gives no number for each row", "action_dist", outline(logp), f"shape ({_ROWS},)")

    # -- memory --------------------------------------------------------------------------------------------------------

    def begins_with_a_memory(self) -> Iterator[Problem]:
        """The initial state is float32 without batch axis, and what acting returns is like it."""
        for leaf in nested.leaves(self.module.get_initial_state()):
            if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32:
                yield Problem("the initial state is no float32 tensor", "get_initial_state", outline(leaf))
        batch = self._acting()
        state_in, state_out = batch["state_in"], self.module.forward_exploration(batch)["state_out"]
        if outline(state_in) != outline(state_out):
            what = "state_out is not like state_in"
            yield Problem(what, "forward_exploration", outline(state_out), outline(state_in))

    def remembers_step_by_step(self) -> Iterator[Problem]:
        """A pass over sequences gives what acting gives step by step."""
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
                what = f"forward_train over a sequence gives other {column} than {way} step by step"
                yield Problem(
                    what, "forward_train", f"first at step {t}", "the same: `state_out` is the next `state_in`"
                )
            if misfits:
                return
            state = outputs["state_out"]


def _row(tree: Any, row: int) -> Any:
    return nested.map_leaves(lambda leaf: leaf[row : row + 1], tree)


def _steps(tree: Any, t: int) -> Any:
    return nested.map_leaves(lambda leaf: leaf[:, t : t + 1], tree)


def _without_dtype(tree: Any) -> Any:
    return nested.map_leaves(lambda leaf: leaf.float(), tree)


def _is_kept(value: Any, kept: Any) -> bool:
    return value is not None and kept is not None and are_equal(value, kept)
