"""Predict the costs of a workflow's tasks, transfers and starts from samples of earlier runs.

1. Size: a task's time and the size of its output are functions of its inputs and constants, and a
   transfer's time one of its size. They are fitted (`fits.py`), and samples are brought to the
   asked size before they are compared (`groups.py`). A task learns from its own samples, in runs of
   the same workflow shape, before those of other tasks with its name; a transfer from those of the
   same task's outputs, because some kinds of values are copied and others aren't.
2. Resources: if there are enough samples with the same resources, only those are used. Otherwise
   samples with other resources are converted by how fast each configuration computes. Waiting time
   is not converted, and neither are starts, because nothing suggests that memory slows them down.
   Workers started by the client and workers started by other workers are predicted separately,
   because the latter compete with the worker that starts them. The delay that concurrent starts
   cause each other is estimated separately, so that every start is a sample of a single one.
3. A constant argument that was always the same, and now is more than twice or less than half of
   that, may change everything. Costs are taken to be in proportion to it, and a task isn't
   predicted to be shorter than one without history, unless it already was and the constant shrinks.
4. A percentile is taken of costs, never of speeds: a higher one never predicts a smaller cost.
5. Each prediction is computed once per plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from shoal.execution.costs import Costs, Direction
from shoal.execution.timeline import STARTS
from shoal.metadata.draws import TASKS, AtLevel, Draws, Kin, Way
from shoal.metadata.features import Inputs, Value, features_of, values_of
from shoal.metadata.fits import Features, Fit
from shoal.metadata.groups import MOST, TRANSFERS, Group, Known, transfer_features
from shoal.metadata.samples import FIRST, KINDS, Sample, Samples
from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

RECENT = 10
"""How many of the latest samples count, for costs that vary only with time."""
_LEAST_ALONE = 0.1
"""The least share of its time that a concurrent start would have taken alone."""
_MOST_GROWTH = log(1000)
"""How much a constant of which only one value is known may change a cost."""
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

    def transfer_of(
        self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
    ) -> float:
        """Return the same, whatever is moved."""
        return self.transfer(direction, nbytes, resources)

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

    def of(
        self, workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]]
    ) -> DefaultCosts:
        """Return these costs for constants of other sizes."""
        return replace(self, constants=constants)

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
        self.basis = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        self._numbers = {task: number for number, task in enumerate(workflow.calls)}
        self._learnt = _Learnt(workflow, runs)
        self._ask(workflow, defaults)

    def _ask(self, workflow: Workflow, defaults: DefaultCosts) -> None:
        self.constants = defaults.constants
        self.defaults = defaults
        self.inputs = Inputs(workflow, defaults.constants)
        self._calls = workflow.calls
        self._values: dict[TaskId, Mapping[str, Value]] = {}

    def of(
        self, workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]]
    ) -> LearntPredictions:
        """Return what was learnt, for constants of other sizes."""
        found = copy(self)
        found._ask(workflow, self.defaults.of(workflow, constants))
        return found

    @property
    def needs(self) -> Mapping[str, int]:
        """The memory that tasks turned out to need, in MB, by task key."""
        return self._learnt.needs

    def at(self, sla: SLA) -> Costs:
        """Return the costs at a service level."""
        return _CostsAt(self, AtLevel(50.0 if sla == "median" else sla.p), RECENT)

    def sampled(self, seed: int) -> Costs:
        """Draw the costs of one possible run."""
        return _CostsAt(self, self._learnt.draws.of_run(seed), MOST)

    def group(self, kind: str, name: str = "") -> Group | None:
        """Return the samples of one cost."""
        return self._learnt.groups.get((kind, name))

    def of_task(self, task: TaskId) -> tuple[Group | None, int | str | None]:
        """Return the executions of tasks of a name, and the task's own part if it has enough."""
        group = self._learnt.groups.get(("execute", self._calls[task].task.key))
        return group, group.part(self._numbers[task]) if group else None

    def kin(self, task: TaskId, part: int | str | None, resources: Resources) -> Kin:
        """Return the groups that the task belongs to; by name only if it ran often enough."""
        if part is None:
            return _UNKNOWN
        return Kin(TASKS, self._calls[task].task.key, (part, resources))

    def key(self, task: TaskId) -> str:
        """Return the key of a task's name; empty for a constant."""
        call = self._calls.get(task)
        return call.task.key if call else ""

    def values(self, task: TaskId) -> Mapping[str, Value]:
        """Return a task's small constants."""
        found = self._values.get(task)
        if found is None:
            found = self._values[task] = values_of(self._calls[task])
        return found

    def crowding(self, kind: str, who: str, beside: int) -> float:
        """Return the delay that `beside` concurrent starts cause, up to as many as were seen."""
        return self._learnt.crowding(kind, who, beside)


class _Learnt:
    """What the samples of earlier runs say, whatever they are asked for."""

    def __init__(self, workflow: Workflow, runs: Sequence[Samples]) -> None:
        self.groups: dict[tuple[str, str], Group] = {}
        self.needs: dict[str, int] = {}
        """The memory that tasks turned out to need, in MB, by task key."""
        self._crowds = _crowds(runs)
        same = workflow.fingerprint()
        keys = {n: call.task.key for n, call in enumerate(workflow.calls.values())}
        for run, block in enumerate(runs):
            own = block.fingerprint == same
            for sample in block.samples:
                same_task = keys.get(sample.number, sample.name) == sample.name
                self._learn(run, sample, own=own and same_task)

    def _learn(self, run: int, sample: Sample, *, own: bool) -> None:
        kind, name = sample.kind, sample.name
        part: int | str | None = sample.number
        if kind == "memory":
            self.needs[name] = max(sample.nbytes // 2**20, self.needs.get(name, 0))
            return
        if kind in STARTS:
            alone = sample.seconds - self.crowding(kind, name, sample.nbytes)
            sample = sample._replace(seconds=max(alone, _LEAST_ALONE * sample.seconds), nbytes=0)
        elif kind in TRANSFERS:
            name, part = "", name
        elif kind == "execute" and not own:
            part = None
        key = (kind, name)
        if key not in self.groups:
            self.groups[key] = Group(kind, name)
        self.groups[key].add(run, sample, part)

    @cached_property
    def draws(self) -> Draws:
        """What costs of future runs are drawn from."""
        draws = Draws()
        for (kind, name), group in self.groups.items():
            for row in group.rows:
                height = group.fit(kind, group.part(row.part)).at(row.features)
                if kind != "execute":
                    kin = Kin(kind + name, kind + name, (row.part, row.sample.resources))
                elif isinstance(row.part, int):
                    kin = Kin(TASKS, name, (row.part, row.sample.resources))
                else:
                    continue
                draws.add(row.run, kin, row.sample.seconds / exp(height), height)
        return draws

    def crowding(self, kind: str, who: str, beside: int) -> float:
        """Return the delay that `beside` concurrent starts cause, up to as many as were seen."""
        crowd = self._crowds.get(kind + who)
        return min(beside, crowd.most) * crowd.each if crowd else 0.0


class _CostsAt:
    """One figure for each cost, chosen from its recorded values."""

    def __init__(self, predictions: LearntPredictions, way: Way, latest: int) -> None:
        self.constants = predictions.constants
        self._predictions = predictions
        self._way = way
        self._latest = latest
        """How many of the latest starts and messages to use."""
        self._defaults = predictions.defaults
        self._executions: dict[tuple[TaskId, int, Resources], float] = {}
        self._outputs: dict[tuple[TaskId, int], int] = {}
        self._expected: dict[TaskId, int] | None = None
        sizes = {name: n for sizes in self.constants.values() for name, n in sizes.items()}
        self._constant_nbytes = sum(sizes.values())

    def launch(self) -> float:
        found = self._sized("launch", self._constant_nbytes)
        return self._defaults.launch() if found is None else found

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        kind = "warm start" if warm else "cold start"
        for who in (FIRST, "") if first else ("", FIRST):
            group = self._predictions.group(kind, who)
            if group is not None:
                known = group.known(kind, None, resources, self._latest, {})
                alone = self._way.factor(known.values, _KIN[kind + who])
                return alone + self._predictions.crowding(kind, who, beside)
        return self._defaults.startup(resources, warm=warm)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        found = self._sized(direction, nbytes, resources)
        if found is None:
            return self._defaults.transfer(direction, nbytes, resources)
        return found

    def transfer_of(
        self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
    ) -> float:
        found = self._sized(direction, nbytes, resources, self._predictions.key(task))
        if found is None:
            return self._defaults.transfer(direction, nbytes, resources)
        return found

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        key = (task, input_nbytes, resources)
        seconds = self._executions.get(key)
        if seconds is None:
            seconds = self._executions[key] = self._execution(*key)
        return seconds

    def _execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        group, part = self._predictions.of_task(task)
        usual = self._defaults.execution(task, input_nbytes, resources)
        if group is None:
            return usual
        fit = group.fit("execute")
        features = self._features(fit, task, input_nbytes)
        known = group.known("execute", part, resources, self._latest, features)
        kin = self._predictions.kin(task, part, resources)
        factor = self._way.factor(known.values, kin)
        seconds = factor * self._curve(fit, features, known, TASKS, group)
        growth = _unseen(fit, features)
        if not growth:
            return seconds
        least = usual if growth > 0 else min(usual, seconds)
        return max(seconds * exp(growth), least)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        key = (task, input_nbytes)
        nbytes = self._outputs.get(key)
        if nbytes is None:
            nbytes = self._outputs[key] = self._output_nbytes(task, input_nbytes)
        return nbytes

    def _output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        group, part = self._predictions.of_task(task)
        if group is None:
            return self._defaults.output_nbytes(task, input_nbytes)
        fit = group.fit("output")
        features = self._features(fit, task, input_nbytes)
        known = group.known("output", part, None, self._latest, features)
        nbytes = self._way.size(known.values) * self._curve(fit, features, known, "output", group)
        return round(nbytes * exp(_unseen(fit, features)))

    def coordination(self) -> float:
        found = self._sized("deliver", 0)
        return self._defaults.coordination() if found is None else found

    def invocation(self) -> float:
        return self._defaults.invocation()

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        found = self._sized("hand in", nbytes)
        return self._defaults.hand_in(nbytes, resources) if found is None else found

    def _sized(
        self, kind: str, nbytes: int, resources: Resources | None = None, name: str | None = None
    ) -> float | None:
        """Return what costs that depend on a size alone take; None without samples."""
        group = self._predictions.group(kind)
        if group is None:
            return None
        features = transfer_features(nbytes)
        part = None if name is None else group.part(name)
        fit = group.fit(kind, part)
        known = group.known(kind, part, resources, self._latest, features)
        return self._way.factor(known.values, _KIN[kind]) * self._curve(
            fit, features, known, kind, group
        )

    def _curve(self, fit: Fit, features: Features, known: Known, part: str, group: Group) -> float:
        """Return what the fit says, as far away as the doubt about it allows."""
        if not fit.curves:
            return 1.0
        features = fit.within_reach(features, known.where)
        height = fit.at(features)
        doubt = fit.doubt(fit.where(features), known.where)
        away = height - known.height
        return exp(height + self._way.off(part, group.name, doubt, away))

    def _features(self, fit: Fit, task: TaskId, input_nbytes: int) -> Features:
        """Return what a task's cost may depend on, as far as the fit asks for it."""
        inputs: tuple[int, ...] = ()
        predictions = self._predictions
        if fit.single_inputs:
            if self._expected is None:
                self._expected = {}  # is asked for while it grows
                predictions.inputs.expect(self, self._expected)
            inputs = predictions.inputs.sizes(task, self._expected)
            share = input_nbytes / sum(inputs) if sum(inputs) else 0.0
            inputs = tuple(round(share * each) for each in inputs)
        count = predictions.inputs.count(task)
        return features_of(input_nbytes, inputs, count, predictions.values(task))


def _unseen(fit: Fit, features: Features) -> float:
    """Return the logarithm of the growth of constants that were always the same until now."""
    growth = 0.0
    for name, known in fit.constant.items():
        asked = features.get(name)
        if name.startswith(("=", "len ")) and isinstance(asked, float):
            change = asked - known
            growth += change if abs(change) > log(2) else 0.0
    return min(max(growth, -_MOST_GROWTH), _MOST_GROWTH)


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
