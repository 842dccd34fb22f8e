"""What a run begins with."""

from __future__ import annotations

import secrets

import pytest

from shoal import Resources, Task, Workflow
from shoal.client.launch import first_parts, first_starts
from shoal.execution.plan import Placement, Plan
from shoal.platform.invocation import INLINE_PART
from shoal.types import WorkerId
from shoal.worker.package import Packed, pack

W = WorkerId("w")


def packed(nbytes: int) -> Packed:
    """A plan for one worker, whose part has a little more than so many bytes."""
    size = Task(len)
    workflow = Workflow.of([size(secrets.token_bytes(1000)) for _ in range(-(-nbytes // 1000))])
    placements = dict.fromkeys(workflow.calls, Placement(W, Resources(256)))
    return pack(Plan(workflow, placements), secrets.token_bytes(32))


@pytest.mark.parametrize(
    ("nbytes", "inline_nbytes", "carried"),
    [
        (1000, None, True),
        (1000, 10_000, True),
        (1000, 1000, False),
        (INLINE_PART, None, False),
        (INLINE_PART, 10 * INLINE_PART, False),
    ],
)
def test_a_part_travels_with_its_start_if_it_is_small_and_the_platform_takes_it(
    nbytes: int, inline_nbytes: int | None, carried: bool
) -> None:
    plan = packed(nbytes)
    (start,) = first_starts(plan, first_parts(plan), 1.0, inline_nbytes)
    assert (start.part is not None) == carried
