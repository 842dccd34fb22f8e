"""The word count: its shape, and its counts however the text is split."""

import re
from collections import Counter
from typing import Any

import pytest

from evaluating import evaluated, shape
from shoal.errors import UsageError
from shoal.experiments.text_analysis import generate_text
from shoal.experiments.word_count import WordCount, cut_lines, word_count
from shoal.session import Session
from shoal.workflow import Workflow


@pytest.fixture(scope="module")
def text() -> str:
    return generate_text(500, seed=2)


def test_it_has_32_tasks_in_six_levels() -> None:
    workflow = Workflow.of(word_count("One line."))
    assert len(workflow) == 32
    assert shape(workflow) == {
        (0, "count"): 16,
        (1, "merge_words"): 8,
        (2, "merge_words"): 4,
        (3, "merge_words"): 2,
        (4, "merge_words"): 1,
        (5, "rank"): 1,
    }


@pytest.mark.parametrize("chunks", [1, 2, 3, 16, 600])
def test_the_counts_equal_a_direct_count(text: str, chunks: int) -> None:
    words = Counter(re.findall("[a-z0-9]+", text.lower()))
    found = evaluated(word_count(text, chunks, most=len(words)))
    assert found.words == words.total()
    assert found.distinct == len(words)
    assert dict(found.most_frequent) == words
    assert [times for _, times in found.most_frequent] == sorted(words.values(), reverse=True)


def test_words_are_compared_in_lower_case_and_ties_are_alphabetical() -> None:
    found = evaluated(word_count("The sea, the SEA;\nÉté — été!\nbay_ant", most=4))
    assert found == WordCount(8, 5, (("sea", 2), ("the", 2), ("été", 2), ("ant", 1)))


def test_chunks_are_whole_lines_and_make_up_the_text(text: str) -> None:
    pieces = cut_lines(text, 16)
    assert len(pieces) == 16
    assert "".join(pieces) == text
    assert {len(piece.splitlines()) for piece in pieces} == {31, 32}
    assert cut_lines("", 3) == ["", "", ""]


def test_text_is_generated_unless_given() -> None:
    assert evaluated(word_count(lines=30)) == evaluated(word_count(generate_text(30)))


@pytest.mark.parametrize("bad", [{"chunks": 0}, {"lines": 0}, {"most": 0}, {"chunks": "some"}])
def test_an_empty_text_is_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"word_count\(.*at least 1"):
        word_count("text", **bad)


@pytest.mark.real
def test_workers_compute_the_same_counts(session: Session, text: str) -> None:
    assert session.compute(word_count(text)) == [evaluated(word_count(text))]
