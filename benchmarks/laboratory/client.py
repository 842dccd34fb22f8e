"""A client of the laboratory: a process that runs what each line of its input asks for.

It answers with lines of JSON: the run's name once it is under way, then how it ended. When its
input ends, it closes its session and ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import shoal.run
from laboratory.workflows import drawn, number_of
from shoal import Session
from shoal.errors import GatewayUnavailable, ShoalError, StoreUnavailable
from shoal.run import Run
from shoal.workflow import Output

_here = shoal.run.this_host


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def carry_out(session: Session, order: dict[str, Any]) -> None:
    """Run a workflow, and say how it ended."""
    if "finish" in order:  # what nobody knows of but the file of a client that was killed
        session.resume(order["finish"]).values()
        say(outcome="right")
        return
    outputs, expected = drawn(order["shape"], order["seed"])
    # Without a folder in shared memory, large outputs are staged in the store.
    shoal.run.this_host = _here if order["shared"] else lambda: "elsewhere"
    how = ("planner", "name") if order["resume"] is None else ("resume",)
    options = {option: order[option] for option in how}
    if order["detach"]:
        run = attached(session, order, outputs, options)
    else:
        run = session.submit(*outputs, **options)
        say(run=run.id)
    found = [number_of(value) for value in run.values()]
    say(outcome="right" if found == expected else f"wrong: {found} instead of {expected}")


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
