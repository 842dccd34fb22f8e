"""Measure how accurate predictions are for real runs.

Each of the papers' workflows runs a few times to build up history, and is then measured: its
makespan is predicted before each run, and the executions (those over 10 ms), starts and transfers
are compared with their median predictions after it. All workflows take turns. How much executions
deviate from their own medians shows how well they could be predicted on this machine at all. The
simulator also gets each run's own costs, to see whether it reproduces the run's makespan. With
--cold, sandboxes are removed after each run. Then another workflow runs on data of other sizes than
in its history (`sizes.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from replay import RecordedCosts
from sizes import measure_sizes, sizes_table

from shoal import Session
from shoal.execution.simulator import simulate
from shoal.experiments import machine
from shoal.experiments.image_transformation import image_transformation
from shoal.experiments.matrix_multiplication import matrix_multiplication
from shoal.experiments.text_analysis import generate_text, text_analysis
from shoal.experiments.tree_reduction import tree_reduction
from shoal.types import Percentile
from shoal.workflow import Output

TARGETS = {"execute": 0.10, "start": 0.20, "transfer": 0.30, "makespan": 0.15, "replay": 0.05}
SIZED_HISTORY = 6
"""The fewest earlier runs of the workflow on data of several sizes."""
ERRORS = ("execute", "noise", "start", "transfer")


def workflows() -> dict[str, Callable[[], Output[Any]]]:
    """Return the papers' workflows, large enough for tasks over 10 ms where they compute."""
    text = generate_text(750_000)
    return {
        "text analysis": lambda: text_analysis(text),
        "image transformation": lambda: image_transformation(width=12_000, height=8_004),
        "matrix multiplication": matrix_multiplication,
        "tree reduction": tree_reduction,
        "tree of 20 ms tasks": lambda: tree_reduction(seconds=0.02),
    }


def replayed(run: Any) -> float:
    """Return the makespan simulated with the run's own costs, relative to the recorded one."""
    preview = run.preview
    costs = RecordedCosts(run.workflow, run.plan.workers, run.timeline, preview.constants)
    return simulate(run.plan, costs, preview.conditions.pool()).makespan / float(run.makespan)


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Measure every run, by workflow."""
    found: dict[str, dict[str, list[float]]] = {}
    executions: dict[tuple[str, str | None], list[float]] = {}
    idle: dict[str, Any] = {"idle_seconds": 0.1} if options.cold else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(workers=options.workers, folder=folder, progress=False, **idle) as session,
    ):
        outputs = {name: make() for name, make in workflows().items()}
        level: dict[str, Any] = {} if options.sla is None else {"sla": Percentile(options.sla)}
        for turn in range(options.history + options.repeats):
            for name, output in outputs.items():
                run = session.submit(output, name=name, **level)
                run.result()
                session.settle()
                if options.cold:
                    time.sleep(0.3)
                if turn >= options.history:
                    record = session.history.runs(key=name, most=1)[0]
                    figures = found.setdefault(name, {})
                    for kind, error in record.quality.items():
                        figures.setdefault(kind, []).append(error)
                    figures.setdefault("recorded", []).append(record.makespan)
                    figures.setdefault("predicted", []).append(record.predicted or 0.0)
                    if len(run.timeline.placements) == len(run.workflow):
                        # otherwise a worker was lost with its spans
                        figures.setdefault("replay", []).append(replayed(run))
                    for span in run.timeline.of_kind("execute"):
                        executions.setdefault((name, span.task), []).append(span.seconds)
            print(f"turn {turn + 1} of {options.history + options.repeats}", file=sys.stderr)
    for (name, _), seconds in executions.items():
        middle = median(seconds)
        if middle > 0.01:
            found[name].setdefault("noise", []).extend(abs(s / middle - 1) for s in seconds)
    for figures in found.values():
        if "noise" not in figures:  # no task over 10 ms
            del figures["execute"]
    return found


def summed_up(figures: dict[str, list[float]]) -> dict[str, float]:
    """Return a workflow's median errors."""
    errors = {kind: median(figures[kind]) for kind in ERRORS if kind in figures}
    recorded, predicted = figures["recorded"], figures["predicted"]
    errors["makespan"] = median(predicted) / median(recorded) - 1
    errors["replay"] = median(abs(ratio - 1) for ratio in figures["replay"])
    return errors


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return a row for each workflow, and the missed targets."""
    lines = [
        f"{'workflow':22} {'recorded':>9} {'predicted':>9} {'off by':>7} {'median':>7} "
        f"{'kept':>5} {'execute':>8} {'noise':>6} {'start':>7} {'transfer':>9} {'replay':>7}"
    ]
    missed = []
    for name, figures in found.items():
        recorded, predicted = figures["recorded"], figures["predicted"]
        errors = summed_up(figures)
        each = median(abs(p / r - 1) for p, r in zip(predicted, recorded, strict=True))
        kept = sum(r <= p for p, r in zip(predicted, recorded, strict=True)) / len(recorded)
        cells = [f"{errors[kind]:.1%}" if kind in errors else "-" for kind in ERRORS]
        lines.append(
            f"{name:22} {median(recorded):8.4f}s {median(predicted):8.4f}s "
            f"{errors['makespan']:+7.1%} {each:7.1%} {kept:5.0%} {cells[0]:>8} {cells[1]:>6} "
            f"{cells[2]:>7} {cells[3]:>9} {errors['replay']:7.1%}"
        )
        missed += [
            f"{name}: {kind} is off by {errors[kind]:.1%}, target {target:.0%}: MISSED"
            for kind, target in TARGETS.items()
            if abs(errors.get(kind, 0.0)) > target
        ]
    together = []
    for kind in ("execute", "start", "transfer"):
        of_all = [error for figures in found.values() for error in figures.get(kind, ())]
        together.append(f"{kind} {median(of_all):.1%}")
    lines.append(f"all workflows: {', '.join(together)}")
    lines.append(
        "off by: the median prediction against the median run; median: of the runs' own errors; "
        "kept: runs no longer\nthan predicted; execute, start, transfer: median relative errors; "
        "noise: of executions against their own\nmedians; replay: error of the simulator with the "
        "run's own costs"
    )
    return "\n".join([*lines, *(missed or ["All targets are met."])])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--history", type=int, default=5, help="runs before the measured ones (default: 5)"
    )
    parser.add_argument("--repeats", type=int, default=10, help="measured runs (default: 10)")
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    parser.add_argument("--sla", type=float, metavar="P", help="predict this percentile")
    parser.add_argument("--cold", action="store_true", help="remove sandboxes after each run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--only", choices=("papers", "sizes"), help="measure only these")
    options = parser.parse_args()
    print(machine.described())
    found: dict[str, Any] = {}
    if options.only != "sizes":
        found |= measure(options)
        print(f"{options.workers} workers, {options.history} runs of history, {options.repeats} "
              f"measured, {'cold' if options.cold else 'warm'} starts\n")  # fmt: skip
        print(table(found))
    if options.only != "papers":
        history = max(options.history, SIZED_HISTORY)
        sized = measure_sizes(options.workers, history, options.repeats)
        print(f"\n{options.workers} workers, {history} runs of history, {options.repeats} measured "
              "at each size\n")  # fmt: skip
        print(sizes_table(sized))
        found["sizes"] = sized
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
