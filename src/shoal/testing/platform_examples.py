"""Invocations for the contract suite of platforms, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from shoal.platform.base import Platform
from shoal.platform.invocation import Invocation, RunContext, RunSettings, Start, UserCode
from shoal.testing.platform_entry import read_notes
from shoal.testing.waiting import eventually
from shoal.types import RunId, WorkerId


def invocation(worker: str = "w0", **facts: Any) -> Invocation:
    """Return an invocation with these facts, wherever they belong."""

    def of(kind: type[Struct]) -> dict[str, Any]:
        return {name: facts.pop(name) for name in kind.__struct_fields__ if name in facts}

    facts = {"run": RunId("run-1"), "session": "s1", "epoch": 1, "memory_mb": 256, "cpus": 1.0,
             "store": "unix:///nowhere", "key": b"\0"} | facts  # fmt: skip
    part = facts.get("part")
    if isinstance(part, str):
        facts["part"] = part.encode()
    start = Start(worker=WorkerId(worker), **of(Start))
    code, settings = UserCode(**of(UserCode)), RunSettings(**of(RunSettings))
    context = RunContext(code=code, settings=settings, **of(RunContext))
    assert not facts, facts
    return Invocation(context=context, start=start)


def by_context(jobs: Sequence[Invocation]) -> dict[RunContext, list[Start]]:
    """Return the starts of invocations, by what they have in common."""
    found: dict[RunContext, list[Start]] = {}
    for job in jobs:
        found.setdefault(job.context, []).append(job.start)
    return found


@dataclass
class Caller:
    """Invokes workers on a platform, and reads what they noted."""

    platform: Platform
    folder: Path

    def job(self, worker: str = "w0", part: str = "pass", **facts: Any) -> Invocation:
        """Return an invocation whose worker does what the part says."""
        return invocation(**({"worker": worker, "part": part, "folder": str(self.folder)} | facts))

    def invoke(self, *jobs: Invocation) -> None:
        """Start workers."""
        for context, starts in by_context(jobs).items():
            self.platform.invoke(context, starts)

    def prewarm(self, job: Invocation, count: int) -> int:
        """Prepare sandboxes for workers like this one; returns how many are ready."""
        return self.platform.prewarm(job.context, job.start.resources, count)

    def carry_out(self, *jobs: Invocation) -> list[dict[str, Any]]:
        """Start workers, wait until none of their runs is active, and return all notes."""
        self.invoke(*jobs)
        self.await_quiet(*{job.run for job in jobs})
        return self.notes()

    def await_quiet(self, *runs: RunId) -> None:
        """Wait until none of these runs is active."""
        for run in runs or (RunId("run-1"),):
            assert eventually(lambda run=run: not self.platform.active(run))  # type: ignore[misc]

    def notes(self, event: str = "") -> list[dict[str, Any]]:
        """Return what workers have noted so far."""
        return read_notes(self.folder, event)

    def await_notes(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many workers have noted an event; return their notes."""
        assert eventually(lambda: len(self.notes(event)) >= count), self.notes()
        return self.notes(event)

    def let_go(self, name: str = "go") -> None:
        """Let workers whose part is `await NAME` end."""
        (self.folder / name).touch()
