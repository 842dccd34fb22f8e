"""Random workflows and costs for tests of planners."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from planning_examples import Table, step

from shoal import task
from shoal.workflow import Output, Workflow


@task
def other(*sources: Any) -> None: ...


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workflow, Table, int]:
    made: list[Output[Any]] = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from([step, other]))
        count = draw(st.integers(0, 3)) if made else 0
        made.append(kind(*[made[draw(st.integers(0, len(made) - 1))] for _ in range(count)]))
    flow = Workflow.of(*made)
    rng = random.Random(draw(st.integers(0, 99)))
    costs = Table(
        {t: rng.choice((0.01, 0.1, 1.0, 3.0)) for t in flow.calls},
        {t: rng.choice((10, 10**5, 10**7, 10**8)) for t in flow.calls},
        start=rng.choice((0.0, 0.1, 1.0)),
        coordination=0.001,
    )
    return flow, costs, draw(st.integers(1, 6))
