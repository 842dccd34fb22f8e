"""A virtual workflow on chunks of a log and on signals, whose costs follow their sizes.

Ten tasks, 43 calls: some take time in proportion to what they read, some more, some less, and some
always the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

from sized import MB, Chance, World

from shoal import task
from shoal.types import TaskId
from shoal.workflow import Workflow

CHUNKS = (3, 5, 8, 4, 6, 9)
"""The sizes of the log's chunks at size 1, in MB."""
POINTS = (200_000, 350_000, 500_000, 275_000)
"""The points in each signal at size 1."""


@task(name="sized.parse")
def parse(chunk: Any) -> Any: ...


@task(name="sized.order")
def order(rows: Any) -> Any: ...


@task(name="sized.pack")
def pack(rows: Any) -> Any: ...


@task(name="sized.match")
def match(rows: Any, patterns: Any) -> Any: ...


@task(name="sized.signal")
def signal(points: int) -> Any: ...


@task(name="sized.spectrum")
def spectrum(signal: Any) -> Any: ...


@task(name="sized.similar")
def similar(one: Any, other: Any) -> Any: ...


@task(name="sized.patterns")
def patterns() -> Any: ...


@task(name="sized.merge")
def merge(*parts: Any) -> Any: ...


@task(name="sized.report")
def report(*parts: Any) -> Any: ...


class LogsAndSignals:
    """The workflow, and what it costs."""

    def build(self, size: float) -> Workflow:
        """Build it for inputs of a relative size."""
        known = patterns()
        packed, found = [], []
        for _ in CHUNKS:
            rows = parse("a chunk")
            packed.append(pack(order(rows)))
            found.append(match(rows, known))
        spectra = [spectrum(signal(round(points * size))) for points in POINTS]
        pairs = zip(spectra[::2], spectra[1::2], strict=True)
        near = [similar(one, other) for one, other in pairs]
        merged = [merge(*packed[i : i + 2]) for i in range(0, len(packed), 2)]
        return Workflow.of(report(merge(*merged), merge(*found), *near))

    def world(self, workflow: Workflow, size: float, chance: Chance) -> World:
        """Return the costs of a run."""
        return LogCosts(workflow, size, chance)


def _log(nbytes: float) -> float:
    return log2(max(nbytes, 2.0)) / 20


class LogCosts(World):
    """The costs of one run."""

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The chunks."""
        parses = [name for name, call in self.workflow.calls.items() if call.task is parse]
        return {
            name: {TaskId(f"constant:{n}"): round(CHUNKS[n] * self.size * MB)}
            for n, name in enumerate(parses)
        }

    def usual(self, task: TaskId, nbytes: int) -> float:
        """Return what the task takes for its input."""
        call, mb = self.workflow.calls[task], nbytes / MB
        match call.task.name.partition(".")[2]:
            case "parse":
                return 0.05 * mb
            case "order":
                return 0.03 * mb * _log(nbytes / 20)
            case "pack":
                return 0.03 + 0.04 * mb
            case "match":
                rows = self.made[self.workflow.upstream[task][0]] / MB
                return 0.02 + 0.06 * rows
            case "signal":
                return 0.4e-6 * float(call.args[0])
            case "spectrum":
                return 0.06 * mb * _log(nbytes / 16)
            case "similar":
                return 0.004 * float(mb**1.6)
            case "patterns":
                return 0.08
            case "merge":
                return 0.01 + 0.02 * mb
        return 0.1

    def made_of(self, task: TaskId, nbytes: int) -> float:
        """Return the size of the task's output."""
        shares = {"parse": 0.7, "order": 1.0, "pack": 0.3, "match": 0.05, "spectrum": 2.0,
                  "merge": 0.95}  # fmt: skip
        call = self.workflow.calls[task]
        name = call.task.name.partition(".")[2]
        if name == "signal":
            return 8.0 * float(call.args[0])
        if name == "patterns":
            return 2.0 * MB
        return shares[name] * nbytes if name in shares else 2000.0
