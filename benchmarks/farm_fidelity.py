"""Compare the service of a deployed farm with that of the simulated one, task for task.

The farm paper's described stream is worked off by real workers on the local gateway that sleep for
each task's processing time. Time is compressed: arrivals, processing times, deadlines, the control
step and the window of the observations are all divided by the same factor, and an autoscaler is
shown times and rates as they would be without it. What the platform adds (the start of a worker,
its leaving, the overhead of a task) is measured on the deployed farm first; the simulator is given
that, multiplied by the factor.

The machine should be idle: what else runs on it makes tasks late that the simulator has on time.
"""

import argparse
import json
import os
import statistics
import threading
import time

from arguments import names_of, new_file, positive

from shoal import Farm, Resources
from shoal.farm import (
    Deadline,
    Limits,
    Observation,
    Overheads,
    ReactiveAverage,
    ReactiveMaximum,
    SimulatedFarm,
    SquareRootStaffing,
    Workload,
)
from shoal.farm.control import ACTIONS, STEP, STEPS, run_episode
from shoal.farm.model import Autoscaler, FarmModel, nearest
from shoal.farm.workloads import paper_described

AUTOSCALERS = {
    "reactive-average": ReactiveAverage,
    "reactive-maximum": ReactiveMaximum,
    "square-root": SquareRootStaffing,
}
WORKERS, LIMITS = 12, Limits(1, 32)


def farm(factor: float) -> Farm:
    """A farm whose tasks sleep, in compressed time."""
    found = Farm(
        time.sleep,
        workers=(LIMITS.least, LIMITS.most),
        start=WORKERS,
        resources=Resources(memory_mb=128),
        deadline=Deadline(2.0, 0.1 / factor, 30.0 / factor),
        expected=float,
        capacity=10_000,
    )
    return found


def measured(factor: float) -> Overheads:
    """What the platform adds, as the simulator takes it."""
    with farm(factor) as deployed:
        for _ in range(3 * WORKERS):
            deployed.submit(0.0).result(60)
        tasks = [_timed(deployed, 0.02) - 0.02 for _ in range(100)]
        starts, drains = [], []
        for _ in range(10):
            starts.append(_until(deployed, 1))
            drains.append(_until(deployed, -1))
    start, spread = statistics.mean(starts), statistics.stdev(starts)
    return Overheads(
        startup=factor * start,
        startup_spread=factor * spread,
        startup_least=factor * min(starts),
        startup_most=factor * max(starts),
        drain_least=factor * min(drains),
        drain_most=factor * max(drains),
        per_task=factor * statistics.median(tasks),
    )


def _timed(deployed: Farm, seconds: float) -> float:
    began = time.perf_counter()
    deployed.submit(seconds).result(60)
    return time.perf_counter() - began


def _until(deployed: Farm, change: int) -> float:
    """How long a change takes."""
    wanted, began = deployed.model.workers + change, time.perf_counter()
    deployed.scale_by(change)
    while deployed.model.workers != wanted and time.perf_counter() < began + 30:
        time.sleep(0.0005)
    return time.perf_counter() - began


def real_service(workload: Workload, autoscaler: Autoscaler, factor: float) -> tuple[float, float]:
    """The fraction of tasks on time, and the mean number of workers."""
    autoscaler.reset()
    with farm(factor) as deployed:
        for _ in range(3 * WORKERS):
            deployed.submit(0.0).result(60)
        stage = deployed.deployed.stages[0]
        began = stage._now()
        stage.model = model = FarmModel(
            WORKERS, LIMITS, window=STEP / factor, usual_response=1.5 / factor
        )
        model.settle(began)
        model.worker_seconds = 0.0
        model._looked = began
        feeder = threading.Thread(target=_feed, args=(deployed, workload, factor))
        feeder.start()
        started = time.monotonic()
        seen = deployed.advance(0.0)
        for step in range(1, STEPS + 1):
            shown = as_in_paper(seen, factor)
            deployed.scale_by(nearest(autoscaler.decide(shown), ACTIONS))
            until = started + step * STEP / factor
            seen = deployed.advance(max(0.0, until - time.monotonic()))
            if not feeder.is_alive() and deployed.finished:
                break
        workers = model.worker_seconds / (stage._now() - began)
        feeder.join()
        deployed.deployed.wait()
        return model.on_time_total / len(workload.arrivals), workers


def as_in_paper(seen: Observation, factor: float) -> Observation:
    """An observation with times as they would be without the compression."""
    return seen._replace(
        mean_response=factor * seen.mean_response,
        max_response=factor * seen.max_response,
        arrival_rate=seen.arrival_rate / factor,
        collected=0.0,
    )


def _feed(deployed: Farm, workload: Workload, factor: float) -> None:
    began = time.monotonic()
    for arrival, seconds in zip(workload.arrivals, workload.processing, strict=True):
        time.sleep(max(0.0, began + arrival / factor - time.monotonic()))
        deployed.submit(float(seconds) / factor)


def main() -> None:
    """Measure, compare, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--autoscalers", type=names_of([*AUTOSCALERS]), default=[*AUTOSCALERS])
    parser.add_argument("--factor", type=float, default=4.0, help="by which time is compressed")
    parser.add_argument("--seeds", type=positive, default=2)
    parser.add_argument("--file", type=new_file, help="where to write the figures, as JSON")
    args = parser.parse_args()
    load, overheads = os.getloadavg()[0], measured(args.factor)
    print(f"time compressed {args.factor:g} times; load before the start {load:.2f}")
    print(f"measured, times {args.factor:g}: {overheads}", flush=True)
    rows = []
    for name in args.autoscalers:
        for seed in range(args.seeds):
            workload, make = paper_described(seed), AUTOSCALERS[name]
            real, workers = real_service(workload, make(), args.factor)
            simulated = run_episode(
                SimulatedFarm(workload, limits=LIMITS, overheads=overheads, seed=seed),
                make(),
                phase_clock=False,
            )
            rows.append((name, seed, 100 * real, 100 * simulated.qos, workers,
                         simulated.mean_workers))  # fmt: skip
            print("{:18} seed {}: QoS {:.1f} deployed, {:.1f} simulated; "
                  "workers {:.2f}, {:.2f}".format(*rows[-1]), flush=True)  # fmt: skip
    for name in args.autoscalers:
        differences = [real - simulated for other, _, real, simulated, *_ in rows if other == name]
        print(f"{name:18} mean difference {statistics.mean(differences):+.1f} points")
    if args.file:
        args.file.write_text(json.dumps({"load": load, "factor": args.factor, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
