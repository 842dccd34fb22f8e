"""`Platform`: what starts workers; `Invocation`: what a worker is started with.

An invocation is JSON, never a pickle: a platform reads it and unpickles nothing.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from shoal.errors import (
    GatewayRefused,
    ShardLost,
    ShardUnavailable,
    StoreError,
    StoreRefused,
    Tampered,
    UsageError,
)
from shoal.execution.pool import UNBOUNDED, Bound, WarmPool
from shoal.storage.base import LEASE, Claim
from shoal.storage.cache import CachePlace
from shoal.types import Resources, RunId, WorkerId

INLINE_NBYTES = 8 * 1024 * 1024
"""Inputs up to this size travel with an invocation to a gateway."""
INLINE_PART = 64 * 1024
"""A part up to this size travels in the invocation, a larger one through the store."""

NOTHING = ""
"""The inputs of a flexible worker that is given none."""


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
    """Inputs of a flexible worker's first task, signed, in base64; the others are in the store.
    None: the worker asks the store whether it is given any."""
    preload: tuple[str, ...] = ()
    """Installed packages that are worth importing once for all sandboxes."""
    common: str = ""
    """Names the content of the part of all workers, if they are flexible: a sandbox that has it
    needs no other."""
    invoker: str | None = None
    """The URL of the fan-out invoker; None: the gateway's own."""
    beside: int = 0
    """1: an earlier start of the worker goes on."""
    detached: int = 0
    """1: the run goes on without a client, so a gateway that is started again looks after it."""
    farm: int = 0
    """1: the worker pulls tasks of a farm."""
    check_inputs: int = 0
    """1: a task that changes its inputs fails."""
    workers: int = 0
    """How many workers of the run may be at work at once; 0: as many as there is room for."""
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

    @property
    def bound(self) -> Bound:
        """What bounds it; a second start beside the first takes no place of its own."""
        return UNBOUNDED if self.beside else Bound(self.run, self.workers)

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
            beside=0,
            sent=sent,
        )

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in _TYPES}

    @staticmethod
    def from_json(text: str | bytes) -> Invocation:
        """As it arrives."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GatewayRefused(f"An invocation must be JSON: {error}.") from error
        return Invocation.from_dict(found)

    @staticmethod
    def accepted(found: dict[str, Any]) -> Invocation:
        """From decoded JSON that a gateway has looked at."""
        lists = {name: tuple(value) for name, value in found.items() if type(value) is list}
        return Invocation(**(found | lists))

    @staticmethod
    def from_dict(found: Any) -> Invocation:
        """From decoded JSON; whatever doesn't fit is refused with a reason."""
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
                raise GatewayRefused(f"An invocation's {name} can't be {_shown(name, value)}.")
            if isinstance(value, int | float):
                _check_number(name, value)
            elif isinstance(value, str):
                _check_text(name, value)
            elif isinstance(value, list):
                _check_list(name, value)
        invocation = Invocation.accepted(found)
        try:
            invocation.resources  # noqa: B018 - checks itself
        except UsageError as error:
            raise GatewayRefused(f"An invocation asks for what can't be: {error}") from error
        return invocation


def kind_of(resources: Resources) -> str:
    """What a worker is to have, as the store keeps it."""
    return f"{resources.memory_mb} {resources.cpu_share!r}"


_TYPES: dict[str, tuple[type, ...]] = {
    **{name: (str,) for name in ("run", "worker", "store", "key", "session", "folder", "common")},
    **{name: (int,) for name in ("epoch", "memory_mb", "beside", "detached", "farm", "workers")},
    **{name: (int, float) for name in ("cpus", "latency", "lease", "sent", "started")},
    **{name: (list,) for name in ("path", "preload")},
    **{name: (str, type(None)) for name in ("shared", "part", "inputs", "invoker")},
    "cache": (str, type(None)),
    "cache_key": (str,),
    "cache_nbytes": (int,),
    "check_inputs": (int,),
}
_REQUIRED = frozenset(("run", "worker", "epoch", "memory_mb", "cpus", "store", "key", "session"))
assert _TYPES.keys() == {field.name for field in fields(Invocation)}

MOST_WARM = 1024
"""Sandboxes that one request may have warmed up."""
MOST_INVOKED = 100_000
"""Workers that one request may have the fan-out invoker start."""
_NUMBERS: dict[str, tuple[int, int]] = {
    "epoch": (0, 2**31),
    "beside": (0, 1),
    "detached": (0, 1),
    "farm": (0, 1),
    "check_inputs": (0, 1),
    "workers": (0, 2**24),
    "memory_mb": (64, 2**24),
    "cpus": (0, 4096),
    "latency": (0, 3600),
    "lease": (0, 24 * 3600),
    "cache_nbytes": (0, 2**50),
    "sent": (0, 10**11),
    "started": (0, 10**11),
}
"""The least and the most of each number; CPUs are more than the least."""
_CHARACTERS = {"run": 100, "session": 100, "key": 128, "preload": 100} | {
    "part": 2 * INLINE_PART,
    "inputs": 16 * 1024 * 1024,
}
_MOST_CHARACTERS = 4096
"""Of a string, also in a list, unless said otherwise."""
_MOST_ITEMS = 1000
_NAME = "^[A-Za-z0-9-]*[A-Za-z0-9][A-Za-z0-9-]*$"
_TEXT = "^[^\\x00]*$"
_PATTERNS = {
    "run": (_NAME, "letters, digits and hyphens"),
    "session": (_NAME, "letters, digits and hyphens"),
    "key": ("^([0-9a-f]{2})+$", "pairs of hexadecimal digits"),
    "preload": ("^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$", "names of modules"),
}
"""What a string consists of, as a pattern and in words; others are any text."""
_COMPILED = {name: re.compile(pattern[:-1] + r"\Z") for name, (pattern, _) in _PATTERNS.items()}
_PATHS = frozenset(("path", "folder", "shared"))
"""What may hold bytes that aren't text, as Python stands for them."""
_SECRET = frozenset(("store", "key", "part", "inputs", "cache_key"))
"""What no message may repeat."""


def _shown(name: str, value: Any) -> str:
    return type(value).__name__ if name in _SECRET else reprlib.repr(value)


def _check_number(name: str, value: float) -> None:
    least, most = _NUMBERS[name]
    if not value <= most and value == value:
        raise GatewayRefused(f"An invocation's {name} can't be {value!r}: {most} is the most.")
    if not value >= least and name not in ("memory_mb", "cpus"):  # `Resources` says it better
        raise GatewayRefused(f"An invocation's {name} can't be {value!r}: {least} is the least.")


def _check_text(name: str, text: str) -> None:
    most = _CHARACTERS.get(name, _MOST_CHARACTERS)
    if name in _COMPILED and not _COMPILED[name].match(text[: most + 1]):
        raise GatewayRefused(f"An invocation's {name} has {_PATTERNS[name][1]} only.")
    if len(text) > most:
        kind = f", and {_PATTERNS[name][1]} only" if name in _PATTERNS else ""
        raise GatewayRefused(f"An invocation's {name} has at most {most} characters{kind}.")
    try:
        text.encode(errors="surrogateescape" if name in _PATHS else "strict")
    except UnicodeEncodeError as error:
        raise GatewayRefused(f"An invocation's {name} must be text.") from error
    if "\0" in text:
        raise GatewayRefused(f"An invocation's {name} must be text.")


def _check_list(name: str, items: list[Any]) -> None:
    if len(items) > _MOST_ITEMS:
        raise GatewayRefused(f"An invocation's {name} has at most {_MOST_ITEMS} items.")
    for item in items:
        if not isinstance(item, str):
            raise GatewayRefused(f"An invocation's {name} must be a list of strings.")
        _check_text(name, item)


def worker_names(found: Any) -> list[WorkerId]:
    """The names of workers from decoded JSON; whatever doesn't fit is refused with a reason."""
    if not isinstance(found, list) or not 0 < len(found) <= MOST_INVOKED:
        raise GatewayRefused(f"There must be a list of 1 to {MOST_INVOKED} workers.")
    for name in found:
        if not isinstance(name, str):
            raise GatewayRefused("Workers go by their names.")
        _check_text("worker", name)
    return [WorkerId(name) for name in found]


def invocation_schema() -> dict[str, Any]:
    """What `Invocation.from_dict` takes, as JSON Schema."""
    return {
        "type": "object",
        "required": sorted(_REQUIRED),
        "additionalProperties": False,
        "properties": {name: _schema(name, kinds) for name, kinds in _TYPES.items()},
    }


def workers_schema() -> dict[str, Any]:
    """What `worker_names` takes, as JSON Schema."""
    names = _schema("worker", _TYPES["worker"])
    return {"type": "array", "minItems": 1, "maxItems": MOST_INVOKED, "items": names}


def run_schema() -> dict[str, Any]:
    """What a run's id is, as JSON Schema."""
    return _schema("run", _TYPES["run"])


def _schema(name: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        lower = "exclusiveMinimum" if name == "cpus" else "minimum"
        return {"type": "number" if float in kinds else "integer", lower: least, "maximum": most}
    text = {
        "type": "string",
        "maxLength": _CHARACTERS.get(name, _MOST_CHARACTERS),
        "pattern": _PATTERNS.get(name, (_TEXT, ""))[0],
    }
    if list in kinds:
        return {"type": "array", "maxItems": _MOST_ITEMS, "items": text}
    return text | {"type": ["string", "null"]} if type(None) in kinds else text


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
    return len(run) <= _CHARACTERS["run"] and _COMPILED["run"].match(run) is not None


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

    @property
    def cpus(self) -> float | None:
        """What its machine has, which is the most that a worker can use; None: it isn't known."""
        ...

    @property
    def inline_nbytes(self) -> int | None:
        """The most that may travel with an invocation; None: there is no limit."""
        ...

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, at once or when there is room."""
        ...

    def fan_out(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        """Have the fan-out invoker start workers that differ from one by their names only."""
        ...

    def prewarm(self, invocation: Invocation, count: int) -> None:
        """Have sandboxes ready for workers like this one."""
        ...

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers and forget those that wait; they are gone afterwards."""
        ...

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing, as far as is known.

        -1 stands for a worker that waits for a sandbox.
        """
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


_FINAL = (StoreRefused, ShardUnavailable, ShardLost, Tampered, UsageError)


def final_error(traceback: str) -> tuple[type[StoreError | UsageError], str] | None:
    """The error that ended a worker if it would end the next start, too: its class and message."""
    ended = re.split(r"\n\n(?:The above exception|During handling) .*:\n\n", traceback)[-1]
    for kind in _FINAL:
        _, found, text = ended.rpartition(f"{kind.__module__}.{kind.__qualname__}: ")
        if found:
            return kind, text.strip()
    return None
