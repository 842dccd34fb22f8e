"""Compare the service of a deployed farm with that of the simulated one, task for task.

Real workers process one of the farm paper's streams: they sleep for each task's processing time.
`Farm(autoscaler=…)` controls the number of workers by itself. By default the workers run on the
local gateway; `--platform process://` starts a process for each instead, and `--store` names a
store that workers of other platforms reach.

Time is compressed: arrivals, processing times, deadlines, the control step and the observation
window are divided by the same factor, and an autoscaler sees times and rates as they would be
without it. The platform's overheads (the start and exit of a worker, the overhead of a task and the
latency of its result) are measured on the deployed farm first; the simulator uses them, multiplied
by the factor.

The machine should be idle: other load makes tasks late that are on time in the simulator.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from arguments import names_of, new_file, positive

from shoal import Farm, Resources, Session
from shoal.experiments.sleeping_farm import SleepingFarm
from shoal.farm import (
    DoubleDqn,
    Limits,
    ModelPredictive,
    Overheads,
    ReactiveAverage,
    ReactiveMaximum,
    Sarsa,
    SimulatedFarm,
    SquareRootStaffing,
    Workload,
)
from shoal.farm.episode import STEP, STEPS, run_episode
from shoal.farm.model import Autoscaler
from shoal.farm.workloads import WORKLOADS
from shoal.storage.embedded import EmbeddedServer

AUTOSCALERS: dict[str, Callable[[str], Autoscaler]] = {
    "reactive-average": lambda workload: ReactiveAverage(),
    "reactive-maximum": lambda workload: ReactiveMaximum(),
    "square-root": lambda workload: SquareRootStaffing(floor=14),
    "predictive": lambda workload: ModelPredictive.shipped(workload=workload),
    "sarsa": lambda workload: Sarsa.shipped(),
    "dqn": lambda workload: DoubleDqn.shipped(),
    "predictive-blind": lambda workload: ModelPredictive.shipped(phase_clock=False),
    "sarsa-blind": lambda workload: Sarsa.shipped(phase_clock=False),
    "dqn-blind": lambda workload: DoubleDqn.shipped(phase_clock=False),
}
WORKERS, LIMITS = 12, Limits(1, 32)
_NAP = 0.1


def measured(factor: float, session: Session | None) -> Overheads:
    """Measure the platform's overheads for the simulator."""
    small = Resources(memory_mb=128)
    with Farm(
        time.sleep, workers=(1, 32), start=WORKERS, autoscaler=None, resources=small,
        session=session,
    ) as deployed:  # fmt: skip
        _enter(deployed)
        for _ in deployed.map([0.0] * 10 * WORKERS):
            continue
        per_task = max(0.0, _busy_seconds(deployed, 20 * WORKERS) - _NAP)
        latency = max(0.0, _response_seconds(deployed) - _NAP - per_task)
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
        per_task=factor * per_task,
        latency=factor * latency,
    )


def _enter(deployed: Farm) -> None:
    """Wait for the first workers."""
    end = time.perf_counter() + 60
    while deployed.deployed.crew.present < WORKERS and time.perf_counter() < end:
        time.sleep(0.01)


def _busy_seconds(deployed: Farm, tasks: int) -> float:
    """Measure how long a worker is busy with a task, if all are always busy."""
    began = time.perf_counter()
    for _ in deployed.map([_NAP] * tasks, ordered=False):
        continue
    return (time.perf_counter() - began) * WORKERS / tasks


def _response_seconds(deployed: Farm) -> float:
    """Measure how long a task takes from its submission to its result, if workers are idle."""
    responses = []
    for _ in range(20):
        began = time.perf_counter()
        deployed.submit(_NAP).result()
        responses.append(time.perf_counter() - began)
    return statistics.median(responses)


def _until(deployed: Farm, change: int) -> float:
    """Measure how long a scaling action takes."""
    wanted, began = deployed.model.workers + change, time.perf_counter()
    deployed.scale_by(change)
    while deployed.model.workers != wanted and time.perf_counter() < began + 30:
        time.sleep(0.0005)
    return time.perf_counter() - began


@contextmanager
def store_of(args: argparse.Namespace) -> Iterator[str]:
    """The store that was given, or a server of this machine."""
    if args.store is not None:
        yield args.store
        return
    with closing(EmbeddedServer()) as server:
        yield server.url


def real_service(
    workload: Workload, autoscaler: Autoscaler, factor: float, session: Session | None
) -> tuple[float, float]:
    """Return the fraction of tasks on time, and the mean number of workers."""
    with SleepingFarm(
        workload, workers=WORKERS, limits=LIMITS, step=STEP, factor=factor, autoscaler=autoscaler,
        session=session,
    ) as farm:  # fmt: skip
        farm.wait(STEP * STEPS)
        workers = farm.mean_workers
        farm.drain()
        return farm.model.on_time_total / len(workload.arrivals), workers


def compare(args: argparse.Namespace, session: Session | None) -> dict[str, object]:
    """Run every autoscaler on every stream, and print a table."""
    load, overheads = os.getloadavg()[0], measured(args.factor, session)
    print(f"time compressed {args.factor:g} times; load before the start {load:.2f}")
    print(f"measured, times {args.factor:g}: {overheads}", flush=True)
    rows = []
    for name in args.autoscalers:
        for seed in range(args.seeds):
            workload, make = WORKLOADS[args.workload](seed), AUTOSCALERS[name]
            real, workers = real_service(workload, make(args.workload), args.factor, session)
            simulated = run_episode(
                SimulatedFarm(workload, limits=LIMITS, overheads=overheads, seed=seed),
                make(args.workload),
            )
            rows.append((name, seed, 100 * real, 100 * simulated.qos, workers,
                         simulated.mean_workers))  # fmt: skip
            print("{:18} seed {}: QoS {:.1f} deployed, {:.1f} simulated; "
                  "workers {:.2f}, {:.2f}".format(*rows[-1]), flush=True)  # fmt: skip
    for name in args.autoscalers:
        differences = [real - simulated for other, _, real, simulated, *_ in rows if other == name]
        print(f"{name:18} mean difference {statistics.mean(differences):+.1f} points")
    return {"load": load, "factor": args.factor, "platform": args.platform, "rows": rows}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--autoscalers", type=names_of([*AUTOSCALERS]), default=[*AUTOSCALERS])
    parser.add_argument("--workload", choices=[*WORKLOADS], default="paper-described")
    parser.add_argument("--factor", type=float, default=4.0, help="by which time is compressed")
    parser.add_argument("--seeds", type=positive, default=2)
    parser.add_argument("--platform", help="where workers run; default: the local gateway")
    parser.add_argument(
        "--store", help="a store that the workers reach; default: a server of this machine"
    )
    parser.add_argument("--file", type=new_file, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if args.platform is None:
        found = compare(args, None)
    else:
        with store_of(args) as store, Session(platform=args.platform, store=store) as session:
            found = compare(args, session)
            while (pool := session.platform.pool("")) is not None and pool.idle:
                time.sleep(0.2)  # idle jobs would miss the store
    if args.file:
        args.file.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
