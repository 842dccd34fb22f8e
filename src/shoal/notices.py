"""`Notices` and `Room`: what is said once of calls that ask for more than there is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from shoal.execution.plan import Plan
from shoal.platform.base import Platform
from shoal.platform.gateway import LocalGateway
from shoal.settings import Settings

log = logging.getLogger(__name__)


class Notices:
    """Says each thing once; safe to use from several threads."""

    def __init__(self) -> None:
        self._said: set[Hashable] = set()
        self._lock = threading.Lock()

    def say(self, text: str, about: Hashable = None) -> None:
        """Warn, unless that has been said, or something else about the same."""
        what = text if about is None else about
        with self._lock:
            known = what in self._said
            self._said.add(what)
        if not known:
            log.warning("%s", text)


def of_plan(plan: Plan, platform: Platform) -> list[tuple[str, Hashable]]:
    """What to say of a plan that is run, and what each is about."""
    name = plan.workflow.name
    found: list[tuple[str, Hashable]] = []
    if plan.unmet:
        goal = plan.unmet.partition(":")[0]
        found.append((f"{name}: {plan.unmet}. It runs all the same.", (name, goal)))
    asked = max([resources.cpus or 0 for resources in plan.configurations])
    if asked and platform.cpus is not None and asked > platform.cpus:
        has = f"the machine that workers run on has {platform.cpus:g}"
        text = f"cpus={asked:g} is asked for, but {has}: a worker gets no more than that."
        found.append((text, ("cpus", asked)))
    return found


class Room:
    """Has room for the workers that calls ask for, or says once what limits them."""

    def __init__(
        self, platform: Platform, settings: Settings, notices: Notices, *, embedded: bool
    ) -> None:
        """Begin with what the platform has; an embedded one grows unless settings bound it."""
        self._growing: LocalGateway | None = None
        if embedded and settings.sandboxes is None and isinstance(platform, LocalGateway):
            self._growing = platform
        self._platform = platform
        self._settings = settings
        self._notices = notices
        self._made = 0
        """The most workers that room was made for so far."""

    def make(self, workers: int, *, wanted: bool = True) -> None:
        """Have room for so many workers at once; what isn't `wanted` by anybody is no limit."""
        if workers <= self._made or not (wanted or self._growing):
            return
        self._made = workers
        if self._growing is not None:
            room = self._growing.make_room(workers)
        else:
            room = self._platform.pool("").capacity
        if room < workers:
            limit, remedy = self._limit(workers, room)
            self._notices.say(
                f"{workers} workers are asked for, but {limit}: the others wait. To have all at "
                f"work at once, {remedy}."
            )

    def _limit(self, workers: int, room: int) -> tuple[str, str]:
        """What leaves no more room, and how to raise it."""
        settings = self._settings
        if settings.platform is not None:
            where = f"the gateway at {settings.platform} has room for {room}"
            return where, f"restart it with `shoal gateway --sandboxes {workers}`"
        if settings.sandboxes is not None:
            return f"sandboxes={room} leaves room for {room}", f"set sandboxes={workers}"
        if self._growing is not None:
            limit = f"this process may open files for {room} only"
            return limit, "raise its limit of open files (`ulimit -n`)"
        return f"the platform has room for {room}", "give it a larger capacity"
