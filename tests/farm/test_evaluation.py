"""`shoal farm evaluate` and `train`: tables, figures and policy files."""

import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.farm.evaluation import Setting, evaluate, load_policy, maker_named, names_for, table
from shoal.farm.figures import course_svg, tradeoff_svg

NAMES = ("fixed-15", "square-root")


@pytest.fixture(scope="module")
def episodes() -> dict[str, list]:  # type: ignore[type-arg]
    return evaluate({name: maker_named(name) for name in NAMES}, Setting(), seeds=2)


def test_every_autoscaler_meets_the_same_streams() -> None:
    makers = {"a": maker_named("fixed-15"), "b": maker_named("fixed-15")}
    found = evaluate(makers, Setting(), seeds=2)
    assert found["a"] == found["b"]
    assert found["a"][0] != found["a"][1]


def test_the_table_has_the_papers_rows(episodes: dict) -> None:  # type: ignore[type-arg]
    lines = table(episodes).splitlines()
    assert lines[0].split() == list(NAMES)
    titles = ["QoS [%]", "mean workers", "max workers", "scaling actions", "no-ops"]
    titles += [f"phase {p} {what}" for p in range(4) for what in ("QoS [%]", "workers")]
    assert [line[: len(title)] for line, title in zip(lines[1:], titles, strict=True)] == titles


def test_the_table_has_standard_errors(episodes: dict) -> None:  # type: ignore[type-arg]
    four = table({"a": [*episodes["fixed-15"]] * 2}).splitlines()
    low, high = sorted(100 * episode.qos for episode in episodes["fixed-15"])
    deviation = (high - low) / 3**0.5  # of two values, each twice
    assert four[1].split()[2:] == [f"{(low + high) / 2:.2f}", "±", f"{deviation / 2:.2f}"]


def test_trained_autoscalers_are_compared_where_shipped() -> None:
    assert {"sarsa", "dqn"} <= set(names_for(Setting("paper-measured", "fifo")))
    rare = names_for(Setting("paper-measured", "earliest-deadline"))
    assert rare == ["reactive-average", "reactive-maximum", "square-root"]


@pytest.mark.parametrize("draw", [tradeoff_svg, course_svg])
def test_figures_are_well_formed(draw: object, episodes: dict) -> None:  # type: ignore[type-arg]
    root = ElementTree.fromstring(draw(episodes, "a < b"))  # type: ignore[operator]
    assert root.tag.endswith("svg")
    assert all(name in "".join(root.itertext()) for name in (*NAMES, "a < b"))


@pytest.mark.parametrize("name", ["fixed-0", "fixed-many", "nobody"])
def test_an_unknown_autoscaler_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="There is no autoscaler"):
        maker_named(name)


@pytest.mark.slow
def test_a_policy_is_trained_and_compared_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.npz"
    train = ["farm", "train", "sarsa", str(policy), "--workloads", "poisson"]
    assert main([*train, "--episodes", "25"]) == 0
    names = f"fixed-12,{policy}"
    compare = ["farm", "evaluate", names, "--workloads", "poisson", "--orders", "fifo"]
    figures = tmp_path / "figures"
    assert main([*compare, "--clock", "with", "--seeds", "2", "--figures", str(figures)]) == 0
    out = capsys.readouterr().out
    assert "poisson, fifo, with phase clock; 2 streams" in out
    assert len(list(figures.glob("*.svg"))) == 2


@pytest.mark.slow
def test_a_policy_file_contains_the_command_that_recreates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir()
    again.mkdir()
    train = ["farm", "train", "sarsa", str(first / "policy.npz"), "--workloads", "poisson"]
    short = ["--episodes", "25", "--target", "90.5", "--order", "least-laxity"]
    assert main([*train, *short, "--no-clock", "--seed", "3"]) == 0
    program, *command = shlex.split(load_policy(str(first / "policy.npz")).about["command"])
    monkeypatch.chdir(again)
    assert program == "shoal"
    assert main(command) == 0
    assert (again / "policy.npz").read_bytes() == (first / "policy.npz").read_bytes()


def test_a_policy_file_gets_its_extension(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["farm", "train", "sarsa", "policy.txt"]) == 2
    assert ".npz" in capsys.readouterr().err
