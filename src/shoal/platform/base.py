"""`Platform`: what starts workers; `Invocation`: what a worker is started with.

An invocation is JSON, never a pickle: a platform reads it and unpickles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from shoal.errors import GatewayRefused, UsageError
from shoal.execution.pool import WarmPool
from shoal.storage.base import LEASE, Claim
from shoal.storage.cache import CachePlace
from shoal.types import Resources, RunId, WorkerId

_LONGEST_RUN = 100
INLINE_PART = 64 * 1024
"""A part up to this size travels in the invocation, a larger one through the store."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A worker is to be started."""

    run: RunId
    worker: WorkerId
    epoch: int
    """Which start of the worker this is."""
    memory_mb: int
    cpus: float
    store: str
    """The URL of the store."""
    key: str
    """The run's key, in hexadecimal."""
    session: str
    """Whose code it is: sandboxes are never shared between sessions."""
    path: tuple[str, ...] = ()
    """Where the client imports modules from."""
    folder: str = ""
    """The client's working folder."""
    shared: str | None = None
    """The run's folder in the machine's shared memory."""
    part: str | None = None
    """The worker's part of the plan, in base64; None: it is in the store."""
    inputs: str | None = None
    """Inputs of a flexible worker's first task, signed, in base64; the others are in the store."""
    preload: tuple[str, ...] = ()
    """Installed packages that are worth importing once for all sandboxes."""
    latency: float = 0.0
    """Seconds added to each round trip, for experiments."""
    lease: float = LEASE
    """Seconds without a sign of life after which the worker counts as lost."""
    sent: float = 0.0
    """When the invocation was sent."""
    started: float = 0.0
    """When the run started."""
    cache: str | None = None
    """Where outputs are kept across runs: a folder, or the URL of a server; None: nowhere."""
    cache_key: str = ""
    """What they are signed with, in hexadecimal."""
    cache_nbytes: int = 0
    """The most that is kept."""

    @property
    def cache_place(self) -> CachePlace | None:
        """Where outputs are kept across runs."""
        if self.cache is None:
            return None
        return CachePlace(self.cache, bytes.fromhex(self.cache_key), self.cache_nbytes)

    @property
    def resources(self) -> Resources:
        """What the worker is to have."""
        follows = self.cpus == Resources(self.memory_mb).cpu_share
        return Resources(self.memory_mb, None if follows else self.cpus)

    def of(self, claim: Claim, sent: float) -> Invocation:
        """The invocation of another start of the same run's workers."""
        memory_mb, cpus = claim.kind.split()
        return replace(
            self,
            worker=claim.worker,
            epoch=claim.epoch,
            memory_mb=int(memory_mb),
            cpus=float(cpus),
            part=None,
            inputs=None,
            sent=sent,
        )

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Invocation:
        """As it arrives; whatever doesn't fit is refused with a reason."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GatewayRefused(f"An invocation must be JSON: {error}.") from error
        return Invocation.from_dict(found)

    @staticmethod
    def from_dict(found: Any) -> Invocation:
        """From decoded JSON."""
        if not isinstance(found, dict):
            raise GatewayRefused("An invocation must be a JSON object.")
        unknown = found.keys() - _TYPES.keys()
        missing = _REQUIRED - found.keys()
        if unknown or missing:
            wrong = [f"lacks {', '.join(sorted(missing))}"] if missing else []
            wrong += [f"has unknown fields {', '.join(sorted(unknown))}"] if unknown else []
            raise GatewayRefused(f"An invocation {' and '.join(wrong)}.")
        for name, value in found.items():
            if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
                raise GatewayRefused(f"An invocation's {name} can't be {value!r}.")
            if isinstance(value, list):
                if not all(isinstance(item, str) for item in value):
                    raise GatewayRefused(f"An invocation's {name} must be a list of strings.")
                found[name] = tuple(value)
        if not valid_run(found["run"]):
            raise GatewayRefused("An invocation's run has letters, digits and hyphens only.")
        invocation = Invocation(**found)
        try:
            invocation.resources  # noqa: B018 - checks itself
        except UsageError as error:
            raise GatewayRefused(f"An invocation asks for what can't be: {error}") from error
        return invocation


def kind_of(resources: Resources) -> str:
    """What a worker is to have, as the store keeps it."""
    return f"{resources.memory_mb} {resources.cpu_share!r}"


_TYPES: dict[str, tuple[type, ...]] = {
    **{name: (str,) for name in ("run", "worker", "store", "key", "session", "folder")},
    **{name: (int,) for name in ("epoch", "memory_mb")},
    **{name: (int, float) for name in ("cpus", "latency", "lease", "sent", "started")},
    **{name: (list,) for name in ("path", "preload")},
    **{name: (str, type(None)) for name in ("shared", "part", "inputs")},
    "cache": (str, type(None)),
    "cache_key": (str,),
    "cache_nbytes": (int,),
}
_REQUIRED = frozenset(("run", "worker", "epoch", "memory_mb", "cpus", "store", "key", "session"))
assert _TYPES.keys() == {field.name for field in fields(Invocation)}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that user code printed."""

    time: float
    worker: str
    stream: str
    """`stdout` or `stderr`."""
    text: str


def valid_run(run: str) -> bool:
    """Whether a run's id is one: it names files, too."""
    return len(run) <= _LONGEST_RUN and run.isascii() and run.replace("-", "").isalnum()


class Platform(Protocol):
    """Starts workers; safe to use from several threads."""

    @property
    def host(self) -> str:
        """Names the machine whose memory its workers share; empty: none in particular."""
        ...

    @property
    def memory_mb(self) -> int | None:
        """The most that a worker can have; None: it isn't known."""
        ...

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, at once or when there is room."""
        ...

    def prewarm(self, invocation: Invocation, count: int) -> None:
        """Have sandboxes ready for workers like this one."""
        ...

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers and forget those that wait; they are gone afterwards."""
        ...

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is at work or waits to be."""
        ...

    def pool(self, session: str) -> WarmPool[Resources]:
        """The sandboxes that a session's workers would find now, as far as it is known."""
        ...

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed, as far as it is kept."""
        ...

    def close(self) -> None:
        """End what this process started."""
        ...


def this_host() -> str:
    """A name that processes on this machine, since it was started, have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
