"""The text-analysis workflow: its shape and its report."""

import re

import pytest

from evaluating import evaluated, shape
from shoal.errors import UsageError
from shoal.experiments.text_analysis import TextReport, generate_text, text_analysis
from shoal.session import Session
from shoal.workflow import Workflow


@pytest.fixture(scope="module")
def text() -> str:
    return generate_text(2_000, seed=7)


@pytest.fixture(scope="module")
def report(text: str) -> TextReport:
    found = evaluated(text_analysis(text))
    assert isinstance(found, TextReport)
    return found


def test_it_has_59_tasks_in_eight_levels() -> None:
    workflow = Workflow.of(text_analysis("One line."))
    assert len(workflow) == 59
    assert shape(workflow) == {
        (0, "cut"): 1,
        (1, "count"): 32,
        (2, "merge_counts"): 1,
        (3, "segment"): 16,
        (3, "statistics"): 1,
        (4, "keywords"): 1,
        (4, "punctuation"): 1,
        (4, "readability"): 1,
        (4, "patterns"): 1,
        (5, "merge_analyses"): 1,
        (6, "metrics"): 1,
        (6, "summary"): 1,
        (7, "report"): 1,
    }


def test_report_has_the_totals_of_a_direct_count(text: str, report: TextReport) -> None:
    assert report.lines == len(text.splitlines()) == 2_000
    assert report.words == len(text.split())
    assert report.metrics["sentences"] == len(re.findall(r"[.!?]\n", text))


def test_report_has_the_marks_and_patterns_of_a_direct_count(text: str, report: TextReport) -> None:
    patterns = report.analyses.patterns
    assert dict(report.analyses.marks)["."] == text.count(".")
    assert patterns["email"] == text.count("@") > 0
    assert patterns["percentage"] == text.count("%") > 0
    assert patterns["date"] == len(re.findall(r"\d{4}-\d\d-\d\d|\d March \d{4}", text)) > 0
    assert patterns["number"] == text.count("(page ") > 0


def test_totals_do_not_depend_on_how_the_text_is_split(text: str, report: TextReport) -> None:
    other = evaluated(text_analysis(text, chunks=5, segments=3))
    assert (other.lines, other.words) == (report.lines, report.words)
    assert other.metrics == report.metrics
    assert other.analyses.marks == report.analyses.marks


def test_keywords_are_content_words_of_the_text(text: str, report: TextReport) -> None:
    keywords = [word for word, _ in report.analyses.keywords]
    assert len(keywords) == 10
    assert all(word in text.lower().split() for word in keywords)
    assert not {"the", "of", "and"} & set(keywords)


def test_keywords_distinguish_segments() -> None:
    text = "\n".join(["of the tide at sea"] * 20 + ["with a wind at sea"] * 20)
    report = evaluated(text_analysis(text, chunks=4, segments=2))
    assert {word for word, _ in report.analyses.keywords} == {"tide", "wind"}


def test_readability_is_that_of_flesch_and_kincaid() -> None:
    # 8 words of 10 syllables in 2 sentences: the e of "made" is silent, that of "table" isn't.
    metrics = evaluated(text_analysis("We made a table. It was a table.")).metrics
    assert metrics["words per sentence"] == 4
    assert metrics["reading ease"] == round(206.835 - 1.015 * 4 - 84.6 * 10 / 8, 1)
    assert metrics["school grade"] == round(0.39 * 4 + 11.8 * 10 / 8 - 15.59, 1)


def test_summary_is_sentences_of_the_text_in_its_order(text: str, report: TextReport) -> None:
    assert len(report.summary) == 2
    assert all(sentence in text for sentence in report.summary)
    tide, wind = ["The tide rose."] * 9, ["The wind fell far away."] * 9
    for lines in (tide + wind, wind + tide):
        found = evaluated(text_analysis("\n".join(lines), chunks=2, segments=2))
        assert found.summary == (lines[0], lines[-1])


@pytest.mark.parametrize("text", ["", "\n\n", "word", "no end of a sentence\r\nnor — here\r\n"])
def test_any_text_can_be_analysed(text: str) -> None:
    report = evaluated(text_analysis(text))
    assert report.lines == len(text.splitlines())
    assert report.words == len(text.split())
    assert str(report)


def test_report_is_about_a_dozen_lines_on_a_terminal(report: TextReport) -> None:
    rows = str(report).splitlines()
    assert 12 <= len(rows) <= 15
    assert all(len(row) <= 140 for row in rows)
    assert rows[0].split() == ["lines", "2,000"]


def test_the_report_is_deterministic(text: str, report: TextReport) -> None:
    assert evaluated(text_analysis(text)) == report


def test_the_seed_determines_the_text() -> None:
    assert generate_text(50, seed=1) == generate_text(50, seed=1)
    assert generate_text(50, seed=1) != generate_text(50, seed=2)


def test_workflow_on_another_text_has_the_same_fingerprint() -> None:
    one, other = text_analysis(generate_text(10)), text_analysis(generate_text(20, seed=1))
    assert Workflow.of(one).fingerprint() == Workflow.of(other).fingerprint()


def test_text_is_generated_unless_given() -> None:
    assert evaluated(text_analysis(lines=30)) == evaluated(text_analysis(generate_text(30)))


@pytest.mark.parametrize("bad", [{"chunks": 0}, {"segments": 0}, {"lines": 0}, {"chunks": 2.5}])
def test_the_text_cannot_be_split_into_zero_segments(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        text_analysis("text", **bad)


@pytest.mark.real
def test_workers_compute_the_same_report(session: Session, text: str, report: TextReport) -> None:
    assert session.compute(text_analysis(text)) == [report]
