"""`Request`: what a call asks to run, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.planning.choice import Wanted, pop_name
from shoal.settings import NAMES, RUNNING, Settings
from shoal.workflow import Outputs, Workflow

_ANY_PLAN = Wanted()


@dataclass(frozen=True, slots=True)
class Request:
    """A workflow, and the options of the call that runs or plans it."""

    workflow: Workflow
    settings: Settings
    wanted: Wanted = _ANY_PLAN
    resume: str | None = None
    """The unfinished run to continue; None: a new run."""

    @staticmethod
    def of(outputs: tuple[Outputs, ...], options: dict[str, Any], settings: Settings) -> Request:
        """What a call asks for, given its outputs, its options and the settings in force."""
        workflow = Workflow.of(*outputs)
        if not options:
            return Request(workflow, settings)
        resume = options.pop("resume", None)
        if resume is not None:
            changed = {name: value for name, value in options.items() if name in NAMES}
            return Request(workflow, settings.changed(changed), resume=resume)
        workflow = workflow.named(pop_name(options))
        wanted = Wanted.pop_from(options)
        return Request(workflow, settings.changed(options), wanted)

    @staticmethod
    def to_plan(
        outputs: tuple[Outputs, ...], options: Mapping[str, Any], settings: Settings
    ) -> Request:
        """The same for a call that runs nothing: options that concern running don't count."""
        planning = {name: options[name] for name in options if name not in RUNNING}
        return Request.of(outputs, planning, settings)

    @property
    def special(self) -> bool:
        """Whether the call needs a plan of its own."""
        return self.wanted != _ANY_PLAN or self.settings.planner not in (None, "auto")
