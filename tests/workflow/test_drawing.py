"""Drawings of workflows as text and as SVG."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.workflow import Output, Task, Workflow, task
from shoal.workflow.drawing import draw_svg, draw_text

TIMES = "\N{MULTIPLICATION SIGN}"
SVG = "{http://www.w3.org/2000/svg}"

UP, DOWN, LEFT, RIGHT = (0, -1), (0, 1), (-1, 0), (1, 0)
STROKES = {
    "│": {UP, DOWN},
    "─": {LEFT, RIGHT},
    "┌": {DOWN, RIGHT},
    "┐": {DOWN, LEFT},
    "└": {UP, RIGHT},
    "┘": {UP, LEFT},
    "├": {UP, DOWN, RIGHT},
    "┤": {UP, DOWN, LEFT},
    "┬": {DOWN, LEFT, RIGHT},
    "┴": {UP, LEFT, RIGHT},
    "┼": {UP, DOWN, LEFT, RIGHT},
    "▼": {UP},
}


def named(name: str) -> Task[..., None]:
    @task(name=name)
    def nothing(*args: object) -> None: ...

    return nothing


def chain(*names: str) -> Workflow:
    output = named(names[0])()
    for name in names[1:]:
        output = named(name)(output)
    return Workflow.of(output)


def fan_out_and_in(count: int) -> Workflow:
    split, work, gather = named("split"), named("work"), named("gather")
    source = split()
    return Workflow.of(gather([work(source) for _ in range(count)]))


def tree(leaves: int) -> Workflow:
    add = named("add")
    outputs = [add() for _ in range(leaves)]
    while len(outputs) > 1:
        outputs = [add(a, b) for a, b in zip(outputs[::2], outputs[1::2], strict=True)]
    return Workflow.of(outputs[0])


def text_analysis() -> Workflow:
    count, segment, analyse = named("count"), named("segment"), named("analyse")
    merged = named("merge")([count() for _ in range(32)])
    statistics = named("statistics")(merged)
    parts = [analyse(segment(merged)) for _ in range(16)]
    overall = [named(name)(statistics) for name in ("mood", "style", "words", "topics")]
    joined = named("join")(parts, overall)
    return Workflow.of(named("report")(named("metrics")(joined), named("summary")(joined)))


def boxes_in(lines: list[str]) -> list[tuple[str, int, range]]:
    """Return the label, the line and the columns of each box."""
    return [
        (match[1], y, range(*match.span()))
        for y, line in enumerate(lines)
        for match in re.finditer(r"│ +([^ ─-▿].*?) +│", line)
        if lines[y - 1][match.start()] == "┌"
    ]


def edges_in(drawing: str) -> set[tuple[str, str]]:
    """Return the edges in a drawing: from each arrow head, follow the lines upwards."""
    drawing, _, listed = drawing.partition("\nalso: ")
    lines = drawing.split("\n")
    boxes = boxes_in(lines)
    sources = {(x, y + 1): label for label, y, columns in boxes for x in columns}
    targets = {(x, y - 2): label for label, y, columns in boxes for x in columns}
    edges = {tuple(edge.split(" → ")) for edge in " ".join(listed.split()).split(", ") if edge}
    for head in [(x, y) for y, line in enumerate(lines) for x, c in enumerate(line) if c == "▼"]:
        walks, seen = [(head, UP)], set()
        while walks:
            (x, y), (dx, dy) = walk = walks.pop()
            place = x + dx, y + dy
            if walk in seen:
                continue
            seen.add(walk)
            if place in sources:
                edges.add((sources[place], targets[head]))
                continue
            ways = STROKES[lines[place[1]][place[0]]]
            crossed = (dx, dy) not in {(-a, -b) for a, b in ways}
            back = {DOWN, (-dx, -dy)}
            walks += [(place, way) for way in ({(dx, dy)} if crossed else ways - back)]
    return edges


def labels(drawing: str) -> list[str]:
    """Return the labels of the boxes, from top to bottom."""
    return [label for label, _, _ in boxes_in(drawing.split("\n"))]


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_chain_is_drawn_from_top_to_bottom():
    assert draw_text(chain("get", "fit", "put")).split("\n") == [
        "┌─────┐",
        "│ get │",
        "└──┬──┘",
        "   ▼",
        "┌─────┐",
        "│ fit │",
        "└──┬──┘",
        "   ▼",
        "┌─────┐",
        "│ put │",
        "└─────┘",
    ]


def test_a_diamond_branches_and_joins():
    top = named("a")()
    diamond = Workflow.of(named("d")(named("b")(top), named("c")(top)))
    assert draw_text(diamond).split("\n") == [
        "    ┌───┐",
        "    │ a │",
        "    └─┬─┘",
        "  ┌───┴───┐",
        "  ▼       ▼",
        "┌───┐   ┌───┐",
        "│ b │   │ c │",
        "└─┬─┘   └─┬─┘",
        "  └───┬───┘",
        "      ▼",
        "    ┌───┐",
        "    │ d │",
        "    └───┘",
    ]


def test_an_output_consumed_further_down_is_drawn_as_a_passing_line():
    top = named("a")()
    assert draw_text(Workflow.of(named("c")(named("b")(top), top))).split("\n") == [
        "    ┌───┐",
        "    │ a │",
        "    └─┬─┘",
        "  ┌───┴──┐",
        "  ▼      │",
        "┌───┐    │",
        "│ b │    │",
        "└─┬─┘    │",
        "  └───┬──┘",
        "      ▼",
        "    ┌───┐",
        "    │ c │",
        "    └───┘",
    ]


@given(
    st.lists(st.sets(st.integers(0, 8)), min_size=1, max_size=9),
    st.sampled_from([30, 60, 1000]),
)
def test_the_lines_of_a_drawing_are_the_edges_of_the_workflow(upstream, width):
    outputs: list[Output[None]] = []
    for number, sources in enumerate(upstream):
        outputs.append(named(f"t{number}")(*[outputs[s] for s in sorted(sources) if s < number]))
    workflow = Workflow.of(*outputs)
    drawing = draw_text(workflow, width)
    if "more" not in drawing:
        edges = {(s, t) for t, sources in workflow.upstream.items() for s in sources}
        assert edges_in(drawing) == {(s.removesuffix("#0"), t.removesuffix("#0")) for s, t in edges}


def test_tasks_of_one_name_and_level_share_a_box():
    assert labels(draw_text(fan_out_and_in(32))) == ["split", f"work {TIMES}32", "gather"]


def test_a_reduction_of_1024_has_a_box_per_level():
    powers = [2**power for power in range(10, 0, -1)]
    expected = [f"add {TIMES}{power}" for power in powers] + ["add"]
    assert labels(draw_text(tree(1024))) == expected


def test_eight_stages_of_different_tasks_keep_their_rows():
    drawing = draw_text(text_analysis())
    assert labels(drawing) == [
        f"count {TIMES}32",
        "merge",
        f"segment {TIMES}16",
        "statistics",
        f"analyse {TIMES}16",
        "mood",
        "style",
        "words",
        "topics",
        "join",
        "metrics",
        "summary",
        "report",
    ]
    assert max(len(line) for line in drawing.split("\n")) <= 100


def test_one_task_is_one_box():
    assert draw_text(chain("one")) == "┌─────┐\n│ one │\n└─────┘"


@pytest.mark.slow
def test_equal_levels_of_a_huge_chain_share_a_row():
    inc = named("inc")
    output = named("load")()
    for _ in range(100_000):
        output = inc(output)
    workflow = Workflow.of(named("store")(output))
    assert labels(draw_text(workflow)) == ["load", f"inc {TIMES}100000 in a row", "store"]
    assert texts(draw_svg(workflow)) == ["load", f"inc {TIMES}100000 in a row", "store"]


def test_consecutive_wide_levels_show_their_counts():
    outputs = [named("start")()]
    step = named("step")
    for _ in range(50):
        outputs = [step(outputs[i % len(outputs)]) for i in range(3)]
    drawing = draw_text(Workflow.of(*outputs))
    assert labels(drawing) == ["start", f"step {TIMES}150 in 50 levels"]


def test_the_middle_of_many_different_levels_is_left_out():
    drawing = draw_text(chain(*["even", "odd"] * 500))
    assert labels(drawing) == [
        *["even", "odd"] * 5,
        "… 980 tasks in 980 levels …",
        *["even", "odd"] * 5,
    ]


def test_names_that_do_not_fit_in_a_row_share_a_box():
    workflow = Workflow.of(named("all")([named(f"name_{i}")() for i in range(60)]))
    drawing = draw_text(workflow, width=80)
    assert max(len(line) for line in drawing.split("\n")) <= 80
    *shown, rest, last = labels(drawing)
    assert shown == [f"name_{i}" for i in range(len(shown))]
    assert (rest, last) == (f"… {60 - len(shown)} more", "all")


def test_a_name_longer_than_the_width_is_cut():
    drawing = draw_text(chain("x" * 200), width=40)
    assert max(len(line) for line in drawing.split("\n")) <= 40
    assert "x…" in drawing


def test_edges_without_room_for_a_line_are_listed_below():
    outputs: list[Output[None]] = []
    for number in range(12):
        outputs.append(named(f"t{number}")(list(outputs)))
    drawing = draw_text(Workflow.of(outputs[-1]))
    assert "also: t" in drawing


@pytest.mark.parametrize(
    "workflow", [chain("one"), tree(64), fan_out_and_in(200), text_analysis()], ids=len
)
def test_an_svg_is_a_valid_standalone_document(workflow):
    root = ElementTree.fromstring(draw_svg(workflow))
    assert root.tag == f"{SVG}svg"
    assert float(root.get("width", "0")) > 0
    assert float(root.get("height", "0")) > 0


def test_an_svg_has_a_box_and_a_tooltip_for_each_of_a_few_tasks():
    workflow = text_analysis()
    root = ElementTree.fromstring(draw_svg(workflow))
    assert {title.text for title in root.iter(f"{SVG}title")} == set(workflow.calls)
    assert len(list(root.iter(f"{SVG}rect"))) == len(workflow)


def test_an_svg_with_many_tasks_has_shared_boxes():
    svg = draw_svg(fan_out_and_in(200))
    assert texts(svg) == ["split", f"work {TIMES}200", "gather"]
    assert "<title>work#0 … work#199 (200 tasks)</title>" in svg


def test_names_are_escaped_in_an_svg():
    assert texts(draw_svg(chain("<script>", 'a & "b"'))) == ["<script>", 'a & "b"']


def test_tasks_of_one_name_have_one_colour_in_an_svg():
    root = ElementTree.fromstring(draw_svg(fan_out_and_in(3)))
    fills = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
    assert len(fills) == 5
    assert len(set(fills)) == 3
    assert len(set(fills[1:4])) == 1


def test_boxes_of_a_row_do_not_overlap_in_an_svg():
    rows: dict[str, list[tuple[float, float]]] = {}
    for rect in ElementTree.fromstring(draw_svg(text_analysis())).iter(f"{SVG}rect"):
        x, width = float(rect.get("x", "")), float(rect.get("width", ""))
        rows.setdefault(rect.get("y", ""), []).append((x, x + width))
    assert len(rows) == 7
    for row in map(sorted, rows.values()):
        assert all(left[1] < right[0] for left, right in pairwise(row))
