"""`Notices` and `Room`: warnings, each given once, about calls that ask for more than there is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from shoal.execution.plan import Plan
from shoal.platform.base import Platform
from shoal.platform.gateway import LocalGateway
from shoal.settings import Settings
from shoal.system import cores

log = logging.getLogger(__name__)


class Notices:
    """Gives each warning once; safe to use from several threads."""

    def __init__(self) -> None:
        self._said: set[Hashable] = set()
        self._lock = threading.Lock()

    def say(self, text: str, about: Hashable = None) -> None:
        """Warn, unless this warning, or another one about the same thing, has been given."""
        what = text if about is None else about
        with self._lock:
            known = what in self._said
            self._said.add(what)
        if not known:
            log.warning("%s", text)


def of_plan(plan: Plan, platform: Platform) -> list[tuple[str, Hashable]]:
    """The warnings about a plan to run, each with what it is about."""
    name = plan.workflow.name
    found: list[tuple[str, Hashable]] = []
    if plan.unmet:
        goal = plan.unmet.partition(":")[0]
        found.append((f"{name}: {plan.unmet}. It runs anyway.", (name, goal)))
    asked = max([resources.cpus or 0 for resources in plan.configurations])
    if asked and platform.cpus is not None and asked > platform.cpus:
        has = f"the workers' machine has {platform.cpus:g}"
        text = f"cpus={asked:g} is asked for, but {has}: a worker gets no more than that."
        found.append((text, ("cpus", asked)))
    return found


class Room:
    """Makes room for the workers that calls ask for, or warns once about what limits them."""

    def __init__(
        self, platform: Platform, settings: Settings, notices: Notices, *, embedded: bool
    ) -> None:
        """An embedded gateway grows, unless settings limit it."""
        self._growing: LocalGateway | None = None
        if embedded and settings.sandboxes is None and isinstance(platform, LocalGateway):
            self._growing = platform
        self._platform = platform
        self._settings = settings
        self._notices = notices
        self._made = 0
        """The most workers that there is room for so far."""

    def workers(self, workers: int | None) -> int:
        """How many workers of a run may work at once: the setting, or what the platform offers.

        If the platform doesn't tell, it is one for each core of this machine.
        """
        return workers or self._platform.default_workers or cores()

    def make(self, workers: int, *, wanted: bool = True) -> None:
        """Make room for this many workers at once; warn if there isn't and they are `wanted`."""
        if workers <= self._made or not (wanted or self._growing):
            return
        self._made = workers
        room = self._growing.make_room(workers) if self._growing else self._platform.capacity
        if room is not None and room < workers:
            limit, remedy = self._limit(workers, room)
            self._notices.say(
                f"{workers} workers are asked for, but {limit}: the others wait. To run all at "
                f"once, {remedy}."
            )

    def _limit(self, workers: int, room: int) -> tuple[str, str]:
        """What limits the room, and how to raise that limit."""
        settings = self._settings
        if settings.platform is not None:
            return _remote_limit(settings.platform, workers, room)
        if settings.sandboxes is not None:
            return f"sandboxes={room} allows only {room}", f"set sandboxes={workers}"
        if self._growing is not None:
            limit = f"this process may open files for only {room}"
            return limit, "raise its limit of open files (`ulimit -n`)"
        return f"the platform has room for {room}", "give it a larger capacity"


def _remote_limit(platform: str, workers: int, room: int) -> tuple[str, str]:
    """What limits the room of gateways or of an engine, and how to raise that limit."""
    scheme = platform.partition(":")[0]
    if scheme not in ("http", "https"):
        option = "concurrency" if scheme == "lambda" else "capacity"
        where = f"platform={platform!r} has room for {room}"
        return where, f"set {option}={workers} in its URL, if the engine permits so many"
    if "," in platform:
        where = f"the gateways at {platform} have room for {room}"
        return where, "add a gateway, or restart some with a larger `--sandboxes`"
    where = f"the gateway at {platform} has room for {room}"
    return where, f"restart it with `shoal gateway --sandboxes {workers}`"
