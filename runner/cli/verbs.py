"""The verbs of the command line: one table, which defines the parser, the help, the completion and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_VERB = "train"  # a command line that begins with an option or an override
CANDIDATES = "candidates"  # instead of a SHELL of `completion`, for the scripts that it prints
GROUPS = ("Train", "Inspect", "Use", "Data", "Migrate", "Check", "Shell and editor")


@dataclass(frozen=True)
class CommandOption:
    """One option of a verb.

    Attributes:
        names: the short name first, the long one last; both mean the same.
        summary: effect of the option, for the help.
        metavar: placeholder of its value; None for a switch.
        choices: valid values, or empty if there is no fixed list.
        old_names: earlier spellings, which print a note.
    """

    names: tuple[str, ...]
    summary: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    old_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The long name, under which the parsed command line has the value."""
        return self.names[-1]

    @property
    def usage(self) -> str:
        """All names with the placeholder of the value, as in `-o, --output FILE`."""
        names = ", ".join(self.names)
        return names if self.metavar is None else f"{names} {self.metavar}"


@dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
        module: module with `main(arguments)`, imported when the verb is used.
        group: heading of the verb in the help.
        summary: one line about the verb.
        words: names of the words that follow the verb (of `WORDS`); optional ones are in brackets and come last.
        options: options of this verb; the options in `COMMON` belong to every verb.
        examples: command lines without `runner`.
        details: a paragraph of the verb's own help.
        has_overrides: whether the verb accepts KEY=VALUE.
        is_training: the results are files, so the command keeps running if stdout cannot be written.
    """

    module: str
    group: str
    summary: str
    words: tuple[str, ...] = ()
    options: tuple[CommandOption, ...] = ()
    examples: tuple[str, ...] = ()
    details: str = ""
    has_overrides: bool = True
    is_training: bool = False

    @property
    def required_words(self) -> tuple[str, ...]:
        """The words that must be given."""
        return tuple(word for word in self.words if not word.startswith("["))

    @property
    def word_names(self) -> tuple[str, ...]:
        """All words without their brackets."""
        return tuple(word.strip("[]") for word in self.words)


WORDS: Mapping[str, str] = {
    "EXPERIMENT": "name of an experiment; `runner list experiments` prints them",
    "RUN": "run dir, checkpoint or URL of a run; an experiment's name (its newest run); or `latest`",
    "POLICY": "a RUN, a policy file (policy.onnx) or a policy of the zoo (zoo:ppo_lunarlander)",
    "ZOO_EXPERIMENT": "name of an experiment on the results page",
    "SWEEP": "folder of a sweep, such as outputs/ppo_cartpole/sweeps/NAME",
    "RUN_OR_SWEEP": "a RUN, the folder of a sweep, or a folder with runs",
    "DATA": "folder or file of recorded data",
    "IN": "folder or file of recorded data to read",
    "OUT": "folder to write",
    "FILE": "the file to read",
    "OUTPUT": "file to write; the same as --output",
    "ENV": "an option of env (cartpole), a dotted path (my_package.Maze) or a Gymnasium id (CartPole-v1)",
    "HOST:PORT": "address of the server, such as 127.0.0.1:5556",
    "GROUP": "experiments, or a config group such as env or algorithm",
    "PATTERN": "a name with the wildcards * and ?, such as 'ppo_*'",
    "NAME": "name of the new experiment",
    "SHELL": "bash, zsh or fish",
}

# The words that also accept a URL, an experiment's name or `latest` instead of a path.
RUN_WORDS = frozenset({"RUN", "POLICY", "RUN_OR_SWEEP"})

HELP = CommandOption(("-h", "--help"), "print the help of the verb")
VERSION = CommandOption(("-V", "--version"), "print the version")
COMMON = (
    HELP,
    CommandOption(("-q", "--quiet"), "print only warnings and errors"),
    CommandOption(("-v", "--verbose"), "also print log messages, to stderr"),
    CommandOption(("--debug",), "print stack traces with error messages; the same as debug=true"),
)
_CONFIG_DIR = CommandOption(("-cd", "--config-dir"), "folder with your own experiments and group options", "DIR")
_TRUST = CommandOption(("--trust",), "load untrusted files without restrictions; see docs/explanation/trust.md")
_MULTIRUN = CommandOption(("-m", "--multirun"), "treat comma-separated values as a sweep, as in `runner sweep`")
_FORCE = CommandOption(("--force",), "overwrite an existing file")
_JSON = CommandOption(("--json",), "print JSON")
_MODULE = CommandOption(("--module",), "the module to write, if the run has several", "ID")
_ASSERT = CommandOption(
    ("--assert",),
    "exit with code 3 unless the last value of this metric meets the condition; may be repeated",
    "'METRIC >= 450'",
)
_CI = (
    _ASSERT,
    CommandOption(("--budget",), "end after this time with a checkpoint, and exit with code 4", "1h30m"),
    CommandOption(("--junit",), "write a JUnit report", "FILE"),
)


def _output(summary: str, metavar: str = "FILE", old_names: tuple[str, ...] = ()) -> CommandOption:
    return CommandOption(("-o", "--output"), summary, metavar, old_names=old_names)


def _episodes(summary: str) -> CommandOption:
    return CommandOption(("--episodes",), summary, "N")


_REPORT = (
    _output("file to write; default: report.html in the folder"),
    _FORCE,
    CommandOption(("--watch",), "serve a page on 127.0.0.1 that is updated until Ctrl-C"),
    CommandOption(("--port",), "port for --watch; default: any free port", "N"),
    _TRUST,
)

VERBS: Mapping[str, Verb] = {
    "train": Verb(
        "runner.cli.train",
        "Train",
        "train an experiment",
        ("[EXPERIMENT]",),
        (_CONFIG_DIR, *_CI, _MULTIRUN, _TRUST),
        (
            "train ppo_cartpole",
            "train ppo_cartpole algorithm.lr=1e-3 seed=7",
            "train ppo_cartpole --assert 'env_runners.episode_return_mean >= 450' --budget 10m",
        ),
        "Check the configuration, then train until a stop criterion is met. The verb is optional: "
        "`runner experiment=ppo_cartpole` does the same. The run writes to outputs/EXPERIMENT/DATE/TIME, or to "
        "hydra.run.dir=DIR. With --trust, a sweep (-m) can continue from files that are not signed with your key.",
        is_training=True,
    ),
    "sweep": Verb(
        "runner.cli.train",
        "Train",
        "train one run for each combination of values",
        ("[EXPERIMENT]",),
        (_CONFIG_DIR, *_CI, _TRUST),
        (
            "sweep ppo_cartpole seed=1,2,3",
            "sweep ppo_cartpole 'algorithm.lr=tag(log,interval(1e-5,1e-2))' sweep=tpe",
        ),
        "The search space consists of the keys with several values: a,b,c, range(...) or interval(...). By default, "
        "all combinations are trained; sweep=random, asha, pbt, pb2 or tpe selects some of them. The same command "
        "continues an interrupted sweep. --assert checks the best trial; iqm(METRIC) is the inter-quartile mean over "
        "the seeds of the best combination.",
        is_training=True,
    ),
    "sweep best": Verb(
        "runner.cli.sweep_best",
        "Train",
        "print the best trial of a sweep, or write an experiment with its values",
        ("SWEEP",),
        (
            _output("write an experiment file with the best values", old_names=("--emit",)),
            _FORCE,
            _JSON,
            _CONFIG_DIR,
            _TRUST,
        ),
        (
            "sweep best outputs/ppo_cartpole/sweeps/NAME",
            "sweep best outputs/ppo_cartpole/sweeps/NAME -o conf/experiment/ppo_cartpole_best.yaml",
        ),
        has_overrides=False,
    ),
    "sweep report": Verb(
        "runner.cli.report",
        "Train",
        "write an HTML page about a sweep",
        ("SWEEP",),
        _REPORT,
        ("sweep report outputs/ppo_cartpole/sweeps/NAME",),
        "The same as `runner report SWEEP`.",
        has_overrides=False,
    ),
    "resume": Verb(
        "runner.cli.resume",
        "Train",
        "continue a run from its last checkpoint",
        ("RUN",),
        (
            CommandOption(("--module-only",), "start a new run with the networks of the checkpoint"),
            _CONFIG_DIR,
            *_CI,
            _TRUST,
        ),
        (
            "resume latest",
            "resume ppo_cartpole stop.training_iteration=50",
            "resume RUN --module-only experiment=ppo_cartpole",
        ),
        "Overrides are stored in new checkpoints, so later resumes need not repeat them.",
        is_training=True,
    ),
    "new experiment": Verb(
        "runner.cli.new_experiment",
        "Train",
        "write an experiment file to start from",
        ("NAME",),
        (
            CommandOption(("--env",), "required: an option of env, a Gymnasium id or a dotted path", "ENV"),
            CommandOption(("--algorithm",), "option of algorithm; default: ppo", "ALGORITHM"),
            _FORCE,
            _CONFIG_DIR,
        ),
        ("new experiment my_acrobot --env Acrobot-v1 --algorithm dqn",),
        "The file is DIR/experiment/NAME.yaml; DIR is --config-dir, or conf in this folder. The command also writes "
        "DIR/runner.schema.json, which editors use to complete and check the file.",
        has_overrides=False,
    ),
    "profile": Verb(
        "runner.cli.profile",
        "Train",
        "train a few iterations and show where each process spends its time",
        ("[EXPERIMENT]",),
        (
            CommandOption(("--iterations",), "iterations to measure; default 5", "N"),
            CommandOption(("--warmup",), "iterations before the measurement; default 1", "N"),
            _output("also write the stacks for speedscope and flamegraph.pl"),
            _FORCE,
            _CONFIG_DIR,
        ),
        ("profile ppo_cartpole --iterations 20 --warmup 2", "profile ppo_cartpole -o stacks.txt"),
        "Print a table and write a page with flame graphs into the run dir.",
    ),
    "autotune": Verb(
        "runner.cli.autotune",
        "Train",
        "measure settings that change only the speed, and write an experiment with the fastest values",
        ("[EXPERIMENT]",),
        (
            _output("write an experiment file that builds on EXPERIMENT"),
            _FORCE,
            CommandOption(("--seconds",), "time limit, at least 10; default 120", "N"),
            _JSON,
            _CONFIG_DIR,
        ),
        ("autotune ppo_cartpole", "autotune ppo_half_cheetah -o conf/experiment/ppo_half_cheetah_fast.yaml"),
        "Short runs without tracking, evaluations and checkpoints measure how sub-environments are stepped, the number "
        "of torch's threads, and compiled updates. A value is chosen only if it is at least 5 % faster. More "
        "sub-environments are also measured, but only reported, because they change the data of an iteration.",
    ),
    "list": Verb(
        "runner.cli.list_options",
        "Inspect",
        "list experiments and the options of each config group",
        ("[GROUP]", "[PATTERN]"),
        (_JSON, _CONFIG_DIR),
        ("list", "list experiments 'ppo_*'", "list env"),
        has_overrides=False,
    ),
    "show": Verb(
        "runner.cli.show",
        "Inspect",
        "print the configuration with the source of each value, the plan and the pipelines",
        ("[EXPERIMENT]",),
        (
            CommandOption(("--plan",), "print only the plan: its operators and their items"),
            CommandOption(("--timings",), "measure the time of each connector", old_names=("--profile",)),
            _MULTIRUN,
            _CONFIG_DIR,
        ),
        ("show ppo_cartpole", "show ppo_cartpole algorithm.lr=1e-3 --plan"),
    ),
    "validate": Verb(
        "runner.cli.validate",
        "Inspect",
        "check the configuration and report all mistakes together",
        ("[EXPERIMENT]",),
        (
            CommandOption(("--build",), "also build environments, pipelines and modules, and take one step"),
            CommandOption(("--format",), "format of the problems", "text|github", ("text", "github")),
            _JSON,
            _MULTIRUN,
            _CONFIG_DIR,
        ),
        ("validate ppo_cartpole algorithm.lr=1e-3", "validate ppo_cartpole --build"),
        "Nothing is trained. With -m, the configurations of a sweep are checked. --format github prints annotations "
        "of GitHub Actions.",
    ),
    "doctor": Verb(
        "runner.cli.doctor",
        "Inspect",
        "check the installation: packages, GPU, compiler, disk space",
        options=(_JSON,),
        examples=("doctor",),
        has_overrides=False,
    ),
    "evaluate": Verb(
        "runner.cli.evaluate",
        "Use",
        "evaluate the last checkpoint of a run",
        ("RUN",),
        (
            _episodes("number of episodes; default: evaluation.evaluation_duration"),
            CommandOption(("--against",), "opponent: another run's policy, or a policy file", "OTHER"),
            _JSON,
            _TRUST,
        ),
        ("evaluate latest --episodes 50", "evaluate RUN --against OTHER_RUN"),
        "Print the metrics and append them to evaluations.jsonl in the run dir. --against needs an "
        "environment with several agents.",
    ),
    "play": Verb(
        "runner.cli.play",
        "Use",
        "show episodes of a policy in a window, or write a video",
        ("POLICY",),
        (
            _output("write a video instead (.mp4 or .gif)"),
            _FORCE,
            _episodes("number of episodes; default 1"),
            _CONFIG_DIR,
            _TRUST,
        ),
        ("play latest -o video.mp4", "play zoo:ppo_lunarlander", "play policy.onnx env=cartpole -o video.gif"),
        "A policy file does not contain its environment: choose one with env=NAME.",
    ),
    "report": Verb(
        "runner.cli.report",
        "Use",
        "write an HTML page about a run, a sweep, or all runs of a folder",
        ("RUN_OR_SWEEP",),
        _REPORT,
        ("report latest", "report ppo_cartpole -o ppo.html", "report latest --watch", "report outputs"),
        "The page of a folder lists all runs below it, overlays the curves of selected runs and compares their "
        "configurations. --watch accepts a run or a sweep.",
        has_overrides=False,
    ),
    "export": Verb(
        "runner.cli.export",
        "Use",
        "write the policy of the last checkpoint to one file",
        ("RUN", "[OUTPUT]"),
        (
            _output("file to write"),
            _FORCE,
            CommandOption(("--format",), "default: derived from the suffix of the file", "onnx|pt2", ("onnx", "pt2")),
            _MODULE,
            _TRUST,
        ),
        ("export latest -o policy.onnx", "export RUN -o policy.pt2 --force"),
        "The exported policy is compared with the module before the command ends.",
    ),
    "register": Verb(
        "runner.cli.register",
        "Use",
        "add the policy of the last checkpoint to MLflow's model registry",
        ("RUN",),
        (
            CommandOption(("--name",), "name of the model in the registry", "NAME"),
            CommandOption(_ASSERT.names, _ASSERT.summary, _ASSERT.metavar, old_names=("--if",)),
            _MODULE,
            _TRUST,
        ),
        (
            "register latest --name cartpole",
            "register RUN --name cartpole --assert 'env_runners.episode_return_mean >= 450'",
        ),
        "If an --assert condition is not met, nothing is registered.",
    ),
    "record": Verb(
        "runner.cli.record",
        "Data",
        "record episodes of a run's last checkpoint",
        ("RUN",),
        (
            _output("folder to write", "DIR"),
            _episodes("number of episodes; default: evaluation.evaluation_duration"),
            _TRUST,
        ),
        ("record latest -o data/expert --episodes 500",),
        "Only complete episodes are recorded. offline.output_append=true adds to a folder that already contains data.",
    ),
    "inspect": Verb(
        "runner.cli.inspect",
        "Data",
        "summarise recorded data: columns, episodes, returns, actions",
        ("DATA",),
        (_JSON, _CONFIG_DIR),
        ("inspect data/expert",),
    ),
    "convert": Verb(
        "runner.cli.convert",
        "Data",
        "convert recorded data between formats",
        ("[IN]", "[OUT]"),
        (_CONFIG_DIR,),
        ("convert steps.parquet data/episodes", "convert data/episodes table offline.output_write_episodes=false"),
        "Keys of `offline` describe the formats. offline.output_append=true adds to a folder that already contains "
        "data.",
    ),
    "zoo verify": Verb(
        "runner.cli.zoo",
        "Check",
        "repeat a run of the results page, and compare it with the stored one",
        ("ZOO_EXPERIMENT",),
        (
            CommandOption(("--seed",), "seed of the stored run; default: the smallest", "N"),
            _output("run dir; default: outputs/zoo_verify/NAME_SEED", "DIR"),
            _JSON,
        ),
        ("zoo verify ppo_sb3_cartpole", "zoo verify ppo_half_cheetah --seed 3"),
        "On the same kind of processor and with the same versions, progress.jsonl must be equal apart from times. "
        "Otherwise the return must be within the range of the stored seeds. A run that differs ends with exit code 3.",
        has_overrides=False,
    ),
    "import sb3-zoo": Verb(
        "runner.cli.import_experiment",
        "Migrate",
        "make an experiment from hyperparameters of RL Baselines3 Zoo",
        ("FILE",),
        (
            CommandOption(("--env",), "environment to import: a top-level key of the file", "ENV"),
            _output("experiment file to write; default: stdout"),
            _FORCE,
        ),
        ("import sb3-zoo hyperparams/ppo.yml --env LunarLander-v3 -o conf/experiment/lander.yaml",),
        has_overrides=False,
    ),
    "import rllib": Verb(
        "runner.cli.import_experiment",
        "Migrate",
        "make an experiment from the JSON of RLlib's AlgorithmConfig.to_dict()",
        ("FILE",),
        (
            CommandOption(("--algorithm",), "algorithm of the configuration", "NAME"),
            CommandOption(("--env",), "environment; default: the environment of the file", "ENV"),
            _output("experiment file to write; default: stdout"),
            _FORCE,
        ),
        ("import rllib config.json --algorithm PPO -o conf/experiment/mine.yaml",),
        has_overrides=False,
    ),
    "check-env": Verb(
        "runner.cli.check_env",
        "Check",
        "check an environment with random actions: contract violations and speed",
        ("ENV",),
        (_CONFIG_DIR,),
        ("check-env CartPole-v1", "check-env my_package.Maze env.env_config.size=4"),
    ),
    "rllink check": Verb(
        "runner.cli.rllink",
        "Check",
        "check an RLlink server against the specification",
        ("HOST:PORT",),
        (
            CommandOption(("--read-only",), "skip the rules that send episodes to a training run"),
            CommandOption(("--token",), "token of the server", "TOKEN"),
            CommandOption(("--tls-ca",), "PEM file with the certificates of the server", "FILE"),
            CommandOption(("--timeout",), "seconds to wait for an answer; default 10", "SECONDS"),
        ),
        ("rllink check 127.0.0.1:5556 --read-only",),
        has_overrides=False,
    ),
    "schema": Verb(
        "runner.cli.schema",
        "Shell and editor",
        "print the JSON schema of experiment files, for completion and checks in editors",
        options=(_output("file to write; default: stdout"), _FORCE, _CONFIG_DIR),
        examples=("schema -o conf/runner.schema.json --force",),
        has_overrides=False,
    ),
    "completion": Verb(
        "runner.cli.completion",
        "Shell and editor",
        "print a completion script for bash, zsh or fish",
        ("SHELL",),
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/runner",
            "completion zsh > ~/.zfunc/_runner",
            "completion fish > ~/.config/fish/completions/runner.fish",
        ),
        has_overrides=False,
    ),
}


def options_of(verb: str) -> tuple[CommandOption, ...]:
    """Return all options that a verb accepts."""
    return (*VERBS[verb].options, *COMMON)


def subverbs_of(name: str) -> tuple[str, ...]:
    """Return the second words of the verbs that begin with this word."""
    return tuple(verb.partition(" ")[2] for verb in VERBS if verb.startswith(f"{name} "))


def first_words() -> tuple[str, ...]:
    """Return each word that a command line may begin with, once."""
    return tuple(dict.fromkeys(verb.partition(" ")[0] for verb in VERBS))
