"""Build the sections of a report: the papers' figures, drawn from records; pure.

A figure without records is omitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shoal.experiments.grid import CENTRALISED, SCHEDULERS
from shoal.experiments.records import Row, Scale
from shoal.experiments.report import charts
from shoal.experiments.report.claims import Figure, figure, relative, relative_note
from shoal.experiments.report.intervals import Estimate, percentage
from shoal.experiments.report.statistics import (
    BREAKDOWN,
    DESIGNS,
    best_of,
    breakdown,
    by_planner,
    change,
    curves,
    distribution,
    grouped,
    label,
    middle,
    middle_run,
    promises,
    spread,
    sweep,
    values,
)

BASELINE = "wukong-optimised"
"""The planner that others are compared with."""

_COLOURS = {
    "wukong": "#b9aed0", "wukong-optimised": "#7b68a8",
    "uniform": "#9bc4e8", "uniform-optimised": "#3d85c6",
    "non-uniform": "#9ad4b5", "non-uniform-optimised": "#2f9e68",
    "auto-fastest": "#e8853a", "auto-cheapest": "#dcb53c",
}  # fmt: skip
_SERIES = ("#3d85c6", "#e8853a", "#2f9e68", "#7b68a8", "#c2557f", "#dcb53c", "#4aa8b5", "#8f6d4f")
_SHADES = {"tree": ("#a4d9bd", "#4fb783", "#1f7a4a"), "layered": ("#f5c9a3", "#e8853a", "#a8480f")}
_ALONG: tuple[Literal["tasks"], Literal["workers"]] = ("tasks", "workers")
_PARTS = ("#e0a050", "#b4bcc8", "#6fb1c9", "#4c78a8", "#8a7fb5")
_KEPT = {50: (0.419, 0.715), 75: (0.667, 0.897), 90: (0.869, 1.0)}
"""The paper's shares of met SLAs, over its planners."""
_WORKLOADS = {"tr": "7", "tree": "7", "gemm": "8", "svd1": "9", "svd2": "10", "svc": "11"}
"""The figures of the WUKONG paper by topic."""

Links = Mapping[str, str]
"""The links of Gantt charts, by run id."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a text, drawings and the paper's numbers."""

    name: str
    heading: str
    about: str
    drawings: Mapping[str, str]
    """SVGs by name, which is also the caption."""
    paper: Figure | None = None


def planner_sections(rows: Sequence[Row], links: Links) -> list[Section]:
    """Build the counterparts of the figures of the paper on predictive planning."""
    return [
        section
        for section in (
            _accuracy(rows),
            _distribution(rows),
            _times(rows),
            _compared(rows, "000/6", "makespan", "s", links),
            _compared(rows, "000/7", "gb_seconds", "GB-seconds", links),
            _against_published(rows),
        )
        if section.drawings
    ]


def _accuracy(rows: Sequence[Row]) -> Section:
    drawings = {}
    errors = {"execution": "execution_error", "transfer": "transfer_error",
              "start-up": "startup_error"}  # fmt: skip
    colours = dict(zip(errors, _SERIES, strict=False))
    found = {
        label(planner): [
            charts.Dot(100 * known.value, colours[name], f"{name}: {percentage(known)}")
            for name, metric in errors.items()
            if (known := middle(group, metric))
        ]
        for planner, group in by_planner(rows).items()
    }
    if any(found.values()):
        title = "Median relative errors of predictions, in per cent"
        guides = [
            charts.Guide(9.3, 9.3, colours["execution"], "the paper, executions: below 9.3 %"),
            charts.Guide(35.0, 35.0, colours["transfer"], "the paper, transfers: about 35 %"),
        ]
        found = {name: row for name, row in found.items() if row}
        drawings[title] = charts.dots(title, "%", found, guides, colours)
    drawings |= _kept(rows)
    about = (
        "Above, the errors of predictions made before a run; the lines are the paper's figures for "
        "executions and transfers. Below, the share of runs that took no longer than predicted at "
        "their SLA; the lines are the requested percentiles, the bands what the paper's planners "
        "reached."
    )
    paper = figure("000/3")
    return Section("figure-3", paper.title, about, drawings, paper)


def _kept(rows: Sequence[Row]) -> dict[str, str]:
    slas = sorted({row.sla for row in rows})
    colours = {f"SLA {sla}": _SERIES[i % len(_SERIES)] for i, sla in enumerate(slas)}
    found: dict[str, list[charts.Dot]] = {}
    for planner, group in by_planner(rows).items():
        for sla, runs in sorted(grouped(group, lambda row: row.sla).items()):
            if kept := promises(runs):
                tip = f"SLA {sla}: {percentage(kept.interval)} of {kept.made} runs"
                dot = charts.Dot(100 * kept.share, colours[f"SLA {sla}"], tip)
                found.setdefault(label(planner), []).append(dot)
    if not found:
        return {}
    guides = [
        charts.Guide(100 * low, 100 * high, colours[f"SLA {sla}"], f"the paper at SLA {sla}")
        for sla, (low, high) in _KEPT.items()
        if sla in slas
    ]
    guides += [charts.Guide(sla, sla, colours[f"SLA {sla}"], f"SLA {sla}") for sla in slas]
    title = "Runs within their SLA, in per cent"
    return {title: charts.dots(title, "%", found, guides, colours)}


def _distribution(rows: Sequence[Row]) -> Section:
    drawings = {"All workflows, on a logarithmic axis": _boxes(rows, "all workflows", log=True)}
    workflows = grouped(rows, lambda row: row.workflow)
    if len(workflows) > 1:
        drawings |= {name: _boxes(group, name) for name, group in sorted(workflows.items())}
    about = (
        "A box contains the middle half of a planner's runs at all SLAs, the line in it is the "
        "median, and the whiskers extend to the shortest and the longest run."
    )
    paper = figure("000/4")
    return Section("figure-4", paper.title, about, drawings if rows else {}, paper)


def _boxes(rows: Sequence[Row], title: str, *, log: bool = False) -> str:
    found = [
        (label(planner), _colour(planner), spread(values(group, "makespan")))
        for planner, group in by_planner(rows).items()
    ]
    width = charts.WIDE if log else charts.NARROW
    return charts.boxes(f"Makespans, {title}", "s", found, width, log=log) if found else ""


def _times(rows: Sequence[Row]) -> Section:
    parts = dict(zip(BREAKDOWN.values(), _PARTS, strict=True))
    found = {
        label(planner): list(breakdown(group).values())
        for planner, group in by_planner(rows).items()
    }
    title = "Seconds of all workers of a run together, means"
    drawings = {title: charts.stacks(title, "s", parts, found)} if found else {}
    about = (
        "How the workers of a run spend their time, in total: two workers that execute for a "
        "second each count as two seconds. Fetching during an execution counts as both."
    )
    paper = figure("000/5")
    return Section("figure-5", paper.title, about, drawings, paper)


def _compared(rows: Sequence[Row], name: str, metric: str, unit: str, links: Links) -> Section:
    title = f"Median {'seconds' if unit == 's' else unit} over all runs"
    workflows = grouped(rows, lambda row: row.workflow)
    drawings = {}
    if found := _medians(rows, metric, links, relative(metric)):
        drawings[title] = charts.bars(title, unit, found)
        if len(workflows) > 1:
            drawings |= {
                workflow: charts.bars(
                    f"{title} of {workflow}", unit, _medians(group, metric, links), charts.NARROW
                )
                for workflow, group in sorted(workflows.items())
            }
    about = (
        "Medians over all workflows and SLAs, and their change from optimised WUKONG; below, the "
        "same for each workflow, with 95 % intervals as whiskers and in parentheses. A dashed "
        "frame shows the bar's length with the paper's change. Click a bar to open the Gantt "
        "chart of its median run. "
    ) + (relative_note() if metric == "makespan" else "")
    paper = figure(name)
    return Section(f"figure-{name[-1]}", paper.title, about, drawings, paper)


def _medians(
    rows: Sequence[Row], metric: str, links: Links, paper: Mapping[str, float] | None = None
) -> list[charts.Bar]:
    """Draw a bar for each planner, with its change from the baseline here and in the paper."""
    planners = by_planner(rows)
    medians = {
        planner: known for planner, group in planners.items() if (known := middle(group, metric))
    }
    baseline = medians.get(BASELINE)
    found = []
    for planner, known in medians.items():
        note, frame = f"{known.value:.3g}", None
        if baseline and baseline.value:
            expected = (paper or {}).get(planner)
            frame = None if expected is None else baseline.value * (1 + expected)
            if planner != BASELINE:
                note += _changed(change(rows, metric, planner, BASELINE))
                note += "" if expected is None else f" (paper {100 * expected:+.0f} %)"
        link = links.get(middle_run(planners[planner]).id, "")
        colour = _colour(planner)
        found.append(charts.Bar(label(planner), known.value, colour, note, frame, link, known))
    return found


def _against_published(rows: Sequence[Row]) -> Section:
    """Draw each planner's makespan as a percentage of the best published scheduler's."""
    workflows = grouped(rows, lambda row: row.workflow)
    colours = {name: _SERIES[i % len(_SERIES)] for i, name in enumerate(workflows)}
    found: dict[str, list[charts.Dot]] = {}
    for workflow, group in workflows.items():
        best = best_of(group, "makespan", SCHEDULERS)
        for planner in by_planner(group) if best else ():
            if planner in SCHEDULERS or (step := change(group, "makespan", planner, best)) is None:
                continue
            share = replace(step, value=1 + step.value, low=1 + step.low, high=1 + step.high)
            tip = f"{workflow}: {percentage(share)} of {best}"
            dot = charts.Dot(100 * share.value, colours[workflow], tip)
            found.setdefault(label(planner), []).append(dot)
    title = "Makespan, in per cent of the best published scheduler's"
    guides = [charts.Guide(100, 100, "#94a3b8", "the best published scheduler")]
    drawings = {title: charts.dots(title, "%", found, guides, colours)} if found else {}
    about = (
        "Median makespans on each workflow, compared with the published scheduler that was best "
        "there. Published schedulers know nothing of starts."
    )
    return Section("published", "Against published schedulers", about, drawings)


def _changed(found: Estimate | None) -> str:
    """Describe a change with its interval, such as `, -2 % (-5 to +1)`."""
    if found is None:
        return ""
    within = f" ({100 * found.low:+.0f} to {100 * found.high:+.0f})" if found.known else ""
    return f", {100 * found.value:+.0f} %{within}"


def design_sections(rows: Sequence[Row], links: Links) -> list[Section]:
    """Build the counterparts of the figures of the WUKONG paper."""
    sections = []
    trees = [row for row in rows if row.workflow in ("tr", "tree")]
    if early := [row for row in trees if row.planner in CENTRALISED]:
        sections.append(_workload(early, "4", links))
    numbers = {name: _WORKLOADS.get(name, "") for name in grouped(rows, lambda row: row.workflow)}
    for name in sorted(numbers, key=lambda name: int(numbers[name] or 99)):
        group = [row for row in rows if row.workflow == name]
        sections.append(_workload(group, numbers[name], links))
    factors = _factors(rows)
    return [*sections, factors] if factors.drawings else sections


def cases(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the runs of a workflow by a description of the parameters that differ."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.parameters.items():
            seen.setdefault(name, set()).add(repr(value))
    return grouped(
        rows,
        lambda row: ", ".join(
            f"{name} {value}" for name, value in row.parameters.items() if len(seen[name]) > 1
        ),
    )


def _workload(rows: Sequence[Row], number: str, links: Links) -> Section:
    name = rows[0].workflow
    drawings = {}
    found = cases(rows)
    width = charts.WIDE if len(found) == 1 else charts.NARROW
    for case, group in found.items():
        title = f"{name}, {case}" if case else name
        drawings[title] = charts.bars(f"Makespans, {title}", "s", _designs(group, links), width)
    drawings |= _sweep(rows)
    about = "Median makespans with 95 % intervals. A bar opens the Gantt chart of its median run."
    paper = figure(f"003/{number}") if number else None
    plain = "".join(letter if letter.isalnum() else "-" for letter in name)
    heading = paper.title if paper else name
    return Section(f"wukong-{number or plain}", heading, about, drawings, paper)


def _sweep(rows: Sequence[Row]) -> dict[str, str]:
    """Draw each design's median makespan by the parameter that differs, if there is one."""
    points = sweep(rows)
    if not points:
        return {}
    parameter, lines = points
    named = {label(name): line for name, line in lines.items()}
    colours = {name: _SERIES[i % len(_SERIES)] for i, name in enumerate(named)}
    title = f"Makespans of {rows[0].workflow} by {parameter}"
    return {title: charts.curves(title, (parameter, "s"), named, colours)}


def latency_section(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Section]:
    """Draw the distributions of latencies, given by run and by part."""
    drawings = {}
    for run, parts in found.items():
        lines = {part: distribution(seconds) for part, seconds in parts.items() if seconds}
        title = f"Latencies, {run}"
        colours = dict(zip(lines, _SERIES, strict=False))
        drawings[title] = charts.curves(title, ("s", "% took no longer"), lines, colours)
    if not drawings:
        return []
    about = (
        "The share of executions, and of reads and writes of the store, that took no longer, in "
        "the median run of the largest workload. Outputs that moved together count once."
    )
    paper = figure("003/13")
    return [Section("wukong-13", paper.title, about, drawings, paper)]


def _designs(rows: Sequence[Row], links: Links) -> list[charts.Bar]:
    planners = by_planner(rows)
    first = next(iter(planners))
    found = []
    for number, (name, runs) in enumerate(planners.items()):
        known = middle(runs, "makespan")
        assert known is not None
        note = f"{known.value:.3g}"
        note += _changed(change(rows, "makespan", name, first)) if number else ""
        link = links.get(middle_run(runs).id, "")
        colour = _SERIES[number % len(_SERIES)]
        found.append(charts.Bar(label(name), known.value, colour, note, None, link, known))
    return found


def _factors(rows: Sequence[Row]) -> Section:
    """Draw the time of each design on each workload, as a percentage of the first design."""
    workloads = {
        f"{workflow} {case}".strip(): group
        for workflow, runs in grouped(rows, lambda row: row.workflow).items()
        for case, group in cases(runs).items()
    }
    colours = {name: _SERIES[i % len(_SERIES)] for i, name in enumerate(workloads)}
    found: dict[str, list[charts.Dot]] = {label(n): [] for n in by_planner(rows) if n in DESIGNS}
    for workload, group in workloads.items():
        designs = [name for name in by_planner(group) if name in DESIGNS]
        for name in designs:
            if (step := change(group, "makespan", name, designs[0])) is not None:
                share = replace(step, value=1 + step.value, low=1 + step.low, high=1 + step.high)
                tip = f"{workload}: {percentage(share)} of {label(designs[0])}"
                found[label(name)].append(charts.Dot(100 * share.value, colours[workload], tip))
    title = "Makespan, in per cent of the first design's"
    drawings = {title: charts.dots(title, "%", found, [], colours)} if len(found) > 1 else {}
    about = "Each design against the first one, on each workload; a step to the left is a gain."
    paper = figure("003/12")
    return Section("wukong-12", paper.title, about, drawings, paper)


def scale_sections(lines: Sequence[Scale]) -> list[Section]:
    """Draw how makespan, coordination and simulation time grow with tasks and workers."""
    if not lines:
        return []
    drawn: dict[str, tuple[str, Callable[[Scale], float]]] = {
        "Makespan": ("times the ideal", lambda line: line.makespan / line.ideal),
        "Coordination": ("operations a task", lambda line: line.operations / line.tasks),
        "Time of the simulation": ("CPU seconds", lambda line: line.seconds),
        "Memory of the simulation": ("MB at the peak", lambda line: line.peak_mb),
    }
    drawings = {}
    for what, (unit, value) in drawn.items():
        for along in _ALONG:
            found = curves(lines, value, along)
            title = f"{what} by {along}"
            named = {", ".join(name): points for name, points in found.items()}
            drawings[title] = charts.curves(title, (along, unit), named, _shaded(found))
    about = (
        "Simulated runs of very large workflows whose tasks take about a second. The ideal is the "
        "longer of the critical path and the work divided by the workers; no schedule is shorter. "
        "An operation is a round trip to the store or the gateway."
    )
    return [Section("scale", "Scale", about, drawings)]


def _shaded(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a colour for each curve: the hue of its shape, darker for larger ones."""
    seen: Counter[str] = Counter()
    colours = {}
    for name in names:
        shades = _SHADES.get(name[0], _SERIES)
        colours[", ".join(name)] = shades[seen[name[0]] % len(shades)]
        seen[name[0]] += 1
    return colours


def _colour(planner: str) -> str:
    return _COLOURS.get(planner, "#94a3b8")
