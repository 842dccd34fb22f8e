"""`FarmBackend`: what the workers of a farm run on, as a session hands it out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as with_fields

from shoal.platform.base import Platform
from shoal.platform.invocation import RunContext
from shoal.storage.codec import Blob
from shoal.types import RunId

if TYPE_CHECKING:
    from shoal.client.remote_code import RemoteCode

_LEASES = 4
"""A farm is over if its owner hasn't renewed it for so many leases of a worker."""


@dataclass(frozen=True, slots=True)
class FarmBackend:
    """The platform that a farm runs on, and what its workers are started with."""

    platform: Platform
    context: RunContext
    """What all its workers have in common."""
    restarts: int
    """How often a worker restarts after the same cause."""
    limit: float | None
    """How long the platform lets a function run."""
    remote_code: RemoteCode | None = None
    """Ships the user's code to workers that don't see this machine's files; None: they do."""

    def with_code(
        self, packed: Sequence[Blob], functions: Sequence[Callable[..., Any]]
    ) -> FarmBackend:
        """The same for workers that need the modules of these functions, packed and as they are."""
        if self.remote_code is None:
            return self
        pickles = [blob[0] for blob in packed]
        code, python = self.remote_code.of_farm(self.context.code, pickles, functions)
        return replace(self, context=with_fields(self.context, code=code, environment=python))

    @property
    def ttl(self) -> float:
        """Seconds after which a farm is over that its owner hasn't renewed."""
        return _LEASES * self.context.settings.lease


def new_run() -> tuple[RunId, bytes]:
    """A farm's name and its key."""
    return RunId(time.strftime("farm-%m%d-%H%M%S-") + secrets.token_hex(3)), secrets.token_bytes(32)
