"""Measure how accurate predictions are for sizes of data that no earlier run had.

A workflow of 40 tasks sorts, compresses and searches text, and transforms signals. Its history has
runs at 0.8 to 1.4 times its size. Then runs at half, equal and twice the size are predicted before
any of them, and carried out in turns by the plans that were predicted. They teach nothing.
"""

from __future__ import annotations

import random
import re
import tempfile
import zlib
from collections.abc import Sequence
from heapq import merge
from statistics import median
from typing import Any

import numpy as np

from shoal import Session, task
from shoal.execution.plan import Plan
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import decode_samples, encode_samples
from shoal.planning.base import Conditions
from shoal.planning.preview import Preview
from shoal.types import Percentile
from shoal.workflow import Output, Workflow

SIZES = (0.5, 1.0, 2.0)
TARGET = 0.20
LINES = (80_000, 120_000, 100_000, 60_000, 140_000, 100_000)
POINTS = (1_200_000, 800_000, 1_600_000, 1_000_000, 1_400_000, 1_200_000)
_WORDS = ("error", "warning", "started", "stopped", "GET", "POST", "timeout", "user", "disk")


@task
def write(lines: int, seed: int) -> str:
    """Write a log."""
    rng = random.Random(seed)
    return "\n".join(
        f"{rng.randrange(10**6):06} {' '.join(rng.choices(_WORDS, k=5))} {rng.random():.4f}"
        for _ in range(lines)
    )


@task
def order(text: str) -> list[str]:
    """Sort a log's lines."""
    return sorted(text.splitlines())


@task
def pack(text: str) -> bytes:
    """Compress a log."""
    return zlib.compress(text.encode(), 6)


@task
def find(text: str) -> int:
    """Count what a pattern finds in a log."""
    return len(re.findall(r"(?:error|timeout) \w+ .*?(\d+\.\d+)", text))


@task
def signal(points: int, seed: int) -> np.ndarray[Any, Any]:
    """Make a signal."""
    return np.random.default_rng(seed).standard_normal(points).cumsum()


@task
def spectrum(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Transform a signal."""
    return np.abs(np.fft.rfft(points * np.hanning(len(points))))


@task
def similar(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Compare two spectra, of which one may be longer."""
    shared = np.interp(np.linspace(0, 1, len(one)), np.linspace(0, 1, len(other)), other)
    return float(np.corrcoef(np.log1p(np.sort(one)), np.log1p(np.sort(shared)))[0, 1])


@task
def report(ordered: list[list[str]], *others: Any) -> int:
    """Merge the sorted lines."""
    return sum(1 for _ in merge(*ordered))


def sized(size: float) -> Output[int]:
    """Build the workflow of 40 tasks for data of a relative size."""
    logs = [write(round(size * lines), seed) for seed, lines in enumerate(LINES)]
    signals = [signal(round(size * points), seed) for seed, points in enumerate(POINTS)]
    spectra = [spectrum(each) for each in signals]
    pairs = zip(spectra[::2], spectra[1::2], strict=True)
    near = [similar(one, other) for one, other in pairs]
    others = [*(pack(log) for log in logs), *(find(log) for log in logs), *near]
    return report([order(log) for log in logs], *others)


class Fixed:
    """A planner that has its plan already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Return the plan."""
        return self._plan.of(workflow)


def measure_sizes(workers: int, history: int, repeats: int) -> dict[str, dict[str, Any]]:
    """Measure runs at each size; return the figures by size."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(workers=workers, folder=folder, progress=False) as session,
    ):
        for size in random.Random(0).sample(_known(history), history):
            session.compute(sized(size), name="sized")
        previews = {size: session.plan(sized(size), name="sized") for size in SIZES}
        predicted = {size: preview.makespan for size, preview in previews.items()}
        found: dict[float, dict[str, Any]] = {
            size: {
                "predicted": predicted[size],
                "promised": Preview(preview.plan, preview.conditions, Percentile(90)).makespan,
                "recorded": [],
                "execute": [],
            }
            for size, preview in previews.items()
        }
        for _ in range(repeats):
            for size, preview in previews.items():
                planner = Fixed(preview.plan)
                run = session.submit(sized(size), name="sized", planner=planner, history=False)
                run.result()
                found[size]["recorded"].append(run.makespan)
                found[size]["execute"].append(_execution_error(run, preview))
    return {f"{size:g}": figures for size, figures in found.items()}


def _known(runs: int) -> Sequence[float]:
    """The sizes of earlier runs."""
    return [0.8 + 0.6 * (number + 0.5) / runs for number in range(runs)]


def _execution_error(run: Any, preview: Preview) -> float:
    constants = preview.constants
    block = encode_samples(run.workflow, run.plan.workers, run.timeline, constants)
    costs = preview.conditions.predictions.at("median")
    samples = decode_samples(block).samples
    return prediction_errors(costs, samples, list(run.workflow.calls))["execute"]


def sizes_table(found: dict[str, dict[str, Any]]) -> str:
    """Return a row for each size, and the missed targets."""
    lines = [f"{'size':>5} {'recorded':>9} {'predicted':>9} {'off by':>7} {'execute':>8} "
             f"{'at 90 %':>9} {'kept':>5}"]  # fmt: skip
    missed = []
    for size, figures in found.items():
        recorded, predicted = figures["recorded"], figures["predicted"]
        off = predicted / median(recorded) - 1
        kept = sum(seconds <= figures["promised"] for seconds in recorded) / len(recorded)
        lines.append(
            f"{size:>5} {median(recorded):8.3f}s {predicted:8.3f}s {off:+7.1%} "
            f"{median(figures['execute']):8.1%} {figures['promised']:8.3f}s {kept:5.0%}"
        )
        if abs(off) > TARGET:
            missed.append(f"size {size}: off by {off:+.1%}, target {TARGET:.0%}: MISSED")
    lines.append("predicted from runs at 0.8 to 1.4 times the size; kept: runs no longer than "
                 "promised at 90 %")  # fmt: skip
    return "\n".join([*lines, *(missed or ["All targets are met."])])
