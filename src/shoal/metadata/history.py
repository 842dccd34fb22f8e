"""Define `History`, which stores past runs with their timelines and samples.

1. A run is recorded once, when it has ended, whether it succeeded or failed.
2. A timeline is stored as its workers recorded it, and decoded only when it is shown. A run's
   samples are stored separately, so that the next plan reads them all at once.
3. A workflow is identified by its key, and so are the tasks in samples.
4. History is bounded: it keeps a limited number of runs for each workflow. To make room, it deletes
   the oldest run of the most common combination of shape, resources and platform, so that rare
   combinations survive.
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
from shoal.metadata.samples import Samples, decode_samples
from shoal.types import RunId, TaskId

log = logging.getLogger(__name__)

READ = 20
"""How many runs of each shape, resources and platform a plan learns from."""
RESUMED = "done, resumed"
"""The outcome of a run that resumed an earlier one and succeeded."""
ALL = 1_000_000
"""A limit above the number of runs in any history."""
_MOST = 1e15
"""The largest number allowed in a record."""
_YEAR_10000 = 253_402_300_800
"""The first second, since the epoch, that `time.localtime` can't format."""
_DECODING_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


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
    """`done`, `RESUMED`, or the reason why the run failed, in one line."""
    configuration: str = ""
    """The resources of its workers, as text."""
    planning: float = 0.0
    """How many seconds planning took before the run started."""
    sla: str = "median"
    """The service level that the plan was made for."""
    predicted: float | None = None
    """The predicted makespan at that level."""
    quality: Mapping[str, float] = field(default_factory=dict)
    """The median relative error of predictions, by kind: `execute`, `transfer` and `start`."""
    key: str = ""
    """The key of its workflow: the name that the user gave it, or where it is defined. A run that
    was recorded before keys existed has its workflow's name as its key."""
    platform: str = ""
    """Where its workers ran, as `platform_name` names it; empty: on the embedded gateway."""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)

    @property
    def shape(self) -> str:
        """What it has in common with the runs that tell the same: history keeps some of each."""
        shape = f"{self.fingerprint} {self.configuration}"
        return f"{shape} on {self.platform}" if self.platform else shape


@dataclass(frozen=True, slots=True)
class FiledRun:
    """A run with its timeline and samples, as stored."""

    record: RunRecord
    tasks: Sequence[TaskId]
    """All tasks, in the workflow's order."""
    records: Sequence[bytes]
    """The workers' encoded timelines."""
    samples: bytes
    """The encoded samples; see `samples.encode_samples`."""

    @property
    def timeline(self) -> Timeline:
        """The decoded timeline: what ran where and when."""
        record = self.record
        return decode_records(self.records, self.tasks, record.started, record.makespan)


class History(Protocol):
    """Stores runs; threads and processes may share it. Its pickle opens it again."""

    @property
    def where(self) -> str:
        """Where the runs are stored, for messages."""
        ...

    def file(self, run: FiledRun) -> None:
        """Store a run."""
        ...

    def runs(self, *, key: str | None = None, most: int = 20) -> list[RunRecord]:
        """Return the latest runs, latest first."""
        ...

    def keys(self) -> list[str]:
        """Return the keys of all workflows that have runs, most recently run first."""
        ...

    def count(self, key: str, fingerprint: str) -> int:
        """Return how many runs of a workflow are stored."""
        ...

    def find(self, run: str) -> RunRecord:
        """Find a run by its id or a unique prefix of it."""
        ...

    def load(self, record: RunRecord) -> FiledRun:
        """Load a run with its timeline and samples."""
        ...

    def samples(self, key: str) -> list[Samples]:
        """Return the samples of the latest runs of each `RunRecord.shape`, latest first."""
        ...

    def blocks(self, key: str) -> list[bytes]:
        """Return the same samples, encoded."""
        ...

    def decoded(self, key: str, blocks: Sequence[bytes]) -> list[Samples]:
        """Return encoded samples of a workflow, decoded; damaged ones are left out."""
        ...

    def clear(self, key: str | None = None) -> int:
        """Delete the runs of one workflow or all; return how many there were."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: the runs read, added and kept."""

    runs: int
    new: int
    """The runs that the history did not have before."""
    kept: int
    """The runs that are in the bounded history after the import."""


class BlockReader:
    """Decodes samples; skips damaged ones, with one warning per workflow."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._warned: set[str] = set()

    def read(self, key: str, blocks: Sequence[bytes]) -> list[Samples]:
        """Decode the readable blocks of a workflow's samples."""
        found = []
        for block in blocks:
            with contextlib.suppress(ShoalError):
                found.append(decode_samples(block))
        if len(found) < len(blocks) and key not in self._warned:
            self._warned.add(key)
            log.warning(
                "ignoring %d of %d runs of %r: their samples in %s are damaged. Delete this "
                "workflow's runs with `shoal history clear %s`.",
                len(blocks) - len(found), len(blocks), key, self._where, shlex.quote(key),
            )  # fmt: skip
        return found


def export_runs(history: History, key: str | None = None) -> Iterator[str]:
    """Yield each run as a line of JSON, oldest first."""
    for record in reversed(history.runs(key=key, most=ALL)):
        try:
            run = history.load(record)
        except UnknownRun:
            continue  # It was deleted to make room in the meantime.
        line = {
            "record": asdict(record),
            "tasks": list(run.tasks),
            "records": [base64.b64encode(data).decode() for data in run.records],
            "samples": base64.b64encode(run.samples).decode(),
        }
        yield json.dumps(line, separators=(",", ":"))


def import_runs(history: History, lines: Iterable[str], where: Path) -> Imported:
    """Store exported runs; if any line is damaged, store none and raise an error that names it."""
    runs = []
    for number, line in enumerate(lines, 1):
        try:
            runs.append(_decode_run(json.loads(line)))
        except (*_DECODING_ERRORS, ShoalError) as error:
            reason = repr(error) if isinstance(error, LookupError) else error
            raise UsageError(f"{where}, line {number}: not an exported run ({reason}).") from error
    ids = {run.record.run for run in runs}
    before = _ids(history)
    for run in runs:
        history.file(run)
    return Imported(len(ids), len(ids - before), len(ids & _ids(history)))


def _ids(history: History) -> set[RunId]:
    return {record.run for record in history.runs(most=ALL)}


def _decode_run(line: Any) -> FiledRun:
    """Decode an exported run and check that all of it can be read later."""
    record = checked(RunRecord(**line["record"]))
    tasks = line["tasks"]
    if not isinstance(tasks, list) or not all(map(_is_text, tasks)):
        raise ValueError(f"tasks can't be {reprlib.repr(tasks)}")
    with _name_field("records"):
        records = [base64.b64decode(data, validate=True) for data in line["records"]]
        timeline = decode_records(records, tasks, record.started, record.makespan)
        if not all(isfinite(span.start + span.end + span.cpu) for span in timeline.spans):
            raise ValueError("a span has no times")
    with _name_field("samples"):
        samples = base64.b64decode(line["samples"], validate=True)
        decoded = decode_samples(samples).samples
        if not all(isfinite(sample.seconds + sample.cpu) for sample in decoded):
            raise ValueError("a sample has no times")
    return FiledRun(record, tasks, records, samples)


@contextlib.contextmanager
def _name_field(field: str) -> Iterator[None]:
    """Prefix any decoding error with the field's name."""
    try:
        yield
    except (*_DECODING_ERRORS, ShoalError) as error:
        raise ValueError(f"{field}: {error}") from error


def checked(record: RunRecord) -> RunRecord:
    """Return the record if every field is valid, else raise a `ValueError` that names the field."""
    for name, valid in _VALIDATORS.items():
        value = getattr(record, name)
        if not valid(value):
            raise ValueError(f"{name} can't be {reprlib.repr(value)}")
    return record


def _is_text(value: object) -> bool:
    """Return whether a value is a string that can be encoded: no lone surrogate."""
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


_VALIDATORS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("run", "name", "key", "fingerprint", "planner", "outcome"), _is_text),
    **dict.fromkeys(("configuration", "sla", "platform"), _is_text),
    **dict.fromkeys(("tasks", "workers"), _is_count),
    **dict.fromkeys(("makespan", "planning"), _is_number),
    "started": _is_time,
    "predicted": lambda value: value is None or _is_number(value),
    "quality": _is_quality,
}
"""The validator of each field of a record."""


def text_of(value: str) -> str:
    """Text that history can keep."""
    return value.encode(errors="replace").decode()
