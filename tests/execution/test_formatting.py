"""Times, sizes, counts and names have one format everywhere."""

from __future__ import annotations

import pytest

from shoal.execution.formatting import (
    counted,
    figure,
    listed,
    nbytes_text,
    percent,
    printable,
    seconds_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (3.04e-5, "30.4 \N{MICRO SIGN}s"),
        (0.25, "250 ms"),
        (3.7, "3.70 s"),
        (1000.0, "1,000 s"),
        (123456.7, "123,457 s"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (2500, "2.50 kB"), (2 * 10**7, "20.0 MB"), (10**13, "10,000 GB")],
)
def test_a_size_has_the_unit_that_suits_it(nbytes: int, text: str) -> None:
    assert nbytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0004, "0.0004"), (25.25, "25.2"), (999.7, "1,000"), (4012.0, "4,012")],
)
def test_a_large_figure_has_all_its_digits(value: float, text: str) -> None:
    assert figure(value) == text


def test_a_large_deviation_is_shown_as_a_factor() -> None:
    assert [percent(share) for share in (0.25, 3.0, 9.99)] == ["25%", "300%", "999%"]
    assert [percent(share, "+") for share in (-0.5, 0.0, 1.0)] == ["-50%", "+0%", "+100%"]
    assert percent(13980.01, "+") == "\N{MULTIPLICATION SIGN}13,981"


def test_one_is_singular() -> None:
    assert [counted(count, "task") for count in (0, 1, 20_000)] == [
        "0 tasks",
        "1 task",
        "20,000 tasks",
    ]
    assert [counted(count, "sandbox", "es") for count in (1, 2)] == ["1 sandbox", "2 sandboxes"]


def test_only_the_first_of_many_names_are_listed() -> None:
    assert listed(["a"], 2) == "a"
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"


def test_control_characters_are_escaped() -> None:
    assert printable("größe [red]") == "größe [red]"
    assert printable("\x1b[31m\r\n\x9b\u202e") == r"\x1b[31m\r\n\x9b\u202e"
    assert printable("a\nb\x1b", kept="\n") == "a\nb\\x1b"


@pytest.mark.parametrize(
    "text", ["1\u202f000\xa0€", "\u3000全角", "\u0645\u06cc\u200c", "👩\u200d🚀"]
)
def test_spaces_and_joiners_of_any_script_are_kept(text: str) -> None:
    assert printable(text + "\n") == text + r"\n"
