"""Runs a grid: each configuration's warm-up runs, then its repeats, planned from those before.

1. Virtual runs take all cores: a process has one configuration at a time. Real ones come one after
   the other, for they share the machine.
2. What has been run is in the records, what it taught too: an experiment that was interrupted goes
   on where it was.
3. What can't work is found before anything runs.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from shoal.errors import UsageError
from shoal.experiments.grid import CENTRALISED, Cell, Grid
from shoal.experiments.records import Experiment, Records
from shoal.experiments.shapes import shape_named
from shoal.experiments.trial import Stage, VirtualStage, tried
from shoal.experiments.world import Platform
from shoal.metadata.samples import Samples, undistilled
from shoal.system import cores

Report = Callable[[int], None]
"""Is told how many runs more are done."""

_RUN_NBYTES = 2_000
_TASK_NBYTES = 60
"""What a run leaves on the disk, and each of its tasks: a line, a timeline, what it taught."""


def check_folder(records: Records, experiment: Experiment, *, resume: bool) -> None:
    """Fail unless the experiment can be recorded in its folder."""
    folder = records.folder
    if records.exists and not resume:
        raise UsageError(
            f"{folder} has an experiment already: give --resume to go on with it, or another "
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
        raise UsageError(f"{folder} can't be written to: {error}.") from error


def _check_same(records: Records, wanted: Experiment) -> None:
    if not records.exists:
        raise UsageError(f"There is no experiment in {records.folder} to go on with.")
    known = records.experiment()
    for what in ("grid", "mode", "seed", "settings"):
        before, now = getattr(known, what), getattr(wanted, what)
        if before != now:
            raise UsageError(
                f"{records.folder} has an experiment with another {what}: {before!r}, not {now!r}. "
                "Give another folder with --to."
            )


def check_space(folder: Path, nbytes: int) -> None:
    """Fail if a disk is too small for what is to be written."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise UsageError(
            f"The records would take about {nbytes / 1e9:.1f} GB, and {folder} has "
            f"{free / 1e9:.1f} GB left: give fewer --repeat, a smaller grid, or another folder "
            "with --to."
        )


def space(grid: Grid, repeat: int) -> int:
    """About how many bytes the records of a grid take."""
    each = [_RUN_NBYTES + _TASK_NBYTES * len(shape_named(w).tasks) for w in grid.workflows]
    return sum(each) * len(grid.planners) * len(grid.slas) * (repeat + grid.warm_up)


def cells_of(grid: Grid, mode: str) -> list[Cell]:
    """The configurations that a mode can run; the longest first."""
    cells = [c for c in grid.cells() if mode == "real" or c.planner not in CENTRALISED]
    return sorted(cells, key=lambda cell: -len(shape_named(cell.workflow).tasks))


def left(records: Records, grid: Grid, mode: str, repeat: int) -> int:
    """How many runs are still to be made, warm-ups too."""
    done = records.done()
    counted = sum(
        f"{cell}/{number}" not in done for cell in cells_of(grid, mode) for number in range(repeat)
    )
    warming = sum(
        records.taught(f"{cell}/w{number}") is None
        for cell in cells_of(grid, mode)
        if cell.planner not in CENTRALISED
        for number in range(grid.warm_up)
    )
    return counted + warming


def run_virtual(
    records: Records,
    grid: Grid,
    repeat: int,
    seed: int,
    report: Report,
    *,
    platform: Platform | None = None,
    processes: int = 0,
) -> None:
    """Run a grid on the virtual clock."""
    stage = VirtualStage(grid, platform)
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
        try:
            for future in as_completed(futures):
                report(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _virtual_cell(
    folder: Path, grid: Grid, cell: Cell, repeat: int, seed: int, stage: Stage, stop: Event
) -> int:
    """A process's share: one configuration; how many runs it took."""
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
    report: Report,
    *,
    computing: bool = False,
) -> None:
    """Run a grid in real sandboxes, one run after the other; tasks sleep unless they compute."""
    from shoal.experiments.real import ComputingStage, RealStage

    made = ComputingStage if computing else RealStage
    with TemporaryDirectory() as folder, made(grid, folder) as stage:
        for cell in cells_of(grid, "real"):
            if cell.planner in CENTRALISED:
                for number in range(repeat):
                    if f"{cell}/{number}" not in records.done():
                        records.append(stage.centrally(grid, cell, number, seed))
                        report(1)
                continue
            for _ in run_cell(records, grid, cell, repeat, seed, stage):
                report(1)


def run_cell(
    records: Records, grid: Grid, cell: Cell, repeat: int, seed: int, stage: Stage
) -> Iterator[str]:
    """Run a configuration, as far as it hasn't been; the id of each run when it has ended."""
    names: list[int | str] = [f"w{number}" for number in range(grid.warm_up)]
    names += range(repeat)
    done = records.done()
    runs: list[Samples] = []
    for number in names:
        name = f"{cell}/{number}"
        block = records.taught(name)
        if block is None or (isinstance(number, int) and name not in done):
            trial = tried(grid, cell, number, seed, runs, stage)
            block = trial.block
            records.teach(name, block)
            if isinstance(number, int):
                records.append(trial.row, trial.timeline)
            yield name
        runs.insert(0, undistilled(block))
