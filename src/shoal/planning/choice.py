"""Which planner a user means: an object, a name, or a goal."""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shoal.errors import UsageError
from shoal.planning.auto import AutoPlanner
from shoal.planning.base import Conditions, Planner, check_limit, validated
from shoal.planning.preview import DEFAULT_PRICES, Preview
from shoal.types import SLA
from shoal.workflow import Workflow

GROUP = "shoal.planners"
"""The entry points by which packages register planners."""
PLANNERS: Mapping[str, str] = {
    "auto": "shoal.planning.auto:AutoPlanner",
    "uniform": "shoal.planning.uniform:UniformPlanner",
    "nonuniform": "shoal.planning.nonuniform:NonUniformPlanner",
    "spread": "shoal.planning.spread:SpreadPlanner",
    "wukong": "shoal.planning.wukong:WukongPlanner",
}
"""Where each is, so that only what is used is loaded."""


@dataclass(frozen=True)
class Wanted:
    """What a call says of its plan."""

    given: Planner | str | None = None
    deadline: float | None = None
    budget: float | None = None
    sla: SLA = "median"

    @staticmethod
    def taken(options: dict[str, Any]) -> Wanted:
        """Takes what concerns the plan out of a call's options."""
        names = ("deadline", "budget", "sla")
        goals = {name: options.pop(name) for name in names if name in options}
        given = options.pop("planner", None)
        if isinstance(given, type):
            given = given()
        if given is not None and not isinstance(given, str) and goals:
            raise UsageError(
                f"{next(iter(goals))}= is for the default planner: give it to "
                f"{type(given).__name__} instead."
            )
        return Wanted(given, **goals)

    def explicit(self, name: str | None) -> bool:
        """Whether a plan is to be made for this very call, given the planner that settings name."""
        return self != Wanted() or name not in (None, "auto")

    def planner(self, name: str | None) -> Planner:
        """The planner, given the name that settings have."""
        given = self.given or name or "auto"
        if not isinstance(given, str):
            if not callable(getattr(given, "plan", None)):
                raise UsageError(f"planner={given!r}: a planner has a method `plan`.")
            return given
        if given == "auto":
            return AutoPlanner(deadline=self.deadline, budget=self.budget, sla=self.sla)
        for goal, value in (("deadline", self.deadline), ("budget", self.budget)):
            if value is not None:
                raise UsageError(f"The planner {given!r} takes no {goal}; 'auto' does.")
        return named_planner(given, self.sla)


def named_planner(name: str, sla: SLA = "median") -> Planner:
    """A planner by its name: one of ours, or one that an installed package registers."""
    made = _named(name)
    if sla == "median":
        return made()
    if "sla" not in inspect.signature(made).parameters:
        raise UsageError(f"The planner {name!r} takes no sla; 'auto' does.")
    return made(sla=sla)


def _named(name: str) -> Callable[..., Planner]:
    if name in PLANNERS:
        module, _, attribute = PLANNERS[name].partition(":")
        ours: Callable[..., Planner] = getattr(import_module(module), attribute)
        return ours
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    if name in found:
        registered: Callable[..., Planner] = found[name].load()
        return registered
    names = [*PLANNERS, *found]
    near = difflib.get_close_matches(name, names, 1, 0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}."
    raise UsageError(f"There is no planner {name!r}; {hint}")


def planned(workflow: Workflow, conditions: Conditions, planner: Planner, prices: str) -> Preview:
    """A plan by a planner, checked, and what it is predicted to do.

    Its tasks have what they insist on, whether the planner knows of that or not.
    """
    if prices != DEFAULT_PRICES:
        from shoal.planning.prices import prices_of

        prices_of(prices)
    check_limit(workflow, conditions)
    begin = time.perf_counter()
    plan = validated(planner.plan(workflow, conditions), workflow, conditions)
    sla: SLA = getattr(planner, "sla", "median")
    insists = any(call.task.forced_optimizations for call in workflow.calls.values())
    if insists and not plan.forced:
        from shoal.planning.optimizations import forced

        plan = forced(plan, conditions, conditions.predictions.at(sla))
        plan = validated(plan, workflow, conditions)
    seconds = time.perf_counter() - begin
    return Preview(plan, conditions, sla, prices=prices, planning=seconds)
