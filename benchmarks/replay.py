"""Define `RecordedCosts`, a run's own costs, to compare the simulator with the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from shoal.execution.costs import Costs, Direction
from shoal.execution.timeline import RUNS, STARTS, Timeline
from shoal.metadata.predictions import DefaultCosts
from shoal.metadata.samples import FIRST, decode_samples, encode_samples
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow


class RecordedCosts(Costs):
    """The costs of one recorded run; starts and transfers are in the order recorded."""

    def __init__(
        self,
        workflow: Workflow,
        workers: Mapping[WorkerId, Resources],
        timeline: Timeline,
        constants: Mapping[TaskId, Mapping[TaskId, int]],
    ) -> None:
        self._constants = constants
        self._defaults = DefaultCosts(constants)
        executions = timeline.of_kind(*RUNS)
        self._seconds = {span.task: span.seconds for span in executions}
        self._nbytes = {span.task: span.nbytes for span in executions}
        samples = decode_samples(encode_samples(workflow, workers, timeline, constants)).samples
        self._starts: dict[tuple[str, bool], deque[float]] = {}
        self._moves: dict[tuple[str, int], deque[float]] = {}
        self._rates: dict[str, list[float]] = {}
        self._others: dict[str, list[float]] = {}
        for sample in samples:
            if sample.kind in STARTS:
                start = (sample.kind, sample.name == FIRST)
                self._starts.setdefault(start, deque()).append(sample.seconds)
            elif sample.kind in ("fetch", "save"):
                key = (sample.kind, sample.nbytes)
                self._moves.setdefault(key, deque()).append(sample.seconds)
                self._rates.setdefault(sample.kind, []).append(sample.seconds)
            elif sample.kind != "execute":
                self._others.setdefault(sample.kind, []).append(sample.seconds)

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """Those of the run."""
        return self._constants

    def launch(self) -> float:
        """The run's."""
        return self._other("launch", self._defaults.launch())

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return the next start."""
        starts = self._starts.get(("warm start" if warm else "cold start", first))
        if not starts:
            return self._defaults.startup(resources, warm=warm)
        return starts.popleft() if len(starts) > 1 else starts[0]

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return the next transfer of that size, else the median."""
        moves = self._moves.get((direction, nbytes))
        if moves:
            return moves.popleft() if len(moves) > 1 else moves[0]
        rates = self._rates.get(direction)
        return median(rates) if rates else self._defaults.transfer(direction, nbytes, resources)

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """The task's."""
        return self._seconds[task]

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """The task's."""
        return self._nbytes[task]

    def coordination(self) -> float:
        """Return the median message time."""
        return self._other("deliver", self._defaults.coordination())

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """The run's."""
        return self._other("hand in", self._defaults.hand_in(nbytes, resources))

    def _other(self, kind: str, otherwise: float) -> float:
        found = self._others.get(kind)
        return median(found) if found else otherwise
