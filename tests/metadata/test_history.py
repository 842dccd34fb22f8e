"""Runs are recorded, found, and make room for others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import UnknownRun, UsageError
from shoal.execution.timeline import Span, Timeline, encode_record
from shoal.metadata.history import (
    READ,
    FiledRun,
    History,
    Imported,
    RunRecord,
    export_runs,
    import_runs,
)
from shoal.metadata.remote import RedisHistory
from shoal.metadata.samples import encode_samples
from shoal.metadata.sqlite import SqliteHistory
from shoal.types import HISTORY_RUNS, Resources, RunId, TaskId, WorkerId
from shoal.workflow import Workflow

w0, w1 = WorkerId("w0"), WorkerId("w1")
TASKS = [TaskId("clean#1"), TaskId("größe#1")]
NOTHING = encode_samples(Workflow({}, {}, ()), {}, Timeline((), 0.0), {})


Opened = Callable[..., History]


def _in_files(folder: Path) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda kept=HISTORY_RUNS: stack.enter_context(closing(SqliteHistory(folder, kept)))


def _on_server(url: str) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda kept=HISTORY_RUNS: stack.enter_context(closing(RedisHistory(url, kept)))


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.real)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """A function that opens the history, as each client does."""
    if request.param == "sqlite":
        yield from _in_files(tmp_path)
    else:
        yield from _on_server(request.getfixturevalue("emptied"))


@pytest.fixture
def history(opened: Opened) -> History:
    return opened()


def record(
    run: str, *, name: str = "flow", fingerprint: str = "f", started: float = 0
) -> RunRecord:
    return RunRecord(
        RunId(run), name, fingerprint, "SpreadPlanner", 2, 2, 1000.0 + started, 1.5, "done"
    )


def file(history: History, filed: RunRecord, records: Sequence[bytes]) -> None:
    """Record a run without samples."""
    history.file(FiledRun(filed, TASKS, records, NOTHING))


def test_a_recorded_run_is_found_unchanged(history: History) -> None:
    filed = replace(record("1115-a"), outcome="task 'a' failed: ValueError: größe")
    file(history, filed, [])
    assert history.find("1115-a") == filed
    assert history.runs() == [filed]


def test_the_latest_runs_come_first_up_to_the_limit(history: History) -> None:
    for number in (3, 1, 4, 0, 2):
        file(history, record(f"r{number}", started=number), [])
    assert [found.run for found in history.runs()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [found.run for found in history.runs(most=2)] == ["r4", "r3"]


def test_workflows_of_one_name_but_another_origin_are_kept_apart(opened: Opened) -> None:
    history = opened(kept=2)
    for number in range(6):
        filed = replace(record(f"r{number}", started=number), key=f"/{number % 2}.py:flow")
        file(history, filed, [])
    assert history.keys() == ["/1.py:flow", "/0.py:flow"]
    assert {found.name for found in history.runs()} == {"flow"}
    assert [found.run for found in history.runs(key="/0.py:flow")] == ["r4", "r2"]
    assert history.runs(key="flow") == []
    assert (history.count("/0.py:flow", "f"), len(history.samples("/0.py:flow"))) == (2, 2)
    assert history.clear("/0.py:flow") == 2
    assert [found.run for found in history.runs()] == ["r5", "r3"]


def test_an_exported_run_without_a_key_is_known_by_its_name(history: History) -> None:
    file(history, record("r0"), [])
    (line,) = export_runs(history)
    found = json.loads(line)
    del found["record"]["key"]
    history.clear()
    import_runs(history, [json.dumps(found)], Path("file"))
    assert history.keys() == ["flow"]


def test_runs_of_one_name_can_be_listed(history: History) -> None:
    for number in range(6):
        name = f"flow {number % 2}"
        file(history, record(f"r{number}", name=name, started=number), [])
    assert [found.run for found in history.runs(key="flow 1")] == ["r5", "r3", "r1"]
    assert history.runs(key="flow") == []


def test_empty_history_has_no_runs(history: History) -> None:
    assert history.runs() == []
    assert history.count("flow", "f") == 0


def test_runs_are_counted_by_name_and_fingerprint(history: History) -> None:
    for run, name, fingerprint in (
        ("1", "a", "f"),
        ("2", "a", "f"),
        ("3", "a", "g"),
        ("4", "b", "f"),
    ):
        file(history, record(run, name=name, fingerprint=fingerprint), [])
    assert history.count("a", "f") == 2
    assert history.count("a", "g") == 1
    assert history.count("b", "f") == 1
    assert history.count("b", "g") == 0


def test_a_run_is_found_by_an_unambiguous_prefix(history: History) -> None:
    for run in ("1115-0930-aa", "1115-0931-bb", "1116-0930-cc"):
        file(history, record(run), [])
    assert history.find("1116").run == "1116-0930-cc"
    assert history.find("1115-0931").run == "1115-0931-bb"
    assert history.find("1115-0930-aa").run == "1115-0930-aa"


@pytest.mark.parametrize("run", ["1115", "", "1117", "0930", "1115-0930-aa-more", "%", "1115_0930"])
def test_a_missing_or_ambiguous_run_is_unknown(history: History, run: str) -> None:
    for filed in ("1115-0930-aa", "1115-0931-bb"):
        file(history, record(filed), [])
    with pytest.raises(UnknownRun) as caught:
        history.find(run)
    assert caught.value.run == run


def test_a_run_whose_id_is_a_prefix_of_another_is_found(history: History) -> None:
    for filed in ("r10", "r1", "r11"):
        file(history, record(filed), [])
    assert history.find("r1").run == "r1"


def test_timeline_is_as_the_workers_recorded_it(history: History) -> None:
    rows = {
        w0: [(0, -1, 1000.0, 1000.25, 0.0, 0), (3, 0, 1000.25, 1000.5, 0.125, 64)],
        w1: [(2, 0, 1000.5, 1000.625, 0.0, 64), (3, 1, 1000.625, 1001.5, 0.75, 8)],
    }
    filed = record("r1")
    file(history, filed, [encode_record(worker, rows[worker]) for worker in (w1, w0)])
    timeline = history.load(filed).timeline
    assert timeline.makespan == 1.5
    assert timeline.spans == (
        Span("cold start", w0, None, 0.0, 0.25),
        Span("execute", w0, TASKS[0], 0.25, 0.5, 0.125, 64),
        Span("fetch", w1, TASKS[0], 0.5, 0.625, 0.0, 64),
        Span("execute", w1, TASKS[1], 0.625, 1.5, 0.75, 8),
    )


def test_run_without_records_has_an_empty_timeline(history: History) -> None:
    file(history, record("r1"), [])
    assert history.load(record("r1")).timeline.spans == ()


def test_timelines_of_runs_are_kept_apart(history: History) -> None:
    for number in range(3):
        row = (3, 0, 1000.0, 1000.0 + number, 0.0, 0)
        file(history, record(f"r{number}"), [encode_record(w0, [row])])
    for number in range(3):
        (span,) = history.load(history.find(f"r{number}")).timeline.spans
        assert span.seconds == number


def test_a_run_that_is_recorded_again_counts_once(history: History) -> None:
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])]
    file(history, record("r1"), rows)
    file(history, replace(record("r1"), outcome="cancelled"), rows)
    assert [found.outcome for found in history.runs()] == ["cancelled"]
    assert len(history.load(record("r1")).timeline.spans) == 1


def test_oldest_runs_of_a_workflow_make_room_for_new_ones(opened: Opened) -> None:
    assert HISTORY_RUNS >= 50
    history = opened(kept=5)
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])] * 2
    for number in range(12):
        file(history, record(f"a{number:02}", started=number), rows)
        file(history, record(f"b{number:02}", name="other", started=number), rows)
    kept = {found.run for found in history.runs(most=1000)}
    assert kept == {f"{letter}{number:02}" for letter in "ab" for number in range(7, 12)}
    assert history.count("flow", "f") == 5
    assert [len(history.load(found).records) for found in history.runs()] == [2] * 10


def test_runs_of_a_rare_shape_or_configuration_are_kept_longer(opened: Opened) -> None:
    history = opened(kept=5)
    file(history, record("rare", fingerprint="g"), [])
    file(history, replace(record("large", started=1), configuration="8192 MB"), [])
    for number in range(9):
        file(history, record(f"r{number}", started=number + 2), [])
    assert [found.run for found in history.runs()] == ["r8", "r7", "r6", "large", "rare"]


def test_among_equally_common_shapes_the_oldest_run_makes_room(opened: Opened) -> None:
    history = opened(kept=4)
    for number, fingerprint in enumerate("gfgf"):
        file(history, record(f"r{number}", fingerprint=fingerprint, started=9 - number), [])
    file(history, record("new", fingerprint="h", started=20), [])
    assert {found.run for found in history.runs()} == {"r0", "r1", "r2", "new"}


def test_a_run_older_than_all_others_is_the_first_to_make_room(opened: Opened) -> None:
    history = opened(kept=2)
    for number in (5, 6, 1):
        file(history, record(f"r{number}", started=number), [])
    assert [found.run for found in history.runs()] == ["r6", "r5"]


def test_fewer_runs_are_kept_once_fewer_are_allowed(opened: Opened) -> None:
    many = opened()
    for number in range(9):
        file(many, record(f"r{number}", started=number), [])
    file(opened(kept=3), record("r9", started=9), [])
    assert [found.run for found in many.runs()] == ["r9", "r8", "r7"]


def test_every_field_of_a_record_is_kept(history: History) -> None:
    filed = replace(
        record("r1"), configuration="2048 MB", planning=0.25, sla="95 %", predicted=1.25,
        quality={"execute": 0.125, "start": 2.0}, platform="lambda://größe",
    )  # fmt: skip
    file(history, filed, [])
    assert history.find("r1") == filed
    assert history.runs(key="flow") == [filed]


def test_only_names_of_kept_runs_are_listed(history: History) -> None:
    assert history.keys() == []
    for number, name in enumerate(["a", "größe: [x]", "a:shapes", "a", "100 %"]):
        file(history, record(f"r{number}", name=name, started=number), [])
    assert history.keys() == ["100 %", "a", "a:shapes", "größe: [x]"]
    file(history, record("r3", name="b", started=3), [])
    assert history.keys() == ["100 %", "b", "a:shapes", "größe: [x]", "a"]
    history.clear("b")
    assert history.keys() == ["100 %", "a:shapes", "größe: [x]", "a"]


def test_a_run_recorded_again_under_another_name_leaves_the_old_one(history: History) -> None:
    file(history, record("r1", name="a"), [])
    file(history, record("r1", name="b", fingerprint="g"), [])
    assert history.runs(key="a") == []
    assert history.samples("a") == []
    assert (history.count("a", "f"), history.count("b", "g")) == (0, 1)
    assert [found.name for found in history.runs()] == ["b"]


def taught(seconds: float, platform: str = "") -> bytes:
    """Return a block with a sample of a message that took so long."""
    spans = (Span("deliver", w0, None, 0.0, seconds),)
    workers = {w0: Resources(2048)}
    return encode_samples(
        Workflow({}, {}, ()), workers, Timeline(spans, seconds), {}, None, platform
    )


def delivered(history: History, name: str) -> list[float]:
    return [sample.seconds for block in history.samples(name) for sample in block.samples]


def test_samples_come_from_the_latest_runs_of_each_shape(history: History) -> None:
    assert history.samples("flow") == []
    for number in range(READ + 5):
        filed = record(f"f{number}", started=number)
        history.file(FiledRun(filed, TASKS, [], taught(1.0 + number)))
    for number, fingerprint, configuration in ((0.5, "g", ""), (READ + 1.5, "f", "8192 MB")):
        filed = record(f"x{number}", fingerprint=fingerprint, started=number)
        filed = replace(filed, configuration=configuration)
        history.file(FiledRun(filed, TASKS, [], taught(1.0 + number)))
    history.file(FiledRun(record("other", name="other", started=99), TASKS, [], taught(9)))
    latest = [1.0 + number for number in range(5, READ + 5)]
    assert delivered(history, "flow") == sorted([*latest, 1.5, READ + 2.5], reverse=True)
    assert delivered(history, "other") == [9]


def test_many_runs_on_one_platform_leave_the_samples_of_another(opened: Opened) -> None:
    history = opened(kept=READ + 2)
    elsewhere = replace(record("far"), platform="slurm://")
    history.file(FiledRun(elsewhere, TASKS, [], taught(9.0, "slurm://")))
    for number in range(READ + 5):
        filed = record(f"r{number}", started=number + 1)
        history.file(FiledRun(filed, TASKS, [], taught(1.0)))
    assert [block.platform for block in history.samples("flow")] == [*[""] * READ, "slurm://"]
    assert history.count("flow", "f") == READ + 2


def test_runs_of_a_name_or_all_can_be_deleted(history: History) -> None:
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])]
    for number in range(6):
        file(history, record(f"r{number}", name=f"flow {number % 2}", started=number), rows)
    assert history.clear("flow 2") == 0
    assert history.clear("flow 1") == 3
    assert [found.run for found in history.runs()] == ["r4", "r2", "r0"]
    assert history.samples("flow 1") == []
    assert history.count("flow 1", "f") == 0
    with pytest.raises(UnknownRun):
        history.find("r1")
    with pytest.raises(UnknownRun):
        history.load(record("r1", name="flow 1", started=1))
    assert history.clear() == 3
    assert history.runs() == history.keys() == []
    file(history, record("r1"), rows)
    assert [found.run for found in history.runs()] == ["r1"]


def test_history_survives_reopening(opened: Opened) -> None:
    first = opened()
    file(first, record("r1"), [])
    first.close()
    assert opened().runs() == [record("r1")]


def test_clients_can_record_concurrently(opened: Opened) -> None:
    histories = [opened(kept=12), opened(kept=12)]
    together = threading.Barrier(8)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        together.wait()
        try:
            for turn in range(10):
                filed = record(f"r{number}-{turn}", name=f"flow {number % 4}", started=turn)
                file(histories[number % 2], filed, [encode_record(w0, [])])
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(histories[0].runs(most=1000)) == 48
    assert [histories[1].count(f"flow {number}", "f") for number in range(4)] == [12] * 4


def test_runs_can_be_moved_between_histories(opened: Opened, tmp_path: Path) -> None:
    history = opened()
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)]), encode_record(w1, [])]
    for number in range(4):
        filed = replace(
            record(f"r{number}", name=f"flow {number % 2}", started=number),
            predicted=1.0, quality={"execute": 0.5}, configuration="größe",
        )  # fmt: skip
        history.file(FiledRun(filed, TASKS, rows, taught(number + 1.0)))
    lines = list(export_runs(history))
    assert list(export_runs(history, "flow 1")) == [lines[1], lines[3]]
    with closing(SqliteHistory(tmp_path / "other")) as other:
        assert import_runs(other, lines, tmp_path) == Imported(runs=4, new=4, kept=4)
        before, after = history.runs(), other.runs()
        assert before == after
        assert [history.load(run) for run in before] == [other.load(run) for run in after]
        assert list(export_runs(other)) == lines
        history.clear()
        assert import_runs(history, export_runs(other), tmp_path).new == 4
        assert import_runs(history, export_runs(other), tmp_path).new == 0
    assert list(export_runs(history)) == lines
    assert delivered(history, "flow 1") == [4.0, 2.0]


@pytest.mark.parametrize("damage", ["", "{", "[]", "7", '{"record": {}}', '{"record": {"x": 1}}'])
def test_nothing_is_imported_from_damaged_lines(history: History, damage: str) -> None:
    file(history, record("r1"), [])
    lines = [*export_runs(history), damage]
    history.clear()
    with pytest.raises(UsageError, match=r"runs\.jsonl, line 2: not an exported run"):
        import_runs(history, lines, Path("runs.jsonl"))
    assert history.runs() == []
