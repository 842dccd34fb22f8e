"""Report measurements and the machine, as a table and as JSON."""

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contenders import CONTENDERS
from targets import TARGETS

from shoal.experiments.machine import version_of
from shoal.system import memory_nbytes, processor

PEERS = tuple(name for name in CONTENDERS if name != "shoal")


@dataclass(slots=True)
class Series:
    """The runs of one workload on one engine."""

    warm_up: float | None = None
    """The seconds of the first run, which doesn't count."""

    times: list[float] = field(default_factory=list)
    """The seconds of the other runs; of a loop, the median of each."""

    tails: list[float] = field(default_factory=list)
    """The 99th percentile of each loop."""

    failure: str | None = None
    """Why there is no further time."""

    def add(self, runs: Sequence[float]) -> None:
        """Add a measurement: one run, or the runs of a loop."""
        self.times.append(statistics.median(runs))
        if len(runs) > 1:
            self.tails.append(sorted(runs)[math.ceil(0.99 * len(runs)) - 1])

    @property
    def median(self) -> float | None:
        """The median in seconds; none if a run failed."""
        return statistics.median(self.times) if self.times and not self.failure else None

    @property
    def best(self) -> float | None:
        """The shortest run in seconds; none if a run failed."""
        return min(self.times) if self.times and not self.failure else None

    @property
    def tail(self) -> float | None:
        """The median of the loops' 99th percentiles; none if it isn't a loop, or one failed."""
        return statistics.median(self.tails) if self.tails and not self.failure else None


Results = Mapping[str, Mapping[str, Series]]
"""By workload, then by engine."""


@dataclass(frozen=True, slots=True)
class BenchmarkSetting:
    """The machine, time and software of a benchmark."""

    date: str
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    load: float
    """The average over the minute before the start; other load makes the figures worthless."""
    python: str
    versions: dict[str, str]
    repeats: int
    options: dict[str, str]
    """Environment variables that affect a peer."""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        options = "".join(f"\n{name}={value}" for name, value in self.options.items())
        return (
            f"{self.date}, load {self.load:.1f} before the start\n"
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB, {self.kernel}\n"
            f"Python {self.python}, {versions}{options}\n"
            f"Seconds: median and best of {self.repeats} warm runs; ratios of medians.\n"
            f"Of a loop: median, best median and median 99th percentile of {self.repeats} loops."
        )


def find_setting(engines: Sequence[str], repeats: int) -> BenchmarkSetting:
    """Describe this machine and the installed packages."""
    packages = [package for engine in engines for package in CONTENDERS[engine].packages]
    return BenchmarkSetting(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=processor(),
        cores=os.cpu_count() or 1,
        memory_gb=memory_nbytes() / 2**30,
        kernel=f"{platform.system()} {platform.release()}",
        load=os.getloadavg()[0],
        python=platform.python_version(),
        versions={name: version_of(name) for name in (*packages, "numpy")},
        repeats=repeats,
        options={k: v for k, v in os.environ.items() if k.startswith(("DASK_", "RAY_", "SHOAL_"))},
    )


def table(results: Results, engines: Sequence[str]) -> str:
    """Return a table with a row per workload, then a line for each failure."""
    peers = [peer for peer in PEERS if peer in engines and "shoal" in engines]
    head = ["workload", *(cell for engine in engines for cell in (engine, "best", "p99"))]
    head += [*(f"{peer}/shoal" for peer in peers), "target", ""]
    rows = [_row(workload, series, peers) for workload, series in results.items()]
    failures = [
        f"{workload} on {engine}: {each.failure}"
        for workload, series in results.items()
        for engine, each in series.items()
        if each.failure
    ]
    return "\n".join([*_aligned([head, *rows]), *failures])


def _row(workload: str, series: Mapping[str, Series], peers: Sequence[str]) -> list[str]:
    cells = [workload]
    for each in series.values():
        median = "failed" if each.failure else _seconds(each.median)
        cells += [median, _seconds(each.best), _seconds(each.tail)]
    for peer in peers:
        ratio = ratio_of(series, peer)
        cells.append("-" if ratio is None else f"{ratio:.2f}")
    return [*cells, TARGETS[workload].text, verdict(workload, series)]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Figures to the right; the first column and the last two, which are text, to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = {0, len(widths) - 2, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if at in text else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ratio_of(series: Mapping[str, Series], peer: str) -> float | None:
    """Return a peer's median divided by Shoal's, if both have one."""
    medians = _medians(series)
    return medians[peer] / medians["shoal"] if {peer, "shoal"} <= medians.keys() else None


def verdict(workload: str, series: Mapping[str, Series]) -> str:
    """`ok`, `MISSED`, or `-` where the target couldn't be judged; Shoal's failure misses it."""
    if "shoal" in series and series["shoal"].failure:
        return "MISSED"
    match TARGETS[workload].met(_medians(series)):
        case True:
            return "ok"
        case False:
            return "MISSED"
        case None:
            return "-"


def _medians(series: Mapping[str, Series]) -> dict[str, float]:
    found = {name: each.median for name, each in series.items()}
    found |= {f"{name} p99": each.tail for name, each in series.items()}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def save(path: Path, setting: BenchmarkSetting, results: Results) -> None:
    """Write all measurements, including each run."""
    rows = {workload: _record(workload, series) for workload, series in results.items()}
    path.write_text(json.dumps({"setting": asdict(setting), "workloads": rows}, indent=2) + "\n")


def _record(workload: str, series: Mapping[str, Series]) -> dict[str, Any]:
    return {
        "engines": {
            name: {"median": each.median, "best": each.best, "p99": each.tail, **asdict(each)}
            for name, each in series.items()
        },
        "ratios": {peer: ratio_of(series, peer) for peer in PEERS if peer in series},
        "target": TARGETS[workload].text,
        "verdict": verdict(workload, series),
    }
