"""Gantt charts as text and as HTML pages."""

import re
from xml.etree import ElementTree

import pytest

from shoal.execution.gantt import gantt_html, gantt_text
from shoal.execution.timeline import KINDS, Span, Timeline
from shoal.types import TaskId, WorkerId

MICRO = "\N{MICRO SIGN}"


def span(kind: str, start: float, end: float, task: str = "", worker: str = "w0", **sizes) -> Span:
    return Span(kind, WorkerId(worker), TaskId(task) if task else None, start, end, **sizes)


def timeline(*spans: Span, makespan: float | None = None) -> Timeline:
    ordered = tuple(sorted(spans, key=lambda each: each.start))
    return Timeline(ordered, max(s.end for s in spans) if makespan is None else makespan)


def rows(chart: str) -> list[str]:
    """Return the lines above the axis."""
    lines = chart.split("\n")
    return lines[: next(i for i, line in enumerate(lines) if "┬─" in line)]


def page(chart: Timeline, title: str = "run") -> ElementTree.Element:
    return ElementTree.fromstring(gantt_html(chart, title))


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [rect for rect in root.iter("rect") if rect.find("title") is not None]


def tips(root: ElementTree.Element) -> list[str]:
    return [bar.findtext("title", "") for bar in bars(root)]


def work(count: int, workers: int) -> Timeline:
    """Let each worker execute `count` tasks of a second after a fetch of half a second."""
    spans = []
    for worker in range(workers):
        for number in range(count):
            task, start = f"work#{worker * count + number}", number * 1.5
            spans.append(span("fetch", start, start + 0.5, task, f"w{worker}"))
            spans.append(span("execute", start + 0.5, start + 1.5, task, f"w{worker}"))
    return timeline(*spans)


RUN = timeline(
    span("cold start", 0.0, 2.0),
    span("fetch", 2.0, 3.0, "load#0", nbytes=2_500_000),
    span("execute", 3.0, 7.0, "count#0", nbytes=10),
    span("save", 7.0, 8.0, "count#0"),
    span("warm start", 0.0, 1.0, worker="w1"),
    span("execute", 1.0, 5.0, "load#0", worker="w1"),
    span("execute", 5.0, 8.0, "count#1", worker="w1"),
)


def test_a_cell_shows_what_took_most_of_its_time():
    assert rows(gantt_text(RUN, width=20)) == ["w0  ░░░░▒▒cccccccc▓▓", "w1  ░░llllllllcccccc"]


def test_a_legend_explains_the_letters():
    assert "l load   c count   ░ start   ▒ fetch   ▓ save" in gantt_text(RUN).split("\n")


def test_the_last_line_has_the_totals():
    assert gantt_text(RUN).split("\n")[-1] == (
        "makespan 8.00 s · 3 tasks · 2 workers · 1 cold start · 69% of time executing"
    )


@pytest.mark.parametrize(("seconds", "unit"), [(1e-5, f"{MICRO}s"), (1e-2, "ms"), (10.0, "s")])
def test_the_axis_is_in_a_unit_that_suits_the_makespan(seconds, unit):
    chart = gantt_text(timeline(span("execute", 0.0, seconds, "a#0")), width=60)
    assert re.search(rf"^ +0 {unit} +2 {unit} +4 {unit} +6 {unit}", chart, re.MULTILINE)
    assert f"makespan 10.0 {unit}" in chart


def test_a_task_gets_a_letter_of_its_name_that_no_other_has():
    names = ["map", "merge", "m", "mm"]
    chart = gantt_text(
        timeline(*[span("execute", i, i + 1, f"{n}#0") for i, n in enumerate(names)])
    )
    assert "m map   e merge   M m   a mm" in chart.split("\n")


def test_a_task_named_like_a_kind_is_still_a_task():
    chart = gantt_text(
        timeline(*[span("execute", i, i + 1, f"{k}#0") for i, k in enumerate(KINDS)])
    )
    assert "f fetch" in chart
    assert "▒" not in chart


def test_executions_that_overlap_have_a_row_each():
    chart = timeline(
        span("execute", 0.0, 4.0, "a#0"),
        span("execute", 2.0, 6.0, "a#1"),
        span("execute", 4.0, 8.0, "a#2"),
    )
    assert rows(gantt_text(chart, width=20)) == ["w0  aaaaaaaaaaaaaaaa", "        aaaaaaaa"]


def test_saves_beside_executions_share_a_row_below_them():
    chart = timeline(
        span("execute", 0.0, 4.0, "a#0"),
        span("execute", 4.0, 8.0, "a#1"),
        span("save", 4.0, 6.0, "a#0"),
        span("fetch", 5.0, 7.0, "b#0"),
    )
    assert rows(gantt_text(chart, width=20)) == ["w0  aaaaaaaaaaaaaaaa", "            ▓▓▓▓▒▒"]


def test_workers_are_ordered_by_start_and_number():
    spans = [span("execute", 0.0, 1.0, f"a#{i}", f"w{i}") for i in (10, 9, 2)]
    chart = gantt_text(timeline(*spans, span("execute", 0.5, 1.0, "a#1", "w1")))
    assert [row.split()[0] for row in rows(chart)] == ["w2", "w9", "w10", "w1"]


def test_at_most_40_lanes_are_shown():
    lines = rows(gantt_text(work(1, workers=100)))
    assert len(lines) == 41
    assert lines[-1] == "… and 60 more"


def test_colours_replace_letters():
    plain, coloured = gantt_text(RUN, width=20), gantt_text(RUN, width=20, color=True)
    assert "\x1b" not in plain
    assert rows(re.sub("\x1b.*?m", "", coloured))[1] == "w1  ░░██████████████"
    assert len(set(re.findall("\x1b.*?m", coloured))) == 3


@pytest.mark.slow
def test_no_row_is_wider_than_requested():
    for width in (40, 100, 237):
        chart = gantt_text(work(10_000, workers=2), width)
        assert max(map(len, chart.split("\n")[:-1])) <= width


@pytest.mark.parametrize("color", [True, False])
def test_recorded_names_are_escaped_for_the_terminal(color):
    shown = timeline(span("execute", 0, 1, "red\x1b[31m#0", worker="w\x1b]0;title\x07"))
    chart = gantt_text(shown, 60, color)
    assert r"w\x1b]0;title\x07  " in chart
    assert r" red\x1b[31m" in chart
    assert "\x1b[31m" not in chart
    assert "\x1b]" not in chart


def test_a_span_of_zero_length_is_visible():
    chart = timeline(span("execute", 5.0, 5.0, "a#0"), makespan=10.0)
    assert rows(gantt_text(chart, width=24)) == ["w0            a"]
    assert len(bars(page(chart))) == 1


def test_spans_may_begin_before_the_run_and_end_after_its_makespan():
    chart = timeline(span("cold start", -1.0, 1.0), span("save", 1.0, 4.0, "a#0"), makespan=2.0)
    assert rows(gantt_text(chart, width=24)) == ["w0  ░░░░░░░░▓▓▓▓▓▓▓▓▓▓▓▓"]
    assert len(bars(page(chart))) == 2


def test_an_empty_timeline_says_so():
    empty = Timeline((), 0.0)
    assert gantt_text(empty).startswith("Nothing ran.\nmakespan 0.00 s · 0 tasks")
    assert bars(page(empty)) == []


def test_a_page_has_a_rectangle_and_a_tooltip_per_span():
    found = tips(page(RUN))
    assert len(found) == len(RUN.spans)
    assert "cold start\n2.00 s from 0.00 s" in found
    assert "load#0: fetch\n1.00 s from 2.00 s, 2.50 MB" in found
    assert "count#0: execute\n4.00 s from 3.00 s, 10 B" in found


def test_a_page_colours_executions_by_task_name():
    looks = {
        tip.split("\n")[0]: bar.get("class", "").split()[0]
        for bar, tip in zip(bars(page(RUN)), tips(page(RUN)), strict=True)
    }
    assert looks["count#0: execute"] == looks["count#1: execute"] != looks["load#0: execute"]
    assert (looks["cold start"], looks["warm start"]) == ("start", "start")
    assert (looks["load#0: fetch"], looks["count#0: save"]) == ("fetch", "save")


def test_a_page_escapes_the_title_and_names():
    chart = timeline(span("execute", 0.0, 1.0, "<b>&#0", worker="<w>"))
    root = page(chart, title="<script>alert(1)</script> & {style}")
    assert root.findtext("body/h1") == "<script>alert(1)</script> & {style}"
    assert tips(root) == ["<b>&#0: execute\n1.00 s from 0.00 s"]
    assert {"<w>", "<b>&"} <= {text.text for text in root.iter("text")}


def test_a_page_is_self_contained():
    assert not re.search(r"https?:|src=|@import|<link", gantt_html(RUN, "run"))


def test_a_page_with_few_spans_draws_each():
    chart = work(5_000, workers=2)
    assert len(bars(page(chart))) == 20_000


@pytest.mark.slow
def test_a_page_with_many_spans_stays_small():
    chart = work(50_000, workers=2)
    assert len(gantt_html(chart, "run")) < 1_000_000
    assert any(re.fullmatch(r"\d+ spans, mostly work\n\S+ s", tip) for tip in tips(page(chart)))


def test_long_spans_among_many_keep_their_rectangles():
    spans = [span("execute", i * 1e-3, (i + 1) * 1e-3, f"short#{i}") for i in range(20_000)]
    long = span("execute", 20.0, 30.0, "long#0")
    assert "long#0: execute\n10.0 s from 20.0 s" in tips(page(timeline(*spans, long)))
