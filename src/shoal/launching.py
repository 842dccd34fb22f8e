"""What a run begins with: what the store is told, and the first invocations."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace

from shoal.execution.plan import Part
from shoal.platform.base import INLINE_PART, NOTHING, Invocation, kind_of
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, blob_nbytes
from shoal.worker.package import Packed


def opening_of(
    packed: Packed, constants: Mapping[str, Blob], lease: float, restarts: int
) -> Opening:
    """What the store is told of a run; `constants` are those of the large ones that it is to have.

    Which workers are started by whom begins the run is said by `first_invocations`.
    """
    first = [part.worker for part in _first(packed)]
    opening = Opening(first, outputs=constants, lease=lease, restarts=restarts)
    if packed.common is not None:
        kind = kind_of(packed.parts[0].resources)
        return replace(opening, common=packed.common, kind=kind)
    kinds = {part.worker: kind_of(part.resources) for part in packed.parts}
    return replace(opening, parts=packed.packages, kinds=kinds)


def first_invocations(packed: Packed, like: Invocation) -> list[Invocation]:
    """Those of the workers that have something to do before anyone else has done anything."""
    return [
        replace(
            like,
            worker=part.worker,
            memory_mb=part.resources.memory_mb,
            cpus=part.resources.cpu_share,
            part=_inline(part, packed),
            inputs=NOTHING if part.flexible else None,
            common=packed.name,
        )
        for part in _first(packed)
    ]


def _inline(part: Part, packed: Packed) -> str | None:
    """A part that goes with the invocation, which saves the worker the store's reply."""
    if part.flexible or not part.rooted:
        return None
    blob = packed.packages[part.worker]
    return b64encode(b"".join(blob)).decode() if blob_nbytes(blob) <= INLINE_PART else None


def _first(packed: Packed) -> list[Part]:
    if packed.common is None:
        return [part for part in packed.parts if part.rooted]
    (part,) = packed.parts
    roots = [t for t, sources in zip(part.tasks, part.upstream, strict=True) if not sources]
    return [part.begun_with(task) for task in roots]
