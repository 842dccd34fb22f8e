"""Draw the farm paper's Fig. 5 and Fig. 6, and figures of lines, as self-contained SVGs.

Each autoscaler has a colour, by its position in the evaluation. Small dots are episodes, large ones
their means; a band extends one standard deviation to each side of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from colorsys import hls_to_rgb
from html import escape
from math import floor, log10
from statistics import fmean, stdev

from shoal.farm.episode import Episode

_HUES = (212, 30, 140, 345, 262, 186, 48, 306, 82, 12)
_WIDTH, _HEIGHT = 640, 240
"""The size of a panel, including its margins."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 28, 40

Episodes = Mapping[str, Sequence[Episode]]
Points = Sequence[tuple[float, float]]
Panel = tuple[str, str, Mapping[str, Points]]
"""The labels of both axes, and lines by name."""


def tradeoff_svg(episodes: Episodes, title: str) -> str:
    """Draw Fig. 5: service against mean workers, and against scaling actions."""
    panels: list[tuple[str, Callable[[Episode], float]]] = [
        ("mean workers", lambda episode: episode.mean_workers),
        ("scaling actions", lambda episode: float(episode.actions)),
    ]
    drawn = []
    for number, (label, value) in enumerate(panels):
        clouds = {
            name: [(value(episode), 100 * episode.qos) for episode in column]
            for name, column in episodes.items()
        }
        drawn.append(_cloud_panel(number, label, clouds))
    return _page(title, list(episodes), drawn)


def course_svg(episodes: Episodes, title: str) -> str:
    """Draw Fig. 6: the course of an episode, with mean and standard deviation over the seeds."""
    panels: list[tuple[str, Callable[[Episode], Sequence[float]]]] = [
        ("mean response [s]", lambda episode: [seen.mean_response for seen in episode.course]),
        ("running QoS [%]", lambda episode: [100 * qos for qos in episode.running_qos]),
        ("workers", lambda episode: [seen.workers for seen in episode.course]),
        ("waiting tasks", lambda episode: [seen.waiting for seen in episode.course]),
    ]
    drawn = []
    for number, (label, values) in enumerate(panels):
        bands = {
            name: [_band(at) for at in _columns([values(episode) for episode in column])]
            for name, column in episodes.items()
        }
        drawn.append(_band_panel(number, label, bands))
    return _page(title, list(episodes), drawn)


def lines_svg(title: str, panels: Sequence[Panel]) -> str:
    """Draw panels of lines; all panels have the same lines, or some of them."""
    names = list(dict.fromkeys(name for _, _, lines in panels for name in lines))
    drawn = []
    for number, (across, up, lines) in enumerate(panels):
        axes = _Axes(*(_range([point[i] for line in lines.values() for point in line])
                       for i in (0, 1)))  # fmt: skip
        marks = [_line(axes, line, _colour(names.index(name))) for name, line in lines.items()]
        drawn.append(_panel(number, axes, across, up, marks))
    return _page(title, names, drawn)


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _columns(rows: Sequence[Sequence[float]]) -> Iterator[list[float]]:
    """Yield the values at each step, of the episodes that last so long."""
    for at in range(max(map(len, rows))):
        yield [row[at] for row in rows if len(row) > at]


def _band(values: Sequence[float]) -> tuple[float, float, float]:
    mean, spread = fmean(values), stdev(values) if len(values) > 1 else 0.0
    return mean - spread, mean, mean + spread


def _cloud_panel(number: int, label: str, clouds: Mapping[str, Points]) -> str:
    xs = [x for cloud in clouds.values() for x, _ in cloud]
    ys = [y for cloud in clouds.values() for _, y in cloud]
    axes = _Axes((min(xs), max(xs)), (min(ys), max(ys)))
    marks = []
    for index, (name, cloud) in enumerate(clouds.items()):
        colour = _colour(index)
        mean = (fmean(x for x, _ in cloud), fmean(y for _, y in cloud))
        for (x, y), size, opacity in [*((point, 2.5, 0.45) for point in cloud), (mean, 6, 1)]:
            marks.append(
                f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="{size}" fill="{colour}" '
                f'opacity="{opacity}"><title>{escape(name)}: {y:.2f} % at {x:.2f}</title></circle>'
            )
    return _panel(number, axes, label, "QoS [%]", marks)


def _band_panel(
    number: int, label: str, bands: Mapping[str, Sequence[tuple[float, float, float]]]
) -> str:
    steps = max(map(len, bands.values())) - 1
    lows = [low for band in bands.values() for low, _, _ in band]
    highs = [high for band in bands.values() for _, _, high in band]
    axes = _Axes((0, max(1, steps)), (min(lows), max(highs)))
    marks = []
    for index, band in enumerate(bands.values()):
        there = [(at, high) for at, (_, _, high) in enumerate(band)]
        back = [(at, low) for at, (low, _, _) in enumerate(band)][::-1]
        mean = [(at, middle) for at, (_, middle, _) in enumerate(band)]
        colour = _colour(index)
        marks.append(
            f'<polygon points="{axes.path(there + back)}" fill="{colour}" opacity="0.15"/>'
        )
        marks.append(_line(axes, mean, colour))
    return _panel(number, axes, "control step", label, marks)


def _line(axes: _Axes, points: Points, colour: str) -> str:
    return (
        f'<polyline points="{axes.path(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
    )


class _Axes:
    """Maps values to positions in a panel."""

    def __init__(self, xs: tuple[float, float], ys: tuple[float, float]) -> None:
        self.xs, self.ys = _widened(*xs), _widened(*ys)

    def x(self, value: float) -> float:
        low, high = self.xs
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.ys
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def _widened(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = floor(low / step) + 1
    return [step * k for k in range(first, first + 10) if step * k <= high]


def _panel(number: int, axes: _Axes, across: str, up: str, marks: Sequence[str]) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<g transform="translate(0 {40 + number * _HEIGHT})">']
    for value in _ticks(*axes.xs):
        x = axes.x(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="mid">{value:g}</text>')
    for value in _ticks(*axes.ys):
        y = axes.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{value:g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{bottom + 32}" class="mid">{across}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 8}">{up}</text>')
    return "".join([*parts, *marks, "</g>"])


def _page(title: str, names: Sequence[str], panels: Sequence[str]) -> str:
    height = 40 + len(panels) * _HEIGHT + 20 * len(names) + 10
    legend = []
    for index, name in enumerate(names):
        y = 40 + len(panels) * _HEIGHT + 20 * index
        legend.append(f'<rect x="{_LEFT}" y="{y}" width="12" height="12" fill="{_colour(index)}"/>')
        legend.append(f'<text x="{_LEFT + 18}" y="{y + 11}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}">'
        "<style>text{font:12px sans-serif;fill:#333}.mid{text-anchor:middle}.end{text-anchor:end}"
        "line{stroke:#ddd}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="24" style="font-size:15px">{escape(title)}</text>'
        + "".join([*panels, *legend])
        + "</svg>\n"
    )


def _colour(index: int) -> str:
    """Return a colour in hexadecimal notation, which every viewer supports."""
    parts = hls_to_rgb(_HUES[index % len(_HUES)] / 360, 0.45, 0.65)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
