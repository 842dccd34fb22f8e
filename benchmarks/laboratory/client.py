"""Run a client of the laboratory: each line of its input is a workflow or a farm to run.

It answers with lines of JSON: the run's id once it has started, then how it ended. When its input
ends, it closes its session and exits.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from laboratory.workflows import FARM, Harm, drawn, number_of, step, stream
from shoal import Farm, Resources, Session
from shoal.client.run import Run
from shoal.client.shared_folders import SharedFolders
from shoal.errors import GatewayUnavailable, ShoalError, StoreUnavailable
from shoal.workflow import Output

_USABLE = SharedFolders.usable
_EVERY = 0.5
"""Seconds between two scaling decisions of a farm."""


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def carry_out(session: Session, order: dict[str, Any]) -> None:
    """Run a workflow or a farm, and report how it ended."""
    if "finish" in order:  # a killed client's run, known only from its file
        session.resume(order["finish"]).values()
        say(outcome="right")
        return
    if order["shape"] == FARM:
        compare(*farmed(session, order["seed"], harm_of(order)))
        return
    outputs, expected = drawn(order["shape"], order["seed"], harm_of(order))
    # Without a folder in shared memory, large outputs are staged in the store.
    SharedFolders.usable = _USABLE if order["shared"] else False  # type: ignore[assignment]
    how = ("planner", "name") if order["resume"] is None else ("resume",)
    options = {option: order[option] for option in how}
    if order["detach"]:
        run = attached(session, order, outputs, options)
    else:
        run = session.submit(*outputs, **options)
        say(run=run.id)
    compare(run.values(), expected)


def compare(values: Sequence[Any], expected: list[int]) -> None:
    """Report whether the result is right."""
    found = [number_of(value) for value in values]
    say(outcome="right" if found == expected else f"wrong: {found} instead of {expected}")


def harm_of(order: dict[str, Any]) -> Harm | None:
    """Return the damage that a task does to its process."""
    return (order["damage"], order["once"]) if order["damage"] else None


def farmed(session: Session, seed: int, harm: Harm | None) -> tuple[list[Any], list[int]]:
    """Run a farm that keeps scaling; return its results and the expected ones."""
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
    """Retry while gateway or store are unavailable, which doesn't affect the run."""


def attached(
    session: Session, order: dict[str, Any], outputs: list[Output[Any]], options: dict[str, Any]
) -> Run:
    """Detach from a run for a while, then wait for it."""
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
