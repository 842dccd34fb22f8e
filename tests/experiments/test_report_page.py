"""`shoal experiments report`: a folder of records becomes a page, figures and Gantt charts."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from report_examples import EXPERIMENT, ROW, TIMELINE, recorded, runs

from shoal.errors import UsageError
from shoal.execution.timeline import Span
from shoal.experiments.grid import CENTRALISED
from shoal.experiments.records import Records, Row, Scale
from shoal.experiments.report import charts
from shoal.experiments.report.statistics import PLANNERS
from shoal.experiments.report.writing import write_report
from shoal.types import TaskId, WorkerId


def planned() -> list[Row]:
    rows = []
    for number, planner in enumerate(PLANNERS):
        for workflow in ("tree", "text"):
            for sla in (50, 90):
                rows += runs(workflow, planner, 10.0 - number, 11.0 - number, sla=sla)
    return [
        row
        if "wukong" in row.planner
        else replace(row, predicted=9.5, execution_error=0.05, transfer_error=0.2)
        for row in rows
    ]


def designed() -> list[Row]:
    designs = ("strawman", "pubsub", "parallel-invokers", "decentralised", "clustering")
    return [
        replace(
            ROW,
            id=f"tr-{seconds}/{design}/50/0",
            workflow="tr",
            planner=design,
            makespan=5.0 - number + seconds,
            parameters={"numbers": 256, "seconds": seconds},
        )
        for number, design in enumerate(designs)
        for seconds in (0, 0.5)
    ]


def page_of(folder: Path) -> str:
    return write_report(folder).path.read_text()


def test_the_page_has_the_papers_figures_claims_and_setup(tmp_path: Path) -> None:
    recorded(tmp_path, planned())
    page = page_of(tmp_path)
    for number in range(3, 8):
        assert f'id="figure-{number}"' in page
        assert f"Fig. {number}, section" in page
    assert "Uniform is faster than WUKONG optimised" in page
    assert EXPERIMENT.command in page
    assert EXPERIMENT.machine in page
    assert "2048, 4096" in page


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    recorded(tmp_path, planned())
    page = page_of(tmp_path).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in page
    assert not re.search(r"<(link|script|img|iframe)|@import|url\(", page)


def test_every_link_of_the_page_leads_to_an_existing_gantt_chart(tmp_path: Path) -> None:
    recorded(tmp_path, planned())
    links = set(re.findall(r'href="([^#"]+)"', page_of(tmp_path)))
    assert len(links) >= len(PLANNERS) * 4
    assert all("add#0" in (tmp_path / link).read_text() for link in links)


def test_every_case_of_a_workload_has_its_gantt_charts(tmp_path: Path) -> None:
    recorded(tmp_path, designed())
    page = page_of(tmp_path)
    for row in designed():
        assert (f"{row.id.replace('/', '-')}.html" in page) == (row.planner not in CENTRALISED)


def test_figures_are_separate_files_that_link_to_the_same_charts(
    tmp_path: Path,
) -> None:
    recorded(tmp_path, planned())
    page = page_of(tmp_path)
    figures = sorted((tmp_path / "figures").glob("*.svg"))
    assert len(figures) == page.count("<svg")
    for figure in figures:
        ElementTree.fromstring(figure.read_text())
    links = re.findall(r'href="([^"]+)"', (tmp_path / "figures/figure-6-1.svg").read_text())
    assert links
    assert all((tmp_path / "figures" / link).exists() for link in links)


def test_designs_are_drawn_by_workload_and_step(tmp_path: Path) -> None:
    recorded(tmp_path, designed(), replace(EXPERIMENT, grid="paper-003", mode="real"))
    page = page_of(tmp_path)
    for number in (4, 7, 12):
        assert f'id="wukong-{number}"' in page
    assert "tr, seconds 0.5" in page
    assert "numbers 256" not in page  # equal for all designs, so it isn't shown
    assert "Parallel invokers are faster than the strawman" in page
    assert "Auto" not in page


def test_planners_are_compared_with_the_best_published_scheduler(tmp_path: Path) -> None:
    recorded(tmp_path, planned())
    assert "Against published schedulers" not in page_of(tmp_path)
    beside = [*runs("tree", "HEFT", 8.0), *runs("tree", "CPOP", 10.0), *runs("text", "CPOP", 5.0)]
    recorded(tmp_path, beside)
    page = page_of(tmp_path)
    assert "Against published schedulers" in page
    assert "tree: 131.2 % of HEFT" in page  # WUKONG takes 10.5
    assert "text: 210.0 % of CPOP" in page
    assert "of HEFT</title></circle>" in page


def test_a_sweep_is_drawn_as_a_curve_for_each_design(tmp_path: Path) -> None:
    sizes = [
        replace(row, id=f"svd2@{size}/{row.planner}/50/0", workflow="svd2",
                parameters={"size": size})
        for size in (1000, 2500)
        for row in (*runs("svd2", "dask", 3.0), *runs("svd2", "delayed-io", size / 1000))
    ]  # fmt: skip
    recorded(tmp_path, sizes, replace(EXPERIMENT, grid="paper-003-sizes", mode="real"))
    page = page_of(tmp_path)
    assert "Makespans of svd2 by size" in page
    assert "Dask, 25 slots: 3 s at 2,500 size" in page
    assert "+ delayed I/O: 2.5 s at 2,500 size" in page


def test_latencies_are_those_of_the_largest_svd2(tmp_path: Path) -> None:
    sizes = [
        replace(row, id=f"svd2@{size}/delayed-io/50/0", parameters={"size": size})
        for size in (1000, 2500)
        for row in runs("svd2", "delayed-io", 1.0)
    ]
    records = recorded(tmp_path, sizes)
    slow = replace(TIMELINE, spans=(*TIMELINE.spans, read(0.25), read(0.75)))
    (tmp_path / "runs.jsonl").unlink()
    for row, timeline in zip(sizes, (TIMELINE, slow), strict=True):
        records.append(row, timeline)
    page = page_of(tmp_path)
    assert "Latencies, svd2, + delayed I/O" in page
    assert "reads: 50 % took no longer at 0 s" in page


def read(seconds: float) -> Span:
    return Span("fetch", WorkerId("w0"), TaskId("add#0"), 0.0, seconds, nbytes=8)


def test_the_scale_of_simulations_is_drawn_as_curves(tmp_path: Path) -> None:
    records = recorded(tmp_path, [], replace(EXPERIMENT, grid="scale"))
    for tasks in (10_000, 100_000):
        for workers in (100, 1000):
            records.append(Scale("tree", tasks, workers, 12.0, 10.0, tasks, tasks / 1e4, 80.0))
    page = page_of(tmp_path)
    assert 'id="scale"' in page
    assert "tree, 100,000 tasks" in page
    assert "tree, 1,000 workers" in page
    assert page.count("by tasks</figcaption>") == page.count("by workers</figcaption>") == 4
    assert 'id="claims"' not in page


def test_one_run_of_one_planner_is_enough_for_a_report(tmp_path: Path) -> None:
    recorded(tmp_path, [ROW])
    assert "not measured" in page_of(tmp_path)


@pytest.mark.parametrize("other", ["uniform", "strawman"])
def test_names_and_parameters_of_users_are_escaped(tmp_path: Path, other: str) -> None:
    rows = [replace(ROW, workflow="<b>/", planner=name) for name in ("mine & yours", other)]
    recorded(tmp_path, rows, replace(EXPERIMENT, command="run <x>"))
    page = page_of(tmp_path)
    assert "<b>" not in page
    assert "mine &amp; yours" in page
    assert "run &lt;x&gt;" in page


def test_damaged_lines_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    recorded(tmp_path, [ROW])
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"id": "tree/unif\n')
    recorded(tmp_path, [replace(ROW, id="tree/uniform/50/1")])
    report = write_report(tmp_path)
    assert len(report.damaged) == 1
    assert "line 2" in report.damaged[0]
    assert "line 2" in report.path.read_text()
    assert "2 runs" in report.path.read_text()


@pytest.mark.parametrize("value", ['"soon"', "null", "NaN", "true"])
def test_a_line_with_an_invalid_number_counts_as_damaged(tmp_path: Path, value: str) -> None:
    recorded(tmp_path, [ROW])
    path = tmp_path / "runs.jsonl"
    path.write_text(
        path.read_text() + path.read_text().replace('"makespan":1.0', f'"makespan":{value}')
    )
    report = write_report(tmp_path)
    assert "line 2" in report.damaged[0]
    assert "makespan" in report.damaged[0]


def test_an_incomplete_grid_is_reported(tmp_path: Path) -> None:
    records = recorded(tmp_path, [ROW])
    assert "1 run of the grid still to come" in page_of(tmp_path)
    records.append(replace(ROW, id="tree/uniform/50/1", repeat=1))
    assert "still to come" not in page_of(tmp_path)


def test_a_run_without_its_timeline_is_reported_and_not_linked(tmp_path: Path) -> None:
    records = recorded(tmp_path, [ROW, replace(ROW, id="tree/uniform/90/0", sla=90)])
    records.timeline_path("tree/uniform/90/0").unlink()
    report = write_report(tmp_path)
    assert "tree/uniform/90/0" in report.damaged[0]
    assert "tree-uniform-50-0.html" in report.path.read_text()
    assert "tree-uniform-90-0.html" not in report.path.read_text()


def test_a_centralised_design_needs_no_timeline(tmp_path: Path) -> None:
    records = recorded(tmp_path, [])
    records.append(replace(ROW, planner="strawman"))
    assert not write_report(tmp_path).damaged


def test_a_report_can_be_repeated(tmp_path: Path) -> None:
    records = recorded(tmp_path, [ROW])
    write_report(tmp_path)
    records.append(replace(ROW, id="tree/wukong/50/0", planner="wukong"))
    assert "WUKONG" in page_of(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        write_report(tmp_path / "nowhere")


def test_a_folder_without_an_experiment_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no experiment"):
        write_report(tmp_path)


def test_an_experiment_without_runs_is_an_error(tmp_path: Path) -> None:
    Records(tmp_path).begin(EXPERIMENT)
    with pytest.raises(UsageError, match="has no recorded runs"):
        write_report(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    recorded(tmp_path, [ROW])
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(UsageError, match="can't be written"):
        write_report(tmp_path)


def test_each_figure_is_also_a_png(tmp_path: Path) -> None:
    recorded(tmp_path, [ROW])
    assert not write_report(tmp_path).note
    figures = sorted((tmp_path / "figures").glob("*.svg"))
    assert figures
    for figure in figures:
        assert figure.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_without_resvg_pngs_are_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    recorded(tmp_path, [ROW])
    assert "shoal[experiments]" in write_report(tmp_path).note
    assert list((tmp_path / "figures").glob("*.svg"))
    assert not list((tmp_path / "figures").glob("*.png"))


def test_a_plain_drawing_has_its_colours_fixed() -> None:
    drawn = charts.plain(charts.bars("seconds", "s", [charts.Bar("one", 1.0, "#123456")]))
    assert "var(" not in drawn
    assert "#123456" in drawn
    ElementTree.fromstring(drawn)
