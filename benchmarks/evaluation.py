"""Run the papers' grids, and print the tables of docs/evaluation.md.

Each grid has a folder of its own, with `report.html`. What an earlier call has run isn't run again,
so an interrupted evaluation continues, and `--parts` and `--planners` divide it. The part with real
runs takes hours and runs only if named. `--docs` puts the tables between the page's comments.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from arguments import names_of, positive
from engine_report import updated

from shoal.experiments.records import Records, Row
from shoal.experiments.report.claims import Verdict, claims, judged, more, ranged
from shoal.experiments.report.intervals import Estimate
from shoal.experiments.report.statistics import (
    BREAKDOWN,
    breakdown,
    by_planner,
    change,
    grouped,
    label,
    middle,
    promises,
)

BASELINE = "wukong-optimised"
PUBLISHED = "paper-000-as-published"
REAL = "paper-003-sizes-real"
PARTS: Mapping[str, Sequence[str]] = {
    "paper-000": ("paper-000", "measured"),
    "as-published": (PUBLISHED, "published"),
    "as-published-serialised": (PUBLISHED, "published-serialised"),
    "as-published-each-input": (PUBLISHED, "published-each-input"),
    "as-published-serialised-each-input": (PUBLISHED, "published-serialised-each-input"),
    "paper-003": ("paper-003", "measured"),
    "paper-003-sizes": ("paper-003-sizes", "measured"),
    REAL: ("paper-003-sizes", "measured", "real"),
}
"""The grid and the platform of each part, by the name of its folder; one has real runs."""
VARIANTS = {
    "as-published": "parallel starts",
    "as-published-serialised": "serialised starts",
    "as-published-each-input": "parallel, a round trip for each input",
    "as-published-serialised-each-input": "serialised, a round trip for each input",
}

Table = Sequence[Sequence[str]]


def run(part: str, options: argparse.Namespace) -> None:
    """Run what is left of a part."""
    grid, platform, *real = PARTS[part]
    folder = options.to / part
    command = [Path(sys.executable).with_name("shoal"), "experiments", "run", "--grid", grid,
               "--platform", platform, "--repeat", str(options.repeat), "--to", folder]  # fmt: skip
    command += ["--planners", options.planners] if options.planners else []
    command += ["--mode", *real] if real else []
    command += ["--resume"] if Records(folder).exists else []
    subprocess.run(command, check=True)


def claims_table(rows: Sequence[Row]) -> Table:
    """Return the claims of the paper on predictive planning, on one platform."""
    found = [["claim", "paper", "here", "typical", ""]]
    for claim in claims():
        if claim.where.startswith("003"):
            continue
        verdict = judged(claim, rows)
        here = _with_range(verdict.here, verdict.range)
        typical = _with_range(verdict.typical, verdict.typical_range)
        found.append([claim.claim, claim.paper or "-", here, typical, verdict.verdict])
    return found


def variants_table(parts: Mapping[str, Sequence[Row]]) -> Table:
    """Return the same claims on several platforms."""
    present = [part for part in VARIANTS if part in parts]
    found = [["claim", "paper", *(VARIANTS[part] for part in present)]]
    for claim in claims():
        if claim.where.startswith("003"):
            continue
        cells = [_cell(judged(claim, parts[part])) for part in present]
        found.append([claim.claim, claim.paper or "-", *cells])
    return found


def _cell(verdict: Verdict) -> str:
    here = _with_range(verdict.here, verdict.range)
    typical = _with_range(verdict.typical, verdict.typical_range)
    between = f"; typical {typical}" if verdict.typical else ""
    return f"{here}{between}: **{verdict.verdict}**"


def planners_table(rows: Sequence[Row]) -> Table:
    """Return medians over all workflows and SLAs, and their change from the baseline."""
    found = [["planner", "runs", "makespan [s]", "", "GB-seconds", "", "workers", "cold starts",
              "SLA 50", "75", "90"]]  # fmt: skip
    for planner, group in by_planner(rows).items():
        cells = [label(planner), str(len(group))]
        for metric in ("makespan", "gb_seconds"):
            differs = None if planner == BASELINE else change(rows, metric, planner, BASELINE)
            cells += [_shown(middle(group, metric)), _changed(differs)]
        for metric in ("workers", "cold"):
            known = middle(group, metric)
            cells.append(f"{known.value:g}" if known else "-")
        for sla in (50, 75, 90):
            kept = promises([row for row in group if row.sla == sla])
            cells.append(f"{100 * kept.share:.0f} %" if kept else "-")
        found.append(cells)
    return found


def workflows_table(rows: Sequence[Row]) -> Table:
    """Return the median makespan and GB-seconds of each planner on each workflow."""
    workflows = list(grouped(rows, lambda row: row.workflow))
    found = [["planner", *(name.removeprefix("published-") for name in workflows)]]
    for planner, group in by_planner(rows).items():
        cells = []
        for name in workflows:
            runs = [row for row in group if row.workflow == name]
            both = [middle(runs, metric) for metric in ("makespan", "gb_seconds")]
            cells.append(", ".join(f"{known.value:.3g}" for known in both if known) or "-")
        found.append([label(planner), *cells])
    return found


def breakdown_table(rows: Sequence[Row]) -> Table:
    """Return how the workers of a run spend their time."""
    found = [["planner", *BREAKDOWN.values()]]
    for planner, group in by_planner(rows).items():
        found.append([label(planner), *(_shown(part) for part in breakdown(group).values())])
    return found


def sizes_table(rows: Sequence[Row]) -> Table:
    """Return the median makespan of each design on each version of a workload."""
    designs = list(by_planner(rows))
    found = [["workload", "", *map(label, designs)]]
    versions = grouped(rows, lambda row: (row.workflow, tuple(row.parameters.items())))
    for (workload, parameters), group in sorted(versions.items(), key=lambda item: item[0]):
        described = ", ".join(f"{name} {value:,}" for name, value in parameters)
        makespans = (
            middle([row for row in group if row.planner == name], "makespan") for name in designs
        )
        cells = [f"{known.value:.3g}" if known else "-" for known in makespans]
        found.append([workload, described, *cells])
    return found


def _with_range(text: str, within: str) -> str:
    return f"{text} ({within})" if within else text or "-"


def _shown(known: Estimate | None) -> str:
    if known is None:
        return "-"
    within = ranged(known, lambda value: f"{value:.3g}")
    return f"{known.value:.3g} ({within})" if within else f"{known.value:.3g}"


def _changed(known: Estimate | None) -> str:
    return _with_range(more(known.value), ranged(known, more)) if known else ""


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    head, *others = (f"| {' | '.join(row)} |" for row in table)
    return "\n".join([head, "|" + "---|" * len(table[0]), *others])


TABLES: Mapping[str, tuple[str, Callable[[Sequence[Row]], Table]]] = {
    "claims": ("paper-000", claims_table),
    "planners": ("paper-000", planners_table),
    "workflows": ("paper-000", workflows_table),
    "breakdown": ("paper-000", breakdown_table),
    "planners-published": ("as-published", planners_table),
    "workflows-published": ("as-published", workflows_table),
    "planners-serialised": ("as-published-serialised", planners_table),
    "techniques": ("paper-003", workflows_table),
    "sizes": ("paper-003-sizes", sizes_table),
    "sizes-real": (REAL, sizes_table),
}


def tables(folder: Path) -> dict[str, str]:
    """Return the tables of all parts that have been run."""
    rows = {part: Records(folder / part).rows()[0] for part in PARTS}
    rows = {part: known for part, known in rows.items() if known}
    found = {name: make(rows[part]) for name, (part, make) in TABLES.items() if part in rows}
    if rows.keys() & VARIANTS.keys():
        found["claims-published"] = variants_table(rows)
    return {name: markdown(table) for name, table in found.items()}


def parser() -> argparse.ArgumentParser:
    """Parse the command line."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = made.add_argument
    add("--to", type=Path, default=Path("out/evaluation"), metavar="FOLDER", help="of the records")
    choice = list(PARTS)
    virtual = [name for name in choice if name != REAL]
    add("--parts", type=names_of(choice), default=virtual, metavar="A,B", help=", ".join(choice))
    add("--planners", metavar="A,B", help="run only these planners")
    add("--repeat", type=positive, default=10, metavar="N", help="of each configuration (10)")
    add("--tables", action="store_true", help="print the tables of earlier runs, and run nothing")
    add("--docs", type=Path, metavar="FILE", help="put the tables into this page")
    return made


def main() -> int:
    """Run the grids and print their tables."""
    options = parser().parse_args()
    try:
        for part in () if options.tables else options.parts:
            run(part, options)
    except (KeyboardInterrupt, subprocess.CalledProcessError):
        return 1
    found = tables(options.to)
    for name, text in found.items():
        print(f"\n{name}\n\n{text}")
    if options.docs:
        options.docs.write_text(updated(options.docs.read_text(), found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
