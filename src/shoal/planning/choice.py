"""Choose the planner from what the user gives: an object, a name or a goal."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shoal.errors import ShoalError, UsageError, suggestion
from shoal.execution.plan import Plan
from shoal.planning.arguments import check_sla
from shoal.planning.auto import AutoPlanner
from shoal.planning.base import (
    DEFAULT_PRICES,
    Conditions,
    Planner,
    check_limit,
    validated,
)
from shoal.planning.preview import Preview
from shoal.types import SLA
from shoal.workflow import Workflow

GROUP = "shoal.planners"
"""The entry point group through which packages register planners."""
PLANNERS: Mapping[str, str] = {
    "auto": "shoal.planning.auto:AutoPlanner",
    "uniform": "shoal.planning.uniform:UniformPlanner",
    "nonuniform": "shoal.planning.nonuniform:NonUniformPlanner",
    "spread": "shoal.planning.spread:SpreadPlanner",
    "wukong": "shoal.planning.wukong:WukongPlanner",
}
"""The location of each planner, so that only the one used is imported."""


@dataclass(frozen=True)
class Wanted:
    """The planning options of a call."""

    given: Planner | str | None = None
    deadline: float | None = None
    budget: float | None = None
    sla: SLA = "median"

    @staticmethod
    def pop_from(options: dict[str, Any]) -> Wanted:
        """Remove the planning options from a call's options and return them."""
        names = ("deadline", "budget", "sla")
        goals = {name: options.pop(name) for name in names if name in options}
        if "sla" in goals:
            check_sla(goals["sla"], f"sla={goals['sla']!r}")
        given = options.pop("planner", None)
        if isinstance(given, type):
            given = given()
        if given is not None and not isinstance(given, str) and goals:
            raise UsageError(
                f"{next(iter(goals))}= applies to the default planner; pass it to "
                f"{type(given).__name__} instead."
            )
        return Wanted(given, **goals)

    def planner(self, name: str | None) -> Planner:
        """Return the planner, given that of the settings."""
        named = "auto" if name is None else name
        given = named if self.given is None else self.given
        if not isinstance(given, str):
            return _checked(given, f"planner={given!r}")
        if given == "auto":
            return AutoPlanner(deadline=self.deadline, budget=self.budget, sla=self.sla)
        for goal, value in (("deadline", self.deadline), ("budget", self.budget)):
            if value is not None:
                raise UsageError(f"The planner {given!r} takes no {goal}; 'auto' does.")
        return named_planner(given, self.sla)


def pop_name(options: dict[str, Any]) -> str | None:
    """Remove the run's name from a call's options and return it, if there is one."""
    name = options.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name={name!r}: must be a string, such as 'nightly'.")
    return name


def named_planner(name: str, sla: SLA = "median") -> Planner:
    """Create a planner by its name: one of Shoal's, or one that an installed package registers."""
    if name in PLANNERS:
        module, _, attribute = PLANNERS[name].partition(":")
        return _create(name, getattr(import_module(module), attribute), sla)
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    if name in found:
        with _plugin_errors(f"The planner {name!r}, registered as {found[name].value},"):
            return _create(name, found[name].load(), sla)
    names = [*PLANNERS, *found]
    raise UsageError(f"There is no planner {name!r}; {suggestion(name, names)}")


def _create(name: str, found: Any, sla: SLA) -> Planner:
    """Create a planner from a class or factory; a planner object is returned as it is."""
    itself = not isinstance(found, type) and hasattr(found, "plan")
    if sla != "median" and (itself or "sla" not in inspect.signature(found).parameters):
        raise UsageError(f"The planner {name!r} takes no sla; 'auto' does.")
    if not itself:
        found = found() if sla == "median" else found(sla=sla)
    return _checked(found, f"The planner {name!r} is {found!r}")


def _checked(planner: Any, what: str) -> Planner:
    if not callable(getattr(planner, "plan", None)):
        raise UsageError(f"{what}: a planner must have a method `plan`.")
    made: Planner = planner
    return made


@contextmanager
def _plugin_errors(what: str) -> Iterator[None]:
    """Turn an exception of a package that registers a planner into a one-line error."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        raise UsageError(f"{what} can't be used: {type(error).__name__}: {error}.") from error


def planned(workflow: Workflow, conditions: Conditions, planner: Planner) -> Preview:
    """Plan a workflow, validate the plan and return its preview.

    Forced optimizations of tasks are applied even if the planner ignores them.
    """
    if conditions.prices != DEFAULT_PRICES:
        from shoal.planning.prices import prices_of

        prices_of(conditions.prices)
    sla: SLA = getattr(planner, "sla", "median")
    check_sla(sla, f"The planner {type(planner).__name__} has sla={sla!r}")
    begin = time.perf_counter()
    plan = validated(_plan_by(planner, workflow, conditions), workflow, conditions)
    insists = any(call.task.forced_optimizations for call in workflow.calls.values())
    if insists and not plan.forced:
        from shoal.planning.optimizations import forced

        plan = forced(plan, conditions, conditions.predictions.at(sla))
        plan = validated(plan, workflow, conditions)
    check_limit(plan, conditions)
    seconds = time.perf_counter() - begin
    return Preview(plan, conditions, sla, planning=seconds)


def _plan_by(planner: Planner, workflow: Workflow, conditions: Conditions) -> Plan:
    try:
        return planner.plan(workflow, conditions)
    except ShoalError:
        raise
    except Exception as error:
        kind = type(planner)
        error.add_note(f"The planner {kind.__name__} of {kind.__module__} raised this.")
        raise
