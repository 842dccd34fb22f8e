"""Read and write the records of an experiment: a folder that runs fill and a report reads.

1. `experiment.json` describes the experiment; it is written first.
2. `runs.jsonl` has a line for each run, appended and flushed when the run has ended. A line that an
   interruption truncated is ignored when the experiment is resumed: its run is repeated.
3. `timelines/` has each run's timeline, written before the run's line, so that no line refers to a
   missing timeline.
4. `history/` has the samples of each run, including warm-ups, so that a resumed experiment plans
   from the same history.
5. `scale.jsonl` has the results of simulations that measure the simulator itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from shoal.errors import UsageError
from shoal.execution.timeline import KINDS, SpanRow, Timeline, decode_records, encode_record
from shoal.types import TaskId, WorkerId

HEAD = "experiment.json"
RUNS = "runs.jsonl"
SCALE = "scale.jsonl"
TIMELINES = "timelines"
HISTORY = "history"

_DAMAGES = (ValueError, LookupError, TypeError, zlib.error, AttributeError)

L = TypeVar("L", "Row", "Scale")


@dataclass(frozen=True, slots=True)
class Experiment:
    """The description of an experiment."""

    grid: str
    mode: str
    """`real` or `virtual`."""
    repeat: int
    seed: int
    started: str
    """The date and time, as ISO 8601 has it."""
    machine: str
    """Cores, CPU, memory, operating system, Python."""
    shoal: str
    """The version."""
    command: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The sandboxes, the latency, the memory sizes and so on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    FILE: ClassVar[str] = RUNS

    id: str
    """`workflow/planner/sla/repeat`."""
    workflow: str
    planner: str
    """The planner or the design."""
    sla: int
    """The percentile that it was planned for."""
    repeat: int
    mode: str
    tasks: int
    makespan: float
    """From the start of the run until the client had the last result."""
    gb_seconds: float
    price: float
    """In US dollars, at AWS Lambda's prices."""
    startup: float
    """Start-ups of workers, summed."""
    waiting: float
    """Time in which workers were there and did nothing, summed."""
    executing: float
    fetching: float
    saving: float
    uploaded: int
    """Bytes that were saved to the store."""
    downloaded: int
    """Bytes that were fetched from the store."""
    operations: int
    """Coordination: messages to the store about tasks and workers."""
    cold: int
    """Cold starts."""
    warm: int
    """Warm starts."""
    workers: int
    planning: float
    """Seconds that the plan took."""
    predicted: float | None = None
    """The makespan that was promised at the service level before the run; None: nothing was."""
    predicted_median: float | None = None
    """The makespan that was expected at the median before the run."""
    execution_error: float | None = None
    """The median relative error of the predictions of executions; None: there were none."""
    transfer_error: float | None = None
    startup_error: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the workflow was made with."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One simulation of a very large workflow."""

    FILE: ClassVar[str] = SCALE

    shape: str
    """`tree` or `layered`."""
    tasks: int
    workers: int
    makespan: float
    ideal: float
    """The larger of the critical path and the work of each worker if all had the same."""
    operations: int
    seconds: float
    """CPU seconds of the simulation, its plan not counted."""
    peak_mb: float
    """The most memory that the simulating process has held."""

    @property
    def id(self) -> str:
        """What it is called."""
        return f"{self.shape}/{self.tasks}/{self.workers}"


class Records:
    """A folder with an experiment's records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether there is an experiment in the folder."""
        return (self.folder / HEAD).exists()

    def begin(self, experiment: Experiment) -> None:
        """Create the folder and write the experiment's description."""
        for name in (TIMELINES, HISTORY):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(experiment), indent=1)
        (self.folder / HEAD).write_text(text + "\n")

    def experiment(self) -> Experiment:
        """Read the experiment's description."""
        path = self.folder / HEAD
        try:
            made: Experiment = _made(Experiment, json.loads(path.read_text()))
            return made
        except FileNotFoundError as error:
            raise UsageError(
                f"There is no experiment in {self.folder}: it has no {HEAD}. Create one with "
                "`shoal experiments run --to FOLDER`."
            ) from error
        except _DAMAGES as error:
            raise UsageError(f"{path} is damaged: {error}.") from error

    def append(self, row: Row | Scale, timeline: Timeline | None = None) -> None:
        """Append a run and store its timeline."""
        if timeline is not None and isinstance(row, Row):
            self.timeline_path(row.id).write_bytes(encode_timeline(timeline))
        line = json.dumps(asdict(row), separators=(",", ":")).encode() + b"\n"
        with (self.folder / row.FILE).open("a+b") as file:
            if file.tell():
                file.seek(-1, 2)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def rows(self) -> tuple[list[Row], list[str]]:
        """Return all runs, and a message for each line that can't be read."""
        return self._lines(Row)

    def scale(self) -> tuple[list[Scale], list[str]]:
        """Return all large simulations, and a message for each line that can't be read."""
        return self._lines(Scale)

    def done(self) -> set[str]:
        """Return the ids of finished runs."""
        return {line.id for lines in (self.rows()[0], self.scale()[0]) for line in lines}

    def _lines(self, kind: type[L]) -> tuple[list[L], list[str]]:
        path = self.folder / kind.FILE
        good: list[L] = []
        damaged: list[str] = []
        if not path.exists():
            return good, damaged
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if line.strip():
                try:
                    good.append(_made(kind, json.loads(line)))
                except _DAMAGES as error:
                    damaged.append(f"{path}, line {number}: {error}")
        return good, damaged

    def save_samples(self, run: str, block: bytes) -> None:
        """Store the samples of a run."""
        path = self._block_path(run)
        part = path.with_suffix(".part")
        part.write_bytes(block)
        part.rename(path)

    def load_samples(self, run: str) -> bytes | None:
        """Load the samples of a run; None if it has not run."""
        path = self._block_path(run)
        return path.read_bytes() if path.exists() else None

    def all_samples(self) -> list[bytes]:
        """Load the samples of all runs."""
        return [path.read_bytes() for path in sorted((self.folder / HISTORY).glob("*.bin"))]

    def _block_path(self, run: str) -> Path:
        return self.folder / HISTORY / f"{run.replace('/', '-')}.bin"

    def timeline_path(self, run: str) -> Path:
        """Return the path of a run's timeline."""
        return self.folder / TIMELINES / f"{run.replace('/', '-')}.bin"

    def timeline(self, run: str) -> Timeline:
        """Load the timeline of a run."""
        path = self.timeline_path(run)
        try:
            return decode_timeline(path.read_bytes())
        except FileNotFoundError as error:
            raise UsageError(f"There is no timeline of {run}: {path} is missing.") from error
        except _DAMAGES as error:
            raise UsageError(f"{path} is damaged: {error}.") from error


def encode_timeline(timeline: Timeline) -> bytes:
    """Encode a timeline: a header line, followed by each worker's record."""
    numbers: dict[TaskId | None, int] = {None: -1}
    tasks: list[TaskId] = []
    rows: dict[WorkerId, list[SpanRow]] = {}
    for span in timeline.spans:
        if span.task not in numbers and span.task is not None:
            numbers[span.task] = len(tasks)
            tasks.append(span.task)
        rows.setdefault(span.worker, []).append(
            (KINDS.index(span.kind), numbers[span.task], span.start, span.end, span.cpu,
             span.nbytes)
        )  # fmt: skip
    records = [encode_record(worker, spans) for worker, spans in rows.items()]
    header = {"tasks": tasks, "makespan": timeline.makespan, "lengths": [*map(len, records)]}
    return zlib.compress(json.dumps(header).encode() + b"\n" + b"".join(records))


def decode_timeline(kept: bytes) -> Timeline:
    """Decode a timeline."""
    head, _, packed = zlib.decompress(kept).partition(b"\n")
    header = json.loads(head)
    records, start = [], 0
    for length in header["lengths"]:
        records.append(packed[start : start + length])
        start += length
    return decode_records(records, header["tasks"], 0.0, header["makespan"])


def _made(kind: Any, values: Any) -> Any:
    """Create a record from a dictionary, ignoring unknown keys."""
    names = {item.name for item in fields(kind)}
    record = kind(**{name: value for name, value in values.items() if name in names})
    for item in fields(kind):
        _check(item.name, str(item.type), getattr(record, item.name))
    return record


def _check(name: str, annotation: str, value: Any) -> None:
    """Raise an error if a value has the wrong type."""
    if value is None and annotation.endswith("None"):
        return
    match annotation.partition(" ")[0].partition("[")[0]:
        case "int" | "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            good = number and isfinite(value)
        case "str":
            good = isinstance(value, str)
        case _:
            good = isinstance(value, Mapping)
    if not good:
        raise ValueError(f"{name} can't be {value!r}")
