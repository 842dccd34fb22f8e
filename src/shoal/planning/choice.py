"""Which planner a user means: an object, a name, or a goal."""

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
        if "sla" in goals:
            check_sla(goals["sla"], f"sla={goals['sla']!r}")
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

    def planner(self, name: str | None, prices: str = DEFAULT_PRICES) -> Planner:
        """The planner, given the name and the prices that settings have."""
        named = "auto" if name is None else name
        given = named if self.given is None else self.given
        if not isinstance(given, str):
            return _checked(given, f"planner={given!r}")
        if given == "auto":
            return AutoPlanner(
                deadline=self.deadline, budget=self.budget, sla=self.sla, prices=prices
            )
        for goal, value in (("deadline", self.deadline), ("budget", self.budget)):
            if value is not None:
                raise UsageError(f"The planner {given!r} takes no {goal}; 'auto' does.")
        return named_planner(given, self.sla)


def name_taken(options: dict[str, Any]) -> str | None:
    """Takes the run's name out of a call's options, if there is one."""
    name = options.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name={name!r}: give a string, such as 'nightly'.")
    return name


def named_planner(name: str, sla: SLA = "median") -> Planner:
    """A planner by its name: one of ours, or one that an installed package registers."""
    if name in PLANNERS:
        module, _, attribute = PLANNERS[name].partition(":")
        return _made(name, getattr(import_module(module), attribute), sla)
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    if name in found:
        with _blamed(f"The planner {name!r}, registered as {found[name].value},"):
            return _made(name, found[name].load(), sla)
    names = [*PLANNERS, *found]
    raise UsageError(f"There is no planner {name!r}; {suggestion(name, names)}")


def _made(name: str, found: Any, sla: SLA) -> Planner:
    """A planner of what goes by its name: what makes one, or a planner itself."""
    itself = not isinstance(found, type) and hasattr(found, "plan")
    if sla != "median" and (itself or "sla" not in inspect.signature(found).parameters):
        raise UsageError(f"The planner {name!r} takes no sla; 'auto' does.")
    if not itself:
        found = found() if sla == "median" else found(sla=sla)
    return _checked(found, f"The planner {name!r} is {found!r}")


def _checked(planner: Any, what: str) -> Planner:
    if not callable(getattr(planner, "plan", None)):
        raise UsageError(f"{what}: a planner has a method `plan`.")
    made: Planner = planner
    return made


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Say of an exception in a package that registers a planner what it was, in a line."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        raise UsageError(f"{what} can't be used: {type(error).__name__}: {error}.") from error


def planned(workflow: Workflow, conditions: Conditions, planner: Planner, prices: str) -> Preview:
    """A plan by a planner, checked, and what it is predicted to do.

    Its tasks have what they insist on, whether the planner knows of that or not.
    """
    if prices != DEFAULT_PRICES:
        from shoal.planning.prices import prices_of

        prices_of(prices)
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
    return Preview(plan, conditions, sla, prices=prices, planning=seconds)


def _plan_by(planner: Planner, workflow: Workflow, conditions: Conditions) -> Plan:
    try:
        return planner.plan(workflow, conditions)
    except ShoalError:
        raise
    except Exception as error:
        kind = type(planner)
        error.add_note(f"The planner {kind.__name__} of {kind.__module__} raised this.")
        raise
