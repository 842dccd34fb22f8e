"""Which sandboxes a run probably finds follows from what the runs before it have reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shoal import Resources
from shoal.client.warm_starts import SeenSandboxes, found_by, left_by
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import Span, Timeline
from shoal.metadata.samples import Sample, Samples
from shoal.types import WorkerId

SMALL, LARGE = Resources(256), Resources(1024)
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
WORKERS = {A: SMALL, B: SMALL, C: LARGE}
IDLE_SECONDS = 7.0


class FakePlatform:
    def __init__(self, capacity: int | None = 4, idle_seconds: float | None = IDLE_SECONDS) -> None:
        self.capacity = capacity
        self.idle_seconds = idle_seconds


def seen_on(platform: Any) -> SeenSandboxes:
    return SeenSandboxes(platform)


def run(*starts: tuple[WorkerId, str, float, float]) -> Timeline:
    """The timeline of workers that start cold or warm at a time and end at another."""
    spans: list[Span] = []
    for worker, kind, begin, end in starts:
        spans.append(Span(f"{kind} start", worker, None, begin, begin))
        spans.append(Span("execute", worker, None, begin, end))
    return Timeline(tuple(sorted(spans, key=lambda span: span.start)), 10.0)


def warm(pool: WarmPool[Resources], kind: Resources = SMALL) -> int:
    """How many idle sandboxes of a kind a pool has."""
    count = 0
    while (got := pool.acquire(kind, 0.0)) is not None and got.start == "warm":
        count += 1
    return count


@pytest.mark.parametrize(
    ("starts", "before", "left"),
    [
        ([(A, "cold", 0, 5), (B, "cold", 1, 6)], {}, {SMALL: 2}),
        ([(A, "cold", 0, 5), (B, "warm", 5, 6)], {}, {SMALL: 1}),
        ([(A, "cold", 0, 5), (C, "cold", 0, 5)], {}, {SMALL: 1, LARGE: 1}),
        ([(A, "warm", 0, 5)], {SMALL: 3}, {SMALL: 3}),
        ([(A, "cold", 0, 5)], {SMALL: 3}, {SMALL: 1}),
        ([(C, "cold", 0, 5)], {SMALL: 3}, {SMALL: 3, LARGE: 1}),
        ([(WorkerId("stranger"), "cold", 0, 5)], {SMALL: 3}, {SMALL: 3}),
    ],
)
def test_a_run_leaves_the_sandboxes_that_it_used_at_once(
    starts: Sequence[tuple[WorkerId, str, float, float]],
    before: dict[Resources, int],
    left: dict[Resources, int],
) -> None:
    assert left_by(run(*starts), WORKERS, before) == left


def test_the_next_run_finds_what_the_last_one_left_until_it_is_too_old() -> None:
    seen = seen_on(FakePlatform())
    seen.note(run((A, "cold", 0, 5), (B, "cold", 0, 5)), WORKERS, 100.0)
    assert warm(seen.pool((), 4, 103.0)) == 2
    assert warm(seen.pool((), 4, 103.0), LARGE) == 0
    assert warm(seen.pool((), 4, 100.0 + IDLE_SECONDS)) == 0


def test_a_run_that_began_before_the_last_one_was_noted_finds_the_same() -> None:
    seen = seen_on(FakePlatform())
    seen.note(run((A, "cold", 0, 5)), WORKERS, 100.0)
    assert warm(seen.pool((), 4, 99.0)) == 1


def test_sandboxes_grow_old_during_the_next_run() -> None:
    seen = seen_on(FakePlatform())
    seen.note(run((A, "cold", 0, 5)), WORKERS, 100.0)
    pool = seen.pool((), 4, 105.0)
    assert pool.next_expiry() == IDLE_SECONDS - 5.0


def test_a_run_without_any_start_tells_nothing() -> None:
    seen = seen_on(FakePlatform())
    seen.note(run((A, "cold", 0, 5)), WORKERS, 100.0)
    seen.note(Timeline((), 0.0), {}, 101.0)
    assert warm(seen.pool((), 4, 102.0)) == 1


def test_there_are_no_more_than_the_platform_has_room_for() -> None:
    seen = seen_on(FakePlatform(capacity=1))
    seen.note(run((A, "cold", 0, 5), (B, "cold", 0, 5)), WORKERS, 100.0)
    pool = seen.pool((), 4, 101.0)
    assert (pool.capacity, pool.idle) == (1, 1)


def test_a_platform_that_tells_nothing_has_room_and_keeps_sandboxes_for_minutes() -> None:
    seen = seen_on(FakePlatform(None, None))
    assert seen.pool((), 4, 100.0).capacity > 10_000
    seen.note(run((A, "cold", 0, 5)), WORKERS, 100.0)
    assert warm(seen.pool((), 4, 200.0)) == 1
    assert warm(seen.pool((), 4, 1000.0)) == 0


def sample(kind: str, resources: Resources = SMALL) -> Sample:
    return Sample(kind, "", -1, resources, 0, 0.1, 0.0, 0)


def test_the_first_run_of_a_session_finds_what_the_latest_in_history_found() -> None:
    latest = Samples("", [sample("warm start")] * 3 + [sample("cold start", LARGE)])
    earlier = Samples("", [sample("warm start", LARGE)])
    assert found_by([latest, earlier], workers=4) == {SMALL: 3}
    assert found_by([latest, earlier], workers=2) == {SMALL: 2}
    assert found_by([], workers=2) == {}
    seen = seen_on(FakePlatform())
    assert warm(seen.pool([latest], 4, 100.0)) == 3
    seen.note(run((A, "cold", 0, 5)), WORKERS, 100.0)
    assert warm(seen.pool([latest], 4, 100.0)) == 1
