"""Word count: a workflow of 32 tasks in six levels on one text.

    level  tasks
        0  count        16   the words of a piece
        1  merge_words   8   two counts each, and so on
        2  merge_words   4
        3  merge_words   2
        4  merge_words   1
        5  rank          1   the most frequent words

The pieces are constant arguments. A word is a run of letters and digits, in small letters.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from shoal.experiments.checks import check_counts
from shoal.experiments.text_analysis import generate_text
from shoal.experiments.tree_reduction import in_pairs
from shoal.workflow import Output, task

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class WordCount:
    """The result."""

    words: int
    distinct: int
    most_frequent: tuple[tuple[str, int], ...]
    """Words with how often they appear, most frequent first, then by the alphabet."""


def word_count(
    text: str | None = None, chunks: int = 16, *, lines: int = 100_000, most: int = 10
) -> Output[WordCount]:
    """The workflow that counts words: 32 tasks unless chunks are given.

    Args:
        text: What is read; default: a generated text of so many `lines`.
        chunks: How many pieces of whole lines the text is cut into.
        lines: The length of the generated text.
        most: How many words the result tells.
    """
    check_counts("word_count", chunks=chunks, lines=lines, most=most)
    read = generate_text(lines) if text is None else text
    counts = [count(piece) for piece in cut_lines(read, chunks)]
    return rank(in_pairs(merge_words, counts), most)


def cut_lines(text: str, pieces: int) -> list[str]:
    """The text as pieces of whole lines, about equally many in each."""
    lines = text.splitlines(keepends=True)
    cuts = [i * len(lines) // pieces for i in range(pieces + 1)]
    return ["".join(lines[cuts[i] : cuts[i + 1]]) for i in range(pieces)]


@task
def count(piece: str) -> Counter[str]:
    """The words of one piece."""
    return Counter(_WORD.findall(piece.lower()))


@task
def merge_words(one: Counter[str], other: Counter[str]) -> Counter[str]:
    """The words of both."""
    return one + other


@task
def rank(words: Counter[str], most: int) -> WordCount:
    """The most frequent words."""
    ranking = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    return WordCount(words.total(), len(words), tuple(ranking[:most]))
