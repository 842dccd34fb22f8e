"""What workers are started with: the context of their run, and a start for each of them.

1. Both travel as JSON, never as a pickle: a platform reads them and unpickles nothing.
2. Each field is declared once. Its type and bounds check what arrives, and become the JSON Schema
   in the gateway's OpenAPI document.
3. Neither errors nor `repr` show the store's URL, a key, or a worker's part and inputs.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from shoal.clock import Clock
from shoal.errors import GatewayRefused
from shoal.execution.pool import UNBOUNDED, Bound
from shoal.storage.base import LEASE, Claim
from shoal.storage.cache import CacheLocation
from shoal.types import MIN_MEMORY_MB, Resources, RunId, WorkerId

INLINE_INPUTS = 8 * 1024 * 1024
"""Inputs up to this size travel with an invocation to a gateway."""
INLINE_PART = 64 * 1024
"""A part up to this size travels in the invocation, a larger one through the store."""
MAX_STARTS = 100_000
"""Workers that one request may start."""
MAX_WARM = 1024
"""Sandboxes that one request may warm up."""

NO_INPUTS = b""
"""The inputs of a flexible worker that is given none."""

_NAME = r"^[A-Za-z0-9-]*[A-Za-z0-9][A-Za-z0-9-]*$(?!\n)"
_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$(?!\n)"
_DIGEST = r"^([0-9a-f]{64})?$(?!\n)"
_TEXT = r"^[^\x00\ud800-\udfff]*$"
_PATH = r"^[^\x00\ud800-\udc7f\udd00-\udfff]*$"
"""Bytes of a path that aren't UTF-8 arrive as the surrogates that Python decodes them to."""
_IN_WORDS = {
    _NAME: "letters, digits and hyphens only",
    _MODULE: "the name of a module",
    _DIGEST: "a SHA-256 in hexadecimal",
    _TEXT: "text without NUL",
    _PATH: "a path without NUL",
}
_MAX_URL = 2**18
"""A store's URLs may contain certificates."""
_MAX_PEM = 2**20
_MAX_TEXT, _MAX_NAME, _MAX_ITEMS = 4096, 100, 1000

_Text = Annotated[str, Meta(max_length=_MAX_TEXT, pattern=_TEXT)]
_Url = Annotated[str, Meta(max_length=_MAX_URL, pattern=_TEXT)]
_Pem = Annotated[str, Meta(max_length=_MAX_PEM, pattern=_TEXT)]
_Path = Annotated[str, Meta(max_length=_MAX_TEXT, pattern=_PATH)]
_Module = Annotated[str, Meta(max_length=_MAX_NAME, pattern=_MODULE)]
_Time = Annotated[float, Meta(ge=0, le=10**11)]
_Key = Annotated[bytes, Meta(min_length=1, max_length=64)]
_MemoryMb = Annotated[
    int, Meta(ge=MIN_MEMORY_MB, le=2**24, description="The worker's memory, in MB.")
]
_Cpus = Annotated[float, Meta(gt=0, le=4096, description="The worker's CPUs.")]


class _Wire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What travels as a JSON object."""


class UserCode(_Wire, frozen=True, kw_only=True):
    """Where workers find the user's code."""

    session: Annotated[
        str,
        Meta(
            max_length=_MAX_NAME,
            pattern=_NAME,
            description="The client's session. Sessions never share a sandbox.",
        ),
    ]
    path: Annotated[
        tuple[_Path, ...],
        Meta(max_length=_MAX_ITEMS, description="Folders that the client imports modules from."),
    ] = ()
    folder: Annotated[_Path, Meta(description="The client's working folder.")] = ""
    archive: Annotated[
        str,
        Meta(
            max_length=64,
            pattern=_DIGEST,
            description="Names the archive of the client's modules, which workers fetch from the "
            "store, by its SHA-256; empty: there is none.",
        ),
    ] = ""
    preload: Annotated[
        tuple[_Module, ...],
        Meta(
            max_length=_MAX_ITEMS,
            description="Installed packages to import once for all sandboxes of the session.",
        ),
    ] = ()


class PythonEnvironment(_Wire, frozen=True, kw_only=True):
    """The versions that a client's code needs, which each worker compares with its own."""

    python: Annotated[_Text, Meta(description="Python's version, such as 3.11.")]
    shoal: Annotated[_Text, Meta(description="Shoal's version.")]
    machine: Annotated[
        _Text,
        Meta(
            description="The CPU architecture and C library that the user's compiled modules need; "
            "empty: any."
        ),
    ] = ""
    packages: Annotated[
        dict[_Text, _Text],
        Meta(
            max_length=_MAX_ITEMS,
            description="The versions of the installed packages that the functions use, by name.",
        ),
    ] = {}
    name: Annotated[
        _Text,
        Meta(description="Names the environment that was deployed, by its packages; empty: any."),
    ] = ""
    renewal: Annotated[
        _Text,
        Meta(description="The command that deploys this environment again; empty: none does."),
    ] = ""


class RunSettings(_Wire, frozen=True, kw_only=True):
    """The settings of a run that its workers and its platform obey."""

    lease: Annotated[
        float,
        Meta(ge=0, le=24 * 3600, description="Seconds of silence until a worker is lost."),
    ] = LEASE
    latency: Annotated[
        float, Meta(ge=0, le=3600, description="Seconds added to each round trip; for experiments.")
    ] = 0.0
    check_inputs: Annotated[
        bool, Meta(description="Whether a task that changes its inputs fails.")
    ] = False
    workers: Annotated[
        int,
        Meta(ge=0, le=2**24, description="Workers of the run that may run at once; 0: no limit."),
    ] = 0


class CacheAccess(_Wire, frozen=True, kw_only=True):
    """The cache that keeps outputs across runs."""

    where: Annotated[_Url, Meta(description="A folder, or the URL of a server.")]
    key: Annotated[_Key, Meta(description="Signs the cached outputs.")]
    nbytes: Annotated[int, Meta(ge=0, le=2**50, description="The most bytes that it keeps.")]

    @classmethod
    def of(cls, location: CacheLocation | None) -> CacheAccess | None:
        """Access to a cache, for workers; None if there is none."""
        if location is None:
            return None
        return cls(where=location.where, key=location.key, nbytes=location.nbytes)

    @property
    def location(self) -> CacheLocation:
        """The cache, as storage opens it."""
        return CacheLocation(self.where, self.key, self.nbytes)

    def __repr__(self) -> str:
        return f"CacheAccess(nbytes={self.nbytes})"


class FleetMember(_Wire, frozen=True, kw_only=True):
    """A gateway that workers may start others on."""

    url: Annotated[_Text, Meta(description="Its address.")]
    token: Annotated[_Text, Meta(description="A token that gives access to the run only.")]
    ca_data: Annotated[
        _Pem | None,
        Meta(
            description="The authorities that may sign its certificate, in PEM format; null: those "
            "that the worker's system trusts."
        ),
    ] = None

    def __repr__(self) -> str:
        return f"FleetMember(url={self.url!r})"


class RunContext(_Wire, frozen=True, kw_only=True):
    """What all workers of a run have in common."""

    run: Annotated[RunId, Meta(max_length=_MAX_NAME, pattern=_NAME, description="The run's id.")]
    key: Annotated[_Key, Meta(description="Signs all that the run's workers exchange.")]
    store: Annotated[_Url, Meta(description="The URL of the store.")]
    code: UserCode
    settings: RunSettings = RunSettings()
    cache: CacheAccess | None = None
    environment: Annotated[
        PythonEnvironment | None,
        Meta(description="What workers must match; null: they are forked from the client's own."),
    ] = None
    shared: Annotated[
        _Path | None, Meta(description="The run's folder in the machine's shared memory.")
    ] = None
    copies: Annotated[
        _Path | None,
        Meta(description="Where workers of one machine keep copies of what the store has."),
    ] = None
    common: Annotated[
        _Text,
        Meta(
            description="Names the part that all flexible workers share, by its content. A sandbox "
            "that has this part needs no other."
        ),
    ] = ""
    detached: Annotated[
        bool, Meta(description="The run continues without a client; the gateway supervises it.")
    ] = False
    farm: Annotated[bool, Meta(description="Workers pull tasks of a farm.")] = False
    started: Annotated[
        _Time, Meta(description="When the run started, as Unix time by the store's clock.")
    ] = 0.0
    fleet: Annotated[
        tuple[FleetMember, ...],
        Meta(
            max_length=_MAX_ITEMS,
            description="The gateways that the run's workers are started on, if several.",
        ),
    ] = ()

    def __repr__(self) -> str:
        return f"RunContext(run={self.run!r}, session={self.code.session!r})"


class Start(_Wire, frozen=True, kw_only=True):
    """One start of a worker."""

    worker: Annotated[
        WorkerId, Meta(max_length=_MAX_TEXT, pattern=_TEXT, description="The worker's name.")
    ]
    epoch: Annotated[
        int, Meta(ge=0, le=2**31, description="Counts the starts of the worker, from 1.")
    ]
    memory_mb: _MemoryMb
    cpus: _Cpus
    part: Annotated[
        Annotated[bytes, Meta(max_length=3 * INLINE_PART // 2)] | None,
        Meta(description="The worker's part of the plan; null: the worker reads it in the store."),
    ] = None
    inputs: Annotated[
        Annotated[bytes, Meta(max_length=3 * INLINE_INPUTS // 2)] | None,
        Meta(
            description="Signed inputs of a flexible worker's first task; the others are in the "
            "store. null: the worker asks the store whether it is given any."
        ),
    ] = None
    beside: Annotated[bool, Meta(description="An earlier start of the worker keeps running.")] = (
        False
    )
    sent: Annotated[
        _Time,
        Meta(
            description="When the start was sent, as Unix time by the store's clock; 0: time it "
            "from when it is given a sandbox."
        ),
    ] = 0.0

    @classmethod
    def first(
        cls,
        worker: WorkerId,
        resources: Resources,
        sent: float,
        *,
        part: bytes | None = None,
        inputs: bytes | None = None,
    ) -> Start:
        """The first start of a worker."""
        memory_mb, cpus = _size_of(resources)
        return cls(
            worker=worker, epoch=1, memory_mb=memory_mb, cpus=cpus, part=part, inputs=inputs,
            sent=sent,
        )  # fmt: skip

    @classmethod
    def claimed(cls, claim: Claim, sent: float, *, inputs: bytes | None = None) -> Start:
        """The start that the store has granted with a claim."""
        resources = resources_of(claim.kind)
        return cls(
            worker=claim.worker, epoch=claim.epoch, memory_mb=resources.memory_mb,
            cpus=resources.cpu_share, inputs=inputs, sent=sent,
        )  # fmt: skip

    def after(self, seconds: float) -> Start:
        """The same start, sent so many seconds later."""
        return replace(self, sent=self.sent + seconds)

    @property
    def resources(self) -> Resources:
        """What the worker gets."""
        return _resources(self.memory_mb, self.cpus)

    def __repr__(self) -> str:
        return f"Start(worker={self.worker!r}, epoch={self.epoch})"


class Invocation(_Wire, frozen=True, kw_only=True):
    """One start of a worker, with the context of its run."""

    context: RunContext
    start: Start
    served: float = 0.0
    """When it was given a sandbox, by the monotonic clock of its machine; 0: it didn't wait, and
    its start says when it was sent."""

    def sent(self, clock: Clock) -> float:
        """When it was sent, by a run's clock; if it waited, when it was given a sandbox."""
        if not self.served:
            return self.start.sent
        return clock.now() - (time.monotonic() - self.served)

    @property
    def run(self) -> RunId:
        """The worker's run."""
        return self.context.run

    @property
    def worker(self) -> WorkerId:
        """The worker's name."""
        return self.start.worker

    @property
    def epoch(self) -> int:
        """Which start of the worker this is."""
        return self.start.epoch

    @property
    def pool_key(self) -> tuple[Resources, str]:
        """What a sandbox must match: resources and session."""
        return self.start.resources, self.context.code.session

    @property
    def bound(self) -> Bound:
        """The limit that it counts against; a second start beside the first doesn't count."""
        return UNBOUNDED if self.start.beside else Bound(self.run, self.context.settings.workers)


class SandboxMessage(Invocation, frozen=True, kw_only=True):
    """What a gateway sends to a sandbox: an invocation, and how to reach the gateway."""

    gateway: str = ""
    token: str = ""
    sandbox: Literal["cold", "warm"] = "cold"
    """Whether the sandbox is new or has run a worker before."""


class StartRequest(_Wire, frozen=True, kw_only=True):
    """Workers of a run to start: the body of `POST /job` and `POST /fanout`."""

    context: RunContext
    starts: Annotated[tuple[Start, ...], Meta(min_length=1, max_length=MAX_STARTS)]


class WarmUpRequest(_Wire, frozen=True, kw_only=True):
    """Sandboxes to warm up: the body of `POST /warmup`."""

    context: RunContext
    memory_mb: _MemoryMb
    cpus: _Cpus
    count: Annotated[int, Meta(ge=0, le=MAX_WARM, description="How many sandboxes.")]

    @property
    def resources(self) -> Resources:
        """What each sandbox gets."""
        return _resources(self.memory_mb, self.cpus)


@lru_cache(maxsize=1024)
def _resources(memory_mb: int, cpus: float) -> Resources:
    """Resources whose CPUs are None where they follow the memory, so that equal ones compare so."""
    follows = cpus == Resources(memory_mb).cpu_share
    return Resources(memory_mb, None if follows else cpus)


_size_of = lru_cache(maxsize=1024)(attrgetter("memory_mb", "cpu_share"))
"""The memory and the CPUs that resources come to."""


@lru_cache(maxsize=1024)
def kind_of(resources: Resources) -> str:
    """A worker's resources, as the store keeps them."""
    return f"{resources.memory_mb} {float(resources.cpu_share)!r}"  # equal resources are cached


def resources_of(kind: str) -> Resources:
    """The resources that the store keeps as a kind; the inverse of `kind_of`."""
    memory_mb, cpus = kind.split()
    return _resources(int(memory_mb), float(cpus))


_W = TypeVar("_W", bound=Struct)


def to_json(sent: Struct) -> bytes:
    """A message as JSON."""
    # msgspec's own encoder rejects paths that aren't UTF-8.
    return json.dumps(msgspec.to_builtins(sent), separators=(",", ":")).encode()


def from_json(data: str | bytes, expected: type[_W]) -> _W:
    """A message from JSON; raises `GatewayRefused` with the reason if it isn't one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise GatewayRefused(f"The request isn't JSON: {error}.") from error
    return checked(found, expected)


def checked(found: Any, expected: type[_W]) -> _W:
    """A message from decoded JSON; raises `GatewayRefused` with the reason if it isn't one."""
    if expected not in _prepared:
        prepare(expected)
    try:
        return msgspec.convert(found, expected)
    except (msgspec.ValidationError, UnicodeError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "A key isn't text"
        for pattern, words in _IN_WORDS.items():
            reason = reason.replace(f"`str` matching regex {pattern!r}", words)
        raise GatewayRefused(
            f"The request doesn't match its schema: {reason}. `GET /openapi.json` has the schema."
        ) from error


def prepare(expected: type[Struct]) -> None:
    """Build the decoder of a message now: the first use takes milliseconds otherwise.

    One thread at a time: msgspec crashes the process if several build the same decoder.
    """
    with _preparing:
        msgspec.json.Decoder(expected)
        _prepared.add(expected)


_prepared: set[type[Struct]] = set()
"""The messages whose decoders have been built."""
_preparing = threading.Lock()


def schemas(requests: Iterable[type[Struct]]) -> dict[str, Any]:
    """The JSON Schemas of requests and of all that they consist of, by name."""
    _, found = msgspec.json.schema_components(requests, ref_template="#/components/schemas/{name}")
    return found


RUN_SCHEMA = {"type": "string", "maxLength": _MAX_NAME, "pattern": _NAME}
"""What `valid_name` accepts, as JSON Schema."""
_MATCHES_NAME = re.compile(_NAME).search


def valid_name(text: str) -> bool:
    """Whether text can be the id of a run or a session: it also names files."""
    return len(text) <= _MAX_NAME and _MATCHES_NAME(text) is not None
