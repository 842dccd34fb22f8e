"""Which cold starts are warmed together, by which task, and with how many sandboxes."""

from __future__ import annotations

import pytest

from shoal.execution.timeline import Span, Timeline
from shoal.planning.warm_groups import ColdGroup, cold_groups
from shoal.types import Resources, TaskId, WorkerId

SMALL, LARGE = Resources(2048), Resources(8192)


def start(worker: str, begin: float, seconds: float = 1.0, kind: str = "cold start") -> Span:
    return Span(kind, WorkerId(worker), None, begin, begin + seconds)


def task(name: str, begin: float, end: float) -> Span:
    return Span("execute", WorkerId("w0"), TaskId(name), begin, end)


def timeline(*spans: Span) -> Timeline:
    return Timeline(tuple(sorted(spans, key=lambda span: span.start)), 99.0)


def groups(*starts: Span, large: str = "") -> list[tuple[str, ...]]:
    kinds = {s.worker: LARGE if s.worker in large else SMALL for s in starts}
    found = cold_groups(timeline(task("first#0", 1.0, 9.0), *starts), kinds)
    return [tuple(span.worker for span in group.starts) for group in found]


def test_starts_within_the_seconds_of_one_are_a_group_before_smaller_ones() -> None:
    found = groups(start("a", 10.0), start("b", 10.05), start("c", 10.9), start("d", 11.5))
    assert found == [
        ("a", "b", "c"),
        ("d",),
        ("a", "b"),
        ("c",),
        ("a",),
        ("b",),
    ]


def test_groups_are_of_one_kind_of_worker() -> None:
    found = groups(start("a", 10.0), start("b", 10.0), start("c", 10.0), large="b")
    assert found[:2] == [("a", "c"), ("b",)]


def test_starts_before_the_first_task_are_left_out() -> None:
    assert groups(start("a", 0.5), start("b", 10.0)) == [("b",)]


@pytest.mark.parametrize(("aim", "moment"), [(0.0, 7.5), (0.75, 8.25), (1.0, 8.5), (None, 8.75)])
def test_the_window_holds_for_the_whole_group(aim: float | None, moment: float) -> None:
    """The last one starts at 12, so a sandbox that idles for 4 s is requested after 7.5.

    The first one starts at 10 and one takes 1 s, so it is requested before 8.5. After that, a part
    of the starts is hidden; the point is a quarter of the way from there to 9.5.
    """
    group = ColdGroup(SMALL, (start("a", 10.0, 0.5), start("b", 12.0)))
    found = group.trigger(timeline(task("first#0", 1.0, 9.0)), aim, idle=4.0, request=0.5)
    assert found is not None
    assert found.moment == pytest.approx(moment)
    assert found.delay == pytest.approx(moment - 1.0)


def test_without_a_task_in_the_window_there_is_no_trigger() -> None:
    group = ColdGroup(SMALL, (start("a", 10.0),))
    assert group.trigger(timeline(task("first#0", 9.2, 9.9)), 0.75, idle=4.0, request=0.5) is None


def test_sandboxes_that_others_take_in_between_are_counted_too() -> None:
    """Each warm start of the same kind between the request and the group's takes one."""
    group = ColdGroup(SMALL, (start("a", 10.0), start("b", 10.1)))
    kinds = {WorkerId(name): SMALL for name in "abcd"} | {WorkerId("e"): LARGE}
    warm = [
        start(name, begin, kind="warm start")
        for name, begin in zip("cde", (8.0, 5.0, 9.0), strict=True)
    ]
    found = group.counts(timeline(*group.starts, *warm), kinds, since=7.0)
    assert found == [3, 2, 1]
