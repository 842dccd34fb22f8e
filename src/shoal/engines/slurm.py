"""`slurm:///PARTITION`: each job is a job of a Slurm cluster that stays until it is idle.

1. Jobs see the client's files: the interpreter, the packages, and the deployment's file, which the
   script only names. The environment of the client doesn't travel, except for safe variables.
2. Several jobs of the same size are one array, so a fan-out costs one call of `sbatch`.
3. Slurm never starts a job twice: Shoal replaces a lost job itself. A job that an administrator
   requeues ends at once.
4. `squeue` is asked about all jobs at once, and not more often than a cluster can bear.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.engines.commands import last_lines, output_of
from shoal.engines.options import UrlOptions
from shoal.errors import PlatformError, SettingsError
from shoal.platform.engine import Ended, EngineFacts, JobState, exit_code
from shoal.platform.environment import mismatch, this_environment
from shoal.platform.events import FILE_VARIABLE, INDEX_VARIABLE, Deployment
from shoal.platform.invocation import PythonEnvironment
from shoal.platform.sandbox_env import SandboxEnv
from shoal.private import private_folder
from shoal.types import LossReason, Resources

JOB_MB = 96
"""The memory of the job itself, beside its worker."""
_OPTIONS = (
    "time",
    "account",
    "qos",
    "constraint",
    "reservation",
    "idle_seconds",
    "spares",
    "capacity",
    "python",
)
_PASSED = ("account", "qos", "constraint", "reservation")
"""Options that `sbatch` has under the same names."""
_CURE = "Run the client on a node of the cluster that has Slurm's programs."
_LARGEST_ARRAY = 1000
"""Jobs in an array, as Slurm is usually configured."""
_ASK_SECONDS = 0.3
"""Seconds between two calls of `squeue`."""
_COMPLETING_SECONDS = 0.15
"""How long a job may be ending until it counts as ended, whatever the reason."""
_KEPT_SECONDS = 24 * 3600.0
"""How long what a job printed is kept if no client saw the job's end."""
_LEFT_OUT = ("XDG_RUNTIME_DIR", "TMPDIR")
"""Safe variables that mean something on the client's machine only."""
_WAITING = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"))
_RUNNING = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT"))
_REASONS = {
    "OUT_OF_MEMORY": LossReason.OUT_OF_MEMORY,
    "TIMEOUT": LossReason.TIME_LIMIT,
    "DEADLINE": LossReason.TIME_LIMIT,
}
_OUTSIDE = frozenset(("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "TIMEOUT"))
"""States of jobs that didn't end by themselves: their exit codes say nothing."""


class SlurmEngine:
    """Starts jobs with Slurm's programs."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Make an engine from `slurm:///PARTITION?time=60&account=…&idle_seconds=60`."""
        options = UrlOptions.of(url, _OPTIONS)
        self._partition = options.path
        memory_mb, cpus, seconds, all_cpus = _size(self._partition)
        minutes = options.number("time", 0)
        self.facts = EngineFacts(
            stays=True,
            watches=True,
            memory_mb=memory_mb and memory_mb - JOB_MB,
            cpus=cpus,
            capacity=int(options.number("capacity", min(all_cpus, _LARGEST_ARRAY), 1)),
            seconds=60 * minutes if minutes else seconds,
            idle_seconds=options.number("idle_seconds", 60),
            spares=int(options.number("spares", 0)),
        )
        self._logs = private_folder(folder / "slurm")
        self._fixed = _fixed_arguments(options, self._logs)
        self._script = _script(deployment.file(folder))
        self._python = options.text("python", sys.executable)
        self._lock = threading.Lock()
        self._ended: dict[str, Ended] = {}
        self._known: dict[str, JobState] = {}
        self._asked = float("-inf")
        self._completing: dict[str, float] = {}
        """Since when jobs have been ending, which may take Slurm long."""
        _sweep(self._logs)

    def start(self, event: bytes, resources: Resources) -> str:
        """Submit a job."""
        return self._submitted(self._script, event, resources, 1)[0]

    def start_many(self, event: bytes, resources: Resources, count: int) -> list[str]:
        """Submit an array of jobs; each adds its index to the name in the event."""
        script = f'{self._script}export {INDEX_VARIABLE}="$SLURM_ARRAY_TASK_ID"\n'
        return self._submitted(script, event, resources, count)

    def _submitted(self, script: str, event: bytes, resources: Resources, count: int) -> list[str]:
        size = [f"--mem={resources.memory_mb + JOB_MB}", f"--cpus-per-task={resources.slots}"]
        array = f"--array=0-{count - 1}"
        job = [self._python, "-m", "shoal.platform.job", event.decode()]
        command = ["sbatch", "--parsable", array, *size, *self._fixed]
        started = f"{script}exec {shlex.join(job)}\n"
        number = output_of(command, stdin=started, cure=_CURE).strip().partition(";")[0]
        return [f"{number}_{index}" for index in range(count)]

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how jobs are."""
        with self._lock:
            wanted = [handle for handle in handles if handle not in self._ended]
            news = any(handle not in self._known for handle in wanted)
            pause = _COMPLETING_SECONDS if self._completing else _ASK_SECONDS
            if wanted and (news or time.monotonic() - self._asked > pause):
                self._ask(wanted)
            found: dict[str, JobState] = {**self._known, **self._ended}
        return {handle: found[handle] for handle in handles if handle in found}

    def _ask(self, handles: Sequence[str]) -> None:
        jobs = ",".join(sorted({handle.partition("_")[0] for handle in handles}))
        command = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}"]
        listed = _listed([*command, f"--Format={_COLUMNS}"])
        self._asked = time.monotonic()
        self._known = {}
        for handle in handles:
            whole = f"{handle.partition('_')[0]}_N/A"  # an array that was cancelled in the queue
            columns = listed.get(handle) or listed.get(whole)
            state = state_of(*columns) if columns else _GONE
            if columns and columns[0] == "COMPLETING" and self._stays_completing(handle):
                state = _COMPLETING
            if isinstance(state, Ended):
                self._ended[handle] = self._explained(handle, state)
                self._completing.pop(handle, None)
            else:
                self._known[handle] = state

    def _stays_completing(self, handle: str) -> bool:
        """Whether a job that is ending has been so for a moment: the reason may follow too late."""
        since = self._completing.setdefault(handle, self._asked)
        return self._asked - since >= _COMPLETING_SECONDS

    def _explained(self, handle: str, ended: Ended) -> Ended:
        """How a job ended, with what it printed last."""
        path = self._logs / f"{handle}.log"
        with contextlib.suppress(OSError):
            said = last_lines(path.read_text(errors="replace"))
            path.unlink()
            return replace(ended, detail=f"{ended.detail}: {said}" if said else ended.detail)
        return ended

    def kill(self, handle: str) -> None:
        """Cancel a job."""
        with contextlib.suppress(PlatformError):  # it has ended
            output_of(["scancel", handle])

    def check(self, *, thorough: bool = False) -> str:
        """Ask Slurm whether it would accept a job, and another interpreter for its versions."""
        if self._python != sys.executable and Path(self._python).exists():
            self._compare()
        output_of(["sbatch", "--test-only", *self._fixed], stdin="#!/bin/sh\n", cure=_CURE)
        return f"Slurm accepts jobs in {self._partition or 'its default partition'}"

    def _compare(self) -> None:
        """Raise an error if the interpreter of the jobs has other versions than this client."""
        told = output_of([self._python, "-P", "-c", _VERSIONS]).split()
        there = PythonEnvironment(python=told[0], shoal=told[1] if told[1:] else "")
        problem = mismatch(this_environment(), there, f"of {self._python}")
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Do nothing: the jobs end by themselves."""


_VERSIONS = """
import sys
print("{}.{}".format(*sys.version_info))
try:
    import shoal
    print(shoal.__version__)
except ImportError:
    pass
"""
_COLUMNS = "ArrayJobID:20,ArrayTaskID:12,State:20,exit_code:12,RestartCnt:8,Reason:60"
_COMPLETING = Ended(detail="Slurm is ending the job")
_GONE = Ended(detail="Slurm has forgotten the job")


def _listed(command: Sequence[str]) -> dict[str, tuple[str, str, str, str]]:
    """What `squeue` says about jobs, by handle: state, exit code, restarts, reason."""
    try:
        lines = output_of(command, seconds=30, cure=_CURE).splitlines()
    except PlatformError as error:
        if "Invalid job id" in str(error):  # all of them ended long ago
            return {}
        raise
    found = {}
    for line in lines:
        job, index, state, code, restarts, *reason = line.split()
        found[f"{job}_{index}"] = (state, code, restarts, " ".join(reason))
    return found


def state_of(state: str, code: str, restarts: str, reason: str) -> JobState:
    """How a job is, from the columns of `squeue`."""
    if restarts not in ("0", "N/A", ""):
        return Ended(detail=f"Slurm has requeued the job ({state})")
    if state in _WAITING:
        return "waiting"
    if state in _RUNNING:
        return "running"
    detail = f"Slurm says {state}" + (f" ({reason})" if reason not in ("", "None") else "")
    number = int(code) if code.isdigit() else 0
    signalled = number & 0x7F
    exited = -signalled if signalled else exit_code(number >> 8)
    known = None if state in _OUTSIDE else exited
    return Ended(_REASONS.get(state, LossReason.DIED), known, detail)


def _size(partition: str) -> tuple[int | None, float | None, float | None, int]:
    """The memory and CPUs of a partition's largest node, its time limit in seconds, all CPUs."""
    named = [f"--partition={partition}"] if partition else []
    lines = output_of(
        ["sinfo", "--noheader", *named, "--format=%m %c %l %R %C"], seconds=30, cure=_CURE
    ).splitlines()
    if not lines:
        partitions = output_of(["sinfo", "--noheader", "--format=%R"]).split()
        raise SettingsError(
            f"platform='slurm:///{partition}': Slurm has no such partition. It has "
            f"{', '.join(sorted(set(partitions)))}."
        )
    rows = [line.split() for line in lines]
    memory = max(int(row[0].rstrip("+")) for row in rows)
    cpus = max(float(row[1].rstrip("+")) for row in rows)
    all_cpus = sum(int(row[4].rpartition("/")[2]) for row in rows)
    return memory if memory > 1 else None, cpus, seconds_of(rows[0][2]), max(1, all_cpus)


def seconds_of(limit: str) -> float | None:
    """A time limit of Slurm's, `[days-]hours:minutes:seconds`, in seconds; None: there is none."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in (days or "0", *parts)):
        return None
    seconds = 0.0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return seconds + 86400 * int(days or 0)


def _fixed_arguments(options: UrlOptions, logs: Path) -> list[str]:
    """The arguments of `sbatch` that all jobs of an engine have in common."""
    fixed = ["--job-name=shoal", "--no-requeue", "--export=NIL", "--chdir=/", "--ntasks=1"]
    fixed += ["--open-mode=truncate", f"--output={logs}/%A_%a.log"]
    fixed += [f"--partition={options.path}"] if options.path else []
    minutes = options.number("time", 0)
    fixed += [f"--time={max(1, round(minutes))}"] if minutes else []
    return fixed + [f"--{name}={options.text(name)}" for name in _PASSED if options.text(name)]


def _script(deployment: Path) -> str:
    """How the script of a job begins."""
    variables = {
        name: value
        for name, value in SandboxEnv().environment(os.environ).items()
        if name not in _LEFT_OUT
    }
    variables[FILE_VARIABLE] = str(deployment)
    lines = ["#!/bin/sh", '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return "\n".join([*lines, ""])


def _sweep(logs: Path) -> None:
    """Delete the output of jobs whose end was not seen."""
    late = time.time() - _KEPT_SECONDS
    for path in logs.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < late:
                path.unlink()
