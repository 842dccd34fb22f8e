"""`EndedRuns`: a run that ends while the session is closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shoal.client.ended_runs import EndedRuns
from shoal.types import RunId


@dataclass
class FakeStore:
    """Notes which runs are deleted, and then does something once."""

    deleted: list[str] = field(default_factory=list)
    then: Callable[[], None] | None = None

    def close(self, run: RunId, workers: Any) -> None:
        self.deleted.append(run)
        then, self.then = self.then, None
        if then is not None:
            then()

    def expire(self, run: RunId, seconds: float) -> None:
        pass


def failed_run(name: str) -> Any:
    """A run that can be resumed."""
    return SimpleNamespace(
        id=RunId(name),
        outcome="failed",
        resumable=True,
        settings=SimpleNamespace(keep_seconds=60.0, keep_mb=1, history=False),
        plan=SimpleNamespace(workers=()),
        shared=None,
        tell=lambda text: None,
        mark_ended=lambda: None,
    )


def ended_runs_of(store: FakeStore, folder: Path) -> EndedRuns:
    backends: Any = SimpleNamespace(
        settings=SimpleNamespace(data_folder=lambda: folder, idle_seconds=1.0, history_runs=1),
        platform=None,
        temporary_store=None,
        lasting=False,
        store=store,
        hurry=lambda: None,
    )
    planning: Any = SimpleNamespace(known=None, take=None)
    return EndedRuns(backends, planning)


def test_a_run_may_end_while_others_are_being_deleted(tmp_path: Path) -> None:
    """1. Closing deletes a kept run. 2. Meanwhile, another run ends and is kept."""
    store = FakeStore()
    ended = ended_runs_of(store, tmp_path)
    ended.conclude(failed_run("first"))
    ended.conclude(failed_run("second"))
    store.then = lambda: ended.conclude(failed_run("third"))
    ended.close()
    assert store.deleted == ["first", "second"]
