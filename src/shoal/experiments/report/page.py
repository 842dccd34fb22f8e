"""Render the report as one self-contained HTML page; Gantt charts are linked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from shoal.experiments.records import Experiment, Row
from shoal.experiments.report.charts import MARKS, VARIABLES
from shoal.experiments.report.claims import Figure, Verdict, titles
from shoal.experiments.report.sections import Links, Section, cases
from shoal.experiments.report.statistics import (
    DESIGNS,
    by_planner,
    grouped,
    label,
    middle,
    middle_run,
    missing,
    promises,
    values,
)

_SIGNS = {"holds": "good", "in part": "part", "mixed": "part", "doesn't hold": "bad"}


def page(
    experiment: Experiment,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    sections: Sequence[Section],
    links: Links,
    damaged: Sequence[str],
) -> str:
    """Return the whole page."""
    notices = [f"Skipped, because it can't be read: {what}" for what in damaged]
    if lacking := missing(rows, experiment.repeat):
        notices.append(f"{_count(lacking, 'run')} of the grid still to come: {_UNEQUAL}")
    title = f"Evaluation: {experiment.grid}, {experiment.mode}"
    names = {"claims": "Claims", **{s.name: s.heading for s in sections}}
    names |= {"runs": "All runs"} if rows else {}
    names["set-up"] = "Set-up"
    if not verdicts:
        del names["claims"]
    return _PAGE.format(
        title=escape(title),
        style=VARIABLES + MARKS + _STYLE,
        lead=_lead(experiment, rows),
        notices=_notices(notices),
        contents="".join(f'<a href="#{key}">{escape(text)}</a>' for key, text in names.items()),
        claims=_claims(verdicts, platform_of(experiment)),
        sections="".join(map(_section, sections)),
        runs=_runs(rows, links),
        setup=_setup(experiment),
    )


def platform_of(experiment: Experiment) -> str:
    """Return what an experiment's figures are about."""
    if experiment.mode == "real":
        return f"real sandboxes on {experiment.machine}"
    return str(experiment.settings.get("platform", "simulated"))


def _lead(experiment: Experiment, rows: Sequence[Row]) -> str:
    planners = {row.planner for row in rows}
    parts = [
        _count(len(rows), "run"),
        _count(len({row.workflow for row in rows}), "workflow"),
        _count(len(planners), "design" if planners & DESIGNS.keys() else "planner"),
        _count(len({row.sla for row in rows}), "SLA"),
    ]
    what = ", ".join(parts) if rows else "Simulations of very large workflows"
    clock = "on the virtual clock" if experiment.mode == "virtual" else "in real sandboxes"
    return escape(f"{what}, {clock}; begun {experiment.started[:16].replace('T', ' ')}.")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _notices(notices: Sequence[str]) -> str:
    if not notices:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in notices)
    return f'<ul class="notices">{lines}</ul>'


def _claims(verdicts: Sequence[Verdict], platform: str) -> str:
    if not verdicts:
        return ""
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        sign = _SIGNS.get(verdict.verdict, "none")
        rows.append(
            f"<tr><td>{escape(claim.claim)}<small>{escape(claim.where)}</small></td>"
            f"<td>{escape(claim.paper) or '-'}</td><td>{_ranged(verdict.here, verdict.range)}</td>"
            f"<td>{_ranged(verdict.typical, verdict.typical_range)}</td>"
            f'<td class="{sign}">{escape(verdict.verdict)}</td></tr>'
        )
    return _CLAIMS.format(platform=escape(platform), rows="".join(rows))


def _ranged(text: str, within: str) -> str:
    """Return a figure with its confidence interval below it."""
    small = f"<small>{escape(within)}</small>" if within else ""
    return (escape(text) or "-") + small


def _section(section: Section) -> str:
    drawings = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
        for title, svg in section.drawings.items()
    )
    return (
        f'<section id="{section.name}"><h2>{escape(section.heading)}{_place(section.paper)}</h2>'
        f'<p>{escape(section.about)}</p><div class="drawings">{drawings}</div>'
        f"{_paper(section.paper) if section.paper else ''}</section>"
    )


def _place(figure: Figure | None) -> str:
    return f" <small>{escape(figure.where.partition(',')[0])}</small>" if figure else ""


def _paper(figure: Figure) -> str:
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(number)}</td></tr>"
        for what, number in figure.numbers
    )
    return (
        f"<aside><h3>In the paper <small>{escape(figure.where)}</small></h3>"
        f"<table>{rows}</table></aside>"
    )


def _runs(rows: Sequence[Row], links: Links) -> str:
    """Return a table for each workload with every planner's medians and links to Gantt charts."""
    if not rows:
        return ""
    tables = []
    for workflow, group in sorted(grouped(rows, lambda row: row.workflow).items()):
        for case, same in cases(group).items():
            name = f"{workflow}, {case}" if case else workflow
            body = "".join(_planner(p, runs, links) for p, runs in by_planner(same).items())
            tasks = f"{same[0].tasks:,} tasks"
            tables.append(_RUNS.format(name=escape(name), tasks=tasks, rows=body))
    return f'<section id="runs"><h2>All runs</h2><p>{_ABOUT_RUNS}</p>{"".join(tables)}</section>'


def _planner(planner: str, rows: Sequence[Row], links: Links) -> str:
    cells = [
        f"{len(rows)}",
        *(_median(rows, metric) for metric in ("makespan", "gb_seconds")),
        f"{1e6 * median(values(rows, 'price')):,.0f}",
        f"{median(values(rows, 'workers')):.0f}",
        f"{median(values(rows, 'cold')):.0f}",
        f"{median(r.uploaded + r.downloaded for r in rows) / 1e6:,.3g}",
        f"{median(values(rows, 'operations')):,.0f}",
        f"{median(values(rows, 'planning')):.2g}",
    ]
    kept = promises(rows)
    cells.append(f"{100 * kept.share:.0f} %" if kept else "-")
    charts = []
    for sla, runs in sorted(grouped(rows, lambda row: row.sla).items()):
        link = links.get(middle_run(runs).id)
        charts.append(f'<a href="{escape(link)}">{sla}</a>' if link else f"{sla}")
    cells.append(" ".join(charts))
    return f"<tr><th>{escape(label(planner))}</th><td>{'</td><td>'.join(cells)}</td></tr>"


def _median(rows: Sequence[Row], metric: str) -> str:
    known = middle(rows, metric)
    assert known is not None
    within = f"{known.low:.3g} to {known.high:.3g}" if known.known else ""
    return _ranged(f"{known.value:.3g}", within)


def _setup(experiment: Experiment) -> str:
    facts: dict[str, object] = {
        "command": experiment.command,
        "machine": experiment.machine,
        "begun": experiment.started,
        "Shoal": experiment.shoal,
        "grid": experiment.grid,
        "mode": experiment.mode,
        "repeats": experiment.repeat,
        "seed": experiment.seed,
        **_flat(experiment.settings),
    }
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    papers = "".join(f"<li>{number}: {escape(text)}</li>" for number, text in titles().items())
    return f"<table>{rows}</table><h3>The papers</h3><ul>{papers}</ul>"


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, fact in settings.items():
        if isinstance(fact, dict):
            fact = [f"{part} {value}" for part, value in fact.items()]
        text = ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
        found[name.replace("_", " ")] = text.replace("_", " ")
    return found


_UNEQUAL = "until then, medians over all runs mix unequal shares of workflows."
_ABOUT_RUNS = (
    "Medians over all SLAs and repeats. The numbers in the last column are SLAs; click one to open "
    "the Gantt chart of the median run at that SLA."
)

_CLAIMS = """<section id="claims"><h2>Claims</h2>
<p>What the papers say, and what was measured on this platform: {platform}. “Here” compares medians
over all workflows and SLAs; “typical” is the median of the differences within each workflow and
SLA, so that no workflow decides alone by its size. Below each figure is its 95 % confidence
interval (bootstrap; for shares, Wilson). A claim holds if the whole interval is within its
bounds, in part if all of it is on the right side but too small, and is undecided if it crosses a
bound. It is mixed if “here” and “typical” say the opposite of each other.</p>
<div class="wide"><table><thead><tr><th>claim</th><th>paper</th><th>here</th><th>typical</th>
<th></th></tr></thead><tbody>{rows}</tbody></table></div></section>"""

_RUNS = """<h3>{name} <small>{tasks}</small></h3>
<div class="wide"><table class="numbers"><thead><tr><th></th>
<th>runs</th><th>makespan s</th><th>GB-s</th><th>price µ$</th><th>workers</th><th>cold</th>
<th>MB moved</th><th>operations</th><th>planning s</th><th>SLA kept</th><th>Gantt</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{lead}</p></header>
{notices}
<nav>{contents}</nav>
<main>
{claims}
{sections}
{runs}
<section id="set-up"><h2>Set-up</h2>{setup}</section>
</main>
</body>
</html>
"""

_STYLE = """
body{margin:0 auto;padding:32px 24px 80px;max-width:980px;background:var(--page);color:var(--ink);
font:15.5px/1.55 system-ui,sans-serif}
h1{font-size:27px;margin:0}h2{font-size:21px;margin:48px 0 6px}h3{font-size:16px;margin:24px 0 6px}
header p{margin:4px 0 18px;color:var(--pale)}small{color:var(--pale);font-weight:normal}
section>p{max-width:46em;margin:0 0 14px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;padding:10px 0;border-block:1px solid var(--line)}
a{color:inherit;text-decoration-color:var(--pale);text-underline-offset:3px}
nav a{text-decoration:none;color:var(--pale)}nav a:hover{color:var(--ink)}
figure{margin:0 0 18px}figcaption{font-weight:600;margin:0 0 4px}
.drawings{display:flex;flex-wrap:wrap;gap:4px 28px}
table{border-collapse:collapse;font-size:14.5px}.wide{overflow-x:auto}
td,th{padding:5px 12px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600}thead th{color:var(--pale);font-weight:normal;white-space:nowrap}
td small{display:block}#claims td+td{white-space:nowrap}
.good{color:var(--good)}.part{color:var(--part)}.bad{color:var(--bad)}
.none{color:var(--pale)}.good,.part,.bad,.none{white-space:nowrap;font-weight:600}
.numbers td,.numbers thead th{text-align:right;font-variant-numeric:tabular-nums}
.numbers th,.numbers td{white-space:nowrap}
aside{background:var(--box);border-radius:8px;padding:10px 18px 12px}aside h3{margin:0 0 4px}
aside td{border:0;padding:2px 18px 2px 0}
.notices{background:var(--box);border-left:4px solid var(--bad);padding:8px 32px;margin:0 0 16px}
#set-up th{white-space:nowrap}#set-up td{word-break:break-word}
"""
