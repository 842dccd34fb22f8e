"""Draw a workflow as text for terminals and as SVG for notebooks and files.

1. A task's level is the length of the longest path to it. Levels are rows, from top to bottom.
   Tasks of one name and level share a box, except in an SVG of few tasks.
2. If there are many levels, equal neighbours share a row; if that isn't enough, the middle ones
   share one.
3. An output that is used further down is drawn as a line past the rows in between.
4. The layout handles boxes, not tasks, so it stays small however large the workflow is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from textwrap import wrap

from shoal.types import TaskId
from shoal.workflow.graph import Workflow

_MOST_ROWS = 40
_ROWS_KEPT = 10
"""The rows that remain at each end if the middle rows share one."""
_MOST_LINES = 6
"""The most lines past a row of text; further edges are listed below the drawing."""
_MOST_TASKS = 150
"""The most tasks that get a box of their own in an SVG."""

_STROKES = " │││─┘┐┤─└┌├─┴┬┼"
"""The character for each sum of directions: up 1, down 2, left 4, right 8."""

_HUES = (212, 36, 140, 345, 258, 186, 52, 306, 82, 18)
"""The hues of task names, in order of appearance."""

_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(slots=True, eq=False)
class _Item:
    """A box in a row or, without a label, a line that passes the row."""

    row: int
    label: str = ""
    name: str = ""
    """The name of its tasks; empty if they have different ones."""
    tasks: list[TaskId] = field(default_factory=list)
    above: list[_Item] = field(default_factory=list)
    below: list[_Item] = field(default_factory=list)
    size: float = 1.0
    x: float = 0.0
    """The position of its centre."""

    @property
    def column(self) -> int:
        return int(self.x)


_Rows = list[list[_Item]]
_Edges = Iterable[tuple[_Item, _Item]]


def draw_text(workflow: Workflow, width: int = 100) -> str:
    """Draw the workflow as text, usually at most `width` characters wide."""
    rows, edges = _grouped(workflow, width)
    room = [width - sum(len(item.label) + 8 for item in row) for row in rows]
    unseen = _connect(rows, edges, [min(free // 6, _MOST_LINES) for free in room])
    for item in (item for row in rows for item in row):
        size = max(len(item.label) + 4, 2 * len(_nets(item.above)) + 1)
        item.size = size | 1 if item.label else 3
    _arrange(rows, gap=3, width=width)
    notes = wrap("also: " + ", ".join(unseen), width, break_long_words=False) if unseen else []
    return "\n".join(_painted(rows) + notes)


def draw_svg(workflow: Workflow) -> str:
    """Draw the workflow as a standalone SVG."""
    each = len(workflow) <= _MOST_TASKS
    rows, edges = _separate(workflow) if each else _grouped(workflow, width=150)
    _connect(rows, edges, [len(workflow)] * len(rows))
    for item in (item for row in rows for item in row):
        item.size = 7.2 * len(item.label) + 22 if item.label else 8
    _arrange(rows, gap=14)
    return _svg(rows, list(dict.fromkeys(call.task.name for call in workflow.calls.values())))


def _levels(workflow: Workflow) -> dict[TaskId, int]:
    levels: dict[TaskId, int] = {}
    for task in workflow.calls:
        levels[task] = max([levels[source] for source in workflow.upstream[task]], default=-1) + 1
    return levels


def _separate(workflow: Workflow) -> tuple[_Rows, _Edges]:
    """Give each task a box of its own."""
    levels = _levels(workflow)
    boxes: dict[TaskId, _Item] = {}
    for task, call in workflow.calls.items():
        boxes[task] = _Item(levels[task], call.task.name, call.task.name)
    return _filled(workflow, boxes, max(levels.values()) + 1)


def _grouped(workflow: Workflow, width: int) -> tuple[_Rows, _Edges]:
    """Group tasks of one name and level in a box, with few enough boxes to fit the width."""
    levels = _levels(workflow)
    counts: list[Counter[str]] = [Counter() for _ in range(max(levels.values()) + 1)]
    for task, level in levels.items():
        counts[level][workflow.calls[task].task.name] += 1
    shared = _folded(counts)
    rows = [_row(number, same, width) for number, same in enumerate(shared)]
    of_level = [boxes for boxes, same in zip(rows, shared, strict=True) for _ in same]
    boxes = {task: of_level[levels[task]][call.task.name] for task, call in workflow.calls.items()}
    return _filled(workflow, boxes, len(rows))


def _folded(counts: list[Counter[str]]) -> list[list[Counter[str]]]:
    """Return the levels that share each row."""
    rows = [[counts[0]]]
    for before, level in pairwise(counts):
        if before == level and len(counts) > _MOST_ROWS:
            rows[-1].append(level)
        else:
            rows.append([level])
    if len(rows) > _MOST_ROWS:
        middle = [level for row in rows[_ROWS_KEPT:-_ROWS_KEPT] for level in row]
        rows[_ROWS_KEPT:-_ROWS_KEPT] = [middle]
    return rows


def _row(number: int, levels: list[Counter[str]], width: int) -> dict[str, _Item]:
    """Return the box of each name in a row."""
    total = Counter[str]()
    for level in levels:
        total.update(level)
    if any(level != levels[0] for level in levels):
        label = f"… {total.total()} tasks in {len(levels)} levels …"
        return dict.fromkeys(total, _Item(number, _cut(label, width)))
    labels = {name: _cut(_label(name, n, len(levels)), width) for name, n in total.items()}
    row: dict[str, _Item] = {}
    rest = Counter(total)
    room = width + 3 - len(f"… {total.total()} more") - 8
    fits = sum(len(label) + 8 for label in labels.values()) <= width + 3
    for name, label in labels.items():
        room -= len(label) + 8
        if not fits and room < 0:
            break
        row[name] = _Item(number, label, name)
        del rest[name]
    return row | dict.fromkeys(rest, _Item(number, _cut(f"… {rest.total()} more", width)))


def _label(name: str, count: int, levels: int) -> str:
    if levels == 1:
        return f"{name} {_TIMES}{count}" if count > 1 else name
    return f"{name} {_TIMES}{count} in " + ("a row" if levels == count else f"{levels} levels")


def _cut(label: str, width: int) -> str:
    most = max(width - 5, 1)
    return label if len(label) <= most else label[: most - 1] + "…"


def _filled(workflow: Workflow, boxes: dict[TaskId, _Item], count: int) -> tuple[_Rows, _Edges]:
    for task, box in boxes.items():
        box.tasks.append(task)
    rows: _Rows = [[] for _ in range(count)]
    for box in dict.fromkeys(boxes.values()):
        rows[box.row].append(box)
    pairs = ((boxes[s], boxes[task]) for task in boxes for s in workflow.upstream[task])
    return rows, dict.fromkeys(pair for pair in pairs if pair[0].row < pair[1].row)


def _connect(rows: _Rows, edges: _Edges, room: list[int]) -> list[str]:
    """Link the items of adjacent rows, adding lines past rows; return the edges without room."""
    far: dict[_Item, list[_Item]] = {}
    for source, target in edges:
        if target.row == source.row + 1:
            _link(source, target)
        else:
            far.setdefault(source, []).append(target)
    unseen: list[str] = []
    for number, (source, targets) in enumerate(far.items()):
        passed = range(source.row + 1, max(target.row for target in targets))
        if any(room[row] < 1 for row in passed):
            unseen += [f"{source.label} → {target.label}" for target in targets]
            continue
        line = {source.row: source} | {row: _Item(row) for row in passed}
        for row in passed:
            room[row] -= 1
            rows[row].insert(0 if number % 2 else len(rows[row]), line[row])
            _link(line[row - 1], line[row])
        for target in targets:
            _link(line[target.row - 1], target)
    return unseen


def _link(source: _Item, target: _Item) -> None:
    source.below.append(target)
    target.above.append(source)


def _arrange(rows: _Rows, gap: float, width: float = 0.0) -> None:
    """Order the items of each row and set their positions, within `width` if possible."""
    _untangle(rows)
    width = max([width, *(sum(item.size + gap for item in row) - gap for row in rows)])
    for row in rows:
        _place(row, [width / 2] * len(row), gap, width)
    for _ in range(4):
        for row in rows[1:]:
            _place(row, [_mean([o.x for o in i.above], i.x) for i in row], gap, width)
        for row in rows[-2::-1]:
            _place(row, [_mean([o.x for o in i.below], i.x) for i in row], gap, width)


def _untangle(rows: _Rows) -> None:
    """Order each row by what its items link to, which keeps an order without crossings."""
    rank = {item: (i + 0.5) / len(row) for row in rows for i, item in enumerate(row)}
    for sweep in range(4):
        for row in rows[1:] if sweep % 2 == 0 else rows[-2::-1]:
            links = {item: item.below if sweep % 2 else item.above for item in row}
            wanted = {i: _mean([rank[o] for o in links[i]], rank[i]) for i in row}
            row.sort(key=wanted.__getitem__)
            rank.update({item: (i + 0.5) / len(row) for i, item in enumerate(row)})


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _place(row: list[_Item], wanted: list[float], gap: float, width: float) -> None:
    """Move a row's items as close to the wanted positions as their order and sizes allow."""
    packed: list[float] = []
    end = -gap
    for item in row:
        packed.append(end + gap + item.size / 2)
        end += gap + item.size
    runs: list[tuple[float, int]] = []
    for want, least in zip(wanted, packed, strict=True):
        runs.append((want - least, 1))
        while len(runs) > 1 and runs[-2][0] >= runs[-1][0]:
            (a, m), (b, n) = runs.pop(), runs.pop()
            runs.append(((a * m + b * n) / (m + n), m + n))
    shifts = [min(max(shift, 0.0), width - end) for shift, count in runs for _ in range(count)]
    for item, least, shift in zip(row, packed, shifts, strict=True):
        item.x = least + shift


@dataclass(slots=True, eq=False)
class _Net:
    """Items that link to the same items below, joined by one horizontal line."""

    sources: list[int] = field(default_factory=list)
    """The columns where lines arrive from above."""
    targets: list[int] = field(default_factory=list)
    """The columns where lines continue below."""
    track: int = -1
    """The text line of the horizontal line, if there is one."""

    @property
    def columns(self) -> range:
        return range(min(self.sources + self.targets), max(self.sources + self.targets) + 1)

    def touches(self, other: _Net) -> bool:
        one, two = self.columns, other.columns
        return one.start <= two.stop and two.start <= one.stop

    def crossings(self, lower: _Net) -> int:
        """Count the crossings if this net's horizontal line is above the other's."""
        across = sum([column in self.columns for column in lower.sources])
        return across + sum([column in lower.columns for column in self.targets])


def _nets(sources: list[_Item]) -> dict[frozenset[_Item], _Net]:
    """Return the nets below these items, by the items that they link to."""
    nets: dict[frozenset[_Item], _Net] = {}
    for item in sources:
        if item.below:
            nets.setdefault(frozenset(item.below), _Net()).sources.append(item.column)
    return nets


def _routed(sources: list[_Item], targets: list[_Item]) -> list[_Net]:
    """Route the nets between two rows: set their columns and tracks."""
    nets = _nets(sources)
    taken = {column: net for net in nets.values() for column in net.sources}
    for item in targets:
        entering = [net for below, net in nets.items() if item in below]
        entering.sort(key=lambda net: sum(net.sources) / len(net.sources))
        for number, net in enumerate(entering):
            column = _entry(item, item.column + 2 * number - len(entering) + 1, net, taken)
            taken[column] = net
            net.targets.append(column)
            if not item.label:
                item.x = column
    order: list[_Net] = []
    for net in nets.values():
        if len(net.columns) > 1:
            _insert(order, net)
    for number, net in enumerate(order):
        beside = [other.track for other in order[:number] if other.touches(net)]
        net.track = max(beside, default=-1) + 1
    return list(nets.values())


def _entry(item: _Item, wanted: int, net: _Net, taken: dict[int, _Net]) -> int:
    """Return the column where a net enters an item: straight from above if that is close."""
    half = int(item.size) // 2 - bool(item.label)
    straight = 4 if len(net.sources) == 1 else 2
    inside = range(item.column - half, item.column + half + 1)

    def cost(column: int) -> int:
        crowded = any(taken.get(beside, net) is not net for beside in (column - 1, column + 1))
        return abs(column - wanted) + 3 * crowded - straight * (column in net.sources)

    free = [column for column in inside if taken.get(column, net) is net]
    return min(free, key=cost, default=wanted)


def _insert(order: list[_Net], net: _Net) -> None:
    """Insert a net among the others of a channel where it crosses the fewest lines."""
    above = [other.crossings(net) for other in order]
    below = [net.crossings(other) for other in order]
    costs = [sum(above[:i]) + sum(below[i:]) for i in range(len(order) + 1)]
    order.insert(costs.index(min(costs)), net)


def _painted(rows: _Rows) -> list[str]:
    """Render rows with known positions as lines of text."""
    width = int(max(item.x + item.size for row in rows for item in row)) + 1
    lines: list[list[str]] = []
    for number, row in enumerate(rows):
        if number > 0:
            _paint_nets(lines, _routed(rows[number - 1], row), row, width)
        _paint_boxes(lines, row, width)
    texts = ["".join(line).rstrip() for line in lines]
    margin = min(len(text) - len(text.lstrip()) for text in texts)
    return [text[margin:] for text in texts]


def _paint_boxes(lines: list[list[str]], row: list[_Item], width: int) -> None:
    top, middle, bottom = box = [[" "] * width for _ in range(3)]
    lines += box
    for item in row:
        if not item.label:
            for line in box:
                line[item.column] = "│"
            continue
        inside = int(item.size) - 2
        place = slice(item.column - inside // 2 - 1, item.column + inside // 2 + 2)
        top[place] = f"┌{'─' * inside}┐"
        middle[place] = f"│{item.label:^{inside}}│"
        bottom[place] = f"└{'─' * inside}┘"
        if item.below:
            bottom[item.column] = "┬"


def _paint_nets(lines: list[list[str]], nets: list[_Net], targets: list[_Item], width: int) -> None:
    channel = [[" "] * width for _ in range(max(net.track for net in nets) + 2)]
    lines += channel
    passing = {item.column for item in targets if not item.label}
    for net in (net for net in nets if net.track >= 0):
        columns = net.columns
        channel[net.track][columns.start : columns.stop] = "─" * len(columns)
    for net in nets:
        for column in net.sources:
            for line in channel[: max(net.track, 0)]:
                line[column] = "│"
        for column in net.targets:
            for line in channel[net.track + 1 :]:
                line[column] = "│"
            channel[-1][column] = "│" if column in passing else "▼"
        if net.track >= 0:
            _paint_joints(channel[net.track], net)


def _paint_joints(line: list[str], net: _Net) -> None:
    first, last = net.columns[0], net.columns[-1]
    for column in net.sources + net.targets:
        upright = (column in net.sources) + 2 * (column in net.targets)
        line[column] = _STROKES[upright + 4 * (column > first) + 8 * (column < last)]


def _svg(rows: _Rows, names: list[str]) -> str:
    hues = {name: _HUES[number % len(_HUES)] for number, name in enumerate(names)}
    boxes, curves, heads = [], [], []
    y = bottom = 0.0
    for row in rows:
        bottom = y + 28
        slant = max([abs(item.x - other.x) for item in row for other in item.below], default=0)
        end = bottom + min(max(38, slant / 9), 120)
        for item in row:
            if item.label:
                boxes.append(_svg_box(item, y, hues.get(item.name)))
            curves += [_svg_curve(item, target, bottom, end) for target in item.below]
            heads += [f"M{o.x - 4:.1f} {end - 7:.1f}l4 7 4-7z" for o in item.below if o.label]
        y = end
    width = max(item.x + item.size / 2 for row in rows for item in row) + 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {width + 2:.0f} {bottom + 4:.0f}" '
        f'width="{width + 2:.0f}" height="{bottom + 4:.0f}" style="max-width:100%;height:auto" '
        'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" '
        'font-size="12" text-anchor="middle">\n'
        f'<path d="{"".join(curves)}" fill="none" stroke="#8b95a5" stroke-width="1.3"/>\n'
        f'<path d="{"".join(dict.fromkeys(heads))}" fill="#8b95a5"/>\n'
        + "\n".join(boxes)
        + "\n</svg>"
    )


def _svg_box(item: _Item, y: float, hue: int | None) -> str:
    colour = "hsl(0,0%," if hue is None else f"hsl({hue},65%,"
    title: str = item.tasks[0]
    if len(item.tasks) > 1:
        title += f" … {item.tasks[-1]} ({len(item.tasks)} tasks)"
    return (
        f'<g><title>{escape(title)}</title><rect x="{item.x - item.size / 2:.1f}" y="{y:.1f}" '
        f'width="{item.size:.1f}" height="28" rx="7" fill="{colour}89%)" stroke="{colour}48%)"/>'
        f'<text x="{item.x:.1f}" y="{y + 18:.1f}" fill="#1f2937">{escape(item.label)}</text></g>'
    )


def _svg_curve(item: _Item, target: _Item, y: float, end: float) -> str:
    """Return a curve down to a box, or to and along a line that passes a row."""
    middle = (y + end) / 2
    stop, rest = (end - 5, "") if target.label else (end, "v28")
    return (
        f"M{item.x:.1f} {y:.1f}C{item.x:.1f} {middle:.1f} "
        f"{target.x:.1f} {middle:.1f} {target.x:.1f} {stop:.1f}{rest}"
    )
