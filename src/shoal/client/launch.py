"""`Launch`: how a run begins, or another try of it.

Its plan is packed, the store learns of its workers, parts and constants, and the workers start that
have something to do before any other has done anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from shoal.client.environment import Environment
from shoal.client.planning import Planned
from shoal.client.resume import UnfinishedRun
from shoal.client.supervisor import RunSupervisor
from shoal.client.transfers import Transfers
from shoal.clock import Clock
from shoal.execution.plan import FlexiblePart, Part, PlannedPart
from shoal.platform.invocation import INLINE_PART, NO_INPUTS, Start, kind_of
from shoal.settings import Settings
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, blob_nbytes
from shoal.storage.keys import shared_part
from shoal.storage.shared_memory import SharedFolder
from shoal.worker.package import Packed, pack


class Launch:
    """One try of a run: what its workers are sent, and who looks after them."""

    def __init__(
        self,
        run: UnfinishedRun,
        planned: Planned,
        environment: Environment,
        shared: SharedFolder | None,
        *,
        detached: bool,
    ) -> None:
        """Pack the plan; nothing has begun yet."""
        self._run = run
        self._settings: Settings = planned.request.settings
        self._environment = environment
        store, platform = environment.store, environment.platform
        self._packed = packed = pack(run.plan, run.key, planned.constants)
        common = () if packed.common is None else (shared_part(packed.name),)
        self.remade = frozenset((*packed.constants, *common))
        """What is made again when the run is resumed: large constants, the part of all workers."""
        self._context = environment.context(run, planned, packed, shared, detached=detached)
        self.transfers = Transfers(store, run.id, run.key, shared)
        self.supervisor = RunSupervisor(run.plan, planned.preview, store, platform, self._context)

    def open(self, clock: Clock) -> Sequence[Start]:
        """Tell the store about a new run; returns the starts of its first workers."""
        first = first_parts(self._packed)
        inline_nbytes = self._environment.platform.inline_nbytes
        starts = first_starts(self._packed, first, clock.now(), inline_nbytes)
        self._environment.store.open(self._run.id, self._opening(first))
        return starts

    def reopen(self, *, forgotten: bool) -> tuple[Sequence[Start], str]:
        """Tell the store about another try; returns its starts, and the last letter before it.

        Args:
            forgotten: Whether large outputs of an earlier try ended with its client.
        """
        opening = self._opening(first_parts(self._packed))
        claims, stale = self._environment.store.resume(self._run.id, opening, forgotten=forgotten)
        return self.supervisor.starts(claims), stale

    def _opening(self, first: Sequence[Part]) -> Opening:
        constants = self.transfers.share(self._packed)
        waiting = self._environment.platform.queue_seconds
        return opening_of(self._packed, first, constants, self._settings, waiting)

    def invoke(self, starts: Sequence[Start]) -> None:
        """Have the platform carry out these starts, and supervise the run's workers."""
        if starts:
            self._environment.platform.invoke(self._context, starts)
        else:
            self._environment.platform.supervise(self._context)


def opening_of(
    packed: Packed,
    first: Sequence[Part],
    constants: Mapping[str, Blob],
    settings: Settings,
    waiting: float,
) -> Opening:
    """Describe a run to the store, which gets those large constants that `constants` has."""
    started = [part.worker for part in first]
    opening = Opening(
        started,
        outputs=constants,
        lease=settings.lease,
        waiting=waiting,
        restarts=settings.restarts,
    )
    if packed.common is not None:
        kind = kind_of(packed.parts[0].resources)
        return replace(opening, common=packed.common, kind=kind)
    kinds = {part.worker: kind_of(part.resources) for part in packed.parts}
    return replace(opening, parts=packed.packages, kinds=kinds)


def first_starts(
    packed: Packed, first: Sequence[Part], sent: float, inline_nbytes: int | None
) -> list[Start]:
    """The starts of the workers that begin with the run.

    Args:
        packed: The plan.
        first: Their parts.
        sent: When they are sent.
        inline_nbytes: The most bytes that a start carries on this platform; None: no limit.
    """
    most = INLINE_PART if inline_nbytes is None else min(INLINE_PART, inline_nbytes)
    return [
        Start.first(
            part.worker,
            part.resources,
            sent,
            part=_inline(part, packed, most),
            inputs=NO_INPUTS if isinstance(part, FlexiblePart) else None,
        )
        for part in first
    ]


def _inline(part: Part, packed: Packed, most: int) -> bytes | None:
    """A part that travels with the start, which saves the worker a reply of the store."""
    if isinstance(part, FlexiblePart):
        return None
    blob = packed.packages[part.worker]
    return b"".join(blob) if blob_nbytes(blob) <= most else None


def first_parts(packed: Packed) -> list[Part]:
    """The parts of the workers that have something to do before any other has done anything."""
    first: list[Part] = []
    for part in packed.parts:
        match part:
            case PlannedPart():
                first.extend([part] if part.rooted else [])
            case FlexiblePart():
                first.extend([part.begun_with(task) for task in part.roots])
            case _:
                assert_never(part)
    return first
