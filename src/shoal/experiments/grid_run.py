"""Run a grid: each configuration's warm-up runs, then its repeats, each planned from history.

1. Virtual runs use all cores, one process per configuration at a time. Real ones run one after the
   other, because they share the machine.
2. Finished runs and their samples are recorded, so an interrupted experiment can be resumed.
3. Mistakes are detected before anything runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from shoal.errors import UsageError
from shoal.experiments.grid import REAL_ONLY, SMALL, Cell, Grid
from shoal.experiments.records import Experiment, Records
from shoal.experiments.trial import TrialRunner, VirtualRunner, run_trial
from shoal.experiments.virtual_costs import PlatformCosts
from shoal.metadata.samples import Samples, decode_samples
from shoal.system import cores

OnProgress = Callable[[int], None]
"""Receives the number of runs finished since the last call."""

_RUN_NBYTES = 2_000
_TASK_NBYTES = 60
"""The disk space of a run's record, and of each of its tasks."""
_FILES_SHARE = 0.7
"""The share of a worker's memory that the files of a task may take."""


def check_folder(records: Records, experiment: Experiment, *, resume: bool) -> None:
    """Fail unless the experiment can be recorded in its folder."""
    folder = records.folder
    if records.exists and not resume:
        raise UsageError(
            f"{folder} already has an experiment; continue it with --resume, or choose another "
            "folder with --to."
        )
    if resume:
        _check_same(records, experiment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error}.") from error


def _check_same(records: Records, wanted: Experiment) -> None:
    if not records.exists:
        raise UsageError(f"There is no experiment to resume in {records.folder}.")
    known = records.experiment()
    for what in ("grid", "mode", "seed", "settings"):
        before, now = getattr(known, what), getattr(wanted, what)
        if before != now:
            raise UsageError(
                f"{records.folder} has an experiment with a different {what}: {before!r}, not "
                f"{now!r}. Choose another folder with --to."
            )


def check_space(folder: Path, nbytes: int) -> None:
    """Fail if the disk is too small for the records."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise UsageError(
            f"The records need about {nbytes / 1e9:.1f} GB, but {folder} has only "
            f"{free / 1e9:.1f} GB left; lower --repeat, choose a smaller grid, or another folder "
            "with --to."
        )


def check_memory(grid: Grid) -> None:
    """Fail unless the files of every task of an instance fit into a real worker's memory."""
    most = SMALL.memory_mb * 2**20 * _FILES_SHARE
    for workflow in grid.instances:
        shape = grid.shape(workflow)
        for name, task in zip(shape.ids, shape.tasks, strict=True):
            nbytes = task.nbytes + sum(shape.tasks[i].nbytes for i in task.upstream)
            nbytes += sum(shape.constants[i] for i in task.constants)
            if nbytes > most:
                raise UsageError(
                    f"{workflow}: the files of task {name!r} have {nbytes / 1e9:.1f} GB, but "
                    f"workers have {SMALL.memory_mb / 1024:g} GB of memory. Shrink all files with "
                    f"--bytes {grid.nbytes * most / nbytes:.1g}."
                )


def space(grid: Grid, repeat: int) -> int:
    """Estimate how many bytes the records of a grid take."""
    each = [_RUN_NBYTES + _TASK_NBYTES * len(grid.shape(w).tasks) for w in grid.workflows]
    return sum(each) * len(grid.planners) * len(grid.slas) * (repeat + grid.warm_up)


def cells_of(grid: Grid, mode: str) -> list[Cell]:
    """Return the configurations that a mode can run, longest first."""
    cells = [c for c in grid.cells() if mode == "real" or c.planner not in REAL_ONLY]
    return sorted(cells, key=lambda cell: -len(grid.shape(cell.workflow).tasks))


def left(records: Records, grid: Grid, mode: str, repeat: int) -> int:
    """Return how many runs are left, including warm-ups."""
    done = records.done()
    counted = sum(
        f"{cell}/{number}" not in done for cell in cells_of(grid, mode) for number in range(repeat)
    )
    warming = sum(
        records.load_samples(f"{cell}/w{number}") is None
        for cell in cells_of(grid, mode)
        if cell.planner not in REAL_ONLY
        for number in range(grid.warm_up)
    )
    return counted + warming


def run_virtual(
    records: Records,
    grid: Grid,
    repeat: int,
    seed: int,
    report: OnProgress,
    *,
    platform: PlatformCosts | None = None,
    processes: int = 0,
) -> None:
    """Run a grid on the virtual clock."""
    stage = VirtualRunner(grid, platform)
    cells = cells_of(grid, "virtual")
    count = processes or cores()
    if count == 1:
        for cell in cells:
            for _ in run_cell(records, grid, cell, repeat, seed, stage):
                report(1)
        return
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(count, mp_context=context) as pool:
        stop = manager.Event()
        futures = [
            pool.submit(_virtual_cell, records.folder, grid, cell, repeat, seed, stage, stop)
            for cell in cells
        ]
        with contextlib.ExitStack() as undo:
            undo.callback(pool.shutdown, wait=True, cancel_futures=True)
            undo.callback(stop.set)
            for future in as_completed(futures):
                report(future.result())
            undo.pop_all()


def _virtual_cell(
    folder: Path, grid: Grid, cell: Cell, repeat: int, seed: int, stage: TrialRunner, stop: Event
) -> int:
    """Run one configuration in a process of the pool; return the number of runs."""
    done = 0
    for _ in run_cell(Records(folder), grid, cell, repeat, seed, stage):
        done += 1
        if stop.is_set():
            break
    return done


def run_real(
    records: Records,
    grid: Grid,
    repeat: int,
    seed: int,
    report: OnProgress,
    *,
    computing: bool = False,
) -> None:
    """Run a grid in real sandboxes, one run after the other; tasks sleep unless they compute."""
    from shoal.experiments.real_runs import ComputingRunner, RealRunner

    made = ComputingRunner if computing else RealRunner
    with TemporaryDirectory() as folder, made(grid, folder) as stage:
        for cell in cells_of(grid, "real"):
            if cell.planner in REAL_ONLY:
                for number in range(repeat):
                    if f"{cell}/{number}" not in records.done():
                        records.append(stage.run_unplanned(grid, cell, number, seed))
                        report(1)
                continue
            for _ in run_cell(records, grid, cell, repeat, seed, stage):
                report(1)


def run_cell(
    records: Records, grid: Grid, cell: Cell, repeat: int, seed: int, stage: TrialRunner
) -> Iterator[str]:
    """Run what is left of a configuration; yield the id of each finished run."""
    names: list[int | str] = [f"w{number}" for number in range(grid.warm_up)]
    names += range(repeat)
    done = records.done()
    runs: list[Samples] = []
    for number in names:
        name = f"{cell}/{number}"
        block = records.load_samples(name)
        if block is None or (isinstance(number, int) and name not in done):
            trial = run_trial(grid, cell, number, seed, runs, stage)
            block = trial.block
            records.save_samples(name, block)
            if isinstance(number, int):
                records.append(trial.row, trial.timeline)
            yield name
        runs.insert(0, decode_samples(block))
