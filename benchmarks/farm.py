"""Compare a farm of two workers with RQ, Celery and Dask: no-op tasks per second, and latency.

Every engine has a process of its own, one after the other, and takes several turns; the first
doesn't count. In a turn, many tasks go in at once and all results are taken, then single tasks go
in one after the other, each when the result of the one before is there. Results are checked. The
figures are medians.

Use an otherwise idle machine: the load before the start is printed with the figures.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec

from arguments import names_of, new_file, positive
from stream_engines import ENGINES

from shoal.experiments import machine

_LIMIT = 600
"""The timeout of an engine in seconds."""


def main() -> None:
    """Run the benchmark, print a table, and write a file if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=names_of([*ENGINES]), default=[*ENGINES])
    parser.add_argument("--tasks", type=positive, default=5000, help="in a turn")
    parser.add_argument("--singles", type=positive, default=300, help="in a turn")
    parser.add_argument("--turns", type=positive, default=3)
    parser.add_argument("--file", type=new_file, help="where to write the figures, as JSON")
    parser.add_argument("--alone", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(_measured(args.alone, args.tasks, args.singles, args.turns)))
        return
    missing = {p for name in args.engines for p in ENGINES[name].packages if find_spec(p) is None}
    if missing:
        parser.exit(2, f"{', '.join(sorted(missing))}: pip install 'shoal[bench]'\n")
    load = os.getloadavg()[0]
    print(f"{machine.described()}, load before the start {load:.2f}")
    print(f"{args.tasks} tasks and {args.singles} single ones a turn, {args.turns} turns")
    found = {name: _in_own_process(name, args) for name in args.engines}
    print(f"{'':8}{'tasks/s':>10}{'p50 ms':>10}{'p95 ms':>10}")
    for name, figures in found.items():
        print(f"{name:8}{figures['rate']:10.0f}{figures['p50']:10.2f}{figures['p95']:10.2f}"
              f"  {machine.version_of(ENGINES[name].packages[0])}")  # fmt: skip
    if args.file:
        args.file.write_text(json.dumps({"load": load, "engines": found}, indent=1) + "\n")


def _in_own_process(name: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--alone", name, "--tasks", str(args.tasks),
               "--singles", str(args.singles), "--turns", str(args.turns)]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_LIMIT)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measured(name: str, tasks: int, singles: int, turns: int) -> dict[str, float]:
    engine = ENGINES[name]()
    rates, latencies = [], []
    try:
        engine.one(0)
        for turn in range(turns + 1):
            began = time.perf_counter()
            results = engine.many(range(tasks))
            taken = time.perf_counter() - began
            if sorted(results) != list(range(tasks)):
                raise SystemExit(f"{name}: the results are wrong")
            found = [_latency(engine.one, number) for number in range(singles)]
            if turn:
                rates.append(tasks / taken)
                latencies += found
    finally:
        engine.close()
    cuts = statistics.quantiles(latencies, n=20)
    return {"rate": statistics.median(rates), "p50": 1000 * cuts[9], "p95": 1000 * cuts[18]}


def _latency(one: object, number: int) -> float:
    began = time.perf_counter()
    if one(number) != number:  # type: ignore[operator]
        raise SystemExit("a result is wrong")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
