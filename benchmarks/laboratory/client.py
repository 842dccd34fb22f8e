"""A client of the laboratory: a process that runs what each line of its input asks for.

That is a workflow, or a farm that a stream goes through.

It answers with lines of JSON: the run's name once it is under way, then how it ended. When its
input ends, it closes its session and ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import shoal.run
from laboratory.workflows import FARM, Harm, drawn, number_of, step, stream
from shoal import Farm, Resources, Session
from shoal.errors import GatewayUnavailable, ShoalError, StoreUnavailable
from shoal.run import Run
from shoal.system import this_host
from shoal.workflow import Output

_EVERY = 0.5
"""Seconds between two decisions on how many workers a farm has."""


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def carry_out(session: Session, order: dict[str, Any]) -> None:
    """Run a workflow or a farm, and say how it ended."""
    if "finish" in order:  # what nobody knows of but the file of a client that was killed
        session.resume(order["finish"]).values()
        say(outcome="right")
        return
    if order["shape"] == FARM:
        compare(*farmed(session, order["seed"], harm_of(order)))
        return
    outputs, expected = drawn(order["shape"], order["seed"], harm_of(order))
    # Without a folder in shared memory, large outputs are staged in the store.
    told = this_host if order["shared"] else lambda: "elsewhere"
    shoal.run.this_host = told  # type: ignore[assignment, attr-defined]
    how = ("planner", "name") if order["resume"] is None else ("resume",)
    options = {option: order[option] for option in how}
    if order["detach"]:
        run = attached(session, order, outputs, options)
    else:
        run = session.submit(*outputs, **options)
        say(run=run.id)
    compare(run.values(), expected)


def compare(values: Sequence[Any], expected: list[int]) -> None:
    """Say whether all is as it must be."""
    found = [number_of(value) for value in values]
    say(outcome="right" if found == expected else f"wrong: {found} instead of {expected}")


def harm_of(order: dict[str, Any]) -> Harm | None:
    """What some task is to do to its process."""
    return (order["damage"], order["once"]) if order["damage"] else None


def farmed(session: Session, seed: int, harm: Harm | None) -> tuple[list[Any], list[int]]:
    """What comes out of a farm whose pool changes all the while, and what must."""
    given, expected = stream(seed, harm)
    resources = Resources(session.settings.memory_mb, session.settings.cpus)
    with Farm(
        step,
        workers=(1, 4),
        resources=resources,
        every=_EVERY,
        tries=session.settings.restarts,
        session=session,
    ) as farm:
        say(run=farm.deployed.id)
        return list(farm.map(given)), expected


class NotAttached(Exception):
    """Gateway or store are away when the client comes back; the run isn't concerned."""


def attached(
    session: Session, order: dict[str, Any], outputs: list[Output[Any]], options: dict[str, Any]
) -> Run:
    """Leave a run to itself for a while, and then wait for it."""
    name = order["resume"]
    if name is None:
        with Session() as leaving:
            name = leaving.submit(*outputs, detach=True, **options).id
    say(run=name)
    time.sleep(order["away"])
    try:
        return session.attach(name)
    except (GatewayUnavailable, StoreUnavailable) as error:
        raise NotAttached(type(error).__name__, str(error)) from error


def main() -> None:
    """Serve until the input ends."""
    with contextlib.ExitStack() as stack:
        session: Session | None = None
        for line in sys.stdin:
            try:
                if session is None:
                    session = stack.enter_context(Session())
                carry_out(session, json.loads(line))
            except ShoalError as error:
                say(outcome="error", kind=type(error).__name__, text=str(error)[:2000])
            except NotAttached as error:
                say(outcome="not attached", kind=error.args[0], text=error.args[1])


if __name__ == "__main__":
    main()
