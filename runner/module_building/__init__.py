"""The modules of an experiment: their agents, spaces, networks and pipelines."""

from runner.module_building.built_module import (
    BuiltActingModule,
    BuiltModule,
    acting_modules,
    encoding_doubts,
    lookback_of,
    networks_of,
    reported_metrics,
    weights_by_module,
    weights_of,
)
from runner.module_building.construction import (
    build_acting_module,
    build_module,
    learner_device,
    make_connector,
    on_device,
)
from runner.module_building.joined_modules import (
    build_acting_modules,
    build_auxiliary_modules,
    build_modules,
    check_acts_alone,
    join_modules,
)
from runner.module_building.module_spec import ModuleSpec, has_several_agents, make_module_specs

__all__ = [
    "BuiltActingModule",
    "BuiltModule",
    "ModuleSpec",
    "acting_modules",
    "build_acting_module",
    "build_acting_modules",
    "build_auxiliary_modules",
    "build_module",
    "build_modules",
    "check_acts_alone",
    "encoding_doubts",
    "has_several_agents",
    "join_modules",
    "learner_device",
    "lookback_of",
    "make_connector",
    "make_module_specs",
    "networks_of",
    "on_device",
    "reported_metrics",
    "weights_by_module",
    "weights_of",
]
