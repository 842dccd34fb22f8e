"""`Fleet`: several gateways as one platform.

1. Starts go to the gateway with the most free room, as far as its latest status and what was sent
   since tell.
2. A gateway that can't be reached is left out for a while, and its starts go to the others. Its
   workers are lost: their leases expire, and the run's supervisors restart them elsewhere.
3. Workers start others on the whole fleet, with tokens that give access to their run only.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from shoal.errors import GatewayUnavailable, TokenRefused
from shoal.execution.pool import WarmPool
from shoal.platform.base import LogLine
from shoal.platform.http import HttpPlatform
from shoal.platform.invocation import FleetMember, RunContext, Start
from shoal.types import Resources, RunId

log = logging.getLogger(__name__)

T = TypeVar("T")

_FRESH_SECONDS = 1.0
"""How long a gateway's status tells how much room it has."""
_OUT_SECONDS = 5.0
"""How long a gateway that can't be reached is left out."""


class _Member:
    """One gateway of a fleet."""

    def __init__(self, gateway: HttpPlatform) -> None:
        self.gateway = gateway
        self.room = 0
        """Workers that it can start at once, as far as known."""
        self.looked = float("-inf")
        self.out_until = float("-inf")

    def look(self) -> None:
        """Ask how much room there is, unless that is known."""
        if time.monotonic() > self.looked + _FRESH_SECONDS:
            status = self.gateway.status()
            self.room = status["capacity"] - status["busy"] - status["queued"]
            self.looked = time.monotonic()


class Fleet:
    """Several gateways as one platform; safe to use from several threads."""

    queue_seconds = 0.0
    function_seconds: float | None = None
    memory_steps: Sequence[int] = ()
    prices: str | None = None

    def __init__(self, gateways: Sequence[HttpPlatform]) -> None:
        """Make a platform of gateways that are reached with their own tokens."""
        self._members = [_Member(gateway) for gateway in gateways]
        self._lock = threading.Lock()

    def _reachable(self) -> list[_Member]:
        """The gateways that aren't left out; all of them if that leaves none."""
        now = time.monotonic()
        return [m for m in self._members if m.out_until < now] or list(self._members)

    @contextlib.contextmanager
    def _leaving_out(self, member: _Member) -> Iterator[None]:
        """Leave a gateway out if it can't be reached."""
        try:
            yield
        except GatewayUnavailable as error:
            if member.out_until < time.monotonic():
                log.warning("left out for a while: %s", error)
            member.out_until = time.monotonic() + _OUT_SECONDS
            raise

    def _asked(self, ask: Callable[[HttpPlatform], T]) -> list[T]:
        """The answers of all gateways that can be reached; raises if none can."""
        answers: list[T] = []
        failure: GatewayUnavailable | None = None
        for member in self._reachable():
            try:
                with self._leaving_out(member):
                    answers.append(ask(member.gateway))
            except TokenRefused:
                raise
            except GatewayUnavailable as error:
                failure = error
        if not answers and failure is not None:
            raise failure
        return answers

    def _asked_all(self, ask: Callable[[HttpPlatform], T]) -> list[T] | None:
        """The answers of all gateways; None if one of them can't be reached.

        Raises the error if none can.
        """
        answers = self._asked(ask)
        return answers if len(answers) == len(self._members) else None

    @property
    def memory_mb(self) -> int | None:
        """The most memory that a worker can have on any machine."""
        return _most(self._asked(lambda gateway: gateway.memory_mb))

    @property
    def cpus(self) -> float | None:
        """The most CPUs that a worker can have on any machine."""
        return _most(self._asked(lambda gateway: gateway.cpus))

    @property
    def default_workers(self) -> int | None:
        """One for each core of all machines."""
        return sum(filter(None, self._asked(lambda gateway: gateway.default_workers))) or None

    @property
    def capacity(self) -> int | None:
        """How many sandboxes all gateways may have at once."""
        return sum(filter(None, self._asked(lambda gateway: gateway.capacity))) or None

    @property
    def idle_seconds(self) -> float | None:
        """How long every gateway keeps an idle sandbox."""
        found = [s for s in self._asked(lambda gateway: gateway.idle_seconds) if s is not None]
        return min(found, default=None)

    @property
    def inline_nbytes(self) -> int | None:
        """The most bytes that a start's part and inputs may have together."""
        return self._members[0].gateway.inline_nbytes

    def probed(self, nonce: str) -> str | None:
        """Where all workers see a client's probe; None unless all machines are this one."""
        found = self._asked_all(lambda gateway: gateway.probed(nonce))
        return found[0] if found and len({*found}) == 1 else None

    def sees_folders(self, nonce: str) -> bool:
        """Whether the workers of all gateways see the folders that a client's probe names."""
        return all(self._asked_all(lambda gateway: gateway.sees_folders(nonce)) or [False])

    def check_environment(self) -> None:
        """Raise `EnvironmentMismatch` if a gateway has another version of Python or Shoal."""
        self._asked(lambda gateway: gateway.check_environment())

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run where there is most room."""
        context = self._with_fleet(context)
        waiting = list(starts)
        while waiting:
            member, share = self._share(waiting)
            try:
                with self._leaving_out(member):
                    member.gateway.invoke(context, share)
            except GatewayUnavailable:
                if all(m.out_until > time.monotonic() for m in self._members):
                    raise
                continue
            waiting = waiting[len(share) :]

    def supervise(self, context: RunContext) -> None:
        """Do nothing: the gateways that started the run's workers look after them."""

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start many workers of a run."""
        self.invoke(context, starts)

    def _with_fleet(self, context: RunContext) -> RunContext:
        """A context that tells workers of the fleet."""
        if context.fleet:
            return context
        run, session = context.run, context.code.session
        members = [
            FleetMember(
                url=m.gateway.url,
                token=m.gateway.token_of(run, session),
                ca_data=m.gateway.authorities,
            )
            for m in self._members
        ]
        return replace(context, fleet=tuple(members))

    def _share(self, waiting: Sequence[Start]) -> tuple[_Member, Sequence[Start]]:
        """The gateway with the most room, and the first of the starts, as many as it should get."""
        for member in self._reachable():
            with contextlib.suppress(GatewayUnavailable), self._leaving_out(member):
                member.look()
        with self._lock:
            members = self._reachable()
            counts: Counter[int] = Counter()
            rooms = [member.room for member in members]
            for _ in waiting:
                best = max(range(len(members)), key=lambda i: rooms[i] - counts[i])
                counts[best] += 1
            chosen, count = counts.most_common(1)[0]
            members[chosen].room -= count
            return members[chosen], waiting[:count]

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Have gateways prepare sandboxes; returns how many are ready."""
        members, ready = self._reachable(), 0
        for i, member in enumerate(members):
            share = (count + len(members) - 1 - i) // len(members)
            if share:
                with self._leaving_out(member):
                    ready += member.gateway.prewarm(context, resources, share)
        return ready

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers on all machines that can be reached."""
        self._asked(lambda gateway: gateway.cancel(run))

    def running(self, run: RunId) -> Sequence[int] | None:
        """The numbers of the tasks that the run's workers are executing; None: unknown."""
        answers = self._asked_all(lambda gateway: gateway.running(run))
        return None if answers is None else [number for each in answers for number in each]

    def active(self, run: RunId) -> bool | None:
        """Whether a worker of the run is running or waits for a sandbox; None: unknown."""
        answers = self._asked(lambda gateway: gateway.active(run))
        return any(answers) or (False if len(answers) == len(self._members) else None)

    def pool(self, session: str) -> WarmPool[Resources] | None:
        """None: which gateway a start will find isn't known."""
        return None

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed, on all machines."""
        lines = {line for found in self._asked(lambda g: g.logs(run)) for line in found}
        return sorted(lines, key=lambda line: line.time)  # gateways of a user share their files

    def close(self) -> None:
        """Close the connections."""
        for member in self._members:
            member.gateway.close()


def _most(found: Sequence[T | None]) -> T | None:
    known = [each for each in found if each is not None]
    return max(known, default=None)  # type: ignore[type-var]
