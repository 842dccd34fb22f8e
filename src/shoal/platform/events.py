"""What an engine's jobs are started with: signed events without secrets.

An engine keeps what it starts in queues, logs and scripts, where others may read it. So an event
has neither the store's URL nor a key in the clear:

1. A deployment has a key that its clients and its jobs hold; a job finds it, and the store's URL,
   in its environment.
2. The keys of a run travel masked: combined with a hash of the deployment's key and of a nonce that
   is used once.
3. An event is signed with the deployment's key. A job does nothing for an event of anybody else,
   and compares the version of Shoal before it reads on.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from shoal.errors import GatewayRefused, SettingsError, Tampered
from shoal.platform.environment import mismatch, this_environment
from shoal.platform.invocation import CacheAccess, RunContext, Start, checked
from shoal.private import private_folder, private_key, read_private, write_private
from shoal.storage.shard_urls import url_for
from shoal.types import Resources, RunId, WorkerId

STORE_VARIABLE = "SHOAL_STORE"
TOKEN_VARIABLE = "SHOAL_TOKEN"
CA_VARIABLE = "SHOAL_CA_FILE"
KEY_VARIABLE = "SHOAL_DEPLOYMENT_KEY"
FILE_VARIABLE = "SHOAL_DEPLOYMENT_FILE"
"""Names a file with both, for engines whose jobs see the client's files."""

INDEX_VARIABLE = "SHOAL_JOB_INDEX"
"""Tells apart the jobs that an engine starts with one event."""

LEFT_SHARE = 0.5
"""The share of a job's time that the last worker that it takes has at least."""
_KEY_NBYTES = 32


@dataclass(frozen=True, slots=True)
class Deployment:
    """What clients and jobs of one installation on an engine share."""

    key: bytes = field(repr=False)
    store: str = field(repr=False)
    """The URL of the store, as jobs reach it."""
    token: str | None = field(default=None, repr=False)
    """What the engine asks its callers for, if anything."""
    ca_file: str | None = None
    """The authorities that may sign the engine's certificate; None: those the system trusts."""

    @property
    def id(self) -> str:
        """Its name, which tells nothing of the key."""
        return hmac.digest(self.key, b"deployment", "sha256").hex()[:16]

    @classmethod
    def of_user(cls, folder: Path, store: str) -> Deployment:
        """The deployment of this user's clients with a store, on engines that need no more."""
        return cls(private_key(folder / "deployment.key"), store)

    def file(self, folder: Path) -> Path:
        """A file with it, for jobs that see this user's files."""
        text = json.dumps({"key": self.key.hex(), "store": self.store}).encode()
        path = folder / "deployments" / f"{hashlib.sha256(text).hexdigest()[:16]}.json"
        if not path.exists():
            private_folder(path.parent)
            with contextlib.suppress(FileExistsError):
                write_private(path, [text])
        return path

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Deployment:
        """The deployment of a job."""
        try:
            if FILE_VARIABLE in variables:
                found = json.loads(read_private(Path(variables[FILE_VARIABLE])) or b"")
                return cls(bytes.fromhex(found["key"]), found["store"])
            key, store = bytes.fromhex(variables[KEY_VARIABLE]), variables[STORE_VARIABLE].strip()
            return cls(key, store, variables.get(TOKEN_VARIABLE), variables.get(CA_VARIABLE))
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise SettingsError(
                f"This job doesn't know its deployment: {error}. Set {STORE_VARIABLE} and "
                f"{KEY_VARIABLE} in the environment of the function, or deploy it again."
            ) from error


class Offer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks a job to take work from the store until there is none for a while."""

    job: str
    """Its name, or what the names of several begin with."""
    entry: str
    """`module:function` that its sandboxes call with each message."""
    memory_mb: int
    cpus: float
    idle_seconds: float
    seconds: float | None = None
    """How long it may run; None: no limit."""
    spares: int = 0
    """How many idle jobs of its size stand by while others are at work."""

    @property
    def taking_seconds(self) -> float | None:
        """How long it takes work: what it takes later would have too little time."""
        return None if self.seconds is None else (1 - LEFT_SHARE) * self.seconds

    def name(self, index: str | int | None) -> str:
        """The name of the job, or of one of several by its index."""
        return self.job if index is None else f"{self.job}-{index}"

    @property
    def resources(self) -> Resources:
        """What its workers have."""
        return Resources(self.memory_mb, self.cpus)


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers of a run to start: one here, the others elsewhere."""

    entry: str
    """`module:function` that sandboxes call with each message."""
    context: RunContext
    starts: tuple[Start, ...]


class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nonce: Annotated[str, Meta(max_length=64)]
    offer: Offer | None = None
    work: Work | None = None


def sealed(sent: Offer | Work, deployment: Deployment) -> bytes:
    """An event as an engine gets it: JSON."""
    nonce = secrets.token_hex(16)
    if isinstance(sent, Work):
        context = _masked(sent.context, deployment, nonce, store="")
        envelope = _Envelope(nonce=nonce, work=replace(sent, context=context))
    else:
        envelope = _Envelope(nonce=nonce, offer=sent)
    body = json.dumps(msgspec.to_builtins(envelope), separators=(",", ":"))
    version = this_environment().shoal
    return json.dumps(
        {"shoal": body, "version": version, "mac": _mac(deployment, version, body)}
    ).encode()


def opened(event: bytes | str | Mapping[str, Any], deployment: Deployment) -> Offer | Work:
    """What an event asks for.

    Raises:
        Tampered: It isn't of this deployment.
        EnvironmentMismatch: It comes from another version of Shoal.
    """
    version, body = _verified(event, deployment)
    here = this_environment()
    if version != here.shoal:
        renewal = _found_in(body, "work", "context", "environment", "renewal")
        wanted = replace(here, shoal=version, renewal=str(renewal or ""))
        problem = mismatch(wanted, here, f"on {os.uname().nodename}")
        assert problem is not None
        raise problem
    envelope = checked(json.loads(body), _Envelope)
    if envelope.work is not None:
        masked, store = envelope.work.context, deployment.store
        context = _masked(masked, deployment, envelope.nonce, store)
        if context.farm:  # its queues are on one server
            context = replace(context, store=url_for(store, context.run))
        return replace(envelope.work, context=context)
    if envelope.offer is None:
        raise GatewayRefused("The event asks for nothing.")
    return envelope.offer


def _verified(event: bytes | str | Mapping[str, Any], deployment: Deployment) -> tuple[str, str]:
    """The version of Shoal that an event comes from, and its body."""
    try:
        found = event if isinstance(event, Mapping) else json.loads(event)
        body, version, mac = (str(found[name]) for name in ("shoal", "version", "mac"))
    except (ValueError, LookupError, TypeError) as error:
        raise GatewayRefused(f"This isn't an event of Shoal's: {error!r}.") from error
    if not hmac.compare_digest(mac, _mac(deployment, version, body)):
        raise Tampered(
            "The event wasn't signed with this deployment's key. Deploy again, from the client "
            "that is to use it."
        )
    return version, body


def addressees(
    event: bytes | str | Mapping[str, Any], deployment: Deployment
) -> tuple[RunId, list[tuple[WorkerId, int, int]]]:
    """The run of an event, and the name, epoch and memory of each worker; of any version of Shoal.

    As far as they can be found where this version has them.
    """
    _, body = _verified(event, deployment)
    starts = _found_in(body, "work", "starts")
    found = [
        (WorkerId(str(each["worker"])), int(each["epoch"]), int(each["memory_mb"]))
        for each in (starts if isinstance(starts, list) else ())
        if isinstance(each, dict) and {"worker", "epoch", "memory_mb"} <= each.keys()
    ]
    return RunId(str(_found_in(body, "work", "context", "run") or "")), found


def _found_in(body: str, *names: str) -> Any:
    """What is at a path of names in a body of any version; None if there is no such path."""
    found = json.loads(body)
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _mac(deployment: Deployment, version: str, body: str) -> str:
    signed = f"event {version}\n{body}".encode()
    return hmac.digest(deployment.key, signed, "sha256").hex()


def _masked(context: RunContext, deployment: Deployment, nonce: str, store: str) -> RunContext:
    """A context whose keys are masked, or unmasked if they are, with a store's URL."""
    key = _mask(context.key, deployment, f"{nonce} run")
    cache = context.cache
    if cache is not None:
        masked = _mask(cache.key, deployment, f"{nonce} cache")
        cache = CacheAccess(where=store, key=masked, nbytes=cache.nbytes)
    return replace(context, key=key, store=store, cache=cache)


def _mask(secret: bytes, deployment: Deployment, label: str) -> bytes:
    if len(secret) > _KEY_NBYTES:
        raise ValueError(f"a key of more than {_KEY_NBYTES} bytes")
    mask = hmac.digest(deployment.key, b"mask " + label.encode(), "sha256")
    return bytes(a ^ b for a, b in zip(secret, mask, strict=False))


def groups(starts: Sequence[Start], most: int) -> list[tuple[Start, ...]]:
    """Split starts into at most so many groups of about the same size."""
    size = -(-len(starts) // most)
    return [tuple(starts[i : i + size]) for i in range(0, len(starts), size)]
