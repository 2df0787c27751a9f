"""Join a Ray cluster, or start one on this machine; every start of Ray goes through this module."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from runner.cluster.local_files import ray_temp_dir, ray_token
from runner.cluster.node_polling import polled
from runner.cluster.pending_actors import waits_reported
from runner.cluster.watchdog import Watchdog
from runner.compat.ray_cluster import TEMP_DIR_ARGUMENT, lost_process, replace_message_printer
from runner.config.blocks import RayConfig
from runner.config.errors import ConfigError, Problem
from runner.interrupts import also_ended_by

ADDRESS_VARIABLE = "RAY_ADDRESS"
LOCAL = "local"
_DEATHS_INTERVAL_S = 1.0
_KEPT_SIGNALS = ("SIGTERM", "SIGHUP")

_log = logging.getLogger(__name__)
_watchdog: Watchdog | None = None
# Ray's own function, while `_log_message` replaces it.
_rays_printer: Callable[..., None] | None = None


@contextmanager
def connected(
    config: RayConfig,
    wanted: Mapping[str, float],
    needed_by: str,
    note: Callable[[str], None] = _log.info,
    actors: Sequence[Mapping[str, float]] = (),
) -> Iterator[None]:
    """Use a Ray cluster within the block: the connected cluster, or else `ray.address`, or else a new one here.

    A new cluster has enough logical CPUs for the job, even more than the machine has, and ends with the block. A
    cluster that merely runs on this machine is not joined without an address.

    Args:
        config: the `ray` block.
        wanted: resources in total that the job cannot run without, by Ray's names.
        needed_by: the options that need them, for messages.
        note: called with progress: clusters joined or started, actors that wait for resources, dead Ray processes.
        actors: resources of each single actor or task on its node.

    Raises:
        ConfigError: nothing answers at the address, or the cluster does not have the resources.
    """
    import ray

    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.callback(stop_ray)
            _connect(config, max(os.cpu_count() or 1, math.ceil(wanted.get("CPU", 0.0))), note)
        _check_can_give(wanted, needed_by)
        _check_have_nodes(actors, needed_by)
        stack.enter_context(waits_reported(note))
        stack.enter_context(_deaths_reported(note))
        stack.enter_context(also_ended_by(_lost_ray_process))
        yield


def _lost_ray_process() -> str | None:
    """Return a reason to end the run if a process of Ray has ended, because Ray soon ends this one."""
    lost = lost_process()
    return None if lost is None else f"{lost} has ended"


def _deaths_reported(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Within the block, call `note` once if an essential process of a Ray cluster started by this process has ended.

    A thread polls: after such an end, calls of Ray block until Ray ends this process from inside.
    """

    def poll() -> bool:
        if (reason := _lost_ray_process()) is None:
            return False
        ends = "Ray ends this command within a minute; continue a run with resume, a sweep with the same command"
        note(f"{reason}: {ends}")
        return True

    return polled(poll, _DEATHS_INTERVAL_S, "ray-deaths")


def ensure_connected() -> None:
    """Connect a process that reads recorded data with Ray outside of a run, until its end.

    Joins the cluster that RAY_ADDRESS names, else starts a new one: Ray itself would join any that runs on this
    machine.

    Raises:
        ConfigError: nothing answers at the address.
    """
    import ray

    if not ray.is_initialized():
        # The command may print JSON to stdout.
        _connect(RayConfig(), os.cpu_count() or 1, lambda note: print(note, file=sys.stderr, flush=True))


def start_local_ray(num_cpus: int) -> None:
    """Start a cluster on this machine that ends with this process, however it ends."""
    global _watchdog
    temp_dir = ray_temp_dir()
    arguments = {} if temp_dir is None else {TEMP_DIR_ARGUMENT: temp_dir}
    _watchdog = Watchdog()
    with _watchdog.marking(), ray_token():
        _init(address=LOCAL, num_cpus=num_cpus, include_dashboard=False, **arguments)


def stop_ray() -> None:
    """Leave the cluster; end it if it was started here."""
    import ray

    global _watchdog
    try:
        ray.shutdown()
    finally:
        _print_messages_of_ray()
    if _watchdog is not None:
        _watchdog.end()
        _watchdog = None


def _check_can_give(wanted: Mapping[str, float], needed_by: str) -> None:
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    short = [name for name, amount in wanted.items() if amount > there.get(name, 0.0)]
    if short:
        problem = Problem(
            "the Ray cluster does not have the resources that this run needs",
            where=needed_by,
            got=", ".join(f"{name} {wanted[name]:g}" for name in short),
            expected=", ".join(f"{name} {there.get(name, 0.0):g}" for name in short),
        )
        raise ConfigError([problem])


def _check_have_nodes(actors: Sequence[Mapping[str, float]], needed_by: str) -> None:
    """Reject an actor that is larger than each node; an actor cannot span nodes."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    for actor in actors:
        if not any(all(node.get(name, 0.0) >= amount for name, amount in actor.items()) for node in nodes):
            names = [name for name, amount in actor.items() if amount]
            each_node = Counter(", ".join(f"{name} {node.get(name, 0.0):g}" for name in names) for node in nodes)
            problem = Problem(
                "no node of the Ray cluster has enough resources for one of this run's actors",
                where=needed_by,
                got=", ".join(f"{name} {actor[name]:g}" for name in names),
                expected="; ".join(
                    f"{text} ({count} node{'' if count == 1 else 's'})" for text, count in sorted(each_node.items())
                ),
            )
            raise ConfigError([problem])


def _connect(config: RayConfig, num_local_cpus: int, note: Callable[[str], None]) -> None:
    """Join the cluster that `ray.address` or the environment names, or start one."""
    needed_by = "ray.address" if config.address else ADDRESS_VARIABLE
    address = config.address or os.environ.get(ADDRESS_VARIABLE) or LOCAL
    if address == LOCAL:
        plural = "" if num_local_cpus == 1 else "s"
        note(f"starting Ray on this machine, only for this command, with {num_local_cpus} CPU{plural} ...")
        start_local_ray(num_local_cpus)
        return
    note(f"joining the Ray cluster at {address} ({needed_by}) ...")
    try:
        joined_at = _init(address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:  # Ray raises any of them if nothing answers
        reason = "; ".join(_first_line(one) for one in (error, error.__cause__) if one is not None)
        problem = Problem(
            f"cannot join the Ray cluster: {reason}",
            where=needed_by,
            got=address,
            expected="host:port of a running cluster, auto for one on this machine, or local to start one",
        )
        raise ConfigError([problem]) from error
    note(f"joined the Ray cluster at {joined_at}: {_resources_text()}")


def _init(**arguments: Any) -> str:
    """Call `ray.init`, leaving signals to `interrupts` here and in Ray's processes; return the cluster's address."""
    import ray

    _log_messages_of_ray()
    try:
        with _signals_kept():
            context: Any = ray.init(log_to_driver=False, logging_level=logging.ERROR, **arguments)
    except BaseException:
        _print_messages_of_ray()
        raise
    return str(context.address_info["address"])


def _log_messages_of_ray() -> None:
    """Send Ray's messages to the log.

    Ray prints them to stdout, where results go. It even reports tasks that fail only because their run ends.
    """
    global _rays_printer
    if _rays_printer is None:
        _rays_printer = replace_message_printer(_log_message)


def _print_messages_of_ray() -> None:
    global _rays_printer
    if _rays_printer is not None:
        replace_message_printer(_rays_printer)
        _rays_printer = None


def _log_message(message: Mapping[str, Any], file: Any, ignore_prefix: bool = False) -> None:
    """Log a message of Ray, which counts equal ones; print output of workers if Ray should print it."""
    if message.get("pid") == "raylet":
        for text in message["lines"]:
            first, _, rest = text.partition("\n")
            _log.warning("Ray: %s", first)
            _log.debug("%s", rest)  # at the end of Ray, the last lines of its log
    elif _rays_printer is not None:
        _rays_printer(message, file, ignore_prefix)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore signal handlers afterwards: Ray's handler for SIGTERM ends this process immediately.

    Meanwhile SIGHUP is ignored, which Ray's processes inherit. A closing terminal signals its process group, but the
    env runners must stay alive for the final checkpoint.
    """
    names = [getattr(signal, name) for name in _KEPT_SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in names}
    with suppress(ValueError):  # not in the main thread
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: set by C code, which cannot be restored
                with suppress(ValueError):
                    signal.signal(number, handler)


def _resources_text() -> str:
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    num_nodes = sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
    nodes = f"{num_nodes} node{'' if num_nodes == 1 else 's'}"
    return f"{nodes}, CPU {resources.get('CPU', 0.0):g}, GPU {resources.get('GPU', 0.0):g}"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
