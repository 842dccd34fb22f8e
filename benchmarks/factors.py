"""Measure what each step from a central scheduler to decentralised workers gains (WUKONG, Fig. 12).

Tree reductions and a wide fan-out run under the centralised designs and under flexible workers, to
which the techniques are added one by one. All take turns on the same store and on gateways of the
same size, with every round trip delayed. Everything is warm, and each run starts when no worker of
the previous one is busy. A time covers planning and execution, from submitting the workflow to its
result, but not the cleanup. The output has medians, and whether decentralised workers beat each
centralised design.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from arguments import new_file, positive

from shoal import Session, WukongPlanner
from shoal.clock import RealClock
from shoal.experiments import machine
from shoal.experiments.centralised.scheduler import DESIGNS, CentralScheduler, Design
from shoal.experiments.fan_out import fan_out
from shoal.experiments.tree_reduction import tree_reduction
from shoal.platform.gateway import LocalGateway
from shoal.workflow import Output

REST_SECONDS = 30.0
"""Seconds after which busy sandboxes are an error."""
BIG = 256 * 1024
"""The size of a big output: that of the fan-out is big, those of the trees aren't."""
NONE: dict[str, Any] = {
    "large_fan_out": None,
    "fan_out_clustering": False,
    "fan_in_clustering": False,
    "delayed_io": False,
    "big_output_nbytes": BIG,
}
FAN_OUT_INVOKER = NONE | {"large_fan_out": 10}
CLUSTERING = FAN_OUT_INVOKER | {"fan_out_clustering": True, "fan_in_clustering": True}
DELAYED_IO = CLUSTERING | {"delayed_io": True}
DECENTRALISED = {
    "decentralised": NONE,
    "+ large fan-out invoker": FAN_OUT_INVOKER,
    "+ clustering": CLUSTERING,
    "+ delayed I/O": DELAYED_IO,
}

Build = Callable[[], Output[Any]]
Compute = Callable[[Output[Any]], tuple[list[Any], float]]
"""Runs a workflow; returns the values and when they arrived."""


def workloads(options: argparse.Namespace) -> dict[str, Build]:
    """Return the workflows by name."""
    return {
        "TR, 0 ms": partial(tree_reduction, options.numbers),
        "TR, 100 ms": partial(tree_reduction, options.numbers, seconds=0.1),
        "fan-out": partial(fan_out, options.width),
    }


def engines(session: Session, central: CentralScheduler) -> dict[str, Compute]:
    """Return the engines: each design, then the techniques, added one at a time."""

    def centrally(design: Design, output: Output[Any]) -> tuple[list[Any], float]:
        values = central.compute(output, design=design)
        return values, central.ended

    def by_workers(planner: WukongPlanner, output: Output[Any]) -> tuple[list[Any], float]:
        run = session.submit(output, planner=planner)
        values = run.values()
        ago = run.clock.now() - run.started - run.makespan
        return values, RealClock().now() - ago

    found: dict[str, Compute] = {design.name: partial(centrally, design) for design in DESIGNS}
    for name, techniques in DECENTRALISED.items():
        found[name] = partial(by_workers, WukongPlanner(**techniques))
    return found


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Measure every run, by workload and engine."""
    found: dict[str, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(
            latency=options.latency / 1000,
            sandboxes=options.sandboxes,
            workers=options.sandboxes,
            idle_seconds=3600.0,
            history=False,
            progress=False,
            folder=folder,
        ) as session,
        CentralScheduler(session) as central,
    ):
        runners = engines(session, central)
        for workload, build in workloads(options).items():
            found[workload] = {name: [] for name in runners}
            expected = session.compute(build())
            for number in range(options.warm_ups + options.repeats):
                for name, compute in runners.items():
                    output, start = build(), RealClock().now()
                    values, ended = compute(output)
                    rest(session, central)
                    assert values == expected, f"{name} gives {values} instead of {expected}"
                    if number >= options.warm_ups:
                        found[workload][name].append(ended - start)
    return found


def rest(session: Session, central: CentralScheduler) -> None:
    """Wait until no sandbox is busy, so that a run doesn't affect the next one."""
    session.settle()
    deadline = time.monotonic() + REST_SECONDS
    own = session.platform
    assert isinstance(own, LocalGateway)
    while own.status()["busy"] or central.gateway.status()["busy"]:
        if time.monotonic() > deadline:
            raise SystemExit(f"Sandboxes are still busy {REST_SECONDS:g} s after a run.")
        time.sleep(0.01)


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return a row for each engine: the median seconds and the speed-up over the first."""
    lines = [f"{'':28}" + "".join(f"{workload:>20}" for workload in found)]
    for name in next(iter(found.values())):
        cells = []
        for seconds in found.values():
            first, own = median(next(iter(seconds.values()))), median(seconds[name])
            cells.append(f"{own:10.3f} s {first / own:6.1f}x")
        lines.append(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def beaten(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return where decentralised workers are no faster than a centralised design."""
    return [
        f"{workload}: decentralised {median(seconds['decentralised']):.3f} s, "
        f"{design.name} {median(seconds[design.name]):.3f} s"
        for workload, seconds in found.items()
        for design in DESIGNS
        if median(seconds["decentralised"]) >= median(seconds[design.name])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--numbers", type=positive, default=256, help="numbers added by TR (default: 256)"
    )
    parser.add_argument(
        "--width", type=positive, default=100, help="width of the fan-out (default: 100)"
    )
    parser.add_argument(
        "--latency", type=float, default=10.0, help="latency of a round trip in ms (default: 10)"
    )
    parser.add_argument(
        "--sandboxes",
        type=positive,
        default=128,
        help="of each gateway (128: one for each leaf of TR, so that no design waits for one)",
    )
    parser.add_argument("--repeats", type=positive, default=5, help="measured runs (default: 5)")
    parser.add_argument("--warm-ups", type=int, default=1, help="warm-up runs (default: 1)")
    parser.add_argument(
        "--json", type=new_file, metavar="FILE", help="write all times to this file"
    )
    options = parser.parse_args()
    found = measure(options)
    print(machine.described())
    print(f"TR of {options.numbers} numbers, fan-out of {options.width}, {options.latency:g} ms "
          f"latency, {options.sandboxes} sandboxes, medians of {options.repeats}\n")  # fmt: skip
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    lost = beaten(found)
    print("\n" + "\n".join(lost or ["decentralised beats each centralised design"]))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
