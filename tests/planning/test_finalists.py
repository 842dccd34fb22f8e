"""The plan that is chosen is the best one for what is promised: drawn makespans."""

from __future__ import annotations

import random

import pytest
from planning_examples import Table, conditions, step

from shoal import AutoPlanner
from shoal.execution.costs import Costs
from shoal.planning.preview import Preview
from shoal.types import Percentile, Resources
from shoal.workflow import Workflow


class Unsteady(Table):
    """Predictions of starts of which some take much longer than the median."""

    def __init__(self, rng: random.Random | None = None) -> None:
        super().__init__(1.0, start=1.2)
        self._rng = rng

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Take 1.2 s, or now and then 6 s."""
        late = self._rng is not None and self._rng.random() < 0.25
        return 6.0 if late else 1.2

    def sampled(self, seed: int) -> Costs:
        """Draw starts."""
        return Unsteady(random.Random(seed))


@pytest.mark.parametrize("sla", ["median", Percentile(60)])
def test_fewer_workers_win_if_one_of_many_starts_is_late(sla: Percentile) -> None:
    """If every start took the median, four workers would be faster than two."""
    flow = Workflow.of(*[step() for _ in range(4)])
    steady, unsteady = conditions(Table(1.0, start=1.2)), conditions(Unsteady())
    wide = AutoPlanner(seconds=2, sla=sla).plan(flow, steady)
    narrow = AutoPlanner(seconds=2, sla=sla).plan(flow, unsteady)
    assert len(wide.workers) == 4
    assert len(narrow.workers) < 4
    assert Preview(narrow, unsteady, sla).makespan < Preview(wide, unsteady, sla).makespan
