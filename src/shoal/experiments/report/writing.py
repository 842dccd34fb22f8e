"""Write an experiment's report: a page, with figures and Gantt charts as files.

The page is `report.html` in the experiment's folder; figures are in `figures/`, as SVG and, where
resvg is installed, as PNG; `gantt/` has the median run of each bar and table cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.errors import ShoalError, UsageError
from shoal.execution.gantt import gantt_html
from shoal.experiments.grid import REAL_ONLY
from shoal.experiments.records import Records, Row
from shoal.experiments.report.charts import plain, standalone
from shoal.experiments.report.claims import Verdict, claims, judged
from shoal.experiments.report.page import page, platform_of
from shoal.experiments.report.sections import (
    Links,
    Section,
    design_sections,
    latency_section,
    planner_sections,
    scale_sections,
)
from shoal.experiments.report.statistics import (
    DESIGNS,
    by_planner,
    configurations,
    grouped,
    label,
    latencies,
    middle_run,
)

_ZOOM = 2.0
"""The scale of PNG figures, for sharp print."""
PAGE, FIGURES, GANTT = "report.html", "figures", "gantt"


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a report."""

    path: Path
    verdicts: Sequence[Verdict]
    damaged: Sequence[str]
    """Messages about records that can't be read and were skipped."""
    platform: str
    """What the verdicts are about."""
    note: str = ""
    """What else is missing, and how to get it."""


def write_report(folder: Path) -> Written:
    """Write the report of the experiment in a folder to that folder."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.")
    records = Records(folder)
    experiment = records.experiment()
    rows, damaged = records.rows()
    lines, more_damaged = records.scale()
    damaged += more_damaged
    if not rows and not lines:
        why = f" {damaged[0]}." if damaged else ""
        raise UsageError(f"{folder} has no recorded runs yet.{why}")
    try:
        links, missing = _draw_runs(records, rows)
        damaged += missing
        designs = any(row.planner in DESIGNS for row in rows)
        drawn = design_sections(rows, links) if designs else planner_sections(rows, links)
        if designs:
            drawn += latency_section(_latencies(records, rows))
        drawn += scale_sections(lines)
        verdicts = _verdicts(rows, designs)
        note = _draw_figures(folder / FIGURES, drawn)
        path = folder / PAGE
        path.write_text(page(experiment, rows, verdicts, drawn, links, damaged), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The report can't be written to {folder}: {error}.") from error
    return Written(path, verdicts, damaged, platform_of(experiment), note)


def _verdicts(rows: Sequence[Row], designs: bool) -> list[Verdict]:
    concerned = [claim for claim in claims() if claim.where.startswith("003") == designs]
    return [judged(claim, rows) for claim in concerned] if rows else []


def _draw_runs(records: Records, rows: Sequence[Row]) -> tuple[Links, list[str]]:
    """Write Gantt charts of the median runs; return their links and the unreadable timelines.

    Central designs and Dask have no timelines.
    """
    rows = [row for row in rows if row.planner not in REAL_ONLY]
    groups = [*configurations(rows), *by_planner(rows).values()]
    for workflow in grouped(rows, lambda row: row.workflow).values():
        groups += by_planner(workflow).values()
    chosen = {(run := middle_run(group)).id: run for group in groups}
    links, missing = {}, []
    (records.folder / GANTT).mkdir(exist_ok=True)
    for run in chosen.values():
        try:
            timeline = records.timeline(run.id)
        except ShoalError as error:
            missing.append(str(error))
            continue
        title = f"{run.workflow}, {label(run.planner)}, SLA {run.sla}, repeat {run.repeat}"
        link = f"{GANTT}/{run.id.replace('/', '-')}.html"
        (records.folder / link).write_text(gantt_html(timeline, title), encoding="utf-8")
        links[run.id] = link
    return links, missing


def _latencies(records: Records, rows: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """Return the latencies of the median runs of the largest SVD2, by planner."""
    known = [row for row in rows if row.workflow == "svd2" and row.planner not in REAL_ONLY]
    largest = max((row.parameters.get("size", 0) for row in known), default=0)
    group = [row for row in known if row.parameters.get("size", 0) == largest]
    found = {}
    for planner, runs in by_planner(group).items():
        with contextlib.suppress(ShoalError):  # reported with the Gantt charts
            timeline = records.timeline(middle_run(runs).id)
            found[f"svd2, {label(planner)}"] = latencies(timeline)
    return found


def _draw_figures(folder: Path, sections: Sequence[Section]) -> str:
    """Write the figures; return a note about what is missing."""
    folder.mkdir(exist_ok=True)
    rendered = _renderer()
    for section in sections:
        for number, svg in enumerate(section.drawings.values(), 1):
            several = f"-{number}" if len(section.drawings) > 1 else ""
            path = folder / f"{section.name}{several}.svg"
            path.write_text(standalone(svg), encoding="utf-8")
            if rendered is not None:
                path.with_suffix(".png").write_bytes(rendered(plain(svg)))
    return "" if rendered else "No PNG figures were written: pip install 'shoal[experiments]'."


def _renderer() -> Callable[[str], bytes] | None:
    """Return the function that converts SVG to PNG, if it is installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        return None
    return partial(svg_to_bytes, zoom=_ZOOM)
