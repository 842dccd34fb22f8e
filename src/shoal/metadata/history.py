"""`History`: the runs of the past, their timelines and what they taught.

1. A run is filed once, when it has ended, well or not.
2. A timeline is kept as its workers recorded it, and decoded only when somebody looks; what a run
   taught is kept beside it, and read by the next plan in one go.
3. A workflow goes by its key. So do the tasks in what a run taught.
4. It is bounded: of each workflow so many runs are kept. The oldest run of the shape and the
   resources that most runs have makes room, so that what is rare is still known.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import reprlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from shoal.errors import ShoalError, UnknownRun, UsageError
from shoal.execution.timeline import Timeline, decode_records
from shoal.metadata.samples import Samples, undistilled
from shoal.types import RunId, TaskId

log = logging.getLogger(__name__)

KEPT = 100
"""Runs that are kept of each workflow."""
READ = 20
"""Runs of each shape and resources that a plan learns from."""
RESUMED = "done, resumed"
"""The outcome of a run that went on with what an earlier try had finished, and ended well."""
ALL = 1_000_000
"""More runs than any history has."""
_MOST = 1e15
"""No number of a record is larger."""
_YEAR_10000 = 253_402_300_800
"""In seconds since the epoch; calendars end there."""
_DAMAGES = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that has ended."""

    run: RunId
    name: str
    fingerprint: str
    planner: str
    tasks: int
    workers: int
    started: float
    makespan: float
    outcome: str
    """`done`, `RESUMED`, or what ended it in a line."""
    configuration: str = ""
    """The resources of its workers, as text."""
    planning: float = 0.0
    """Seconds that were spent on its plan before it started."""
    sla: str = "median"
    """The service level that it was planned for."""
    predicted: float | None = None
    """The makespan that was predicted at that level."""
    quality: Mapping[str, float] = field(default_factory=dict)
    """The median relative error of predictions, by kind: `execute`, `fetch`, `start` and so on."""
    key: str = ""
    """What history knows its workflow by: the name that the user gave it, or where it is defined.
    Runs that were recorded by their names alone go by those."""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)


@dataclass(frozen=True, slots=True)
class FiledRun:
    """All that is kept of a run."""

    record: RunRecord
    tasks: Sequence[TaskId]
    """Every task, in the workflow's order."""
    records: Sequence[bytes]
    """The workers' timelines."""
    samples: bytes
    """What it taught; see `samples.distilled`."""

    @property
    def timeline(self) -> Timeline:
        """What ran where and when."""
        record = self.record
        return decode_records(self.records, self.tasks, record.started, record.makespan)


class History(Protocol):
    """Keeps runs; safe to use from several threads and processes."""

    @property
    def where(self) -> str:
        """Where it keeps them, for people to read."""
        ...

    def file(self, run: FiledRun) -> None:
        """Keep a run."""
        ...

    def runs(self, *, key: str | None = None, most: int = 20) -> list[RunRecord]:
        """The latest runs first."""
        ...

    def keys(self) -> list[str]:
        """The keys of workflows that have runs, the latest run's first."""
        ...

    def count(self, key: str, fingerprint: str) -> int:
        """How many runs of a workflow are known."""
        ...

    def find(self, run: str) -> RunRecord:
        """A run by its id, or by the beginning of it if that is unambiguous."""
        ...

    def load(self, record: RunRecord) -> FiledRun:
        """All that is kept of a run."""
        ...

    def samples(self, key: str) -> list[Samples]:
        """What the latest runs of each shape and resources have taught, the latest first."""
        ...

    def clear(self, key: str | None = None) -> int:
        """Forget the runs of a workflow, or all; how many there were."""
        ...

    def close(self) -> None:
        """Give up files and connections."""
        ...


@dataclass(frozen=True, slots=True)
class Imported:
    """What has become of runs that were imported."""

    runs: int
    new: int
    """Those that were not known before."""
    kept: int
    """Those that the history has now, which is bounded."""


class BlockReader:
    """Reads what runs have taught; leaves out what is damaged, and tells of it once a workflow."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told: set[str] = set()

    def read(self, key: str, blocks: Sequence[bytes]) -> list[Samples]:
        """The blocks of a workflow that can be read."""
        found = []
        for block in blocks:
            with contextlib.suppress(ShoalError):
                found.append(undistilled(block))
        if len(found) < len(blocks) and key not in self._told:
            self._told.add(key)
            log.warning(
                "%d of %d runs of %r teach nothing: their samples in %s are damaged. `shoal "
                "history clear %s` forgets the runs of that workflow.",
                len(blocks) - len(found), len(blocks), key, self._where, shlex.quote(key),
            )  # fmt: skip
        return found


def exported(history: History, key: str | None = None) -> Iterator[str]:
    """Runs as lines of text, the oldest first."""
    for record in reversed(history.runs(key=key, most=ALL)):
        try:
            run = history.load(record)
        except UnknownRun:
            continue  # It has made room for another one since.
        line = {
            "record": asdict(record),
            "tasks": list(run.tasks),
            "records": [base64.b64encode(data).decode() for data in run.records],
            "samples": base64.b64encode(run.samples).decode(),
        }
        yield json.dumps(line, separators=(",", ":"))


def import_runs(history: History, lines: Iterable[str], where: Path) -> Imported:
    """File runs that were exported. What is damaged is named, and nothing is filed."""
    runs = []
    for number, line in enumerate(lines, 1):
        try:
            runs.append(_imported(json.loads(line)))
        except (*_DAMAGES, ShoalError) as error:
            reason = repr(error) if isinstance(error, LookupError) else error
            raise UsageError(f"{where}, line {number}: not an exported run ({reason}).") from error
    ids = {run.record.run for run in runs}
    before = _ids(history)
    for run in runs:
        history.file(run)
    return Imported(len(ids), len(ids - before), len(ids & _ids(history)))


def _ids(history: History) -> set[RunId]:
    return {record.run for record in history.runs(most=ALL)}


def _imported(line: Any) -> FiledRun:
    """A run, if all of it can be read later."""
    record = checked(RunRecord(**line["record"]))
    tasks = line["tasks"]
    if not isinstance(tasks, list) or not all(map(_is_text, tasks)):
        raise ValueError(f"tasks can't be {reprlib.repr(tasks)}")
    with _naming("records"):
        records = [base64.b64decode(data, validate=True) for data in line["records"]]
        timeline = decode_records(records, tasks, record.started, record.makespan)
        if not all(isfinite(span.start + span.end + span.cpu) for span in timeline.spans):
            raise ValueError("a span has no times")
    with _naming("samples"):
        samples = base64.b64decode(line["samples"], validate=True)
        taught = undistilled(samples).samples
        if not all(isfinite(sample.seconds + sample.cpu) for sample in taught):
            raise ValueError("a sample has no times")
    return FiledRun(record, tasks, records, samples)


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    """Has an error say which field it is about."""
    try:
        yield
    except (*_DAMAGES, ShoalError) as error:
        raise ValueError(f"{field}: {error}") from error


def checked(record: RunRecord) -> RunRecord:
    """The record, if all of it can be kept and shown; else a `ValueError` names the field."""
    for name, fits in _FITS.items():
        value = getattr(record, name)
        if not fits(value):
            raise ValueError(f"{name} can't be {reprlib.repr(value)}")
    return record


def _is_text(value: object) -> bool:
    """Whether it is text that can be written somewhere: half of a surrogate pair can't."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _MOST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= _MOST


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _YEAR_10000


def _is_quality(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_text(kind) and _is_number(error) for kind, error in value.items()
    )


_FITS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("run", "name", "key", "fingerprint", "planner", "outcome"), _is_text),
    **dict.fromkeys(("configuration", "sla"), _is_text),
    **dict.fromkeys(("tasks", "workers"), _is_count),
    **dict.fromkeys(("makespan", "planning"), _is_number),
    "started": _is_time,
    "predicted": lambda value: value is None or _is_number(value),
    "quality": _is_quality,
}
"""What each field of a record has to be."""
