"""`Planner`: what turns a workflow into a plan."""

from typing import Protocol

from shoal.execution.plan import Plan
from shoal.types import Resources
from shoal.workflow import Workflow


class Planner(Protocol):
    """Decides which worker runs which task, and with what."""

    def plan(self, workflow: Workflow, *, workers: int, resources: Resources) -> Plan:
        """A plan for a workflow.

        Args:
            workflow: What is to be run.
            workers: How many workers may be at work at once.
            resources: What a worker has unless a task asks for something else.
        """
        ...
