"""Report the scores of plans, as tables and as JSON."""

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from quality.contest import Case, Contestant, Score
from quality.tables import aligned, geometric, rounded
from shoal.experiments.machine import version_of
from shoal.system import processor

TOLERANCE = 1e-6
"""The relative difference below which makespans count as equal."""


@dataclass(frozen=True, slots=True)
class BenchmarkSetting:
    """The machine, time and software of the benchmark."""

    date: str
    cpu: str
    cores: int
    load: float
    """The load average over the minute before the start, which affects only planning times."""
    python: str
    versions: dict[str, str]
    seed: int
    seconds: float | None
    limit: float

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        planning = "their own choice" if self.seconds is None else f"{self.seconds:g} s"
        return (
            f"{self.date}, load {self.load:.1f} before the start\n"
            f"{self.cpu}, {self.cores} cores, Python {self.python}, {versions}\n"
            f"workers of one slot, seed {self.seed}, PYTHONHASHSEED=0; planning "
            f"limit of Shoal's planners: {planning}; of all: {self.limit:g} s"
        )


def find_setting(seed: int, seconds: float | None, limit: float) -> BenchmarkSetting:
    """Describe this machine and the installed packages."""
    packages = ("shoal", "anrg-saga", "wfcommons", "ortools", "networkx", "numpy", "scipy")
    return BenchmarkSetting(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=processor(),
        cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        python=platform.python_version(),
        versions={name: version_of(name) for name in packages},
        seed=seed,
        seconds=seconds,
        limit=limit,
    )


class QualityReport:
    """Return the tables."""

    def __init__(self, cases: Sequence[Case], contestants: Sequence[Contestant]) -> None:
        self._cases = cases
        self._all = contestants
        self._ours = [c.name for c in contestants if c.ours]
        self._theirs = [c.name for c in contestants if not c.ours]

    def __str__(self) -> str:
        scored = [c.name for c in self._all if any(c.name in case.scores for case in self._cases)]
        return "\n\n".join(
            [
                "Makespan over the lower bound\n"
                + self._by_case(scored, lambda c, s: f"{_ratio(c, s):.3f}"),
                "GB-seconds\n" + self._by_case(scored, lambda _, s: rounded(s.gb_seconds)),
                self._summary(scored),
                *self._verdicts(),
                *self._left_out(),
            ]
        )

    def _by_case(self, names: Sequence[str], figure: Callable[[Case, Score], str]) -> str:
        head = ["shape", "tasks", "ccr", "workers", "bound", *names]
        rows = [
            [
                *(case.shape, str(case.tasks), f"{case.ccr:g}", str(case.workers)),
                rounded(case.lower_bound),
                *(
                    figure(case, case.scores[name]) if name in case.scores else "-"
                    for name in names
                ),
            ]
            for case in self._cases
        ]
        return aligned([head, *rows])

    def _summary(self, names: Sequence[str]) -> str:
        ccrs = sorted({case.ccr for case in self._cases})
        head = ["", *(f"ccr {ccr:g}" for ccr in ccrs), "all", "GB-s/best", "shortest", "cases"]
        ours = [self._row(name, ccrs) for name in names if name in self._ours]
        theirs = [self._row(name, ccrs) for name in names if name in self._theirs]
        portfolio = [
            "best of saga's",
            *(_cell(self._portfolio(ccr)) for ccr in ccrs),
            _cell(self._portfolio(None)),
        ]
        portfolio += [""] * (len(head) + 2 - len(portfolio))
        head += ["plan median", "plan max"]
        texts = [cells for cells, *_ in ours] + [portfolio]
        texts += [cells for cells, *_ in sorted(theirs, key=lambda row: row[1:])]
        title = (
            "Geometric means of the makespan over the lower bound, and of GB-seconds over the "
            "case's least;\nin how many cases nobody's makespan is shorter; seconds to plan"
        )
        return title + "\n" + aligned([head, *texts])

    def _row(self, name: str, ccrs: Sequence[float]) -> tuple[list[str], int, float]:
        """Return the cells and the sort key of a row; few cases make no fair mean."""
        cases = [case for case in self._cases if name in case.scores]
        ratio = geometric(_ratio(case, case.scores[name]) for case in cases)
        by_ccr = [
            geometric(_ratio(case, case.scores[name]) for case in cases if case.ccr == ccr)
            for ccr in ccrs
        ]
        memory = geometric(
            case.scores[name].gb_seconds / min(s.gb_seconds for s in case.scores.values())
            for case in cases
        )
        shortest = sum(_no_worse(case, name, case.scores) for case in cases)
        planning = [case.scores[name].planning for case in cases]
        cells = [name, *map(_cell, by_ccr), _cell(ratio), _cell(memory), str(shortest)]
        cells += [str(len(cases)), f"{median(planning):.3f}", f"{max(planning):.3f}"]
        return cells, -len(cases), ratio

    def _portfolio(self, ccr: float | None) -> float:
        """Return the geometric mean if the best scheduler of saga were known for each case."""
        return geometric(
            min(_ratio(case, case.scores[name]) for name in self._theirs if name in case.scores)
            for case in self._cases
            if ccr in (None, case.ccr) and any(name in case.scores for name in self._theirs)
        )

    def _verdicts(self) -> list[str]:
        lines = []
        for name in self._ours:
            cases = [
                case
                for case in self._cases
                if name in case.scores and any(other in case.scores for other in self._theirs)
            ]
            if not cases:
                continue
            held = Counter(case.ccr for case in cases if _no_worse(case, name, self._theirs))
            total = Counter(case.ccr for case in cases)
            over = [_over_best(case, name, self._theirs) for case in cases]
            parts = ", ".join(
                f"{held[ccr]} of {total[ccr]} at ccr {ccr:g}" for ccr in sorted(total)
            )
            lines.append(
                f"{name} is no worse than the best of saga's in {held.total()} of {len(cases)} "
                f"cases ({parts});\nits makespan over theirs: {geometric(over):.3f} on average, "
                f"{min(over):.3f} to {max(over):.3f}"
            )
        return lines

    def _left_out(self) -> list[str]:
        reasons = Counter(
            (name, reason) for case in self._cases for name, reason in case.missing.items()
        )
        lines = [
            f"{name}: {reason} ({count} {'case' if count == 1 else 'cases'})"
            for (name, reason), count in sorted(reasons.items())
        ]
        return ["Left out\n" + "\n".join(lines)] if lines else []


def save(path: Path, setting: BenchmarkSetting, parts: Mapping[str, Sequence[Any]]) -> None:
    """Write all scores, including each case."""
    cases = {part: [asdict(case) for case in found] for part, found in parts.items()}
    path.write_text(json.dumps({"setting": asdict(setting), **cases}, indent=2) + "\n")


def _ratio(case: Case, score: Score) -> float:
    return score.makespan / case.lower_bound


def _over_best(case: Case, name: str, others: Iterable[str]) -> float:
    best = min(case.scores[other].makespan for other in others if other in case.scores)
    return case.scores[name].makespan / best


def _no_worse(case: Case, name: str, others: Iterable[str]) -> bool:
    return _over_best(case, name, others) <= 1 + TOLERANCE


def _cell(ratio: float) -> str:
    return "-" if ratio != ratio else f"{ratio:.3f}"
