"""Find cold starts that are worth hiding together, and the tasks that can trigger the warm-ups.

1. Warming one of many workers that start at the same moment often gains nothing: what joins their
   outputs waits for the others. So groups come first, the widest ones before single starts.
2. A sandbox is warm in time if it is requested before the `latest` moment of its group. It is still
   there when the last worker of the group starts if it isn't requested before the `earliest`.
   Between the two is the window.
3. A worker may get a sandbox that is still starting. So a request after the window hides a part of
   the start, which is all that can be hidden if starts take longer than idle sandboxes are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.execution.timeline import STARTS, Span, Timeline
from shoal.types import Resources, TaskId, WorkerId

_NARROW = 0.1
"""The share of a cold start within which starts are simultaneous."""
_LATE = 0.25
"""Which point to aim at between the window and the starts: early, but with room for delays."""


class Trigger(NamedTuple):
    """When to request sandboxes: so many seconds after a task began."""

    task: TaskId
    delay: float
    moment: float
    """The time of the request in the timeline."""


@dataclass(frozen=True, slots=True)
class ColdGroup:
    """Workers of one kind that start cold at about the same time."""

    resources: Resources
    starts: tuple[Span, ...]
    """Their cold starts, the first one first."""

    def trigger(
        self, timeline: Timeline, aim: float | None, idle: float, request: float
    ) -> Trigger | None:
        """Return what runs nearest to the point at which to request sandboxes; None: nothing does.

        Args:
            timeline: What is predicted without these warm-ups.
            aim: Which point of the window to aim at, from 0 (its beginning) to 1 (its end). None:
                after the window, where a warm-up still hides a part of the starts.
            idle: How long an idle sandbox is kept.
            request: Seconds that a request takes.
        """
        first, last = self.starts[0], self.starts[-1]
        latest = first.start - max(span.seconds for span in self.starts) - request
        earliest = max(0.0, last.start - request - idle)
        if aim is None:
            earliest, latest, aim = max(earliest, latest), first.start - request, _LATE
        wanted = earliest + aim * (latest - earliest)
        best: tuple[float, Trigger] | None = None
        for span in timeline.of_kind("execute"):
            moment = min(max(wanted, span.start), span.end)
            if earliest <= moment <= latest:
                distance = abs(moment - wanted)
                if best is None or distance < best[0]:
                    assert span.task is not None
                    best = (distance, Trigger(span.task, moment - span.start, moment))
        return None if best is None else best[1]

    def counts(
        self, timeline: Timeline, kinds: Mapping[WorkerId, Resources], since: float
    ) -> list[int]:
        """Return how many idle sandboxes may be needed, the likeliest number first.

        A warm-up counts the sandboxes that are idle already. Workers outside of the group take some
        of them between the request and the group's starts.

        Args:
            timeline: What is predicted without these warm-ups.
            kinds: The resources of each worker.
            since: The moment of the request.
        """
        mine, until = len(self.starts), self.starts[-1].start
        others = sum(
            span.kind == "warm start" and since <= span.start <= until
            for span in timeline.of_kind(*STARTS)
            if kinds[span.worker] == self.resources
        )
        return list(dict.fromkeys((mine + others, mine, -(-mine // 2))))


def cold_groups(timeline: Timeline, kinds: Mapping[WorkerId, Resources]) -> Iterator[ColdGroup]:
    """Yield the groups of cold starts: wide ones first, then simultaneous ones, then single ones.

    Starts by the client are left out, because no task precedes them.
    """
    begun = [span.start for span in timeline.of_kind("execute")]
    since = min(begun, default=0.0)
    by_kind: dict[Resources, list[Span]] = defaultdict(list)
    for span in timeline.of_kind("cold start"):
        if span.start >= since:
            by_kind[kinds[span.worker]].append(span)
    seen = set()
    for share in (1.0, _NARROW, -1.0):
        found = [
            ColdGroup(kind, tuple(starts))
            for kind, spans in by_kind.items()
            for starts in _together(spans, share)
        ]
        for group in sorted(found, key=lambda group: group.starts[0].start):
            if group not in seen:
                seen.add(group)
                yield group


def _together(spans: Sequence[Span], share: float) -> Iterator[list[Span]]:
    """Split starts, in their order, where the gap exceeds a share of the first one's seconds."""
    group: list[Span] = []
    for span in spans:
        if group and span.start - group[0].start > share * group[0].seconds:
            yield group
            group = []
        group.append(span)
    if group:
        yield group
