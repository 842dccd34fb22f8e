"""Gantt charts of a timeline: as text for a terminal, or as a self-contained HTML page.

1. Time runs to the right. A worker has as many lanes as it does things at a time. Fetches and saves
   that run beside executions have lanes of their own.
2. Each task name has one letter or colour. Starts, fetches and saves look alike for all tasks.
3. Spans that are narrower than a character or, if there are very many, a pixel are merged: the one
   that took most of the time stands for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from string import ascii_letters

from shoal.execution.formatting import counted, nbytes_text, printable, seconds_text, time_unit
from shoal.execution.timeline import RUNS, Span, Timeline
from shoal.types import WorkerId

_MOST_LANES = 40
"""The most lanes in a text."""
_MOST_SPANS = 20_000
"""The most spans that a page draws one by one, however narrow."""
_PIXELS = 1600
"""The assumed width of a page when narrow spans are merged."""

_UNSEEN = ("deliver", "leave", "miss")
_KINDS = {"#start": "░", "#fetch": "▒", "#save": "▓", "#hit": "◇"}
"""How spans other than executions look in a text; executions look like their task names."""
_ANSI = (75, 215, 114, 204, 141, 80, 221, 176, 149, 209)
_HUES = (212, 30, 140, 345, 262, 186, 48, 306, 82, 12)


@dataclass(frozen=True, slots=True)
class _Lane:
    """A row of the chart."""

    worker: WorkerId
    spans: list[Span]
    moving: bool = False
    """Whether it has only fetches and saves, beside lanes of executions."""


def gantt_text(
    timeline: Timeline,
    width: int = 100,
    color: bool = False,
    order: Sequence[WorkerId] | None = None,
) -> str:
    """The timeline as lines of text, one per lane.

    Args:
        timeline: What ran.
        width: How many characters a row has at most.
        color: Whether ANSI colours, not letters, tell task names apart.
        order: The workers from top to bottom; default: by their starts, with totals at the end.
    """
    lanes = _lanes(timeline, merge_moves=True)
    if order is not None:
        places = {worker: place for place, worker in enumerate(order)}
        lanes.sort(key=lambda lane: places[lane.worker])
    if not lanes:
        return "Nothing ran.\n" + _summary(timeline, lanes)
    shown = lanes[:_MOST_LANES]
    margin = max(len(printable(lane.worker)) for lane in shown) + 2
    columns = max(width - margin, 10)
    extent = _extent(timeline)
    glyphs = _glyphs(timeline, color)
    lines, before = [], ""
    for lane in shown:
        label = printable(lane.worker) if lane.worker != before else ""
        cells = groupby(_cells(lane.spans, extent, columns))
        row = [_painted(look, len(list(run)), glyphs) for look, run in cells]
        lines.append(label.ljust(margin) + "".join(row))
        before = lane.worker
    if len(lanes) > len(shown):
        lines.append(f"… and {len(lanes) - len(shown):,} more")
    lines += [" " * margin + line for line in _axis(extent, columns)]
    lines += _legend(glyphs, width)
    lines = [line.rstrip() for line in lines]
    return "\n".join(lines if order is not None else [*lines, _summary(timeline, lanes)])


def gantt_html(timeline: Timeline, title: str) -> str:
    """The timeline as an HTML page that needs no other files."""
    lanes = _lanes(timeline, merge_moves=False)
    begin, end = _extent(timeline)
    pixel = (end - begin) / _PIXELS if len(timeline.spans) > _MOST_SPANS else 0.0
    css = {look: f"c{i % (2 * len(_HUES))}" for i, look in enumerate(_names(timeline))}
    css |= {look: look[1:] for look in _KINDS}
    labels: dict[WorkerId, int] = {}
    bars: list[str] = []
    y = 24
    for lane in lanes:
        if lane.worker not in labels:
            y += 6
            labels[lane.worker] = y + 14
        height = 7 if lane.moving else 20
        bars += [_bar_svg(spans, (begin, end), y, height, css) for spans in _bars(lane, pixel)]
        y += height + 2
    ticks = [(100 * (at - begin) / (end - begin), text) for at, text in _ticks(begin, end, 12)]
    return _PAGE.format(
        title=escape(title),
        style=_STYLE + "".join(_colours()),
        summary=_summary(timeline, lanes),
        legend=_legend_html(timeline, css),
        margin=max([len(lane.worker) for lane in lanes], default=0) * 8 + 20,
        height=y + 6,
        labels="".join(
            f'<text x="100%" y="{at}">{escape(worker)}</text>' for worker, at in labels.items()
        ),
        grid="".join(
            f'<line x1="{x:.3f}%" x2="{x:.3f}%" y2="100%"/>'
            f'<text x="{x:.3f}%" dx="4" y="14">{text if x < 96 else ""}</text>'
            for x, text in ticks
        ),
        bars="\n".join(bars),
        script=_SCRIPT,
    )


def _lanes(timeline: Timeline, *, merge_moves: bool) -> list[_Lane]:
    """The lanes of all workers, in the order of their starts."""
    spans: dict[WorkerId, list[Span]] = {}
    for span in timeline.spans:
        if span.kind not in _UNSEEN:
            spans.setdefault(span.worker, []).append(span)
    lanes = []
    for worker in sorted(spans, key=lambda w: (spans[w][0].start, len(w), w)):
        stacked = _stacked(spans[worker])
        if len(stacked) == 1:
            lanes.append(_Lane(worker, stacked[0]))
            continue
        moves = [span for span in spans[worker] if span.kind in ("fetch", "save")]
        others = [span for span in spans[worker] if span.kind not in ("fetch", "save")]
        lanes += [_Lane(worker, lane) for lane in _stacked(others)]
        stacked = [moves] if moves and merge_moves else _stacked(moves)
        lanes += [_Lane(worker, lane, moving=True) for lane in stacked]
    return lanes


def _stacked(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans in as few lanes as possible, each in the first free one."""
    lanes: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for span in spans:
        while busy and busy[0][0] <= span.start + 1e-9:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, len(lanes))
            lanes.append([])
        number = heappop(free)
        lanes[number].append(span)
        heappush(busy, (span.end, number))
    return lanes


def _look(span: Span) -> str:
    if span.kind == "execute":
        return (span.task or "").rpartition("#")[0]
    return f"#{span.kind}" if span.kind in ("fetch", "save", "hit") else "#start"


def _names(timeline: Timeline) -> list[str]:
    """The names of executed tasks, in the order of their appearance."""
    return list(dict.fromkeys(_look(span) for span in timeline.of_kind("execute")))


def _extent(timeline: Timeline) -> tuple[float, float]:
    begin = min([0.0, *(span.start for span in timeline.spans)])
    end = max([timeline.makespan, *(span.end for span in timeline.spans)])
    return begin, max(end, begin + 1e-6)


def _summary(timeline: Timeline, lanes: list[_Lane]) -> str:
    """The totals of a timeline; a worker's time runs from its first start to its last end."""
    executions = timeline.of_kind("execute")
    lives = [lane.spans[-1].end - lane.spans[0].start for lane in lanes if not lane.moving]
    share = sum(span.seconds for span in executions) / (sum(lives) or 1.0)
    counts = {
        "task": len({span.task for span in timeline.of_kind(*RUNS)}),
        "worker": len(timeline.workers),
        "cold start": len(timeline.of_kind("cold start")),
    }
    parts = [
        f"makespan {seconds_text(timeline.makespan)}",
        *(counted(count, what) for what, count in counts.items()),
        f"{share:.0%} of time executing",
    ]
    if timeline.cache_use:
        parts.append(f"cache: {timeline.cache_use}")
    return " · ".join(parts)


def _ticks(begin: float, end: float, most: int) -> Iterator[tuple[float, str]]:
    """Round times for the labels of an axis."""
    least = (end - begin) / max(most, 1)
    power = 10.0 ** floor(log10(least))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= least * (1 - 1e-9))
    size, unit = time_unit(end - begin)
    for number in range(ceil(begin / step), floor(end / step + 1e-9) + 1):
        yield number * step, f"{number * step / size:.6g} {unit}"


def _axis(extent: tuple[float, float], columns: int) -> list[str]:
    begin, end = extent
    line, texts = ["─"] * columns, ""
    for at, text in _ticks(begin, end, columns // 10):
        column = min(int((at - begin) / (end - begin) * columns + 1e-6), columns - 1)
        line[column] = "┬"
        if column + len(text) <= columns and len(texts) <= column:
            texts = texts.ljust(column) + text
    return ["".join(line), texts]


def _cells(spans: list[Span], extent: tuple[float, float], columns: int) -> list[str]:
    """The look of each character of a row."""
    begin, end = extent
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        look = _look(span)
        left, right = ((at - begin) / (end - begin) * columns for at in (span.start, span.end))
        # A fiftieth of a cell doesn't count, or rounding would smear spans into their neighbours.
        first = min(int(left + 0.02), columns - 1)
        last = min(max(first, ceil(right - 0.02) - 1), columns - 1)
        for cell in range(first, last + 1):
            share = min(right, cell + 1) - max(left, cell)
            shares[cell][look] = shares[cell].get(look, 0.0) + share
    return [max(share, key=share.__getitem__) if share else "" for share in shares]


def _glyphs(timeline: Timeline, color: bool) -> dict[str, str]:
    """The character of each look, with its ANSI code if wanted."""
    glyphs: dict[str, str] = {}
    for number, name in enumerate(_names(timeline)):
        if color:
            glyphs[name] = f"\x1b[38;5;{_ANSI[number % len(_ANSI)]}m█"
        else:
            wanted = [letter for letter in name.lower() + name.upper() if letter in ascii_letters]
            free = (letter for letter in [*wanted, *ascii_letters] if letter not in glyphs.values())
            glyphs[name] = next(free, "*")
    kinds = {_look(span) for span in timeline.spans if span.kind not in _UNSEEN} & _KINDS.keys()
    return glyphs | {look: glyph for look, glyph in _KINDS.items() if look in kinds}


def _painted(look: str, count: int, glyphs: dict[str, str]) -> str:
    glyph = glyphs.get(look, " ")
    return f"{glyph[:-1]}{glyph[-1] * count}\x1b[0m" if glyph[:-1] else glyph * count


def _legend(glyphs: dict[str, str], width: int) -> list[str]:
    lines, room = [""], width
    for look in glyphs:
        text = printable(look.removeprefix("#"))
        if len(text) + 5 > room and lines[-1]:
            lines.append("")
            room = width
        lines[-1] += f"{_painted(look, 1, glyphs)} {text}   "
        room -= len(text) + 5
    return lines


def _bars(lane: _Lane, pixel: float) -> Iterator[list[Span]]:
    """The spans that each rectangle of a lane represents: one, or all within a pixel."""
    together: list[Span] = []
    for span in lane.spans:
        if together and span.end - together[0].start >= pixel:
            yield together
            together = []
        together.append(span)
    yield together


def _bar_svg(
    spans: list[Span], extent: tuple[float, float], y: int, height: int, css: dict[str, str]
) -> str:
    look, end = _mostly(spans), max(span.end for span in spans)
    scale = 100 / (extent[1] - extent[0])
    x, width = (spans[0].start - extent[0]) * scale, (end - spans[0].start) * scale
    tip = f"{len(spans):,} spans, mostly {look.removeprefix('#')}\n"
    tip += seconds_text(end - spans[0].start)
    bar = (
        f'<rect class="{css[look]}{" wide" * (width > 0.3)}" x="{x:.4f}%" y="{y}" '
        f'width="{max(width, 0.01):.4f}%" height="{height}">'
        f"<title>{escape(tip if len(spans) > 1 else _tip(spans[0]))}</title></rect>"
    )
    if height < 20 or look in _KINDS or width * 11 < len(look) * 7 + 10:
        return bar
    return f'{bar}<text x="{x:.4f}%" dx="5" y="{y + 14}">{escape(look)}</text>'


def _mostly(spans: list[Span]) -> str:
    """The look that took the most time."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[_look(span)] = seconds.get(_look(span), 0.0) + span.seconds
    return max(seconds, key=seconds.__getitem__)


def _tip(span: Span) -> str:
    what = span.kind if span.task is None else f"{span.task}: {span.kind}"
    size = f", {nbytes_text(span.nbytes)}" if span.nbytes else ""
    return f"{what}\n{seconds_text(span.seconds)} from {seconds_text(span.start)}{size}"


def _legend_html(timeline: Timeline, css: dict[str, str]) -> str:
    seconds: dict[str, list[float]] = {look: [] for look in css}
    for span in timeline.spans:
        if span.kind not in _UNSEEN:
            seconds[_look(span)].append(span.seconds)
    return "".join(
        f'<li><svg><rect class="{css[look]}" width="100%" height="100%"/></svg>'
        f"{escape(look.removeprefix('#'))} "
        f"<small>{len(each):,} in {seconds_text(sum(each))}</small></li>"
        for look, each in seconds.items()
        if each
    )


def _colours() -> Iterator[str]:
    for number, hue in enumerate(_HUES):
        yield f".c{number}{{fill:hsl({hue} 62% 62%)}}"
        yield f".c{number + len(_HUES)}{{fill:hsl({hue} 55% 82%)}}"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width"/>
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<ul>{legend}</ul>
<figure>
<svg width="{margin}" height="{height}" class="workers">{labels}</svg>
<div><svg width="100%" height="{height}">
<defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect width="6" height="6"/><path d="M0 0V6"/></pattern>
</defs>
<g class="grid">{grid}</g>
<g class="bars">
{bars}
</g>
</svg></div>
</figure>
<p><small>Ctrl and the wheel zoom, a double click resets.</small></p>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1f2937;--pale:#6b7280;--line:#e5e7eb;
--start:#d1d5db;--hatch:#9ca3af;--fetch:#b6bdc9;--save:#7d8796;--hit:#86c5a0}
@media(prefers-color-scheme:dark){:root{--page:#16181d;--ink:#e5e7eb;--pale:#9ca3af;
--line:#2b3038;--start:#3a414c;--hatch:#5b6472;--fetch:#566070;--save:#8a94a6;--hit:#3f7d5a}}
body{margin:28px;background:var(--page);color:var(--ink);font:14px system-ui,sans-serif}
h1{font-size:20px;margin:0 0 4px}p{margin:0 0 12px;color:var(--pale)}small{color:var(--pale)}
ul{display:flex;flex-wrap:wrap;gap:6px 20px;list-style:none;margin:0 0 16px;padding:0}
li svg{width:14px;height:14px;margin-right:6px;border-radius:3px;vertical-align:-2px}
figure{display:flex;margin:0 0 12px}figure div{flex:1;overflow-x:auto}figure svg{display:block}
text{font-size:12px;fill:var(--ink)}
.workers{flex:none}.workers text{text-anchor:end;transform:translateX(-10px)}
.grid line{stroke:var(--line)}.grid text{font-size:11px;fill:var(--pale)}
.bars text{fill:#111827;pointer-events:none}
.wide{stroke:var(--page)}.bars rect:hover{stroke:var(--ink);stroke-width:1.5}
#hatch rect{fill:var(--start)}#hatch path{stroke:var(--hatch);stroke-width:4}
.start{fill:url(#hatch)}.fetch{fill:var(--fetch)}.save{fill:var(--save)}.hit{fill:var(--hit)}
"""

_SCRIPT = """
const view = document.querySelector("figure div"), chart = view.firstElementChild;
let zoom = 1;
function show(to, x) {
  const at = (view.scrollLeft + x) / zoom;
  zoom = Math.min(Math.max(to, 1), 200);
  chart.style.width = zoom * 100 + "%";
  view.scrollLeft = at * zoom - x;
}
view.addEventListener("wheel", event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const x = event.clientX - view.getBoundingClientRect().left;
  show(zoom * Math.exp(-event.deltaY / 300), x);
}, {passive: false});
view.addEventListener("dblclick", () => show(1, 0));
"""
