"""Rules of user-defined losses, modules and pipeline edits that are checked in source files, without imports.

If a source cannot be analysed, nothing is reported here, and `validate --build` finds the problem.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runner.config.algorithms import AlgorithmConfig
from runner.config.composed import CHECKPOINT_SOURCE, DEFAULT_SOURCE, Composed
from runner.config.connectors import ANCHORED_EDITS
from runner.config.errors import Problem, list_names, nearest_match, show_value
from runner.config.fields import names_of
from runner.config.list_patches import CONNECTORS_KEY, OF_ALGORITHM, PIPELINES, added_connectors, module_algorithm_key
from runner.config.plans.needs import columns_added_by_plan
from runner.config.schemas import ExperimentConfig, ModuleConfig
from runner.config.source_definitions import Definition, constant_named, lineage_to, read_class_attribute
from runner.config.source_modules import UnknowableError
from runner.config.targets import CONNECTORS, LOSSES, MODULES

# Connectors that default pipelines may contain, for any environment and module.
DEFAULT_CONNECTORS: Mapping[str, tuple[str, ...]] = {
    "env_to_module": (
        *("AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch"),
        *("AddNoiseToBatch", "BatchIndividualItems", "NumpyToTensor"),
    ),
    "module_to_env": (
        *("RemoveSingleTsTimeRankFromBatch", "GetActions", "TensorToNumpy", "UnBatchToIndividualItems"),
        *("NormalizeAndClipActions", "ListifyDataForVectorEnv", "ModuleToAgentUnmapping"),
    ),
    "learner": (
        *("AddObservationsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch", "AddTimeDimToBatchAndZeroPad"),
        *("AddStatesFromEpisodesToBatch", "AgentToModuleMapping", "BatchIndividualItems", "NumpyToTensor"),
    ),
}
# Columns of a train batch that default pipelines, built-in modules and replay buffers may write.
DEFAULT_COLUMNS = (
    *("obs", "actions", "rewards", "terminateds", "truncateds", "loss_mask", "is_burn_in"),
    *("action_dist_inputs", "action_logp", "state_in", "state_out", "noise", "n_step", "weights"),
    *("new_state_in", "seq_lens", "is_first"),
)
# Fields of the module block that runner uses itself.
_USED_BY_RUNNER = ("_target_", "model_config", "load_state_path", "load_state_strict", "max_seq_len", "action_mask_key")
_DEFAULT_FILE = "conf/module/mlp.yaml"
_OURS = "runner."
_SHIPPED, _SHIPPED_MODULES = "conf/", "conf/module/"


def find_own_class_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield problems of losses, modules and edits, according to their sources."""
    for key, algorithm in config.algorithms.items():
        yield from _find_in_edits(key, algorithm, config)
        yield from _find_in_loss(key, algorithm, config)
    yield from _find_in_module(config.module, composed)


# -- edits -------------------------------------------------------------------------------------------------------------


def _lists_of(key: str, algorithm: AlgorithmConfig, config: ExperimentConfig, pipeline: str) -> dict[str, list[Any]]:
    """Return dotted key -> edits of a pipeline, in order of application."""
    field = OF_ALGORITHM.get(pipeline)
    lists = {} if field is None else {f"{key}.{field}": getattr(algorithm, field)}
    auxiliary = config.multi_agent.auxiliary_modules
    own_id = next((id_ for id_ in auxiliary if module_algorithm_key(id_) == key), None)
    if own_id is None:
        lists[f"connectors.{pipeline}"] = getattr(config.connectors, pipeline)
    ids = [own_id] if own_id is not None else [id_ for id_ in config.connectors.modules if id_ not in auxiliary]
    of_modules = {id_: config.connectors.modules.get(id_, {}) for id_ in ids}
    return lists | {f"connectors.modules.{id_}.{pipeline}": of_modules[id_].get(pipeline, []) for id_ in of_modules}


def _find_in_edits(key: str, algorithm: AlgorithmConfig, config: ExperimentConfig) -> Iterator[Problem]:
    """Yield anchors that cannot exist in the pipelines of this algorithm."""
    for pipeline in PIPELINES:
        names = set(DEFAULT_CONNECTORS[pipeline])
        for list_key, edits in _lists_of(key, algorithm, config, pipeline).items():
            for index, edit in enumerate(edits):
                anchor = next((edit[name] for name in (*ANCHORED_EDITS, "remove") if name in edit), None)
                if isinstance(anchor, str) and anchor not in names:
                    what, expected = f"the {pipeline} pipeline does not contain a connector {anchor}", list_names(names)
                    yield Problem(what, f"{list_key}.{index}", anchor, expected, nearest_match(anchor, names))
                blocks = list(added_connectors(edit))
                names |= {str(block["_target_"]).rpartition(".")[2] for block in blocks}
                if any(map(_has_own_connectors, blocks)):
                    return


def _has_own_connectors(block: Mapping[str, Any]) -> bool:
    """Return whether a connector may be a pipeline that creates its connectors itself."""
    try:
        names = [one.node.name for one in lineage_to(str(block["_target_"]), CONNECTORS.bases[0])]
    except UnknowableError:
        return True
    return "ConnectorPipeline" in names and CONNECTORS_KEY not in block


# -- losses ------------------------------------------------------------------------------------------------------------


def _find_in_loss(key: str, algorithm: AlgorithmConfig, config: ExperimentConfig) -> Iterator[Problem]:
    """Yield columns that a loss reads but nothing writes, and outputs that it needs but the module lacks."""
    path = _module_path(key, config)
    if algorithm.loss.startswith(_OURS) and path.startswith(_OURS):
        return  # building the module reports a loss that does not fit
    try:
        loss = lineage_to(algorithm.loss, LOSSES.bases[0])
        reads, needs = (read_class_attribute(loss[0], name, LOSSES.bases[0]) for name in ("reads", "needs"))
    except UnknowableError:
        return
    name = algorithm.loss.rpartition(".")[2]
    yield from _find_unwritten(key, name, reads, path, config)
    yield from _find_lacking(key, name, needs, path)


def _module_path(key: str, config: ExperimentConfig) -> str:
    """Return the dotted path of the module that the algorithm at this key trains."""
    module_id = "" if key == "algorithm" else key.split(".")[-2]
    fields = config.multi_agent.modules.get(module_id, {})
    return str(fields.get("_target_", config.module_defaults_of(module_id)._target_))


def _find_unwritten(key: str, name: str, reads: Any, module: str, config: ExperimentConfig) -> Iterator[Problem]:
    if config.offline.input_ is not None or not isinstance(reads, tuple):  # recorded data may have more columns
        return
    try:
        outputs = set(_texts_in(lineage_to(module, MODULES.bases[0])))  # all that may be names of outputs
        written = {*DEFAULT_COLUMNS, *_written_by(key, config), *columns_added_by_plan(config)}
    except UnknowableError:
        return
    missing = [column for column in reads if column not in written | outputs]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        what = f"{name} reads {', '.join(missing)}, but no connector of the learner pipeline writes {them}"
        nearest = nearest_match(missing[0], written | outputs)
        yield Problem(what, f"{key}.loss", ", ".join(missing), list_names(written), nearest)


def _written_by(key: str, config: ExperimentConfig) -> Iterator[str]:
    """Yield the columns that connectors in edits write."""
    algorithm = config.algorithms[key]
    for pipeline in PIPELINES:
        for edits in _lists_of(key, algorithm, config, pipeline).values():
            for block in (block for edit in edits for block in added_connectors(edit)):
                if _has_own_connectors(block):
                    raise UnknowableError
                connector = lineage_to(str(block["_target_"]), CONNECTORS.bases[0])[0]
                for name in ("writes", "writes_per_fragment"):
                    yield from read_class_attribute(connector, name, CONNECTORS.bases[0], "requires") or ()


def _find_lacking(key: str, name: str, needs: Any, module: str) -> Iterator[Problem]:
    try:
        classes = lineage_to(module, MODULES.bases[0])
    except UnknowableError:
        return
    known = {*_texts_in(classes), *_names_in(classes)}
    lacking = [need for need in needs if need not in known] if isinstance(needs, tuple) else []
    if lacking:
        of_module = module.rpartition(".")[2]
        what = f"{name} needs {', '.join(lacking)}, which {of_module} does not provide"
        yield Problem(what, f"{key}.loss", of_module, f"a module with {', '.join(needs)}")


# -- modules -----------------------------------------------------------------------------------------------------------


def _find_in_module(module: ModuleConfig, composed: Composed) -> Iterator[Problem]:
    """Yield keys of `model_config` and fields of the block that a module does not use."""
    try:
        classes = lineage_to(module._target_, MODULES.bases[0])[:-1]  # without RLModule
    except UnknowableError:
        return
    name = module._target_.rpartition(".")[2]
    own = [one for one in classes if not one.module.name.startswith(_OURS)]
    if not own:
        yield from _describe_keys(name, module.model_config, [])
        return
    used, is_certain = _keys_used(classes)
    if is_certain and not _passes_config_to_other_files(own):
        yield from _describe_keys(name, module.model_config, used)
    if len(own) == len(classes) and not _passes_config_on(classes):
        yield from _find_ignored_fields(name, module, classes, composed)


def _describe_keys(name: str, given: Mapping[str, Any], used: Sequence[str]) -> Iterator[Problem]:
    for one in [one for one in given if one not in used]:
        key, nearest = f"module.model_config.{one}", nearest_match(str(one), used)
        expected = list_names(used) or "no keys"
        yield Problem(f"{name} does not use {key}", key, show_value(given[one]), expected, nearest)


def _find_ignored_fields(
    name: str, module: ModuleConfig, classes: Sequence[Definition], composed: Composed
) -> Iterator[Problem]:
    mentioned, default = set(_names_in(classes, entire_files=True)), ModuleConfig()
    for field in [one for one in names_of(ModuleConfig) if one not in _USED_BY_RUNNER and one not in mentioned]:
        value, key = getattr(module, field), f"module.{field}"
        if value != getattr(default, field) and _is_chosen(composed.sources.get(key, DEFAULT_SOURCE)):
            expected, fix = show_value(getattr(default, field)), f"read config.{field} in {name}, or remove the value"
            yield Problem(f"{name} does not use {key}", key, show_value(value), expected, fix=fix)


def _is_chosen(source: str) -> bool:
    """Return whether the user chose a value for this module, rather than a built-in experiment for another one.

    Values of a checkpoint were chosen before, maybe for another module.
    """
    is_shipped = source in (DEFAULT_SOURCE, CHECKPOINT_SOURCE) or source.startswith(_SHIPPED)
    return not is_shipped or (source.startswith(_SHIPPED_MODULES) and not source.startswith(_DEFAULT_FILE))


# -- sources -----------------------------------------------------------------------------------------------------------


def _nodes(classes: Iterable[Definition], entire_files: bool = False) -> Iterator[ast.AST]:
    for one in classes:
        yield from ast.walk(one.node)
        for node in one.module.definitions.values() if entire_files else ():
            yield from ast.walk(node)


def _texts_in(classes: Iterable[Definition]) -> Iterator[str]:
    """Yield string literals in the sources of classes, including constants of their modules and tuples of them."""
    for one in classes:
        for node in ast.walk(one.node):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Name):
                with suppress(UnknowableError):
                    value = constant_named(node.id, one.module)
            yield from (text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str))


def _names_in(classes: Iterable[Definition], entire_files: bool = False) -> Iterator[str]:
    """Yield attributes, methods and names in the sources of classes."""
    for node in _nodes(classes, entire_files):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


def _keys_used(classes: Sequence[Definition]) -> tuple[list[str], bool]:
    """Return the keys of `model_config` in the files of classes, and whether the list is complete."""
    nodes = list(_nodes(classes, entire_files=True))
    uses = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "model_config"]
    keys = {id(use): key for node in nodes for use, key in [_key_of(node)] if key is not None}
    return sorted(set(keys.values())), bool(uses) and all(id(use) in keys for use in uses)


def _key_of(node: ast.AST) -> tuple[ast.AST | None, str | None]:
    """Return an access to `model_config` and its key: `….model_config["key"]` or `….model_config.get("key", …)`."""
    if isinstance(node, ast.Subscript):
        return node.value, _text(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return node.func.value, _text(node.args[0])
    return None, None


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _passes_config_on(classes: Sequence[Definition]) -> bool:
    """Return whether a class passes its complete configuration to anything except its base class."""
    names = _config_names(classes)
    arguments = [value for one in classes for call in _calls(one) for value in _arguments(call)]
    return any(isinstance(value, ast.Starred) or _is_config(value, names) for value in arguments)


def _passes_config_to_other_files(classes: Sequence[Definition]) -> bool:
    """Return whether a class passes its complete configuration to a function or class of another file."""
    names = _config_names(classes)
    outside = [call for one in classes for call in _calls(one) if not _is_of_file(call.func, one)]
    return any(_is_config(value, names) for call in outside for value in _arguments(call))


def _calls(owner: Definition) -> list[ast.Call]:
    return [node for node in ast.walk(owner.node) if isinstance(node, ast.Call) and not _is_super_init(node)]


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _is_of_file(called: ast.expr, owner: Definition) -> bool:
    """Return whether a call is a method of `self`, or a function or class of the same file."""
    if isinstance(called, ast.Attribute):
        return isinstance(called.value, ast.Name) and called.value.id == "self"
    return isinstance(called, ast.Name) and called.id in owner.module.definitions


def _config_names(classes: Iterable[Definition]) -> set[str]:
    """Return names of the configuration: usual ones, and the third argument of each constructor."""
    functions = [node for node in _nodes(classes) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    third = [argument.arg for function in functions for argument in function.args.args[3:4]]
    return {"config", "cfg", "module_config", *third}


def _is_super_init(call: ast.Call) -> bool:
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "super"


def _is_config(node: ast.AST, names: Collection[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Attribute) and node.attr in names
