"""Measure Shoal side by side with Dask distributed and Ray.

Every engine has two workers of one core each (32 slots where the tasks only sleep) in a process of
its own that stays up and idles while the others run. The first run of a workload on an engine
doesn't count (the first three with 32 slots: Ray starts its processes bit by bit); after that the
engines take turns, so that noise hits all of them. A time covers
building the tasks and computing the result, which is checked.

Use an otherwise idle machine: the load before the start is printed with the figures.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from statistics import median
from types import FrameType
from typing import NoReturn

from arguments import names_of, new_file, positive
from contenders import CONTENDERS, missing_packages
from processes import adopt_orphans, end_all
from remote import Remote, RunFailedError
from report import Series, find_setting, save, table

INSTALL = "pip install 'shoal[bench]'"

try:
    from workloads import WORKLOADS
except ModuleNotFoundError as missing:
    print(f"{missing.name} isn't installed ({INSTALL})", file=sys.stderr)
    raise SystemExit(2) from missing

Say = Callable[[str], None]
"""Prints progress."""


def measure(workload: str, remotes: Sequence[Remote], repeats: int, say: Say) -> dict[str, Series]:
    """Run a workload on the engines in turn; one that fails is dropped."""
    series = {remote.engine: Series() for remote in remotes}
    for turn in range(1 - WORKLOADS[workload].warm_ups, repeats + 1):
        for remote in remotes:
            if series[remote.engine].failure is None:
                _take_turn(workload, remote, series[remote.engine], turn)
                say(_progress(workload, remote.engine, series[remote.engine], turn, repeats))
    return series


def _take_turn(workload: str, remote: Remote, series: Series, turn: int) -> None:
    try:
        runs = remote.run(workload)
    except RunFailedError as error:
        series.failure = error.reason
        return
    if turn > 0:
        series.add(runs)
    else:
        series.warm_up = median(runs)


def _progress(workload: str, engine: str, series: Series, turn: int, repeats: int) -> str:
    round_ = f"{turn}/{repeats}" if turn > 0 else "warm-up"
    last = series.times[-1] if series.times else series.warm_up
    outcome = series.failure or f"{last:.4f} s"
    return f"{workload:14} {engine:6} {round_:8} {outcome}"


def compare(
    workloads: Sequence[str], engines: Sequence[str], repeats: int, limit: float, say: Say
) -> dict[str, dict[str, Series]]:
    """Measure workloads, those that need the same number of slots on the same processes."""
    results = {}
    for slots, names in groupby(sorted(workloads, key=_slots), key=_slots):
        with ExitStack() as stack:
            remotes = [stack.enter_context(Remote(name, slots, limit)) for name in engines]
            for workload in names:
                results[workload] = measure(workload, remotes, repeats, say)
    return {workload: results[workload] for workload in workloads}


def _slots(workload: str) -> int:
    """Return the slots that a workload needs; 0 if it starts its own engine."""
    return 0 if WORKLOADS[workload].fresh else WORKLOADS[workload].slots


def installed(engines: Sequence[str]) -> list[str]:
    """Return the engines that can be started; print which can't and why."""
    found = []
    for engine in engines:
        missing = missing_packages(engine)
        if missing:
            reason = f"{' and '.join(missing)} not installed ({INSTALL})"
            print(f"{engine} is left out: {reason}", file=sys.stderr)
        else:
            found.append(engine)
    return found


@contextmanager
def no_process_left() -> Iterator[None]:
    """Stop everything that was started, however the block ends."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_all()


def parser() -> argparse.ArgumentParser:
    """Parse the command line."""
    width = max(map(len, WORKLOADS))
    texts = [f"  {name:{width}}  {workload.text}" for name, workload in WORKLOADS.items()]
    made = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(["workloads:", *texts]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engines, workloads = list(CONTENDERS), list(WORKLOADS)
    add = made.add_argument
    add("--engines", type=names_of(engines), default=engines, metavar="A,B", help=",".join(engines))
    add("--workloads", type=names_of(workloads), default=workloads, metavar="A,B", help="see below")
    add("--repeats", type=positive, default=5, metavar="N", help="measured runs (default: 5)")
    add(
        "--limit",
        type=float,
        default=120.0,
        metavar="S",
        help="timeout of a run in seconds (default: 120)",
    )
    add(
        "--json",
        type=new_file,
        metavar="FILE",
        help="write all measurements to this file, including each run",
    )
    add("--quiet", action="store_true", help="print only the table, no progress")
    return made


def main() -> int:
    options = parser().parse_args()
    engines = installed(options.engines)
    if not engines:
        return 2
    say: Say = (lambda _: None) if options.quiet else (lambda line: print(line, file=sys.stderr))
    setting = find_setting(engines, options.repeats)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what `first` imports is compiled once
    try:
        with no_process_left():
            results = compare(options.workloads, engines, options.repeats, options.limit, say)
    except KeyboardInterrupt:
        return 130
    print(setting, table(results, engines), sep="\n\n")
    if options.json:
        save(options.json, setting, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
