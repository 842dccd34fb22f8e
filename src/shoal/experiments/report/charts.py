"""Draw the charts of a report as SVG: bars, boxes, dots, stacks and curves.

1. A chart has a row for each label, and its values run to the right; only curves have two axes.
2. Lines and text use the page's colours, light or dark; `standalone` includes them,
   `plain` replaces them by fixed ones for renderers without CSS variables.
3. Each mark has a tooltip that describes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from shoal.experiments.report.intervals import Estimate
from shoal.experiments.report.statistics import Quartiles

WIDE, NARROW = 900, 450
"""The width of a single chart, and of one of two side by side."""
_LEFT, _RIGHT, _ROW = 160, 24, 28
_TOP = 26
"""The height above the rows, for the axis."""
_LETTER = 7.2
"""The average width of a letter, rounded up."""

_LIGHT = {"page": "#fff", "ink": "#1f2937", "pale": "#6b7280", "line": "#e5e7eb",
          "box": "#f6f7f9", "good": "#15803d", "part": "#b45309", "bad": "#b91c1c"}  # fmt: skip
VARIABLES = f"""
:root{{color-scheme:light dark;{"".join(f"--{name}:{colour};" for name, colour in _LIGHT.items())}}}
@media(prefers-color-scheme:dark){{:root{{--page:#16181d;--ink:#e5e7eb;--pale:#9ca3af;
--line:#2b3038;--box:#1e2127;--good:#4ade80;--part:#fbbf24;--bad:#f87171}}}}
"""
MARKS = """
svg.chart{display:block;max-width:100%;height:auto}
.chart text{font:12.5px system-ui,sans-serif;fill:var(--ink)}.chart .pale{fill:var(--pale)}
.chart .end{text-anchor:end}.chart .mid{text-anchor:middle}.chart .grid{stroke:var(--line)}
.chart .whisker{stroke:var(--pale);stroke-width:1.5}.chart .middle{stroke:var(--ink);stroke-width:2}
.chart .paper{fill:none;stroke:var(--ink);stroke-width:1.5;stroke-dasharray:3 2}
.chart a:hover rect{opacity:.75}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its label."""

    label: str
    value: float
    colour: str
    note: str = ""
    """The text after the bar."""
    paper: float | None = None
    """The paper's value."""
    link: str = ""
    """The link of the bar."""
    estimate: Estimate | None = None
    """The value with its confidence interval, drawn as a whisker."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One of several values in a row."""

    value: float
    colour: str
    tip: str


@dataclass(frozen=True, slots=True)
class Guide:
    """A reference value: a line, or a band between two values."""

    low: float
    high: float
    colour: str
    label: str


def bars(title: str, unit: str, rows: Sequence[Bar], width: int = WIDE) -> str:
    """Draw a bar for each row, with the paper's value as a dashed frame."""
    most = max((max(_end(row), row.paper or 0.0) for row in rows), default=0.0)
    notes = _LETTER * max((len(row.note) for row in rows), default=0)
    axis = _Axis(0.0, most or 1.0, width - 8 - notes)
    marks = []
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW + 5
        tip = f"{row.label}: {row.value:.4g} {unit}{_within(row.estimate)}"
        marks.append(_linked(_rect(axis, 0.0, row.value, y, row.colour, tip), row.link))
        if row.estimate and row.estimate.known:
            low, high = axis(row.estimate.low), axis(row.estimate.high)
            marks.append(_line("whisker", low, high, y + 9, y + 9))
            marks += [_line("whisker", at, at, y + 6, y + 12) for at in (low, high)]
        if row.paper is not None:
            length = axis(row.paper) - axis(0.0)
            marks.append(
                f'<rect class="paper" x="{axis(0.0):.1f}" y="{y - 2}" width="{length:.1f}" '
                f'height="22"><title>in the paper, for the same baseline: {row.paper:.4g} {unit}'
                "</title></rect>"
            )
        after = axis(max(_end(row), row.paper or 0.0)) + 8
        marks.append(f'<text x="{after:.1f}" y="{y + 13}">{escape(row.note)}</text>')
    return _chart(title, unit, [row.label for row in rows], axis, marks, width=width)


def _end(row: Bar) -> float:
    known = row.estimate is not None and row.estimate.known
    return max(row.value, row.estimate.high) if row.estimate and known else row.value


def _within(estimate: Estimate | None) -> str:
    if estimate is None or not estimate.known:
        return ""
    return f" (95 % interval: {estimate.low:.3g} to {estimate.high:.3g})"


def boxes(
    title: str,
    unit: str,
    rows: Sequence[tuple[str, str, Quartiles]],
    width: int,
    *,
    log: bool = False,
) -> str:
    """Draw a box plot with whiskers for each (label, colour, spread)."""
    low = min(spread.low for _, _, spread in rows) if log else 0.0
    axis = _Axis(low, max(spread.high for _, _, spread in rows) or 1.0, width - _RIGHT, log=log)
    marks = []
    for number, (label, colour, spread) in enumerate(rows):
        y = _TOP + number * _ROW + 5
        tip = (
            f"{label}: {spread.low:.3g} to {spread.high:.3g} {unit}, half of them between "
            f"{spread.first:.3g} and {spread.third:.3g}, median {spread.median:.3g}"
        )
        marks.append(_line("whisker", axis(spread.low), axis(spread.high), y + 9, y + 9))
        marks += [
            _line("whisker", axis(at), axis(at), y + 5, y + 13) for at in (spread.low, spread.high)
        ]
        marks.append(_rect(axis, spread.first, spread.third, y, colour, tip))
        marks.append(_line("middle", axis(spread.median), axis(spread.median), y, y + 18))
    return _chart(title, unit, [row[0] for row in rows], axis, marks, width=width)


def stacks(
    title: str, unit: str, parts: Mapping[str, str], rows: Mapping[str, Sequence[Estimate]]
) -> str:
    """Draw a stacked bar for each label; parts are given with their colours."""
    most = max((sum(part.value for part in row) for row in rows.values()), default=1.0)
    axis = _Axis(0.0, most or 1.0, WIDE - _RIGHT - 50)
    marks = []
    for number, (label, row) in enumerate(rows.items()):
        y, begin = _TOP + number * _ROW + 5, 0.0
        for (part, colour), found in zip(parts.items(), row, strict=True):
            tip = f"{label}, {part}: {found.value:.3g} {unit}{_within(found)}"
            marks.append(_rect(axis, begin, begin + found.value, y, colour, tip))
            begin += found.value
        marks.append(f'<text x="{axis(begin) + 6:.1f}" y="{y + 13}">{begin:.3g}</text>')
    return _chart(title, unit, list(rows), axis, marks, parts)


def dots(
    title: str,
    unit: str,
    rows: Mapping[str, Sequence[Dot]],
    guides: Sequence[Guide],
    series: Mapping[str, str],
) -> str:
    """Draw several dots for each label, with lines and bands for reference."""
    every = [dot.value for row in rows.values() for dot in row]
    most = max([*every, *(guide.high for guide in guides)], default=1.0) or 1.0
    axis = _Axis(0.0, most, WIDE - _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    marks = []
    for guide in guides:
        width = max(axis(guide.high) - axis(guide.low), 2.0)
        opacity = 0.16 if guide.high > guide.low else 0.8
        marks.append(
            f'<rect x="{axis(guide.low) - 1:.1f}" y="{_TOP}" width="{width:.1f}" '
            f'height="{bottom - _TOP}" fill="{guide.colour}" opacity="{opacity}">'
            f"<title>{escape(guide.label)}</title></rect>"
        )
    for number, row in enumerate(rows.values()):
        y = _TOP + number * _ROW + 14
        marks += [
            f'<circle cx="{axis(dot.value):.1f}" cy="{y}" r="6" fill="{dot.colour}" opacity=".85">'
            f"<title>{escape(dot.tip)}</title></circle>"
            for dot in row
        ]
    return _chart(title, unit, list(rows), axis, marks, series)


def curves(
    title: str,
    units: tuple[str, str],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    colours: Mapping[str, str],
) -> str:
    """Draw lines through points; an axis with a large range is logarithmic."""
    points = [point for line in lines.values() for point in line]
    most = max(x for x, _ in points)
    right = NARROW - max(_RIGHT, round(_LETTER * len(_number(most)) / 2) + 4)
    across = _fitting([x for x, _ in points], right, left=64)
    height = 230
    up = _fitting([y for _, y in points], height, left=0)
    marks = [_line("grid", across(at), across(at), _TOP, _TOP + height) for at in across.ticks]
    marks += [
        f'<text class="pale mid" x="{across(at):.1f}" y="{_TOP + height + 16}">{_number(at)}</text>'
        for at in across.ticks
    ]
    for at in up.ticks:
        y = _TOP + height - up(at)
        marks.append(_line("grid", 64, right, y, y))
        marks.append(f'<text class="pale end" x="58" y="{y + 4:.1f}">{_number(at)}</text>')
    for name, line in lines.items():
        colour = colours[name]
        placed = [(across(x), _TOP + height - up(y), x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in placed)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        marks += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(name)}: '
            f"{value:.3g} {units[1]} at {at:,.0f} {units[0]}</title></circle>"
            for x, y, at, value in placed
        ]
    marks.append(f'<text class="pale" x="4" y="14">{escape(units[1])}</text>')
    marks.append(
        f'<text class="pale end" x="{right}" y="{_TOP + height + 32}">{escape(units[0])}</text>'
    )
    return _svg(title, _TOP + height + 40, marks, colours, NARROW)


def standalone(svg: str) -> str:
    """Make a drawing a file of its own, for the folder of figures."""
    return _styled(svg.replace('href="', 'href="../'), VARIABLES + MARKS)


def plain(svg: str) -> str:
    """Return a drawing in fixed light colours, for renderers other than browsers."""
    styled = _styled(svg, MARKS)
    for name, colour in _LIGHT.items():
        styled = styled.replace(f"var(--{name})", colour)
    return styled


def _styled(svg: str, style: str) -> str:
    head, end, rest = svg.partition(">")
    page = "<rect width='100%' height='100%' fill='var(--page)'/>"
    return f"{head}{end}<style>{style}</style>{page}{rest}\n"


class _Axis:
    """Maps values to horizontal positions in pixels."""

    def __init__(
        self, low: float, high: float, right: float, *, left: float = _LEFT, log: bool = False
    ) -> None:
        self._log = log
        self._left, self._right = left, right
        if log:
            low = max(low, high * 1e-9)
            low, high = log10(low) - 0.03, log10(high) + 0.03
        self._low, self._high = low, high if high > low else low + 1.0

    def __call__(self, value: float) -> float:
        at = log10(max(value, 1e-12)) if self._log else value
        share = (at - self._low) / (self._high - self._low)
        return self._left + share * (self._right - self._left)

    @property
    def ticks(self) -> list[float]:
        """Return round values for the axis."""
        if self._log:
            return self._powers()
        raw = (self._high - self._low) / 6
        power = 10.0 ** floor(log10(raw))
        step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw * (1 - 1e-9))
        return [step * k for k in range(ceil(self._low / step), floor(self._high / step) + 1)]

    def _powers(self) -> list[float]:
        for factors in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
            found = [
                factor * 10.0**power
                for power in range(floor(self._low), ceil(self._high) + 1)
                for factor in factors
                if self._low <= log10(factor) + power <= self._high
            ]
            if len(found) >= 3:
                return found
        return found


def _fitting(values: Sequence[float], right: float, left: float) -> _Axis:
    low, high = min(values), max(values)
    if low > 0 and high > 5 * low:
        return _Axis(low, high, right, left=left, log=True)
    margin = 0.05 * (high - low)
    return _Axis(low - margin, high + margin, right, left=left)


def _chart(
    title: str,
    unit: str,
    labels: Sequence[str],
    axis: _Axis,
    marks: Sequence[str],
    legend: Mapping[str, str] | None = None,
    width: int = WIDE,
) -> str:
    bottom = _TOP + _ROW * len(labels)
    frame = []
    for at in axis.ticks:
        frame.append(_line("grid", axis(at), axis(at), _TOP - 4, bottom))
        frame.append(f'<text class="pale mid" x="{axis(at):.1f}" y="14">{_number(at)}</text>')
    frame.append(f'<text class="pale" x="0" y="14">{escape(unit)}</text>')
    for number, label in enumerate(labels):
        y = _TOP + number * _ROW + 18
        frame.append(f'<text class="end" x="{_LEFT - 10}" y="{y}">{escape(label)}</text>')
    return _svg(title, bottom + 6, [*frame, *marks], legend or {}, width)


def _svg(
    title: str, height: int, marks: Sequence[str], legend: Mapping[str, str], width: int
) -> str:
    key, x, y = [], 4, height + 4
    room = 26 + round(_LETTER * max(map(len, legend), default=0))
    for name, colour in legend.items():
        if x + room > width:
            x, y = 4, y + 20
        key.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>')
        key.append(f'<text x="{x + 17}" y="{y + 11}">{escape(name)}</text>')
        x += room + 8
    total = y + 20 if legend else height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {total}" '
        f'width="{width}" role="img" aria-label="{escape(title)}">'
        + "".join([*marks, *key])
        + "</svg>"
    )


def _rect(axis: _Axis, begin: float, end: float, y: float, colour: str, tip: str) -> str:
    width = max(axis(end) - axis(begin), 0.5)
    return (
        f'<rect x="{axis(begin):.1f}" y="{y}" width="{width:.1f}" height="18" rx="2" '
        f'fill="{colour}"><title>{escape(tip)}</title></rect>'
    )


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _linked(mark: str, link: str) -> str:
    return f'<a href="{escape(link)}">{mark}</a>' if link else mark


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.6g}"
