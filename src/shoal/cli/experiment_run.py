"""Implement `shoal experiments run`, `compare` and `calibrate`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.client.progress_bar import ProgressBar
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.experiments.grid import Grid
    from shoal.experiments.records import Experiment, Records

SCALE = "scale"


def configure(actions: Any) -> None:
    """Describe the actions and their arguments."""
    run = actions.add_parser(
        "run",
        help="run a grid of experiments",
        description="Run a grid of experiments and record every run in a folder.",
    )
    run.add_argument("--grid", metavar="NAME", default="paper-000",
                     help="paper-000 (default), paper-000-as-published, agreement, paper-003, "
                          "paper-003-sizes, scale, or a .json file")  # fmt: skip
    run.add_argument("--instance", metavar="FILE", action="append", default=[],
                     help="run this WfCommons instance (WfFormat JSON) instead of a grid; "
                          "repeatable")  # fmt: skip
    run.add_argument("--mode", choices=("virtual", "real"), default="virtual",
                     help="simulate on the virtual clock (default), or run in real "
                          "sandboxes")  # fmt: skip
    run.add_argument("--repeat", metavar="RUNS", type=int, default=10,
                     help="runs of each configuration (default: %(default)s)")  # fmt: skip
    run.add_argument("--resume", action="store_true", help="continue an interrupted experiment")
    run.add_argument("--to", metavar="FOLDER",
                     help="where to record runs (default: experiments/GRID-MODE)")  # fmt: skip
    run.add_argument(
        "--seed", type=int, default=0, help="seed of all randomness (default: %(default)s)"
    )
    for what in ("workflows", "planners", "slas"):
        run.add_argument(f"--{what}", metavar="NAMES", default="",
                         help=f"only these {what}, comma-separated")  # fmt: skip
    run.add_argument("--work", metavar="FACTOR", type=float,
                     help="multiply the tasks' computing time by this")  # fmt: skip
    run.add_argument("--bytes", metavar="FACTOR", type=float, default=1.0,
                     help="multiply the file sizes of instances by this")  # fmt: skip
    run.add_argument("--computing", action="store_true",
                     help="with --mode real: compute on small inputs instead of "
                          "sleeping")  # fmt: skip
    run.add_argument("--warm-up", metavar="RUNS", type=int,
                     help="unrecorded runs before those that count")  # fmt: skip
    run.add_argument("--platform", metavar="NAME",
                     help="simulate this platform: measured, published, published-serialised, "
                          "published-each-input, published-serialised-each-input, or a file "
                          "that `calibrate` wrote (default: the grid's)")  # fmt: skip
    run.add_argument("--tasks", metavar="NUMBERS", default="10000,100000,1000000",
                     help="workflow sizes for the grid scale, comma-separated")  # fmt: skip
    run.add_argument("--workers", metavar="NUMBERS", default="100,1000,10000",
                     help="numbers of workers for the grid scale, comma-separated")  # fmt: skip
    compare = actions.add_parser(
        "compare",
        help="check whether real and virtual runs agree",
        description="Compare the median results of the configurations that a real and a virtual "
        "experiment have in common.",
    )
    compare.add_argument("real", metavar="REAL", help="the folder of real runs")
    compare.add_argument("virtual", metavar="VIRTUAL", help="the folder of virtual runs")
    calibrate = actions.add_parser(
        "calibrate",
        help="fit the simulated store and gateway to real runs",
        description="Fit the latencies of the simulated store and gateway to real runs, for "
        "`run --platform FILE`.",
    )
    calibrate.add_argument("real", metavar="REAL", help="the folder of real runs")
    calibrate.add_argument("file", metavar="FILE", help="where to write the result")


def carry_out(args: argparse.Namespace) -> None:
    """Run, compare or calibrate."""
    if args.action == "compare":
        _compare(args)
    elif args.action == "calibrate":
        _calibrate(args)
    elif args.grid == SCALE:
        _run_scale(args)
    else:
        _run(args)


def _run(args: argparse.Namespace) -> None:
    from shoal.experiments.grid_run import (
        check_folder,
        check_memory,
        check_space,
        left,
        run_real,
        run_virtual,
        space,
    )  # fmt: skip

    if args.repeat < 1:
        raise UsageError(f"--repeat {args.repeat}: must be at least 1.")
    grid = _grid(args)
    if args.computing and args.mode != "real":
        raise UsageError("--computing needs --mode real: virtual tasks don't compute.")
    if args.mode == "real":
        check_memory(grid)
    records = _records(args, grid.name)
    settings = grid.settings() | {"computing": args.computing}
    experiment = _experiment(args, grid.name, args.mode, settings)
    check_folder(records, experiment, resume=args.resume)
    check_space(records.folder, space(grid, args.repeat))
    _begin(records, experiment, resume=args.resume)
    total = left(records, grid, args.mode, args.repeat)
    bar, begin = _CountingBar(f"{grid.name}, {args.mode}", total), time.monotonic()
    try:
        if args.mode == "virtual":
            run_virtual(records, grid, args.repeat, args.seed, bar.add)
        else:
            run_real(records, grid, args.repeat, args.seed, bar.add, computing=args.computing)
    finally:
        bar.close()
    print(
        f"{bar.done:,} runs in {time.monotonic() - begin:.0f} s, recorded in {records.folder}; "
        f"`shoal experiments report {records.folder}` shows them"
    )


def _run_scale(args: argparse.Namespace) -> None:
    from shoal.experiments.grid_run import check_folder
    from shoal.experiments.scale import cases, run_case

    chosen = cases(_numbers("tasks", args.tasks), _numbers("workers", args.workers))
    records = _records(args, SCALE)
    settings = {"tasks": args.tasks, "workers": args.workers}
    experiment = _experiment(args, SCALE, "virtual", settings)
    check_folder(records, experiment, resume=args.resume)
    _begin(records, experiment, resume=args.resume)
    done = records.done()
    chosen = [case for case in chosen if case.id not in done]
    bar, begin = _CountingBar(SCALE, len(chosen)), time.monotonic()
    try:
        for case in chosen:
            records.append(run_case(case, args.seed))
            bar.add(1)
    finally:
        bar.close()
    print(f"{bar.done} simulations in {time.monotonic() - begin:.0f} s, recorded in "
          f"{records.folder}")  # fmt: skip


def _grid(args: argparse.Namespace) -> Grid:
    from shoal.experiments.grid import checked, grid_named, instance_grid, restricted

    grid = instance_grid(args.instance) if args.instance else grid_named(args.grid)
    if not args.bytes > 0:
        raise UsageError(f"--bytes {args.bytes}: must be greater than 0.")
    grid = replace(grid, nbytes=args.bytes)
    grid = restricted(grid, _names(args.workflows), _names(args.planners),
                      _numbers("slas", args.slas))  # fmt: skip
    if args.work is not None:
        if not args.work > 0:
            raise UsageError(f"--work {args.work}: must be greater than 0.")
        grid = replace(grid, work=replace(grid.work, scale=grid.work.scale * args.work))
    if args.warm_up is not None:
        grid = replace(grid, warm_up=args.warm_up)
    if args.platform is not None:
        grid = replace(grid, platform=args.platform)
    return checked(grid)


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _numbers(what: str, given: str) -> list[int]:
    try:
        return [int(name) for name in _names(given)]
    except ValueError as error:
        raise UsageError(f"--{what} {given}: must be comma-separated integers.") from error


def _records(args: argparse.Namespace, grid: str) -> Records:
    from shoal.experiments.records import Records

    return Records(Path(args.to or Path("experiments") / f"{grid}-{args.mode}"))


def _experiment(
    args: argparse.Namespace, grid: str, mode: str, settings: dict[str, Any]
) -> Experiment:
    from shoal import __version__
    from shoal.experiments.machine import described
    from shoal.experiments.records import Experiment

    return Experiment(
        grid=grid,
        mode=mode,
        repeat=args.repeat,
        seed=args.seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=described(),
        shoal=__version__,
        command="shoal " + " ".join(sys.argv[1:]),
        settings=json.loads(json.dumps(settings)),
    )


def _begin(records: Records, experiment: Experiment, *, resume: bool) -> None:
    if resume:
        known = records.experiment()
        experiment = replace(known, repeat=max(known.repeat, experiment.repeat))
    records.begin(experiment)


def _compare(args: argparse.Namespace) -> None:
    from shoal.experiments.comparison import compared, table
    from shoal.experiments.records import Records

    both = []
    for folder, mode in ((args.real, "real"), (args.virtual, "virtual")):
        records = Records(Path(folder))
        found = records.experiment().mode
        if found != mode:
            raise UsageError(f"{folder} has {found} runs; give the folder of {mode} runs.")
        both.append(records.rows()[0])
    print(table(compared(*both)))


def _calibrate(args: argparse.Namespace) -> None:
    from shoal.experiments.calibration import fitted
    from shoal.experiments.records import Records

    found = asdict(fitted(Records(Path(args.real))))
    Path(args.file).write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {args.file}")


class _CountingBar:
    """A progress bar that counts what is done."""

    def __init__(self, name: str, total: int) -> None:
        self._bar = ProgressBar(name, total)
        self.done = 0

    def add(self, count: int) -> None:
        self.done += count
        self._bar.show(self.done)

    def close(self) -> None:
        self._bar.close()
