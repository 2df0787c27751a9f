"""The verbs of the command line: one table, from which the help text and every check follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_COLUMN = 21
_TRAINING = "(none)"


@dataclass(frozen=True)
class Verb:
    """What one verb does.

    Attributes:
        module: with `main(argv)`, imported when the verb is used.
        meaning: what it does, for the help text.
        example: a command line without `python -m runner`.
        arguments: what follows the verb, as in `RUN_DIR`.
        variants: option that changes the verb -> (meaning, example).
        is_training: its results are files, so it keeps running if stdout cannot be written.
    """

    module: str
    meaning: str
    example: str
    arguments: str = ""
    variants: Mapping[str, tuple[str, str]] | None = None
    is_training: bool = False


VERBS: Mapping[str | None, Verb] = {
    None: Verb("runner.cli.train", "train", "+experiment=ppo_cartpole algorithm.lr=1e-3 seed=7", is_training=True),
    "validate": Verb(
        "runner.cli.validate",
        "check the configuration and report all mistakes at once",
        "validate +experiment=ppo_cartpole",
        variants={
            "--build": (
                "also make environments, pipelines and modules, and take one step",
                "validate --build +experiment=ppo_cartpole",
            )
        },
    ),
    "show": Verb(
        "runner.cli.show",
        "print the composed configuration with the source of each value, the plan and the pipelines",
        "show +experiment=ppo_cartpole",
        variants={
            "--plan": ("print the plan alone: its operators and their items", "show --plan +experiment=ppo_cartpole")
        },
    ),
    "check-env": Verb(
        "runner.cli.check_env",
        "step an environment with random actions and say what it does wrong, and how fast it is",
        "check-env my_package.Maze env.env_config.size=4",
        "ENV",
    ),
    "profile": Verb(
        "runner.cli.profile",
        "train a few iterations and say where their time goes, in every process, also as flame graphs",
        "profile +experiment=ppo_cartpole --iterations 20 --warmup 2",
        variants={
            "--output FILE": (
                "also write the stacks for speedscope and flamegraph.pl",
                "profile +experiment=ppo_cartpole --output stacks.txt",
            )
        },
    ),
    "doctor": Verb("runner.cli.doctor", "say what this machine lacks: packages, GPU, compiler, room", "doctor"),
    "list": Verb("runner.cli.list_options", "print the experiments and the options of each group", "list"),
    "resume": Verb(
        "runner.cli.resume",
        "go on from the last checkpoint; overrides stay in force for later resumes",
        "resume RUN_DIR stop.training_iteration=50",
        "RUN_DIR",
        variants={
            "--module-only": (
                "begin a new run with the module of the checkpoint",
                "resume RUN_DIR --module-only experiment=ppo_cartpole",
            ),
        },
        is_training=True,
    ),
    "evaluate": Verb(
        "runner.cli.evaluate",
        "evaluate the last checkpoint",
        "evaluate RUN_DIR evaluation.evaluation_duration=50",
        "RUN_DIR",
        variants={
            "--against OTHER": (
                "against the policy of another run, or a policy file, for games of several agents",
                "evaluate RUN_DIR --against OTHER_RUN_DIR",
            )
        },
    ),
    "play": Verb(
        "runner.cli.play",
        "show episodes of the last checkpoint's policy, or of a policy file, in a window or as a video",
        "play RUN_DIR --output video.mp4",
        "RUN_DIR",
        variants={
            "FILE": (
                "a policy file, in the environment that you name",
                "play policy.onnx env=cartpole --output video.gif",
            ),
            "zoo:NAME": ("a policy of the zoo, in its experiment's environment", "play zoo:ppo_sb3_cartpole"),
        },
    ),
    "record": Verb(
        "runner.cli.record",
        "record whole episodes of the last checkpoint's policy",
        "record RUN_DIR offline.output=data/expert",
        "RUN_DIR",
    ),
    "export": Verb(
        "runner.cli.export",
        "write the last checkpoint's policy to one file, --format onnx or pt2",
        "export RUN_DIR --format onnx policy.onnx",
        "RUN_DIR FILE",
    ),
    "register": Verb(
        "runner.cli.register",
        "put the last checkpoint's policy into MLflow's model registry, if it is good enough",
        "register RUN_DIR --name NAME --if 'METRIC >= 450'",
        "RUN_DIR",
    ),
    "inspect": Verb(
        "runner.cli.inspect",
        "describe recorded data: schema, episodes, returns, actions",
        "inspect data/expert",
        "DATA",
    ),
    "convert": Verb(
        "runner.cli.convert",
        "rewrite recorded data: tables or other formats to episodes, or back",
        "convert offline.input_=table offline.output=episodes",
    ),
    "rllink": Verb(
        "runner.cli.rllink",
        "put an RLlink server through each rule of its specification",
        "rllink check 127.0.0.1:5556 --read-only",
        "check HOST:PORT",
    ),
    "sweep": Verb(
        "runner.cli.sweep_best",
        "print the best trial of a sweep; --emit FILE writes an experiment with its values",
        "sweep best SWEEP_DIR --emit conf/experiment/NAME.yaml",
        "best SWEEP_DIR",
    ),
    "import": Verb(
        "runner.cli.import_experiment",
        "write an experiment out of RL Baselines3 Zoo's hyperparameters, --output FILE",
        "import sb3-zoo hyperparams/ppo.yml --env LunarLander-v3",
        "sb3-zoo FILE",
        variants={
            "rllib FILE": (
                "out of the JSON of RLlib's AlgorithmConfig.to_dict()",
                "import rllib config.json --algorithm PPO",
            )
        },
    ),
    "report": Verb(
        "runner.cli.report",
        "write one HTML page about a sweep or a run, --output FILE",
        "report outputs/ppo_cartpole/sweeps/NAME",
        "DIR",
        variants={
            "--watch": (
                "serve a page on 127.0.0.1 that follows it while it goes on, --port N",
                "report outputs/ppo_cartpole/DATE/TIME --watch",
            )
        },
    ),
}
NAMES = tuple(name for name in VERBS if name is not None)


def describe_verbs() -> str:
    """The section of the help text: each verb with its meaning and an example."""
    return "\n".join(line for name, verb in VERBS.items() for line in _describe(name, verb))


def _describe(name: str | None, verb: Verb) -> Iterator[str]:
    if name is None:
        yield f"  {_TRAINING:<{_COLUMN - 2}}{verb.meaning:<10}  python -m runner {verb.example}"
        return
    head = f"  {name} {verb.arguments}".rstrip()
    if len(head) < _COLUMN - 1:
        yield f"{head:<{_COLUMN}}{verb.meaning}"
    else:
        yield from (head, f"{'':<{_COLUMN}}{verb.meaning}")
    yield _example(verb.example)
    for option, (meaning, example) in (verb.variants or {}).items():
        yield f"{'':<{_COLUMN}}{option}: {meaning}"
        yield _example(example)


def _example(text: str) -> str:
    return f"{'':<{_COLUMN + 12}}python -m runner {text}"
