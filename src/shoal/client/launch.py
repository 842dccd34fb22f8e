"""What a run begins with: its opening in the store, and the first starts of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from shoal.execution.plan import FlexiblePart, Part, PlannedPart
from shoal.platform.invocation import INLINE_PART, NO_INPUTS, Start, kind_of
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, blob_nbytes
from shoal.worker.package import Packed


def opening_of(
    packed: Packed, constants: Mapping[str, Blob], lease: float, waiting: float, restarts: int
) -> Opening:
    """Describe a run to the store, which gets those large constants that `constants` has.

    `first_starts` has the starts of the workers that begin with the run.
    """
    first = [part.worker for part in _first(packed)]
    opening = Opening(first, outputs=constants, lease=lease, waiting=waiting, restarts=restarts)
    if packed.common is not None:
        kind = kind_of(packed.parts[0].resources)
        return replace(opening, common=packed.common, kind=kind)
    kinds = {part.worker: kind_of(part.resources) for part in packed.parts}
    return replace(opening, parts=packed.packages, kinds=kinds)


def first_starts(packed: Packed, sent: float, inline_nbytes: int | None) -> list[Start]:
    """The starts of the workers that have something to do before any other has done anything.

    Args:
        packed: The plan.
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
        for part in _first(packed)
    ]


def _inline(part: Part, packed: Packed, most: int) -> bytes | None:
    """A part that travels with the start, which saves the worker a reply of the store."""
    if isinstance(part, FlexiblePart):
        return None
    blob = packed.packages[part.worker]
    return b"".join(blob) if blob_nbytes(blob) <= most else None


def _first(packed: Packed) -> list[Part]:
    """The parts of the workers that have something to do at once."""
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
