"""`RealStage`: carries plans out in real sandboxes; tasks sleep for as long as they would work.

Every run begins cold: sandboxes that an earlier one left idle are removed first. The result of each
is checked.
"""

from __future__ import annotations

from types import TracebackType

from shoal.errors import ShoalError
from shoal.execution.plan import Plan
from shoal.execution.timeline import Timeline
from shoal.experiments.grid import SMALL, Grid
from shoal.experiments.shapes import Shape, counted
from shoal.experiments.world import Service
from shoal.planning.base import Conditions
from shoal.platform.gateway import LocalGateway
from shoal.session import Session
from shoal.workflow import Workflow

ELSEWHERE = "elsewhere"
"""Where clients think that sandboxes are: large outputs then go through the store with its latency,
as they would between machines, and not through shared memory."""
_PATIENCE = 120.0
"""Seconds beyond its work that a run may take."""


class RealStage:
    """A session of its own, in the set-up of a grid."""

    mode = "real"

    def __init__(self, grid: Grid, folder: str) -> None:
        """Start the gateway and the store.

        Args:
            grid: What is run.
            folder: Where logs go.
        """
        self.session = Session(
            latency=grid.latency,
            sandboxes=grid.sandboxes,
            idle_seconds=grid.idle_seconds,
            workers=grid.workers,
            memory_mb=SMALL.memory_mb,
            history=False,
            progress=False,
            folder=folder,
        )
        assert isinstance(self.session.platform, LocalGateway)
        self._gateway = self.session.platform
        self._gateway.host = ELSEWHERE

    def carry_out(self, plan: Plan, shape: Shape, service: Service, seed: str) -> Timeline:
        """What was recorded."""
        seconds = {
            task: service.seconds(task, placement.resources)
            for task, placement in plan.placements.items()
        }
        self._gateway.cool()
        output = shape.output(seconds.__getitem__)
        run = self.session.submit(output, planner=_Given(plan), name=shape.name)
        count = counted(run.result(timeout=_PATIENCE + sum(seconds.values())))
        if count != shape.expected:
            raise ShoalError(f"{seed}: the result is {count}, and should be {shape.expected}.")
        return run.timeline

    def close(self) -> None:
        """End the gateway and the store."""
        self.session.close()

    def __enter__(self) -> RealStage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Given:
    """A planner that has its plan already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        return self._plan.of(workflow)
