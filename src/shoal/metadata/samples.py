"""Extract a run's cost samples from its timeline, and encode them for the history.

1. A sample is a cost and what it depends on. Examples: how long a task ran, given the size of its
   input and the worker's resources, and how large its output was; how long a transfer of so many
   bytes took; how long a start, a message or the launch of the run took.
2. A run's samples are stored as one compact block of columns, written once and read as a whole.
3. Machines, networks and starts differ from platform to platform, so a block says where it was
   measured. Samples from elsewhere count only where there are none from here.
4. Executions also have what a task's time may depend on besides the size of its input: the sizes
   of single inputs and its small constants. Each combination is in the block's header once. Blocks
   of earlier versions have none.
5. A block has at most `MOST` samples of each kind, task and configuration, picked evenly by size,
   so it stays small however many tasks the workflow has.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.execution.timeline import RUNS, STARTS, Span, Timeline
from shoal.metadata.features import Inputs, Value, values_of
from shoal.types import MB_PER_CPU, Resources, TaskId, WorkerId
from shoal.workflow import Workflow

MOST = 200
"""How many samples of each kind, task and configuration a block may have."""

FIRST = "first"
"""The name of a sample of a worker that the client started together with the run."""

KINDS = ("execute", "fetch", "save", "cold start", "warm start", "deliver", "launch", "hand in",
         "memory")  # fmt: skip
_FIELDS = 8
"""The columns of every block; what executions may depend on is one more in later versions."""


class About(NamedTuple):
    """What a task's time may depend on besides the size of its whole input."""

    inputs: tuple[int, ...] = ()
    """The size of each input, if there are a few."""
    many: int = 0
    """How many inputs there are."""
    values: Mapping[str, Value] = {}
    """Its small constants."""


NOTHING = About()


class Sample(NamedTuple):
    """One recorded cost."""

    kind: str
    name: str
    """The task's key, or `FIRST`; empty for anything else. For a transfer: the task whose output
    was moved, or empty."""
    number: int
    """The task's index in its workflow; -1 if the sample is not about a task."""
    resources: Resources
    nbytes: int
    """What the cost depends on: the size of a task's input, of a transfer or of a run's constants.
    For a start: how many other starts were under way. For `memory`: the bytes a task needs."""
    seconds: float
    cpu: float
    """CPU seconds; only for executions."""
    output_nbytes: int
    """The size of the task's output; only for executions."""
    about: About = NOTHING
    """Only for executions."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one run."""

    fingerprint: str
    """The workflow's fingerprint; workflows that share it number their tasks alike."""
    samples: list[Sample]
    platform: str = ""
    """Where they were measured, as `platform_name` names it."""


def measured_on(platform: str, runs: Sequence[Samples]) -> list[Samples]:
    """Leave out what was measured on other platforms, where this one has samples of its own.

    The memory that tasks need is the same everywhere.
    """
    known = {_cost(each) for run in runs if run.platform == platform for each in run.samples}
    known.discard(("memory", ""))
    found = []
    for run in runs:
        if run.platform != platform:
            run = replace(run, samples=[s for s in run.samples if _cost(s) not in known])
        if run.samples:
            found.append(run)
    return found


def _cost(sample: Sample) -> tuple[str, str]:
    """What a sample is of: starts, transfers, or the executions of one task."""
    return sample.kind, sample.name if sample.kind == "execute" else ""


def encode_samples(
    workflow: Workflow,
    workers: Mapping[WorkerId, Resources],
    timeline: Timeline,
    constants: Mapping[TaskId, Mapping[TaskId, int]],
    needs: Mapping[str, int] | None = None,
    platform: str = "",
) -> bytes:
    """Extract the samples of a run and encode them as one block.

    Args:
        workflow: The workflow that ran.
        workers: The resources of each worker.
        timeline: The run's timeline.
        constants: The sizes of each task's large constant arguments.
        needs: The memory that tasks turned out to need, in MB, by task key.
        platform: Where they ran, as `platform_name` names it.
    """
    rows = _SampleExtractor(workflow, workers, timeline, constants).rows()
    some = next(iter(workers.values()), Resources(MB_PER_CPU))
    for name, memory_mb in (needs or {}).items():
        rows.append(Sample("memory", name, -1, some, memory_mb * 2**20, 0.0, 0.0, 0))
    names = list(dict.fromkeys(row.name for row in rows))
    configurations = list(dict.fromkeys(row.resources for row in rows))
    name_of = {name: i for i, name in enumerate(names)}
    configuration_of = {resources: i for i, resources in enumerate(configurations)}
    about: dict[str, int] = {}
    table = [
        (KINDS.index(row.kind), name_of[row.name], row.number, configuration_of[row.resources],
         row.nbytes, row.seconds, row.cpu, row.output_nbytes,
         about.setdefault(json.dumps(row.about), len(about)))
        for row in rows
    ]  # fmt: skip
    columns = zip(*table, strict=True) if table else []
    packed = b"".join(array("d", column).tobytes() for column in columns)
    header = {
        "fingerprint": workflow.fingerprint(),
        "names": names,
        "resources": [(resources.memory_mb, resources.cpus) for resources in configurations],
        "rows": len(rows),
        "order": sys.byteorder,
        "platform": platform,
        "about": [json.loads(each) for each in about],
    }
    return zlib.compress(json.dumps(header).encode() + b"\n" + packed, 1)


def decode_samples(block: bytes) -> Samples:
    """Decode a block of samples."""
    try:
        head, _, packed = zlib.decompress(block).partition(b"\n")
        header = json.loads(head)
        columns = array("d")
        columns.frombytes(packed)
        if header["order"] != sys.byteorder:
            columns.byteswap()
        count, names = header["rows"], header["names"]
        configurations = [Resources(memory_mb, cpus) for memory_mb, cpus in header["resources"]]
        known = [_about(each) for each in header.get("about", ())]
        abouts = columns[_FIELDS * count :] if known else [0.0] * count
        known = known or [NOTHING]
        table = zip(*(columns[i * count : (i + 1) * count] for i in range(_FIELDS)), abouts,
                    strict=True)  # fmt: skip
        samples = [
            Sample(KINDS[int(kind)], names[int(name)], int(number),
                   configurations[int(resources)], int(nbytes), seconds, cpu, int(output_nbytes),
                   known[int(about)])
            for kind, name, number, resources, nbytes, seconds, cpu, output_nbytes, about in table
        ]  # fmt: skip
        return Samples(header["fingerprint"], samples, header.get("platform", ""))
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError,
            OverflowError) as error:  # fmt: skip
        raise ShoalError(f"A block of samples in the history is damaged: {error!r}.") from error


def _about(known: Any) -> About:
    inputs, count, values = known
    if not all(isinstance(value, str | float) for value in values.values()):
        raise ValueError(f"{values!r} are no constants")
    return About(tuple(map(int, inputs)), int(count), values)


class _SampleExtractor:
    def __init__(
        self,
        workflow: Workflow,
        workers: Mapping[WorkerId, Resources],
        timeline: Timeline,
        constants: Mapping[TaskId, Mapping[TaskId, int]],
    ) -> None:
        self.workflow = workflow
        self.workers = workers
        self.timeline = timeline
        self.constants = constants
        self.tasks = list(workflow.calls)
        self.numbers = {task: number for number, task in enumerate(workflow.calls)}
        self.outputs = {s.task: s.nbytes for s in timeline.of_kind(*RUNS) if s.task}
        self.inputs = Inputs(workflow, constants)

    def rows(self) -> list[Sample]:
        groups: dict[tuple[str, str, Resources], list[Sample]] = {}
        for sample in (*self._of_spans(), *self._of_starts(), *self._of_client()):
            groups.setdefault((sample.kind, sample.name, sample.resources), []).append(sample)
        thinned = (sample for samples in groups.values() for sample in _thinned(samples))
        return [self._described(sample) if sample.number >= 0 else sample for sample in thinned]

    def _described(self, sample: Sample) -> Sample:
        """Add what an execution may depend on."""
        task = self.tasks[sample.number]
        inputs, count = self.inputs.sizes(task, self.outputs), self.inputs.count(task)
        return sample._replace(about=About(inputs, count, values_of(self.workflow.calls[task])))

    def _of_spans(self) -> list[Sample]:
        samples = []
        for span in self.timeline.of_kind("execute", "fetch", "save", "deliver"):
            resources = self.workers.get(span.worker)
            if resources is None or span.came_along:
                continue
            if span.kind == "execute":
                samples.append(self._execution(span, resources))
            else:
                call = self.workflow.calls.get(span.task) if span.task else None
                moved = call.task.key if call and span.kind != "deliver" else ""
                samples.append(
                    Sample(span.kind, moved, -1, resources, span.nbytes, span.seconds, 0.0, 0)
                )
        return samples

    def _execution(self, span: Span, resources: Resources) -> Sample:
        assert span.task is not None
        task = span.task
        nbytes = sum(self.outputs.get(source, 0) for source in self.workflow.upstream[task])
        nbytes += sum(self.constants.get(task, {}).values())
        key = self.workflow.calls[task].task.key
        return Sample("execute", key, self.numbers[task], resources, nbytes, span.seconds,
                      span.cpu, span.nbytes)  # fmt: skip

    def _of_starts(self) -> list[Sample]:
        """Return a sample for each start, which includes the imports that follow it."""
        latest: dict[WorkerId, int] = {}
        roots = {task for task, sources in self.workflow.upstream.items() if not sources}
        with_roots = {s.worker for s in self.timeline.of_kind(*RUNS) if s.task in roots}
        samples: list[Sample] = []
        concurrent = _concurrent_starts(self.timeline.of_kind(*STARTS))
        for span in self.timeline.of_kind(*STARTS, "load"):
            resources = self.workers.get(span.worker)
            if resources is None:
                continue
            if span.kind == "load":
                at = latest.get(span.worker)
                if at is not None:
                    seconds = samples[at].seconds + span.seconds
                    samples[at] = samples[at]._replace(seconds=seconds)
                continue
            name = FIRST if span.worker in with_roots and span.worker not in latest else ""
            latest[span.worker] = len(samples)
            others = concurrent[span.worker, span.start]
            samples.append(Sample(span.kind, name, -1, resources, others, span.seconds, 0.0, 0))
        return samples

    def _of_client(self) -> list[Sample]:
        starts = self.timeline.of_kind(*STARTS)
        if not starts:
            return []
        nobody = next(iter(self.workers.values()))
        sizes: dict[TaskId, int] = {}
        for named in self.constants.values():
            sizes.update(named)
        launch = min(span.start for span in starts)
        samples = [Sample("launch", "", -1, nobody, sum(sizes.values()), launch, 0.0, 0)]
        sinks = set(self.workflow.sinks)
        ends = [
            (span.end, self.outputs.get(span.task, 0))
            for span in self.timeline.of_kind(*RUNS, "save")
            if span.task in sinks
        ]
        if sinks <= self.outputs.keys():  # else the run ended for another reason
            end, nbytes = max(ends)
            seconds = max(0.0, self.timeline.makespan - end)
            samples.append(Sample("hand in", "", -1, nobody, nbytes, seconds, 0.0, 0))
        return samples


def _concurrent_starts(starts: Sequence[Span]) -> dict[tuple[WorkerId, float], int]:
    """Count the starts under way when each start began; ties are ordered by worker number."""
    found: dict[tuple[WorkerId, float], int] = {}
    under_way: list[float] = []
    for span in sorted(starts, key=lambda s: (s.start, len(s.worker), s.worker)):
        while under_way and under_way[0] <= span.start:
            heappop(under_way)
        found[span.worker, span.start] = len(under_way)
        heappush(under_way, span.end)
    return found


def _thinned(samples: list[Sample]) -> list[Sample]:
    """Return at most `MOST` samples, picked evenly by size."""
    if len(samples) <= MOST:
        return samples
    samples.sort(key=lambda sample: sample.nbytes)
    step = (len(samples) - 1) / (MOST - 1)
    return [samples[round(i * step)] for i in range(MOST)]
