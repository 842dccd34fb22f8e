"""The platform and the workflows on which the paper on predictive planning was measured.

The paper gives the latency, the sandboxes and the workflows (section III). Everything else is read
off the plans that its authors published, with predicted times of starts, transfers and tasks, or
estimated. `SOURCES` says which is which.

1. A cold start is a `docker run`; a warm one starts an interpreter in a container that is there.
2. The published gateway starts containers one after the other. `SERIALISED` has that fault: every
   start under way adds to the next one.
3. The published workers fetch each input in a round trip of its own, which is an option here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.experiments.shapes import Shape, ShapeTask, in_workflow_order
from shoal.experiments.virtual_costs import PlatformCosts, Varying

PREFIX = "published-"
"""What the names of the published workflows begin with."""

_BYTE = 1.0 / 35e6
"""Seconds per byte of a transfer."""
_COLD = Varying(4.3, 0.25)
"""The middle of 2.8 to 6.5 s, within which nine of ten starts lie."""
_WARM = Varying(1.0)
_SERIAL_SECONDS = 0.45
"""How much each start under way adds to the next one."""

SOURCES: Mapping[str, str] = {
    "paper (III-C)": "latency of 30 ms, 32 sandboxes removed after 7 s, 2, 4 and 8 GB",
    "published plans": "cold starts of 2.8 to 6.5 s, about 35 MB/s a transfer, task times and "
    "output sizes, a split that sleeps for 9 s",
    "estimates": "1 s for a warm start, the spread of starts, 0.3 to 0.6 s (here 0.45 s) that "
    "a serialised start adds, 0.45 s for a block of an int64 product, the levels of the text",
}
"""Where the figures come from."""

PLATFORM = PlatformCosts(
    about="the paper's: cold starts of 2.8 to 6.5 s, 35 MB/s a transfer",
    launch=Varying(0.02),
    cold=_COLD,
    start=_COLD,
    warm=_WARM,
    again=_WARM,
    uploading=_BYTE,
    saving=_BYTE,
    fetching=_BYTE,
    handing_in=_BYTE,
    sharing=0.0,
)
SERIALISED = replace(
    PLATFORM,
    about=f"{PLATFORM.about}, cold starts one after the other",
    crowd=((1.0, _SERIAL_SECONDS),),
)

SECONDS: Mapping[str, Mapping[str, float]] = {
    "matrix": {"multiply": 0.45, "assemble": 0.12},
    "tree": {"add": 0.07},
    "image": {
        "split": 9.5, "pick": 0.05, "resize": 0.09, "blur": 0.06, "normalise": 0.05,
        "sepia": 0.08, "edges": 0.05, "sharpen": 0.06, "combine": 0.1, "merge": 0.25,
    },
}  # fmt: skip
"""The tasks' seconds in the workflows whose graphs are those that come with Shoal."""


def published_shape(name: str, measured: Shape) -> Shape:
    """Return one of the paper's workflows, given the measured one."""
    if name == "text":
        return _text()
    seconds = SECONDS[name]
    tasks = [replace(task, seconds=seconds[task.name]) for task in measured.tasks]
    return Shape(PREFIX + name, tasks, measured.constants, f"{measured.about}, as published")


def _text() -> Shape:
    """Return the text analysis: its text is a constant of 33 tasks, and handed on."""
    text, kept, part = 41_500_000, 37_600_000, 4_700_000
    small = 5_000
    tasks = [ShapeTask("count", (), (0,), 0.25, small) for _ in range(32)]

    def add(name: str, upstream: tuple[int, ...], seconds: float, nbytes: int) -> int:
        constants = (0,) if name == "cut" else ()
        tasks.append(ShapeTask(name, upstream, constants, seconds, nbytes))
        return len(tasks) - 1

    merged = add("merge_counts", tuple(range(32)), 0.15, small)
    cut = add("cut", (merged,), 0.35, kept)
    statistics = add("statistics", (merged,), 3.0, small)
    found = [add("segment", (cut,), 0.55, part) for _ in range(16)]
    overall = {"keywords": 4.0, "punctuation": 3.0, "readability": 6.0, "patterns": 12.0}
    found += [add(kind, (cut,), seconds, small) for kind, seconds in overall.items()]
    merged = add("merge_analyses", (statistics, *found), 0.12, kept)
    metrics = add("metrics", (merged,), 0.15, small)
    summary = add("summary", (merged,), 0.3, small)
    add("report", (metrics, summary), 0.3, small)
    about = "750,000 lines, as published"
    return in_workflow_order(Shape(f"{PREFIX}text", tasks, [text], about))
