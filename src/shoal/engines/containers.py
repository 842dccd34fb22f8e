"""`docker:///IMAGE` and `podman:///IMAGE`: each job is a container that stays until it is idle.

1. The image needs a `python` that has Shoal (`shoal deploy docker` makes one).
2. The engine limits memory, CPUs and processes. A job's container has room for the job beside its
   worker.
3. The deployment's file is bound into the container, read-only. Neither the command line nor the
   environment has a secret.
4. The engine deletes a container as soon as it ends, with or without a client. How it ended is
   known from the engine's events.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import resource
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.engines.commands import last_lines, output_of
from shoal.engines.environment import expected
from shoal.engines.options import UrlOptions
from shoal.errors import PlatformError, SettingsError
from shoal.platform.engine import Ended, EngineFacts, JobState, exit_code
from shoal.platform.environment import (
    ANY,
    ENVIRONMENT_VARIABLE,
    client_environment,
    mismatch,
    this_environment,
)
from shoal.platform.events import FILE_VARIABLE, Deployment, Offer, sealed
from shoal.platform.invocation import PythonEnvironment
from shoal.private import private_folder
from shoal.storage.resp import parse_url, urls_in
from shoal.types import MIN_MEMORY_MB, LossReason, Resources

log = logging.getLogger(__name__)

LABEL = "shoal.deployment"
"""Marks the containers of a deployment."""
SHOAL_LABEL, PYTHON_LABEL = "shoal.version", "shoal.python"
"""Tell which versions an image has that `shoal deploy` made."""
JOB_MB = 96
"""The memory of the job itself, beside its worker."""
_JOBS_PER_CPU = 2
"""Jobs of several sizes may be there at once, and most have less than a CPU."""
_LEAST_CPUS = 0.5
"""With less, a job takes seconds to come up."""
_PIDS = 4096
_LIMIT = 4096
"""Files and processes that a user may have in containers of Podman, at most."""
_BOUND = "/run/shoal/deployment.json"
"""Where a container finds its deployment."""
_EARLY_SECONDS = 30.0
"""A container that ends sooner hasn't come up: it is worth finding out why."""
_OOM_SECONDS = 5.0
"""How long after it ran out of memory a container's end counts as caused by it."""
_LOOK_SECONDS = 2.0
_OPTIONS = ("network", "idle_seconds", "capacity", "pids", "volume")
_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


@dataclass
class _Container:
    trial: Sequence[str] = ()
    """The command that starts it again, but with nothing to do."""
    began: float = field(default_factory=time.monotonic)
    exhausted: float = float("-inf")
    """When a process in it was last killed for its memory."""
    ended: Ended | None = None


class ContainerEngine:
    """Starts containers with the command line of Docker or Podman."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Make an engine from `docker:///IMAGE?network=host&idle_seconds=60`."""
        options = UrlOptions.of(url, _OPTIONS)
        self._tool = url.partition(":")[0]
        self._image = options.path
        if not self._image:
            raise SettingsError(f"platform={url!r} names no image: {self._tool}:///IMAGE.")
        machine = machine_of(self._tool)
        self._cpus = machine.cpus
        self.facts = EngineFacts(
            stays=True,
            watches=True,
            memory_mb=machine.memory_mb - JOB_MB,
            cpus=machine.cpus,
            capacity=int(options.number("capacity", max(1, _JOBS_PER_CPU * machine.cpus), 1)),
            idle_seconds=options.number("idle_seconds", 60),
        )
        self.expected = ANY
        self._data = folder
        self._label = f"{LABEL}={deployment.id}"
        self._deployment = deployment
        self._fixed = _fixed_arguments(options, deployment, folder, as_user=not machine.rootless)
        self._folder = private_folder(folder / "containers")
        """Where Podman leaves a file named `oom` for a container that ran out of memory."""
        self._lock = threading.Lock()
        self._containers: dict[str, _Container] = {}
        self._events: subprocess.Popen[str] | None = None
        self._closed = False

    def start(self, event: bytes, resources: Resources) -> str:
        """Start a container."""
        self._follow()
        memory = f"{resources.memory_mb + JOB_MB}m"
        cpus = min(max(resources.cpu_share, _LEAST_CPUS), self._cpus)
        limits = ["--memory", memory, "--memory-swap", memory, "--cpus", f"{cpus:g}"]
        name = ["--name", f"shoal-{secrets.token_hex(6)}", "--label", self._label]
        job = ["--entrypoint", "python", self._image, "-m", "shoal.platform.job"]
        command = [*name, *limits, *self._fixed, *job]
        run = [self._tool, "run", "--rm", "--detach", *command, event.decode()]
        handle = output_of(run, folder=self._folder).split()[-1]
        with self._lock:
            self._containers.setdefault(handle, _Container()).trial = command
        return handle

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how containers are, from the events that have arrived."""
        with self._lock:
            found = {handle: self._containers.get(handle) for handle in handles}
        return {
            handle: container.ended or "running"
            for handle, container in found.items()
            if container is not None
        }

    def kill(self, handle: str) -> None:
        """Kill a container."""
        with contextlib.suppress(PlatformError):  # it has ended
            output_of([self._tool, "kill", handle])

    def close(self) -> None:
        """Stop listening to events."""
        with self._lock:
            self._closed = True
            if self._events is not None:
                self._events.terminate()

    def check(self, *, thorough: bool = False) -> str:
        """Compare what the image says of itself; if thorough, start a container and ask Shoal."""
        again = f"shoal deploy {self._tool}"
        self.expected = expected(self._data, self._tool, self._image, again)
        inspect = [self._tool, "image", "inspect", "--format", "{{json .Config}}", self._image]
        found = _told_by(json.loads(output_of(inspect)))
        where = f"of the image {self._image}"
        problem = mismatch(client_environment(self.expected), found, where)
        if problem is not None:
            raise problem
        if not thorough:
            return f"the image {self._image}"
        program = "import shoal.platform.job; print(shoal.__version__)"
        image = ["--entrypoint", "python", self._image, "-c", program]
        version = output_of([self._tool, "run", "--rm", *self._fixed, *image]).strip()
        own = importlib.metadata.version("shoal")
        if version != own:
            raise SettingsError(
                f"The image {self._image} has Shoal {version}, the client has {own}. "
                f"Make another image: `shoal deploy {self._tool}`."
            )
        return f"the image {self._image} has Shoal {version}"

    def _follow(self) -> None:
        """Listen to the engine's events from now on."""
        with self._lock:
            if self._events is not None or self._closed:
                return
            self._events = self._listened(time.time())
        threading.Thread(target=self._listen, name="shoal-containers", daemon=True).start()

    def _listened(self, since: float) -> subprocess.Popen[str]:
        command = [self._tool, "events", "--since", str(int(since)), "--format", "{{json .}}"]
        command += ["--filter", f"label={self._label}", "--filter", "type=container"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def _listen(self) -> None:
        since = time.time()
        while self._events is not None and self._events.stdout is not None:
            with self._events, contextlib.suppress(ValueError):
                for line in self._events.stdout:
                    self._on_event(json.loads(line))
            if self._closed:
                return
            log.warning("`%s events` ended; listening again", self._tool)
            time.sleep(_LOOK_SECONDS)
            begin = time.time()
            with self._lock:
                if self._closed:
                    return
                self._events = self._listened(since)
            since = begin
            self._look()

    def _on_event(self, event: Mapping[str, Any]) -> None:
        """Note what happened to a container; Docker and Podman tell it differently."""
        what = event.get("Action") or event.get("Status") or ""
        about = event.get("Actor") or {"ID": event.get("ID", "")}
        code = about.get("Attributes", {}).get("exitCode", event.get("ContainerExitCode", 0))
        with self._lock:
            container = self._containers.setdefault(about["ID"], _Container())
        if what == "oom":
            container.exhausted = time.monotonic()
        elif what in ("die", "died") and container.ended is None:
            self._on_end(container, int(code or 0))

    def _on_end(self, container: _Container, code: int) -> None:
        code = exit_code(code)
        now = time.monotonic()
        if code == -9 and now - container.exhausted < _OOM_SECONDS:
            container.ended = Ended(LossReason.OUT_OF_MEMORY, code, "the container was killed")
            return
        if code > 0 and now - container.began < _EARLY_SECONDS and container.trial:
            args = container, code
            threading.Thread(target=self._explain, args=args, name="shoal-why", daemon=True).start()
        else:
            container.ended = Ended(LossReason.DIED, code)

    def _explain(self, container: _Container, code: int) -> None:
        container.ended = Ended(LossReason.DIED, code, self._why(container.trial))

    def _why(self, trial: Sequence[str]) -> str:
        """What a container says that ended at once: one without work is started to hear that."""
        nothing = Offer(
            job="why", entry="", memory_mb=MIN_MEMORY_MB, cpus=_LEAST_CPUS, idle_seconds=0
        )
        event = sealed(nothing, self._deployment).decode()
        again = [*trial[:1], f"{trial[1]}-why", *trial[2:], event]
        command = [self._tool, "run", "--rm", *again]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_EARLY_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            self.kill(again[1])
            return ""
        return last_lines(done.stderr)

    def _look(self) -> None:
        """Find the containers that have ended while no events arrived."""
        try:
            listed = output_of(
                [self._tool, "ps", "--quiet", "--no-trunc", "--filter", f"label={self._label}"]
            )
        except PlatformError as error:
            log.warning("containers can't be listed: %s", error)
            return
        running = set(listed.split())
        with self._lock:
            for handle, container in self._containers.items():
                if handle not in running and container.ended is None:
                    container.ended = Ended(detail="the container is gone")


def _told_by(config: Mapping[str, Any]) -> PythonEnvironment:
    """The environment of an image; what the image doesn't tell counts as the client's."""
    here, labels = this_environment(), config.get("Labels") or {}
    variables = dict(each.partition("=")[::2] for each in config.get("Env") or ())
    return PythonEnvironment(
        python=labels.get(PYTHON_LABEL, here.python),
        shoal=labels.get(SHOAL_LABEL, here.shoal),
        name=variables.get(ENVIRONMENT_VARIABLE, ""),
    )


def _fixed_arguments(
    options: UrlOptions, deployment: Deployment, folder: Path, *, as_user: bool
) -> list[str]:
    """The arguments of `docker run` that all containers of an engine have in common."""
    fixed = ["--volume", f"{deployment.file(folder)}:{_BOUND}:ro"]
    fixed += ["--env", f"{FILE_VARIABLE}={_BOUND}", "--env", "HOME=/tmp", "--workdir", "/tmp"]
    fixed += ["--pids-limit", str(int(options.number("pids", _PIDS, 16)))]
    fixed += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    fixed += ["--ulimit", "core=0"]
    if options.url.startswith("podman:"):  # it would raise the limits, which may be forbidden
        for name, limit in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            most = resource.getrlimit(limit)[1]
            known = most if 0 < most < _LIMIT else _LIMIT
            fixed += ["--ulimit", f"{name}={known}:{known}"]
    network = options.text("network") or ("host" if _is_local(deployment.store) else "")
    fixed += ["--network", network] if network else []
    for volume in options.values.get("volume", ()):  # seen from the client's folder
        fixed += ["--volume", os.path.abspath(volume) if volume.startswith(".") else volume]
    return fixed + (["--user", f"{os.getuid()}:{os.getgid()}"] if as_user else [])


def _is_local(store: str) -> bool:
    """Whether only processes of this machine reach a store."""
    hosts = [parse_url(url).host or "localhost" for url in urls_in(store)]
    return any(host.startswith(_LOOPBACK) for host in hosts)


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """Where containers run."""

    memory_mb: int
    cpus: float
    rootless: bool
    """Whether the root of a container is the user who started it."""


_ASKED = {
    "docker": "{{.MemTotal}}\t{{.NCPU}}\t{{.SecurityOptions}}",
    "podman": "{{.Host.MemTotal}}\t{{.Host.CPUs}}\t{{if .Host.Security.Rootless}}rootless{{end}}",
}


def machine_of(tool: str) -> ContainerHost:
    """What Docker or Podman says about the machine it runs containers on."""
    cure = f"Install {tool}, or run the client where it is."
    asked = [tool, "info", "--format", _ASKED[tool]]
    nbytes, cpus, security = output_of(asked, seconds=30, cure=cure).rstrip("\n").split("\t")
    return ContainerHost(int(nbytes) // 2**20, float(cpus), "rootless" in security)
