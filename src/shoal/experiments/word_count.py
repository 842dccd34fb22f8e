"""Define word count, a workflow of 32 tasks in six levels on one text.

    level  tasks
        0  count        16   the words of a piece
        1  merge_words   8   two counts each, and so on
        2  merge_words   4
        3  merge_words   2
        4  merge_words   1
        5  rank          1   the most frequent words

The pieces are constant arguments. A word is a run of letters and digits, in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from shoal.experiments.parameters import check_counts
from shoal.experiments.text_analysis import generate_text
from shoal.experiments.tree_reduction import in_pairs
from shoal.workflow import Output, task

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class WordCount:
    """The result of the workflow."""

    words: int
    distinct: int
    most_frequent: tuple[tuple[str, int], ...]
    """Words with their counts, most frequent first, then alphabetically."""


def word_count(
    text: str | None = None, chunks: int = 16, *, lines: int = 100_000, most: int = 10
) -> Output[WordCount]:
    """Build the workflow that counts words: 32 tasks by default.

    Args:
        text: The text to count; default: a generated text with `lines` lines.
        chunks: How many pieces of whole lines to split the text into.
        lines: The length of the generated text.
        most: How many words the result contains.
    """
    check_counts("word_count", chunks=chunks, lines=lines, most=most)
    read = generate_text(lines) if text is None else text
    counts = [count(piece) for piece in cut_lines(read, chunks)]
    return rank(in_pairs(merge_words, counts), most)


def cut_lines(text: str, pieces: int) -> list[str]:
    """Split the text into pieces with about equally many lines."""
    lines = text.splitlines(keepends=True)
    cuts = [i * len(lines) // pieces for i in range(pieces + 1)]
    return ["".join(lines[cuts[i] : cuts[i + 1]]) for i in range(pieces)]


@task
def count(piece: str) -> Counter[str]:
    """Count the words of one piece."""
    return Counter(_WORD.findall(piece.lower()))


@task
def merge_words(one: Counter[str], other: Counter[str]) -> Counter[str]:
    """Merge two counts."""
    return one + other


@task
def rank(words: Counter[str], most: int) -> WordCount:
    """Return the most frequent words."""
    ranking = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    return WordCount(words.total(), len(words), tuple(ranking[:most]))
