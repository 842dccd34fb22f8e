"""`shoal plan`, and the planning options and output of `shoal run`."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from cli_examples import Shoal

pytestmark = pytest.mark.real


def test_plan_previews_and_runs_nothing(shoal: Shoal) -> None:
    said = shoal("plan", "pipeline.py:output")
    assert said.code == 0, said.err
    assert said.out.startswith("plan of 2 tasks by spread, from no history, made in ")
    assert re.search(r"^w0 .*a", said.out, re.MULTILINE)
    assert "There are no runs yet" in shoal("runs").out


def test_plan_uses_the_history_of_its_name(shoal: Shoal) -> None:
    shoal("run", "pipeline.py:output", "--name", "known")
    known = shoal("plan", "pipeline.py:output", "--name", "known")
    assert re.match(r"plan of 2 tasks by auto \(\w+\), from 1 run, ", known.out)
    other = shoal("plan", "pipeline.py:output", "--name", "other")
    assert "from no history" in other.out


def test_plan_accepts_parameters_and_settings(shoal: Shoal) -> None:
    args = ("--set", "first=1", "--set", "memory_mb=1024", "--set", "workers=1")
    said = shoal("plan", "pipeline.py:total", *args, "--set", "prices=none")
    assert (said.code, "1 of 1024 MB" in said.out) == (0, True)
    assert "no price list" in said.out


@pytest.mark.parametrize("planner", ["auto", "uniform", "nonuniform", "spread", "wukong"])
@pytest.mark.parametrize("level", ["median", "95", "99.5%"])
def test_plan_accepts_a_planner_and_a_service_level(shoal: Shoal, planner: str, level: str) -> None:
    said = shoal("plan", "pipeline.py:output", "--planner", planner, "--sla", level)
    assert said.code == 0, said.err
    shown = "the median" if level == "median" else f"the {level.rstrip('%')} % level"
    assert f"at {shown} " in said.out


@pytest.mark.parametrize("goal", [("--deadline", "20"), ("--budget", "1e-3")])
@pytest.mark.parametrize("planner", [(), ("--planner", "auto")])
def test_plan_and_run_accept_a_goal(
    shoal: Shoal, goal: tuple[str, str], planner: tuple[str, ...]
) -> None:
    args = ("pipeline.py:output", "--name", "x", *goal, *planner)
    assert shoal("run", *args).out == "3\n"
    said = shoal("plan", *args)
    assert said.code == 0, said.err
    assert "no plan was found" not in said.out


def test_plan_reports_a_goal_that_no_plan_meets(shoal: Shoal) -> None:
    shoal("run", "pipeline.py:output", "--name", "x")
    said = shoal("plan", "pipeline.py:output", "--name", "x", "--deadline", "1e-6")
    assert said.code == 0
    assert "no plan was found that meets the deadline" in said.out


def test_plan_compares_explains_and_writes_a_page(shoal: Shoal, folder: Path) -> None:
    shoal("run", "pipeline.py:output", "--name", "x")
    args = ("--compare", "uniform", "--sla", "90", "--html", "made/plan.html")
    explained = ("--explain", "add#0", "--explain", "add#1")
    said = shoal("plan", "pipeline.py:output", "--name", "x", *args, *explained)
    assert said.code == 0, said.err
    parts = said.out.split("\n\n")
    assert re.search(r"auto \(.+\) \(\d\) +uniform \(\d\)\nmakespan ", parts[2])
    assert parts[3].startswith("add#0 runs on w")
    assert parts[4].startswith("add#1 runs on w")
    assert parts[5] == "written to made/plan.html\n"
    page = (folder / "made" / "plan.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "x, as planned" in page


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--planner", "unifrom"], "There is no planner 'unifrom'; did you mean 'uniform'?"),
        (["--deadline", "soon"], "--deadline soon: must be a number greater than 0."),
        (["--deadline", "0"], "--deadline 0: must be a number greater than 0."),
        (["--deadline", "nan"], "--deadline nan: must be a number greater than 0."),
        (["--budget", "-1"], "--budget -1: must be a number greater than 0."),
        (["--budget", "inf"], "--budget inf: must be a number greater than 0."),
        (["--budget", "1", "--deadline", "1"], "Give --deadline or --budget, not both."),
        (["--sla", "mean"], "--sla mean: must be median or a percentage such as 95."),
        (["--sla", "100"], "a percentage, at least 1 and below 100."),
        (["--sla", "0.95"], "at least 1 and below 100; did you mean 95?"),
        (["--planner", "uniform", "--deadline", "1"], "'uniform' takes no deadline; 'auto' does."),
        (["--set", "planner=spread", "--budget", "1"], "'spread' takes no budget; 'auto' does."),
        (["--set", "prices=mine"], "There are no prices for 'mine'"),
        (["--set", "name=3"], "--set name: not a setting; use --name."),
        (["--set", "sla=95"], "--set sla: not a setting; use --sla."),
    ],
)
def test_an_impossible_plan_is_a_one_line_error_with_code_2(
    shoal: Shoal, command: str, args: list[str], message: str
) -> None:
    said = shoal(command, "pipeline.py:output", *args)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.py:output"], "There is no file nowhere.py."),
        (["pipeline.py:output", "--explain", "sub#0"], "no task 'sub#0'; it has add#0, add#1"),
        (["pipeline.py:output", "--explain", "add"], "no task 'add'; did you mean 'add#0'?"),
        (["pipeline.py:output", "--compare", "best"], "There is no planner 'best'"),
        (["pipeline.py:output", "--html", "."], "can't be written"),
    ],
)
def test_bad_arguments_of_plan_are_errors_before_anything_is_printed(
    shoal: Shoal, args: list[str], message: str
) -> None:
    said = shoal("plan", *args)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_unusable_registered_planner_is_a_one_line_error(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    point = importlib.metadata.EntryPoint("theirs", "nowhere_at_all:One", "shoal.planners")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [point])
    said = shoal(command, "pipeline.py:output", "--planner", "theirs")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "error: The planner 'theirs', registered as nowhere_at_all:One, can't be used: "
        "ModuleNotFoundError: No module named 'nowhere_at_all'.\n"
    )


def test_run_reports_plan_and_reality_along_with_its_value(shoal: Shoal) -> None:
    for basis in ("no history", "1 run"):
        said = shoal("run", "pipeline.py:output", "--name", "x", "--report")
        assert (said.code, said.out) == (0, "3\n"), said.err
        assert re.match(rf"planned by .+ from {basis}( in \S+ \S+)?\n", said.err)
        assert re.search(r"predicted +recorded\nmakespan s ", said.err)
        assert "w0 plan" in said.err
        assert said.err.splitlines()[-1].startswith("run ")


@pytest.mark.parametrize("command", ["plan", "run"])
def test_help_describes_planning_options(shoal: Shoal, command: str) -> None:
    said = shoal(command, "--help")
    for option in ("--planner NAME", "--deadline SECONDS", "--budget USD", "--sla LEVEL"):
        assert option in said.out
