"""Predict the costs of a workflow's tasks, transfers and starts from samples of earlier runs.

1. Resources: if there are enough samples with the same resources, only those are used. Otherwise
   samples with other resources are converted by how fast each configuration computes. Waiting time
   is not converted, and neither are starts, because nothing suggests that memory slows them down.
   Workers started by the client and workers started by other workers are predicted separately,
   because the latter compete with the worker that starts them. The delay that concurrent starts
   cause each other is estimated separately, so that every start is a sample of a single one.
2. Size: samples whose size is near the requested size are used. A window widens until it has enough
   samples, balanced between smaller, larger and equal ones, closest first; failing that, the
   nearest samples are used. A task learns from its own samples, in runs of the same workflow shape,
   before those of other tasks with its name. Of its own samples, and of starts and messages, the
   latest count most.
3. A percentile is taken of costs, never of speeds: a higher one never predicts a smaller cost.
4. Each prediction is computed once per plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from statistics import fmean
from typing import NamedTuple

from shoal.execution.costs import Costs, Direction
from shoal.execution.timeline import STARTS
from shoal.metadata.draws import TASKS, Choice, Draws, Kin, Value
from shoal.metadata.samples import FIRST, KINDS, Sample, Samples
from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

ENOUGH = 6
"""With this many samples of the same resources, samples of other resources are ignored."""
LEAST, MOST = 5, 100
"""The fewest and the most samples that a prediction uses."""
RECENT = 10
"""How many of the latest samples count, for costs that vary only with time."""
_DECAY = 0.7
"""The weight of such a sample, relative to one from the following run."""
OF_ITS_OWN = 3
"""With this many samples of a task itself, those of other tasks with its name are ignored."""
_STEP = 0.05
"""How much the window widens at a time, relative to the requested size; at most to 100 %."""
PARALLEL_GAIN = 0.3
"""The exponent by which a task that uses several CPUs speeds up with more of them."""
_FIXED_NBYTES = 64 * 1024
"""The fixed cost of a transfer, expressed in bytes."""
_SLIGHT_NBYTES = 1024
"""Sizes below this hardly affect how long a task takes."""
_LEAST_ALONE = 0.1
"""The least share of its time that a concurrent start would have taken alone."""
_UNKNOWN = Kin(TASKS)
"""The kin of a task with too few samples of its own."""
_KIN = {
    part: Kin(part, part)
    for part in (*(kind + who for kind in STARTS for who in (FIRST, "")), *KINDS)
}
"""The kin of everything but tasks: costs of one kind share their deviations."""


@dataclass(frozen=True)
class DefaultCosts:
    """The costs assumed without history, the same for every service level."""

    constants: Mapping[TaskId, Mapping[TaskId, int]] = field(default_factory=dict)
    latency: float = 0.0
    """Seconds added to each round trip."""
    basis: str = "no history"

    def launch(self) -> float:
        """Return how long packing and sending the plan takes."""
        return 0.003 + self.latency

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return how long a local sandbox takes to start."""
        return (0.002 if warm else 0.03) + self.latency

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return how long a transfer takes at 500 MB/s."""
        return 0.0005 + nbytes / 500e6 + self.latency

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return how long a task takes, which is the same for all."""
        return 0.1

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the size of an output, which is small."""
        return 1024

    def coordination(self) -> float:
        """Return how long a round trip to a local server takes."""
        return 0.0005 + self.latency

    def invocation(self) -> float:
        """Return how long an invocation takes at a local gateway."""
        return 0.0002

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """Return how long a message takes, and a transfer if the value is too large for it."""
        return self.coordination() + self.transfer("fetch", nbytes, resources)

    def at(self, sla: SLA) -> Costs:
        """Return these costs for any service level."""
        return self

    def sampled(self, seed: int) -> Costs:
        """Return these costs for any seed."""
        return self


class LearntPredictions:
    """Predictions from the samples of earlier runs of a workflow."""

    def __init__(
        self,
        workflow: Workflow,
        runs: Sequence[Samples],
        defaults: DefaultCosts,
    ) -> None:
        """Learn from the samples of earlier runs.

        Args:
            workflow: The workflow to plan.
            runs: The samples of earlier runs with the same key, latest first.
            defaults: The costs to assume where there are no samples; has the workflow's constants.
        """
        self.constants = defaults.constants
        self.basis = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        self.defaults = defaults
        self._calls = workflow.calls
        self._numbers = {task: number for number, task in enumerate(workflow.calls)}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._own: dict[int, _Group] = {}
        """The samples of each task, by its number, from runs of the same shape."""
        self._draws = Draws()
        self.needs: dict[str, int] = {}
        """The memory that tasks turned out to need, in MB, by task key."""
        self._crowds = _crowds(runs)
        self._cached: dict[tuple[str, str | int, int, Resources | None, int], list[Value]] = {}
        same = workflow.fingerprint()
        keys = {n: call.task.key for n, call in enumerate(workflow.calls.values())}
        for run, block in enumerate(runs):
            own = block.fingerprint == same
            for sample in block.samples:
                same_task = keys.get(sample.number, sample.name) == sample.name
                self._learn(run, sample, own=own and same_task)

    def _learn(self, run: int, sample: Sample, *, own: bool) -> None:
        if sample.kind == "memory":
            needed = sample.nbytes // 2**20
            self.needs[sample.name] = max(needed, self.needs.get(sample.name, 0))
            return
        if sample.kind in STARTS:
            alone = sample.seconds - self.crowding(sample.kind, sample.name, sample.nbytes)
            sample = sample._replace(seconds=max(alone, _LEAST_ALONE * sample.seconds), nbytes=0)
        key = (sample.kind, sample.name)
        recent = sample.kind not in ("execute", "fetch", "save")
        self._groups.setdefault(key, _Group(recent=recent)).add(run, sample)
        if sample.kind == "execute" and own:
            self._own.setdefault(sample.number, _Group(recent=True)).add(run, sample)
            thing = (sample.number, sample.resources)
            self._draws.add(run, Kin(TASKS, sample.name, thing), sample.seconds)
        elif sample.kind != "execute":
            part = sample.kind + sample.name
            thing = (sample.nbytes, sample.resources)
            self._draws.add(run, Kin(part, part, thing), sample.seconds)

    def at(self, sla: SLA) -> Costs:
        """Return the costs at a service level."""
        p = 50.0 if sla == "median" else sla.p
        known: dict[int, float] = {}

        def choose(values: list[Value], _: Kin) -> float:
            """Return the percentile of a list of values, computed once per list."""
            amount = known.get(id(values))
            if amount is None:
                amount = known[id(values)] = percentile(values, p)
            return amount

        return _CostsAt(self, choose, p, RECENT)

    def sampled(self, seed: int) -> Costs:
        """Draw the costs of one possible run."""
        return _CostsAt(self, self._draws.of_run(seed), 50.0, MOST)

    def executions(self, task: TaskId, nbytes: int, resources: Resources) -> list[Value]:
        """Return how long the task took, converted to this size and these resources."""
        name, number = self._calls[task].task.key, self._numbers[task]
        return self._values("execute", name, number, nbytes, resources)

    def kin(self, task: TaskId, nbytes: int, resources: Resources) -> Kin:
        """Return the groups that the task belongs to; by name only if it ran often enough."""
        number = self._numbers[task]
        if self._own_group(number, nbytes) is None:
            return _UNKNOWN
        return Kin(TASKS, self._calls[task].task.key, (number, resources))

    def outputs(self, task: TaskId, nbytes: int) -> list[Value]:
        """Return how large the task's output was, converted to this input size."""
        name, number = self._calls[task].task.key, self._numbers[task]
        return self._values("output", name, number, nbytes, None)

    def transfers(self, direction: Direction, nbytes: int, resources: Resources) -> list[Value]:
        """Return how long transfers took, converted to this size and these resources."""
        return self._values(direction, "", -1, nbytes, resources)

    def crowding(self, kind: str, who: str, beside: int) -> float:
        """Return the delay that `beside` concurrent starts cause, up to as many as were seen."""
        crowd = self._crowds.get(kind + who)
        return min(beside, crowd.most) * crowd.each if crowd else 0.0

    def others(
        self, kind: str, latest: int, nbytes: int = 0, resources: Resources | None = None,
        name: str = "",
    ) -> list[Value]:  # fmt: skip
        """Return how long the latest starts, messages or launches took."""
        return self._values(kind, name, -1, nbytes, resources, latest)

    def _own_group(self, number: int, nbytes: int) -> _Group | None:
        own = self._own.get(number)
        if own is not None and len(own) >= OF_ITS_OWN and own.has_near(nbytes):
            return own
        return None

    def _values(
        self, kind: str, name: str, number: int, nbytes: int, resources: Resources | None,
        latest: int = RECENT,
    ) -> list[Value]:  # fmt: skip
        group = self._groups.get(("execute" if kind == "output" else kind, name))
        if group is None:
            return []
        own = self._own_group(number, nbytes)
        group = own or group
        key = (kind, number if group is own else name, nbytes, resources, latest)
        values = self._cached.get(key)
        if values is None:  # keep the first thread's list: lists are compared by identity
            values = self._cached.setdefault(key, group.values(kind, nbytes, resources, latest))
        return values


class _CostsAt:
    """One figure for each cost, chosen from its recorded values."""

    def __init__(
        self, predictions: LearntPredictions, choose: Choice, p: float, latest: int
    ) -> None:
        self.constants = predictions.constants
        self._predictions = predictions
        self._choose = choose
        self._p = p
        self._latest = latest
        """How many of the latest starts and messages to use."""
        self._defaults = predictions.defaults
        self._executions: dict[tuple[TaskId, int, Resources], float] = {}
        self._outputs: dict[tuple[TaskId, int], int] = {}
        sizes = {name: n for sizes in self.constants.values() for name, n in sizes.items()}
        self._constant_nbytes = sum(sizes.values())

    def launch(self) -> float:
        values = self._predictions.others("launch", self._latest, self._constant_nbytes)
        return self._choose(values, _KIN["launch"]) if values else self._defaults.launch()

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        kind = "warm start" if warm else "cold start"
        for who in (FIRST, "") if first else ("", FIRST):
            values = self._predictions.others(kind, self._latest, 0, resources, who)
            if values:
                alone = self._choose(values, _KIN[kind + who])
                return alone + self._predictions.crowding(kind, who, beside)
        return self._defaults.startup(resources, warm=warm)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        values = self._predictions.transfers(direction, nbytes, resources)
        if not values:
            return self._defaults.transfer(direction, nbytes, resources)
        return self._choose(values, _KIN[direction])

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        key = (task, input_nbytes, resources)
        seconds = self._executions.get(key)
        if seconds is None:
            values = self._predictions.executions(task, input_nbytes, resources)
            seconds = (
                self._choose(values, self._predictions.kin(task, input_nbytes, resources))
                if values
                else self._defaults.execution(task, input_nbytes, resources)
            )
            self._executions[key] = seconds
        return seconds

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        key = (task, input_nbytes)
        nbytes = self._outputs.get(key)
        if nbytes is None:
            values = self._predictions.outputs(task, input_nbytes)
            nbytes = (
                round(percentile(values, self._p))
                if values
                else self._defaults.output_nbytes(task, input_nbytes)
            )
            self._outputs[key] = nbytes
        return nbytes

    def coordination(self) -> float:
        values = self._predictions.others("deliver", self._latest)
        return self._choose(values, _KIN["deliver"]) if values else self._defaults.coordination()

    def invocation(self) -> float:
        return self._defaults.invocation()

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        values = self._predictions.others("hand in", self._latest, nbytes)
        if not values:
            return self._defaults.hand_in(nbytes, resources)
        return self._choose(values, _KIN["hand in"])


class _Crowd(NamedTuple):
    """The delay that concurrent starts cause."""

    each: float
    """The seconds that each concurrent start adds."""
    most: int
    """The most concurrent starts seen."""


def _crowds(runs: Sequence[Samples]) -> dict[str, _Crowd]:
    """Estimate the delay for each kind of start by regression within runs, whose paces differ."""
    products: dict[str, float] = {}
    squares: dict[str, float] = {}
    most: dict[str, int] = {}
    for block in runs:
        starts: dict[str, list[Sample]] = {}
        for sample in block.samples:
            if sample.kind in STARTS:
                starts.setdefault(sample.kind + sample.name, []).append(sample)
        for part, found in starts.items():
            others = fmean([sample.nbytes for sample in found])
            seconds = fmean([sample.seconds for sample in found])
            for sample in found:
                away = sample.nbytes - others
                products[part] = products.get(part, 0.0) + away * (sample.seconds - seconds)
                squares[part] = squares.get(part, 0.0) + away**2
                most[part] = max(sample.nbytes, most.get(part, 0))
    return {
        part: _Crowd(max(0.0, products[part] / square), most[part])
        for part, square in squares.items()
        if square
    }


class _SampleRow(NamedTuple):
    nbytes: int
    run: int
    sample: Sample


class _Group:
    """The samples of one cost, by resources and size."""

    def __init__(self, *, recent: bool = False) -> None:
        self._recent = recent
        """Whether only the latest samples count, because the cost varies only with time."""
        self._all: list[_SampleRow] = []
        self._of: dict[Resources, list[_SampleRow]] = {}
        self._sorted = True

    def __len__(self) -> int:
        return len(self._all)

    def add(self, run: int, sample: Sample) -> None:
        row = _SampleRow(sample.nbytes, run, sample)
        self._all.append(row)
        self._of.setdefault(sample.resources, []).append(row)
        self._sorted = False

    def has_near(self, nbytes: int) -> bool:
        """Return whether a size is within a factor of two of the sizes seen."""
        self._sort()
        return self._all[0].nbytes / 2 <= nbytes <= self._all[-1].nbytes * 2

    def values(
        self, kind: str, nbytes: int, resources: Resources | None, latest: int
    ) -> list[Value]:
        """Return the converted costs of the selected samples, smallest first."""
        self._sort()
        rows = self._all if resources is None else self._of.get(resources, [])
        if len(rows) < ENOUGH:
            rows = self._all
        scale = _SCALES.get(kind, _unscaled)
        growth = _growth(rows[0].nbytes, rows[-1].nbytes, nbytes)
        chosen = selected(rows, nbytes)
        if self._recent:
            chosen = sorted(chosen, key=lambda row: row.run)[:latest]
        decay = _DECAY if self._recent else 1.0
        return sorted(
            Value(scale(row.sample, nbytes, resources, growth), row.run, decay**row.run)
            for row in chosen
        )

    def _sort(self) -> None:
        if not self._sorted:  # into new lists: another thread may be reading these
            self._all = sorted(self._all, key=_order)
            self._of = {resources: sorted(rows, key=_order) for resources, rows in self._of.items()}
            self._sorted = True


def _order(row: _SampleRow) -> tuple[int, int]:
    return row.nbytes, row.run


def selected(rows: Sequence[_SampleRow], nbytes: int) -> list[_SampleRow]:
    """Select the samples near a size; `rows` are sorted by size."""
    sizes = [row.nbytes for row in rows]
    for step in range(1, round(1 / _STEP) + 1):
        low = bisect_left(sizes, nbytes * (1 - step * _STEP))
        high = bisect_right(sizes, nbytes * (1 + step * _STEP))
        if high - low >= LEAST:
            return _balanced(rows[low:high], nbytes)
    return sorted(rows, key=lambda row: (abs(row.nbytes - nbytes), row.run))[:LEAST]


def _balanced(rows: Sequence[_SampleRow], nbytes: int) -> list[_SampleRow]:
    """Return at most `MOST` rows, alternating equal, smaller and larger ones, closest first."""
    if len(rows) <= MOST:
        return list(rows)
    nearest = sorted(rows, key=lambda row: (abs(row.nbytes - nbytes), row.run))
    sides = [
        [row for row in nearest if row.nbytes == nbytes],
        [row for row in nearest if row.nbytes < nbytes],
        [row for row in nearest if row.nbytes > nbytes],
    ]
    turns = zip_longest(*sides)
    return list(islice((row for turn in turns for row in turn if row is not None), MOST))


def _unscaled(sample: Sample, nbytes: int, resources: Resources | None, growth: float) -> float:
    return sample.seconds


def _scale_execution(
    sample: Sample, nbytes: int, resources: Resources | None, growth: float
) -> float:
    """Convert a task's computing time to other resources; its waiting time stays the same."""
    seconds = sample.seconds * growth
    if resources is None or resources == sample.resources:
        return seconds
    busy = min(1.0, sample.cpu / sample.seconds) if sample.seconds else 1.0
    parallel = sample.cpu > 1.05 * sample.seconds
    there, here = (_speed(r, parallel=parallel) for r in (sample.resources, resources))
    return seconds * (1 - busy + busy * there / here)


def _scale_output(sample: Sample, nbytes: int, resources: Resources | None, growth: float) -> float:
    return sample.output_nbytes * growth


def _scale_transfer(
    sample: Sample, nbytes: int, resources: Resources | None, growth: float
) -> float:
    seconds = sample.seconds * (_FIXED_NBYTES + nbytes) / (_FIXED_NBYTES + sample.nbytes)
    if resources is None:
        return seconds
    return seconds * _speed(sample.resources, parallel=False) / _speed(resources, parallel=False)


_SCALES: dict[str, Callable[[Sample, int, Resources | None, float], float]] = {
    "execute": _scale_execution,
    "output": _scale_output,
    "fetch": _scale_transfer,
    "save": _scale_transfer,
    "launch": lambda sample, nbytes, _, growth: _scale_transfer(sample, nbytes, None, growth),
    "hand in": lambda sample, nbytes, _, growth: _scale_transfer(sample, nbytes, None, growth),
}


def _growth(smallest: int, largest: int, nbytes: int) -> float:
    """Return the factor by which a cost grows or shrinks outside the range of sizes seen."""
    near = min(max(nbytes, smallest), largest)
    return (_SLIGHT_NBYTES + nbytes) / (_SLIGHT_NBYTES + near)


def _speed(resources: Resources, *, parallel: bool) -> float:
    """Return how fast a configuration computes.

    Below one CPU, speed is proportional to the CPU share. Above, only parallel tasks gain, with
    diminishing returns.
    """
    share = resources.cpu_share
    if share <= 1:
        return share
    return float(share**PARALLEL_GAIN) if parallel else 1.0


def percentile(values: Sequence[Value], p: float) -> float:
    """Return the weighted percentile `p` of sorted values."""
    wanted = p / 100 * sum([value.weight for value in values])
    before, below, at = 0.0, values[0].amount, 0.0
    for value in values:
        middle = before + value.weight / 2
        if middle >= wanted:
            if value is values[0]:
                return value.amount
            return below + (value.amount - below) * (wanted - at) / (middle - at)
        before, below, at = before + value.weight, value.amount, middle
    return below
