"""`WukongPlanner`: no placement at all, as in WUKONG: the workers decide where tasks run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.execution.plan import Placement, Plan
from shoal.planning.base import Conditions, Optimization
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources
from shoal.workflow import Workflow


class WukongPlanner:
    """Leaves placement to flexible workers (see `execution/flexible.py`), all of one configuration.

    At a fan-out a worker becomes one branch and invokes others for the rest; at a fan-in the worker
    whose output was the last goes on. How many are at work at once is up to the platform: the
    setting `workers` doesn't bound them. This is WUKONG's basic form: its clustering, its delayed
    I/O and its fan-out invoker are still to come.
    """

    def __init__(
        self,
        resources: Resources | None = None,
        *,
        sla: SLA = "median",
        optimizations: Sequence[Optimization | type[Optimization]] = (),
    ) -> None:
        """Set it up.

        Args:
            resources: What each worker has; default: what the settings say. If a task asks for
                more, all workers have more.
            sla: How careful the predictions of its plans are.
            optimizations: What refines its plans, in this order; classes or objects. Those that
                need to know workers beforehand are left out, and the plan's notes say so.
        """
        self.resources = resources
        self.sla = sla
        self.optimizations = optimizations

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """A plan for a workflow under these conditions."""
        default = self.resources or conditions.resources
        asked = [workflow.resources(task) for task in workflow.calls]
        resources = _covering(default, (each for each in asked if each is not None))
        placements = dict.fromkeys(workflow.calls, Placement(None, resources))
        notes = () if resources == default else (f"All workers have {resources}: a task asks so.",)
        plan = Plan(workflow, placements, planner="wukong", notes=notes)
        costs = conditions.predictions.at(self.sla)
        return optimized(plan, conditions, costs, self.optimizations)


def _covering(default: Resources, asked: Iterable[Resources]) -> Resources:
    """What has the most memory and the most CPUs of all."""
    everything = [default, *asked]
    memory_mb = max(each.memory_mb for each in everything)
    cpus = max(each.cpu_share for each in everything)
    following = Resources(memory_mb)
    return following if cpus == following.cpu_share else Resources(memory_mb, cpus)
