"""`shoal history`: tables and trends; export, import and deletion of runs."""

from __future__ import annotations

import gzip
import io
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cli_examples import Shoal, plain

from shoal.cli.trends import met_sla, relative_error, sparkline, trends
from shoal.engine import default_engine
from shoal.execution.timeline import Timeline
from shoal.metadata.history import RESUMED, FiledRun, RunRecord
from shoal.metadata.samples import encode_samples
from shoal.metadata.sqlite import SqliteHistory
from shoal.types import RunId
from shoal.workflow import Workflow
from store_servers import tcp_server, url_of

NOTHING = encode_samples(Workflow({}, {}, ()), {}, Timeline((), 0.0), {})


def record(
    number: int,
    makespan: float,
    predicted: float | None = None,
    *,
    name: str = "flow",
    sla: str = "95 %",
    outcome: str = "done",
    quality: Mapping[str, float] | None = None,
) -> RunRecord:
    return RunRecord(
        RunId(f"r{number}"), name, "f", "auto (list)", 3, 2, 1e9 + number, makespan, outcome,
        sla=sla, predicted=predicted, quality=quality or {},
    )  # fmt: skip


def file(folder: Path, *records: RunRecord) -> None:
    with closing(SqliteHistory(folder / "data")) as history:
        for filed in records:
            history.file(FiledRun(filed, [], [], NOTHING))


# Trends.


def test_error_is_how_much_longer_a_run_took_than_predicted() -> None:
    assert relative_error(record(0, 1.5, 1.0)) == 0.5
    assert relative_error(record(0, 0.5, 1.0)) == -0.5
    assert relative_error(record(0, 1.5)) is None
    assert relative_error(record(0, 1.5, 1.0, outcome="cancelled")) is None


def test_a_service_level_is_met_by_runs_within_their_prediction() -> None:
    assert met_sla(record(0, 1.0, 1.0)) is True
    assert met_sla(record(0, 1.1, 1.0)) is False
    assert met_sla(record(0, 1.1)) is None
    assert met_sla(record(0, 1.0, 1.0, sla="median")) is None
    assert met_sla(record(0, 1.0, 1.0, outcome="cancelled")) is None


def test_trends_compare_the_first_half_of_the_runs_with_the_second() -> None:
    runs = [
        record(0, 4.0),
        record(1, 2.0, 1.0, quality={"execute": 0.5}),
        record(2, 99.0, 1.0, outcome="cancelled"),
        record(2, 0.5, outcome=RESUMED),
        record(3, 1.0, 1.0, quality={"execute": 0.25}),
        record(4, 1.0, 2.0, quality={"execute": 0.25}),
    ]
    assert trends(runs) == [
        "makespan              █▃▁▁  median 3.000 s in the first half of the runs, "
        "1.000 s in the second",
        "execution-time error  █▁▁  median 50% in the first half of the runs, 25% in the second",
        "SLA of 95 %           met in 2 of 3 runs",
    ]


def test_a_single_run_has_no_trend() -> None:
    assert trends([]) == []
    assert trends([record(0, 1.0)]) == []
    assert trends([record(0, 1.0, 1.0)]) == ["SLA of 95 %           met in 1 of 1 run"]


def test_service_levels_have_separate_trends() -> None:
    runs = [record(0, 1.0, 1.0), record(1, 1.0, 0.5, sla="90 %"), record(2, 1.0, sla="median")]
    assert [line for line in trends(runs) if line.startswith("SLA")] == [
        "SLA of 95 %           met in 1 of 1 run",
        "SLA of 90 %           met in 0 of 1 run",
    ]


def test_sparkline_goes_from_the_smallest_to_the_largest() -> None:
    assert sparkline([0, 7, 3, 4]) == "▁█▄▅"
    assert sparkline([2, 2]) == "▁▁"


# show.


def test_show_lists_each_run_and_the_trend(shoal: Shoal, folder: Path) -> None:
    file(
        folder,
        record(0, 4.0, sla="median"),
        record(1, 2.0, 1.0, quality={"execute": 0.5, "start": 0.125, "transfer": 3.0}),
        record(2, 1.0, 1.25, quality={"execute": 0.25}),
        record(3, 1.0, outcome="task 'a' failed: [red]"),
        record(4, 0.25, outcome=RESUMED),
        record(5, 9.0, name="other"),
    )
    said = shoal("history", "show", "flow")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].split() == ["started", "planner", "workers", "makespan", "predicted", "error",
                                "SLA", "execute", "start", "transfer"]  # fmt: skip
    rows = [" ".join(line.split()[2:]) for line in lines[1:6]]
    assert rows == [
        "auto (list) 2 0.250 s - - resumed - - -",
        "auto (list) 2 1.000 s - - failed - - -",
        "auto (list) 2 1.000 s 1.250 s -20% 95 % met 25% - -",
        "auto (list) 2 2.000 s 1.000 s +100% 95 % missed 50% 12% 300%",
        "auto (list) 2 4.000 s - - - - -",
    ]
    assert lines[-1] == "SLA of 95 %           met in 1 of 2 runs"
    assert len(shoal("history", "show", "flow", "-n", "1").out.splitlines()) == 2


def test_show_without_a_name_lists_the_workflows_that_have_runs(shoal: Shoal, folder: Path) -> None:
    assert shoal("history", "show").out == "There are no runs yet. Try `shoal demo`.\n"
    file(folder, *(record(n, 1.0, name="nightly") for n in range(3)), record(3, 1.0, name="other"))
    rows = [line.split() for line in shoal("history", "show").out.splitlines()]
    assert rows[0] == ["workflow", "runs", "latest"]
    assert [row[:2] for row in rows[1:]] == [["other", "1"], ["nightly", "3"]]
    assert " ".join(rows[2][2:]) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9 + 2))


def test_workflows_of_the_same_name_are_told_apart_by_their_origin(
    shoal: Shoal, folder: Path
) -> None:
    first, second = (replace(record(n, 1.0), key=f"/{n}.py:flow") for n in range(2))
    file(folder, first)
    assert len(shoal("history", "show", "flow").out.splitlines()) == 2
    file(folder, second, record(2, 1.0, name="other"))
    for action in (("show",), ("clear",), ("export", "-")):
        said = shoal("history", *action, "flow")
        assert (said.code, said.out) == (2, "")
        assert said.err == (
            "error: 2 workflows are named 'flow'. Give one of /1.py:flow, /0.py:flow.\n"
        )
    rows = [line.split()[0] for line in shoal("history", "show").out.splitlines()]
    assert rows == ["workflow", "other", "/1.py:flow", "/0.py:flow"]
    assert [line.split()[1] for line in shoal("runs", "flow").out.splitlines()[1:]] == ["flow"] * 2
    assert len(shoal("runs", "/0.py:flow").out.splitlines()) == 2
    assert shoal("history", "clear", "/0.py:flow").out == "deleted 1 run\n"
    assert len(shoal("history", "show", "flow").out.splitlines()) == 2


@pytest.mark.parametrize("columns", [80, 60, 30])
def test_a_narrow_terminal_cuts_no_number(
    shoal: Shoal, folder: Path, terminal: Callable[[int], None], columns: int
) -> None:
    file(folder, record(0, 0.285, 1234.567, quality={"execute": 0.51}), record(1, 2.0, 1.25))
    terminal(columns)
    out = plain(shoal("history", "show", "flow").out)
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    for figure in ("0.285 s", "1,234.567 s", "-100%", "51%", "2.000 s", "1.250 s", "+60%"):
        assert figure in out
    table = out.partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= max(columns, 71)


@pytest.mark.parametrize("columns", [80, 60, 30])
def test_a_narrow_terminal_cuts_no_id(
    shoal: Shoal, folder: Path, terminal: Callable[[int], None], columns: int
) -> None:
    run = RunId("1116-090927-53abcd")
    long = "a-workflow-with-a-name-that-is-longer-than-most"
    failed = record(1, 1.0, name=long, outcome="task 'a' failed on worker w0: ValueError: no")
    file(folder, replace(record(0, 0.285, 1234.567), run=run), failed)
    terminal(columns)
    rows = plain(shoal("runs").out).splitlines()
    assert rows[0].split()[:2] == ["run", "workflow"]
    assert rows[-1].split()[:2] == [run, "flow"]
    assert rows[-1].split()[-3:] == ["0.285", "1,234.567", "done"]
    assert "".join(row[20:].partition(" ")[0] for row in rows[1:-1]) == long


def test_a_wide_terminal_shows_all_columns(
    shoal: Shoal, folder: Path, terminal: Callable[[int], None]
) -> None:
    file(folder, record(0, 0.285, 1.0))
    commands = (("runs",), ("history", "show", "flow"))
    whole = [shoal(*command).out.splitlines() for command in commands]
    terminal(120)
    for command, lines in zip(commands, whole, strict=True):
        assert [line.rstrip() for line in plain(shoal(*command).out).splitlines()] == lines


@pytest.mark.real
def test_show_lists_real_runs(shoal: Shoal) -> None:
    for _ in range(3):
        shoal("run", "pipeline.py:output", "--name", "x", "--sla", "90")
    said = shoal("history", "show", "x")
    assert said.code == 0
    assert said.out.count("90 %") == 4
    assert "of 2 runs" in said.out.splitlines()[-1]


@pytest.mark.parametrize("action", [("show",), ("clear",), ("export", "-")])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    shoal: Shoal, folder: Path, action: tuple[str, ...]
) -> None:
    said = shoal("history", *action, "flow")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: There are no runs of 'flow', nor of any other workflow.\n"
    file(folder, record(0, 1.0, name="nightly"), record(1, 1.0, name="other"))
    said = shoal("history", *action, "flow")
    assert said.err == "error: There are no runs of 'flow'; choose one of other, nightly.\n"
    assert "did you mean 'nightly'?" in shoal("history", *action, "nighty").err
    file(folder, *(record(n, 1.0, name=f"x{n}") for n in range(2, 15)))
    assert "x5 and 5 more." in shoal("history", *action, "flow").err
    assert len(shoal("runs").out.splitlines()) == 16


# export, import, clear.


@pytest.mark.parametrize("name", ["made/runs.jsonl", "made/runs.jsonl.gz"])
def test_runs_are_exported_deleted_and_imported_again(
    shoal: Shoal, folder: Path, name: str
) -> None:
    file(folder, *(record(n, 1.0 + n, name=f"flow {n % 2}") for n in range(4)))
    before = shoal("runs").out
    assert shoal("history", "export", name).out == f"wrote 4 runs to {name}\n"
    opened = gzip.open if name.endswith(".gz") else open
    with opened(folder / name, "rt") as lines:
        assert len(lines.readlines()) == 4
    assert shoal("history", "clear", "flow 1").out == "deleted 2 runs\n"
    assert len(shoal("runs").out.splitlines()) == 3
    assert shoal("history", "clear", "--all").out == "deleted 2 runs\n"
    said = shoal("history", "import", name)
    assert said.out == f"added 4 runs to the history in {folder / 'data'}\n"
    assert shoal("runs").out == before
    assert shoal("history", "export", name, "flow 1").out == f"wrote 2 runs to {name}\n"


def test_runs_are_exported_to_stdout_and_imported_from_stdin(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(folder, record(0, 1.0), record(1, 1.0, name="other"))
    said = shoal("history", "export", "-", "other")
    assert (len(said.out.splitlines()), said.err) == (1, "")
    shoal("history", "clear", "--all")
    monkeypatch.setattr("sys.stdin", io.StringIO(said.out))
    assert shoal("history", "import", "-").out.startswith("added 1 run to ")
    assert shoal("history", "export", "-").out == said.out


def test_import_reports_how_many_runs_are_new_and_how_many_are_kept(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(folder, *(record(n, 1.0) for n in range(3)))
    shoal("history", "export", "three")
    file(folder, *(record(n, 1.0) for n in range(3, 8)))
    shoal("history", "export", "eight")
    where = f"the history in {folder / 'data'}"
    assert shoal("history", "import", "three").out == (
        f"added 0 runs to {where}; 3 were already there\n"
    )
    shoal("history", "clear", "--all")
    shoal("history", "import", "three")
    monkeypatch.setenv("SHOAL_HISTORY_RUNS", "5")
    assert shoal("history", "import", "eight").out == (
        f"added 5 runs to {where}; 3 were already there; 5 of 8 are kept (see `history_runs`)\n"
    )


def test_an_empty_history_exports_nothing(shoal: Shoal, folder: Path) -> None:
    assert shoal("history", "export", "runs").out == "wrote 0 runs to runs\n"
    assert shoal("history", "import", "runs").out.startswith("added 0 runs")
    assert shoal("history", "clear", "--all").out == "deleted 0 runs\n"


@pytest.mark.parametrize("args", [(), ("flow", "--all")])
def test_clear_requires_a_name_or_all(shoal: Shoal, folder: Path, args: tuple[str, ...]) -> None:
    file(folder, record(0, 1.0))
    said = shoal("history", "clear", *args)
    assert (said.code, said.out) == (2, "")
    assert said.err == ("error: Give either a workflow's name, or --all to delete all runs.\n")
    assert len(shoal("runs").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "missing can't be read: No such file or directory."),
        (".", None, "can't be read: Is a directory."),
        ("text", b"hello\n", "text, line 1: not an exported run"),
        ("bytes", b"\xff\xfe", "bytes can't be read: "),
        ("text.gz", b"hello\n", "text.gz can't be read: Not a gzipped file"),
        ("short.gz", gzip.compress(b"{}" * 1000, mtime=0)[:-20], "short.gz can't be read: "),
    ],
)
def test_a_file_that_cannot_be_imported_is_an_error(
    shoal: Shoal, folder: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    said = shoal("history", "import", name)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('"makespan":1.0', '"makespan":"long"'),
        ('"quality":{}', '"quality":[]'),
        ('"run":"r0"', '"run":7'),
        ('"samples":"', '"samples":"AAAA'),
        ('"samples":"', '"samples":"ä'),
        ('"records":[]', '"records":["AAAA"]'),
        ('"started":1000000000.0', '"started":Infinity'),
        ('"started":1000000000.0', '"started":-1e20'),
        ('"started":1000000000.0', '"started":1e20'),
        ('"makespan":1.0', '"makespan":NaN'),
        ('"makespan":1.0', '"makespan":1' + "0" * 400),
        ('"planning":0.0', '"planning":null'),
        ('"predicted":null', '"predicted":NaN'),
        ('"quality":{}', '"quality":{"execute":Infinity}'),
        ('"tasks":3', '"tasks":1.5'),
        ('"workers":2', '"workers":-1'),
        ('"outcome":"done"', '"outcome":"\\ud800"'),
        ('"tasks":[]', '"tasks":[7]'),
    ],
)
def test_nothing_is_imported_from_a_damaged_file(
    shoal: Shoal, folder: Path, found: str, instead: str
) -> None:
    file(folder, record(0, 1.0))
    whole = shoal("history", "export", "-").out
    shoal("history", "clear", "--all")
    assert found in whole
    (folder / "runs").write_text(whole + whole.replace(found, instead))
    said = shoal("history", "import", "runs")
    assert said.code == 2
    assert "runs, line 2: not an exported run" in said.err
    assert found.split('"')[1] in said.err
    assert said.err.count("\n") == 1
    assert "There are no runs yet" in shoal("runs").out


def test_a_file_that_cannot_be_written_is_an_error(shoal: Shoal, folder: Path) -> None:
    for path in (".", "pipeline.py/runs"):
        said = shoal("history", "export", path)
        assert (said.code, said.out) == (2, "")
        assert "can't be written" in said.err


# Damaged histories.


def damaged(folder: Path) -> Path:
    """A history with a valid header and random pages."""
    file(folder, *(record(n, 1.0, name="x") for n in range(40)))
    path = folder / "data" / "history-2.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + Random(7).randbytes(path.stat().st_size - 4096))
    return path


@pytest.mark.parametrize(
    "args",
    [
        ("runs",),
        ("show", "last"),
        ("logs", "last"),
        ("history", "show", "x"),
        ("history", "export", "runs.jsonl"),
        ("history", "import", "empty"),
        ("history", "clear", "x"),
    ],
)
def test_a_damaged_history_is_a_one_line_error_with_advice(
    shoal: Shoal, folder: Path, args: tuple[str, ...]
) -> None:
    path = damaged(folder)
    (folder / "empty").touch()
    said = shoal(*args)
    assert (said.code, said.out) == (1, "")
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert "`shoal history clear --all`" in said.err


def test_clearing_everything_sets_a_damaged_history_aside(shoal: Shoal, folder: Path) -> None:
    path = damaged(folder)
    aside = path.with_name("history-2.sqlite.damaged-1")
    said = shoal("history", "clear", "--all")
    assert (said.code, said.err) == (0, "")
    assert said.out == f"Moved the damaged history to {aside}.\n"
    assert aside.exists()
    assert "There are no runs yet" in shoal("runs").out
    assert shoal("history", "clear", "--all").out == "deleted 0 runs\n"


@pytest.mark.real
@pytest.mark.parametrize("harm", [damaged, lambda folder: (folder / "data").write_text("a file")])
def test_a_workflow_runs_without_an_unusable_history_and_warns_once(
    shoal: Shoal,
    folder: Path,
    harm: Callable[[Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    harm(folder)
    for args in (("plan", "pipeline.py:output"), ("run", "pipeline.py:output")):
        caplog.clear()
        said = shoal(*args, "--name", "x")
        assert said.code == 0, said.err
        default_engine.close()
        (told,) = [message for message in caplog.messages if "history" in message]
        assert str(folder / "data" / "history-2.sqlite") in told
        assert re.search("`shoal history clear --all`|Set `folder`", told)


@pytest.mark.real
def test_a_run_learns_from_the_intact_runs_if_one_is_damaged(
    shoal: Shoal, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        shoal("run", "pipeline.py:output", "--name", "x")
    with closing(sqlite3.connect(folder / "data" / "history-2.sqlite")) as database, database:
        database.execute("UPDATE samples SET data = x'00' WHERE run = (SELECT run FROM runs)")
    said = shoal("plan", "pipeline.py:output", "--name", "x")
    assert "from 1 run" in said.out
    assert "ignoring 1 of 2 runs of 'x'" in caplog.text


@pytest.mark.parametrize("action", ["show", "export", "import", "clear"])
def test_every_action_has_help(shoal: Shoal, action: str) -> None:
    said = shoal("history", action, "--help")
    assert said.code == 0
    assert said.out.startswith(f"usage: shoal history {action}")
    assert action in shoal("history", "--help").out


@pytest.mark.parametrize("args", [(), ("fly",), ("export",), ("import",)])
def test_bad_usage_of_history_exits_with_2_and_the_usage(
    shoal: Shoal, args: tuple[str, ...]
) -> None:
    said = shoal("history", *args)
    assert said.code == 2
    assert said.err.startswith("usage: shoal history")


@pytest.mark.real
def test_history_is_stored_on_the_server_that_is_set(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(folder, record(0, 1.0), record(1, 2.0))
    shoal("history", "export", "runs.gz")
    with tcp_server() as port, monkeypatch.context() as patch:
        patch.delenv("SHOAL_FOLDER")
        patch.setenv("SHOAL_STORE", url_of(port))
        said = shoal("history", "import", "runs.gz")
        assert said.out == f"added 2 runs to the history in the store at 127.0.0.1:{port}\n"
        assert len(shoal("runs").out.splitlines()) == 3
        assert "2.000 s" in shoal("history", "show", "flow").out
        assert f"2 runs in the store at 127.0.0.1:{port}" in shoal("doctor").out
        assert shoal("history", "clear", "flow").out == "deleted 2 runs\n"


@pytest.mark.real
def test_runs_on_a_store_named_on_the_command_line_are_found(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_FOLDER")
    with tcp_server() as port:
        there = ("--set", f"store={url_of(port)}")
        said = shoal("run", "pipeline.py:output", "--name", "x", *there)
        assert (said.code, said.out) == (0, "3\n"), said.err
        run = said.err.split()[1].rstrip(":")
        assert f"(`shoal show {run} --set store=…` shows them)" in said.err
        for command in (("show", run), ("logs", run), ("runs", "x"), ("history", "show", "x")):
            assert shoal(*command, *there).code == 0
        assert run in shoal("runs", *there).out
        assert shoal("show", run).code == 2
        assert "from 1 run," in shoal("plan", "pipeline.py:output", "--name", "x", *there).out
        default_engine.close()
