"""The command line: output, exit codes, and no traceback for expected errors."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import Said, Shoal, run_of

from observing import TIMEOUT, eventually, processes_mentioning
from shoal import __version__, system
from shoal.cli.main import COMMANDS, main
from shoal.engine import default_engine
from shoal.platform.http import HttpPlatform

pytestmark = pytest.mark.real

# Help.


def test_help_lists_the_commands(shoal: Shoal) -> None:
    said = shoal("--help")
    assert said.code == 0
    for name, summary in COMMANDS.items():
        assert re.search(rf"^ +{name} +{summary}$", said.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(shoal: Shoal, command: str) -> None:
    said = shoal(command, "--help")
    assert said.code == 0
    assert said.out.startswith(f"usage: shoal {command}")
    assert COMMANDS[command][1:] in said.out


def test_the_version_is_shown(shoal: Shoal) -> None:
    assert shoal("--version") == Said(0, f"shoal {__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("fly",), ("run",), ("show",), ("demo", "--lines", "many")])
def test_bad_usage_exits_with_2_and_the_usage(shoal: Shoal, args: tuple[str, ...]) -> None:
    said = shoal(*args)
    assert said.code == 2
    assert said.err.startswith("usage: shoal")


# run.


@pytest.mark.parametrize("where", ["pipeline.py:output", "pipeline:output", "./pipeline.py:output"])
def test_run_prints_the_value_and_where_to_look(shoal: Shoal, where: str) -> None:
    said = shoal("run", where)
    assert (said.code, said.out) == (0, "3\n")
    assert re.fullmatch(r"run \S+: 2 tasks in \d+\.\d+ s \(`shoal show \S+` .*\)\n", said.err)


@pytest.mark.parametrize(
    ("args", "value"),
    [
        (["pipeline.py:total", "--set", "first=1"], "111"),
        (["pipeline.py:total", "--set", "first=1", "--set", "third=-5.5"], "5.5"),
        (["pipeline.py:total", "--set", "first=1", "--set", "workers=1"], "111"),
        (["pipeline.py:Holder.output", "--set", "workers=2"], "9"),
        (["pipeline.py:output", "--timeout", "60", "--name", "called so"], "3"),
        (["pipeline.py:several"], "[1, 5]"),
        (["pipeline.py:both", "--set", "first=4"], "[4, 5]"),
        (["pipeline.py:both_of_one", "--set", "workers=1"], "[1]"),
    ],
)
def test_run_accepts_parameters_and_settings(shoal: Shoal, args: list[str], value: str) -> None:
    said = shoal("run", *args)
    assert (said.code, said.out) == (0, f"{value}\n"), said.err


DEFINING = """
from dataclasses import dataclass
import shoal

with open("loaded", "a") as file:
    print("once", file=file)

@dataclass
class Point:
    x: int

def steps(x):
    return x and 1 + steps(x - 1)

@shoal.task
def point(x):
    return Point(steps(x))

@shoal.task
def moved(point_):
    assert isinstance(point_, Point)
    return Point(point_.x + point.function(1).x)

output = moved(point(3))
"""


@pytest.mark.parametrize("planner", ["spread", "wukong"])
def test_workers_get_what_a_file_defines_without_loading_it(
    shoal: Shoal, folder: Path, planner: str
) -> None:
    (folder / "defining.py").write_text(DEFINING)
    assert shoal("run", "defining.py:output", "--planner", planner).out == "Point(x=4)\n"
    assert (folder / "loaded").read_text() == "once\n"


CHANGING = """
import shoal

@shoal.task
def change(numbers):
    numbers.append(1)
    return len(numbers)

output = change([1, 2])
"""


def test_run_with_check_finds_tasks_that_change_their_inputs(shoal: Shoal, folder: Path) -> None:
    (folder / "changing.py").write_text(CHANGING)
    assert shoal("run", "changing.py:output").out == "3\n"
    said = shoal("run", "changing.py:output", "--check")
    assert said.code == 1
    assert "error: task 'change#0' failed on worker w0: it changed argument 1 in" in said.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pipeline.py"], "must be FILE_OR_MODULE:OUTPUT"),
        (["pipeline.py:"], "must be FILE_OR_MODULE:OUTPUT"),
        ([":output"], "must be FILE_OR_MODULE:OUTPUT"),
        (["nowhere.py:output"], "There is no file nowhere.py."),
        ([".:output"], ". failed: TypeError"),
        (["no.such.module:output"], "There is no module 'no.such.module'"),
        (["pipeline.py:missing"], "has no 'missing'. It has the outputs output, failing, "),
        (["pipeline.py:Holder.missing"], "has no 'Holder.missing'"),
        (["pipeline.py:number"], "is int, not an output"),
        (["pipeline.py:nothing"], "is int, not an output or a list of outputs"),
        (["pipeline.py:mixed"], "is list, not an output or a list of outputs"),
        (["pipeline.py:raising"], "ZeroDivisionError: division by zero"),
        (["pipeline.py:total"], "total needs first; add --set first=VALUE"),
        (["pipeline.py:total", "--set", "first=1", "--set", "fourth=2"], "--set fourth: neither"),
        (["pipeline.py:output", "--set", "workers"], "must be NAME=VALUE"),
        (["pipeline.py:output", "--set", "workers=many"], "workers to 'many'"),
        (["pipeline.py:output", "--set", "workers=0"], "at least 1"),
        (["pipeline.py:output", "--set", "wrokers=2"], "did you mean 'workers'"),
        (["pipeline.py:output", "--set", "store=http://x"], "is not a valid URL"),
        (["pipeline.py:output", "--set", "platform=x", "--set", "token=t"], "not a gateway's URL"),
        (["pipeline.py:output", "--set", "platform=aws"], "Use http://HOST:PORT or https"),
        (["pipeline.py:output", "--set", "platform=http://x"], "wants a token"),
        (["builtins:dict.fromkeys"], "failed: TypeError: fromkeys expected"),
        (["builtins:type"], "The parameters of <class 'type'> are unknown"),
    ],
)
def test_bad_arguments_of_run_are_a_one_line_error_with_code_2(
    shoal: Shoal, args: list[str], message: str
) -> None:
    said = shoal("run", *args)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
        ("x = 1\ny = x.no_such\n", "wrong.py, line 2"),
        ("import shoal\nshoal.task(3)\n", "@task takes a function"),
    ],
)
@pytest.mark.parametrize("where", ["wrong.py:output", "wrong:output"])
def test_a_file_that_cannot_be_loaded_is_an_error_with_the_location(
    shoal: Shoal, folder: Path, text: str, message: str, where: str
) -> None:
    (folder / "wrong.py").write_text(text)
    said = shoal("run", where)
    assert said.code == 2
    assert message in said.err


def test_a_failing_task_exits_with_1_and_the_workers_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "pipeline.py:failing"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: task 'broken#0' failed on worker w")
    assert "1 task that needs it was not run (add#0)" in said.err
    assert 'raise ValueError("on purpose")' in said.err
    assert "shoal/cli" not in said.err


def test_a_run_that_exceeds_its_timeout_is_cancelled(shoal: Shoal, folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import time, shoal\noutput = shoal.task(time.sleep, name='sleep')(60)\n"
    )
    said = shoal("run", "slow.py:output", "--timeout", "0.2")
    assert said.code == 1
    assert "had no result after 0.2 s" in said.err


def test_an_unreachable_service_is_an_error_with_code_1(shoal: Shoal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = shoal("run", "pipeline.py:output", "--set", f"store=redis://127.0.0.1:{port}")
    assert (said.code, "can't be reached" in said.err) == (1, True)
    gateway = ("--set", f"platform=http://127.0.0.1:{port}", "--set", "token=t")
    said = shoal("run", "pipeline.py:output", *gateway)
    assert (said.code, "can't be reached" in said.err) == (1, True)


# runs, show, logs.


def test_runs_lists_the_latest_first(shoal: Shoal) -> None:
    assert shoal("runs").out == "There are no runs yet. Try `shoal demo`.\n"
    ids = [run_of(shoal("run", "pipeline.py:output", "--name", name)) for name in ("one", "two")]
    rows = shoal("runs").out.splitlines()
    assert rows[0].split() == ["run", "workflow", "started", "planner", "tasks", "workers",
                               "seconds", "predicted", "outcome"]  # fmt: skip
    assert [row.split()[:2] for row in rows[1:]] == [[ids[1], "two"], [ids[0], "one"]]
    assert rows[1].split()[-2:] == ["-", "done"]
    assert rows[1].split()[4] == "spread"
    assert len(shoal("runs", "one").out.splitlines()) == 2
    assert len(shoal("runs", "-n", "1").out.splitlines()) == 2
    assert shoal("runs", "three").out.startswith("There are no runs of 'three' yet.")


def test_runs_lists_failures_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "pipeline.py:failing"])
    for session in default_engine._sessions.values():
        session.settle()
    capsys.readouterr()
    assert main(["runs"]) == 0
    (_, row) = capsys.readouterr().out.splitlines()
    assert "task 'broken#0' failed on worker w0: ValueError: on purpose" in row


def test_table_lines_in_a_pipe_have_no_trailing_spaces(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "pipeline.py:output"])
    main(["run", "pipeline.py:failing"])
    for session in default_engine._sessions.values():
        session.settle()
    capsys.readouterr()
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert len(lines[0]) < 120 < len(lines[1])


def test_text_that_looks_like_markup_is_shown_literally(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "pipeline.py:marked_up", "--name", "[/x] [bold]"]) == 1
    for session in default_engine._sessions.values():
        session.settle()
    capsys.readouterr()
    assert main(["runs"]) == 0
    (_, row) = capsys.readouterr().out.splitlines()
    assert "[/x] [bold]" in row
    assert "ValueError: [/bold] of [red]" in row


def test_runs_and_show_include_the_prediction(shoal: Shoal) -> None:
    for _ in range(2):
        run = run_of(shoal("run", "pipeline.py:output", "--name", "shown", "--sla", "90"))
    row = shoal("runs", "shown").out.splitlines()[1].split()
    assert re.fullmatch(r"\d+\.\d{3}", row[-2])
    lines = shoal("show", run).out.splitlines()
    seconds = r"\d+\.\d{3} s"
    assert re.fullmatch(
        rf"planned by auto \(\w+\)( in \S+ \S+)? for the 90 % level: predicted {seconds}, "
        rf"took {seconds} \([+-]\d+%\)",
        lines[1],
    )
    first = shoal("runs", "shown").out.splitlines()[2].split()[0]
    assert "planned by spread in" in shoal("show", first).out
    assert "for the 90 % level; no prediction was recorded" in shoal("show", first).out


def test_show_draws_a_chart_and_writes_a_page(shoal: Shoal, folder: Path) -> None:
    run = run_of(shoal("run", "pipeline.py:output", "--name", "shown"))
    for name in (run, run[:-1], "last"):
        said = shoal("show", name)
        assert said.code == 0
        assert said.out.startswith(f"run {run} of shown, ")
        assert "w0" in said.out
    said = shoal("show", run, "--html", "made/page.html")
    assert said.out.endswith("written to made/page.html\n")
    page = (folder / "made" / "page.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert run in page


def test_control_characters_in_names_are_escaped(shoal: Shoal) -> None:
    run = run_of(shoal("run", "pipeline.py:output", "--name", "red\x1b[31m\n"))
    told = r"red\x1b[31m\n"
    for command in (("runs",), ("show", run), ("history", "show", "wrong"), ("history", "show")):
        said = shoal(*command)
        assert told in said.out + said.err, command
        assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize("command", ["show", "logs"])
@pytest.mark.parametrize("run", ["0101-000000-abcdef", "", "../../etc/passwd"])
def test_an_unknown_run_is_an_error(shoal: Shoal, command: str, run: str) -> None:
    said = shoal(command, run)
    assert said.code == 2
    assert f"error: There is no run {run!r}. List all known runs with" in said.err


@pytest.mark.parametrize("command", ["show", "logs"])
def test_show_before_the_first_run_is_an_error(shoal: Shoal, command: str) -> None:
    said = shoal(command, "last")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: There are no runs yet. Try `shoal demo`.\n"


@pytest.mark.parametrize("command", [("runs",), ("history", "show"), ("history", "show", "x")])
@pytest.mark.parametrize("most", ["0", "-3", "few", "1.5"])
def test_runs_rejects_a_limit_below_one(shoal: Shoal, command: tuple[str, ...], most: str) -> None:
    said = shoal(*command, "-n", most)
    assert (said.code, said.out) == (2, "")
    assert f"argument -n/--most: {most!r}: must be an integer of at least 1\n" in said.err


def test_runs_accepts_a_limit_above_the_number_of_runs(shoal: Shoal) -> None:
    assert shoal("runs", "-n", "9" * 30).code == 0


def test_a_page_that_cannot_be_written_is_an_error(shoal: Shoal, folder: Path) -> None:
    run = run_of(shoal("run", "pipeline.py:output"))
    for path in (".", "pipeline.py/page.html"):
        said = shoal("show", run, "--html", path)
        assert said.code == 2
        assert "can't be written" in said.err


def test_logs_prints_what_tasks_printed(shoal: Shoal) -> None:
    run = run_of(shoal("run", "pipeline.py:output", "--set", "workers=1"))
    said = shoal("logs", run)
    assert said.code == 0
    lines = [line.split(maxsplit=2)[1:] for line in said.out.splitlines()]
    assert lines == [["w0", "adding 1"], ["w0", "adding 1 2"]]
    said = shoal("run", "pipeline.py:pid")
    assert ": 1 task in " in said.err
    silent = run_of(said)
    assert shoal("logs", "last").out == f"The tasks of run {silent} printed nothing.\n"


def test_logs_escapes_control_characters_unless_raw(shoal: Shoal, folder: Path) -> None:
    """Otherwise a task could recolour the terminal, overwrite lines or set the window's title."""
    printed = "a\tb \x1b[31mred\x1b[0m \x1b]0;title\x07 50%\rover \x9b2J \u202eleft\xa0\u200d"
    (folder / "pipeline.py").write_text(f"""
import shoal

@shoal.task
def colourful():
    print({printed!a})

output = colourful()
""")
    run = run_of(shoal("run", "pipeline.py:output"))
    text = (
        "a\tb "
        + r"\x1b[31mred\x1b[0m \x1b]0;title\x07 50%\rover \x9b2J \u202eleft"
        + "\xa0\u200d\n"
    )
    assert shoal("logs", run).out.endswith(f"w0  {text}")
    assert shoal("logs", run, "--raw").out.endswith(f"w0  {printed}\n")


def test_errors_and_log_lines_are_escaped_for_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pipeline.py").write_text("""
import logging
import shoal

@shoal.task
def broken():
    raise ValueError("on \\x1b[31mpurpose")

logging.getLogger("client").warning("of %s", "\\x1b[31m")
output = broken()
""")
    # pytest has its own handlers, so basicConfig would do nothing.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert main(["run", "pipeline.py:output"]) == 1
    said = capsys.readouterr()
    assert r"on \x1b[31mpurpose" in said.err
    assert r"client: of \x1b[31m" in said.err
    assert "\x1b" not in said.out + said.err


def test_a_history_that_cannot_be_opened_is_an_error(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_FOLDER", str(folder / "pipeline.py"))
    for args in (("runs",), ("show", "last"), ("logs", "last")):
        said = shoal(*args)
        assert said.code == 1
        assert "can't be used" in said.err


# Settings.


def test_unknown_and_ill_typed_settings_are_errors_wherever_they_are_set(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SHOAL_WORKER", "2")
        said = shoal("runs")
        assert (said.code, "did you mean 'workers'" in said.err) == (2, True)
    with monkeypatch.context() as patch:
        patch.setenv("SHOAL_WORKERS", "many")
        said = shoal("run", "pipeline.py:output")
        assert (said.code, "must be a whole number" in said.err) == (2, True)
    for text, message in (("workers = 'x'", "must be"), ("= 1", "can't be read"), ("a = 1", "a")):
        (folder / "shoal.toml").write_text(text)
        said = shoal("runs")
        assert said.code == 2
        assert message in said.err


# demo, doctor.


def test_the_demo_prints_a_report_and_writes_chart_and_drawing(shoal: Shoal, folder: Path) -> None:
    said = shoal("demo", "--lines", "300", "--workers", "2", "--out", "made")
    assert said.code == 0
    assert "The workflow has 59 tasks" in said.out
    assert "This run is now part of the history" in said.out
    assert (folder / "made" / "gantt.html").stat().st_size > 1000
    assert "<svg" in (folder / "made" / "workflow.svg").read_text()
    assert shoal("show", run_of(said)).code == 0
    again = shoal("demo", "--lines", "300", "--workers", "2", "--out", "made")
    assert "This was run 2 of this workflow" in again.out


def test_bad_arguments_of_demo_are_an_error_with_code_2(shoal: Shoal) -> None:
    said = shoal("demo", "--lines", "100", "--workers", "0")
    assert (said.code, "at least 1" in said.err) == (2, True)


def test_doctor_finds_everything_in_order(shoal: Shoal) -> None:
    said = shoal("doctor")
    assert said.code == 0, said.out
    assert "FAIL" not in said.out
    for check in ("python", "cores", "server binary", "embedded server", "limits", "history"):
        assert re.search(rf"^ok    {check} ", said.out, re.MULTILINE)


def test_doctor_lists_every_extra(shoal: Shoal) -> None:
    declared = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(declared.read_text())["project"]["optional-dependencies"]
    told = re.findall(
        r"^(ok  |-   )  extra (\S+) +(installed|not installed .*pip install)",
        shoal("doctor").out,
        re.M,
    )
    assert [extra for _, extra, _ in told] == sorted(extras)
    assert ("ok  ", "dev", "installed") in told


def test_doctor_reports_problems(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_FOLDER", str(folder / "pipeline.py"))
    said = shoal("doctor")
    assert said.code == 1
    assert re.search(r"^FAIL  history .*can't be used", said.out, re.MULTILINE)
    assert "1 of 13 checks failed" in said.err


def test_doctor_explains_what_a_missing_feature_means(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LINUX", "LIMITS_DATA"):
        monkeypatch.setattr(system, name, False)
    said = shoal("doctor")
    assert said.code == 0, said.out
    for finding in (
        r"system .* each imports packages itself",
        r"limits .* memory by polling: .*; no CPU quota",
        r"isolation .* see each other, namespaces are unavailable \(only Linux has them\)",
        r"shared memory .* mapped files in .*",
    ):
        assert re.search(rf"^ok    {finding}", said.out, re.MULTILINE), said.out


# gateway.


def started(*args: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", *args],
        env=dict(os.environ) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_gateway_serves_clients_until_it_is_stopped(
    shoal: Shoal, folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = folder / "r"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with started("gateway", "--port", "0", "--sandboxes", "2") as gateway:
        assert gateway.stdout is not None
        said = [gateway.stdout.readline() for _ in range(3)]
        listening = re.fullmatch(r"listening on (\S+), up to 2 sandboxes\n", said[0])
        assert listening is not None
        token = Path(said[1].removeprefix("token in ").partition(",")[0])
        assert token.stat().st_mode & 0o777 == 0o600
        monkeypatch.setenv("SHOAL_PLATFORM", listening[1])
        output = shoal("run", "pipeline.py:output")
        assert (output.code, output.out) == (0, "3\n"), output.err
        assert "adding 1 2" in shoal("logs", "last").out
        platform = HttpPlatform(listening[1], token.read_text().split()[0])
        assert sum(platform.status()["invocations"].values()) > 0
        platform.close()
        default_engine.close()
        gateway.send_signal(number)
        assert gateway.wait(TIMEOUT) == 0
        assert gateway.stderr is not None
        assert gateway.stderr.read() == ""
    assert not token.exists()
    assert eventually(lambda: not processes_mentioning(str(runtime)))
    late = shoal("run", "pipeline.py:output")
    assert (late.code, "wants a token" in late.err) == (2, True)


def test_a_gateway_with_a_certificate_serves_a_whole_run_over_tls(
    shoal: Shoal, folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = str(certificate.with_suffix(".key"))
    secured = ("--certificate", str(certificate), "--private-key", key)
    with started("gateway", "--host", "0.0.0.0", "--port", "0", *secured) as gateway:
        assert gateway.stdout is not None
        listening = re.match(r"listening on https://0.0.0.0:(\d+),", gateway.stdout.readline())
        assert listening is not None
        gateway.stdout.readline()
        monkeypatch.setenv("SHOAL_PLATFORM", f"https://127.0.0.1:{listening[1]}")
        assert "ca_file" in shoal("run", "pipeline.py:output").err
        monkeypatch.setenv("SHOAL_CA_FILE", str(certificate))
        output = shoal("run", "pipeline.py:output", "--set", "planner=wukong")
        assert (output.code, output.out) == (0, "3\n"), output.err
        default_engine.close()
        gateway.terminate()
        assert gateway.wait(TIMEOUT) == 0


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines", 2),
        (["--host", "no such host", "--insecure"], "can't listen", 1),
        (["--certificate", "here"], "Give both --certificate and --private-key", 2),
        (["--certificate", "here", "--private-key", "there"], "PEM format", 2),
        (["--port", "99999"], "ports go from 0 to 65535", 1),
        (["--sandboxes", "0"], "at least 1", 2),
        (["--idle-seconds", "-1"], "at least 0", 2),
    ],
)
def test_a_gateway_that_cannot_start_says_why(
    shoal: Shoal, args: list[str], message: str, code: int
) -> None:
    said = shoal("gateway", *args)
    assert said.code == code
    assert message in said.err


def test_a_port_in_use_is_an_error(shoal: Shoal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = shoal("gateway", "--port", str(server.getsockname()[1]))
    assert said.code == 1
    assert "in use" in said.err


# Terminals.


def test_charts_have_colours_on_a_terminal_unless_no_color_is_set(
    shoal: Shoal, terminal: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "pipeline.py:output", "--name", "x", "--report")
    commands = (run, ("plan", "pipeline.py:output"), ("show", "last"))
    terminal(80)
    for value, colours in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        for command in commands:
            said = shoal(*command)
            assert said.code == 0, said.err
            assert ("\x1b[38;5;" in said.out + said.err) == colours, command


def test_characters_that_a_stream_cannot_encode_are_replaced(folder: Path) -> None:
    (folder / "größe.py").write_text(
        "import shoal\noutput = shoal.task(len, name='größe')('grün')\n", encoding="utf-8"
    )
    for command in ("plan", "run"):
        report = ["--report"] * (command == "run")
        with started(command, "größe.py:output", *report, PYTHONIOENCODING="ascii") as process:
            out, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, err
        assert "gr??e" in out + err
        assert "Traceback" not in err


def test_a_page_is_utf_8_in_any_locale(folder: Path) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    (folder / "sizes.py").write_text(
        "import shoal\noutput = shoal.task(len, name='größe')('')\n", encoding="utf-8"
    )
    with started("plan", "sizes.py:output", "--html", "page.html", **ascii_only) as process:
        err = process.communicate(timeout=TIMEOUT)[1]
    assert process.returncode == 0, err
    assert "größe" in (folder / "page.html").read_text(encoding="utf-8")


# As a process.


def test_ctrl_c_exits_with_130_and_a_message(folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import time, pathlib, shoal\n"
        "def sleep():\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
        "output = shoal.task(sleep)()\n"
    )
    with started(
        "run", "slow.py:output", OF_TEST=str(folder), SHOAL_PASS_VARIABLES="OF_TEST"
    ) as process:
        assert eventually(lambda: (folder / "begun").exists())
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("interrupted\nCompleted outputs are kept: ")
    assert eventually(
        lambda: (
            not [
                text
                for text in processes_mentioning(f"OF_TEST={folder}").values()
                if "valkey" not in text
            ]
        )
    )


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    with started("--help") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(TIMEOUT) in (0, 120)
        assert "Traceback" not in process.stderr.read()
    with started("runs") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr.read() == ""
