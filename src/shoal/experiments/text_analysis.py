"""Define text analysis, a workflow of 59 tasks in eight levels on one text.

    level  tasks
        0  cut                      1   the text into pieces of whole lines
        1  count                   32   the words of a piece
        2  merge_counts             1
        3  segment, statistics 16 + 1   a part of the text read closely; the whole in numbers
        4  keywords, punctuation,   4   what the segments say together
           readability, patterns
        5  merge_analyses           1
        6  metrics, summary         2
        7  report                   1

A word is what `str.split` returns, in lower case and without surrounding punctuation.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from textwrap import shorten
from typing import Any

from shoal.experiments.parameters import check_counts
from shoal.workflow import Output, task

Ranking = tuple[tuple[str, float], ...]
"""Words or punctuation marks with their scores, best first."""

_SPEECH = {
    "article": "the this its every their another one no",
    "adjective": "new small early open quiet common northern careful reliable unexpected",
    "noun": "river market letter engine harbour teacher village machine garden experiment morning "
    "question system winter company island library weather government journey telescope bridge",
    "verb": "follows holds changes describes carries reaches opens becomes replaces surrounds",
    "preposition": "of in with near from under after over towards between without",
}
_CLAUSE = ("article", "adjective", "noun", "verb", "article", "noun", "preposition", "noun")
_LINKS = (", and ", "; ", ", but ", " while ", ": ")
_FACTS = ("on 9 March 19{}", "since 20{}-04-30", "to {}%", "(page {})", "by clerk{}@example.org")

_STOP_WORDS = {*f"{_SPEECH['article']} {_SPEECH['preposition']} a and but while to on".split()}
_MARKS = string.punctuation + "\u201c\u201d\u2018\u2019\u2013\u2014\u2026"
_MARK = re.compile(f"[{re.escape(_MARKS)}]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_VOWELS = re.compile(r"[aeiouy]+")
_PATTERN = re.compile(
    r"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r"[a-z]* \d{4}\b)|(?P<percentage>\b\d+(?:\.\d+)?%)|(?P<number>\b\d+(?:[.,]\d+)*\b)"
)


@dataclass(frozen=True, slots=True)
class Counts:
    """The word counts of a piece of the text, or of all of it."""

    lines: int
    words: Counter[str]


@dataclass(frozen=True, slots=True)
class Segment:
    """The result of analysing a segment of the text."""

    words: int
    syllables: int
    sentences: int
    marks: Counter[str]
    patterns: Counter[str]
    keywords: Ranking
    """The words that are more frequent here than in the whole text."""
    best: str
    """The most informative sentence."""


@dataclass(frozen=True, slots=True)
class Analyses:
    """Combine all analyses of the text."""

    statistics: Mapping[str, float]
    keywords: Ranking
    marks: Ranking
    readability: Mapping[str, float]
    patterns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TextReport:
    """The result of the workflow; as a string, a dozen lines for a terminal."""

    lines: int
    words: int
    analyses: Analyses
    metrics: Mapping[str, float]
    summary: tuple[str, ...]

    def __str__(self) -> str:
        known = self.analyses
        rows = [
            *((name, f"{value:,}") for name, value in self.metrics.items()),
            ("keywords", ", ".join(word for word, _ in known.keywords)),
            ("marks", "  ".join(f"{mark} {times:,}" for mark, times in known.marks)),
            ("patterns", ", ".join(f"{times:,} {kind}s" for kind, times in known.patterns.items())),
            *(("" if i else "summary", line) for i, line in enumerate(self.summary)),
        ]
        return "\n".join(f"{label:<20} {text}".rstrip() for label, text in rows)


def generate_text(lines: int, seed: int = 0) -> str:
    """Generate a text with a sentence per line; chapters have themes, and some lines facts."""
    rng = random.Random(seed)
    speech = {kind: _drawn(rng, words.split()) for kind, words in _SPEECH.items()}
    nouns = _SPEECH["noun"].split()
    written = []
    for line in range(lines):
        if line % 250 == 0:  # another chapter, another theme
            theme = rng.randrange(len(nouns))
            speech["noun"] = _drawn(rng, nouns[theme:] + nouns[:theme])
        sentence = " ".join([next(speech[kind]) for kind in _CLAUSE])
        if rng.random() < 0.5:
            sentence += rng.choice(_LINKS) + " ".join([next(speech[kind]) for kind in _CLAUSE])
        if rng.random() < 0.2:
            sentence += " " + rng.choice(_FACTS).format(rng.randint(10, 99))
        written.append(sentence[0].upper() + sentence[1:] + rng.choice("....!?") + "\n")
    return "".join(written)


def _drawn(rng: random.Random, words: Sequence[str]) -> Iterator[str]:
    """Yield random words without end, with frequencies that follow Zipf's law."""
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    while True:
        yield from rng.choices(words, cum_weights=weights, k=500)


def text_analysis(
    text: str | None = None, chunks: int = 32, segments: int = 16, *, lines: int = 100_000
) -> Output[TextReport]:
    """Build the workflow that analyses a text: 59 tasks by default.

    Args:
        text: The text to analyse; default: a generated text with `lines` lines.
        chunks: How many pieces to count words in.
        segments: How many segments to analyse.
        lines: The length of the generated text.
    """
    check_counts("text_analysis", chunks=chunks, segments=segments, lines=lines)
    pieces = cut(generate_text(lines) if text is None else text, chunks)
    counts = merge_counts([count(pieces, i) for i in range(chunks)])
    read = [segment(pieces, counts, i, segments) for i in range(segments)]
    overall = keywords(read), punctuation(read), readability(read), patterns(read)
    analyses = merge_analyses(statistics(counts), overall)
    return report(analyses, metrics(analyses), summary(analyses, read))


@task
def cut(text: str, pieces: int) -> list[str]:
    """Split the text into pieces with about equally many lines."""
    lines = text.splitlines(keepends=True)
    return ["".join(_part(lines, i, pieces)) for i in range(pieces)]


@task
def count(pieces: Sequence[str], i: int) -> Counts:
    """Count the words of one piece."""
    piece = pieces[i]
    return Counts(len(piece.splitlines()), Counter(map(_word, piece.split())))


@task
def merge_counts(counts: Sequence[Counts]) -> Counts:
    """Merge the counts of all pieces."""
    words = sum((counted.words for counted in counts), Counter[str]())
    return Counts(sum(counted.lines for counted in counts), words)


@task
def statistics(counts: Counts) -> dict[str, float]:
    """Compute statistics of the whole text."""
    words = counts.words.total()
    letters = sum(len(word) * times for word, times in counts.words.items())
    return {
        "lines": counts.lines,
        "words": words,
        "distinct words": len(counts.words),
        "letters per word": round(letters / max(1, words), 2),
    }


@task
def segment(pieces: Sequence[str], counts: Counts, i: int, segments: int) -> Segment:
    """Analyse one segment of the text; sentences end with the segment."""
    text = "".join(_part(pieces, i, segments)).strip()
    words = Counter(map(_word, text.split()))
    scores = _distinctive(words, counts.words)
    sentences = _SENTENCE_END.split(text) if text else []
    return Segment(
        words=words.total(),
        syllables=sum(_syllables(word) * times for word, times in words.items()),
        sentences=len(sentences),
        marks=Counter(_MARK.findall(text)),
        patterns=Counter(str(match.lastgroup) for match in _PATTERN.finditer(text)),
        keywords=_top(scores, 50),
        best=max(sentences, key=lambda sentence: _weight(sentence, scores), default=""),
    )


@task
def keywords(segments: Iterable[Segment]) -> Ranking:
    """Return the words that distinguish the segments best."""
    scores: dict[str, float] = {}
    for part in segments:
        for word, score in part.keywords:
            scores[word] = scores.get(word, 0.0) + score
    return _top(scores, 10)


@task
def punctuation(segments: Iterable[Segment]) -> Ranking:
    """Return the most frequent punctuation marks."""
    return _top(sum((part.marks for part in segments), Counter[str]()), 10)


@task
def readability(segments: Sequence[Segment]) -> dict[str, float]:
    """Compute the text's Flesch reading ease and its Flesch-Kincaid grade."""
    sentences = sum(part.sentences for part in segments)
    words = sum(part.words for part in segments)
    length = words / max(1, sentences)
    weight = sum(part.syllables for part in segments) / max(1, words)
    return {
        "sentences": sentences,
        "words per sentence": round(length, 2),
        "reading ease": round(206.835 - 1.015 * length - 84.6 * weight, 1),
        "school grade": round(0.39 * length + 11.8 * weight - 15.59, 1),
    }


@task
def patterns(segments: Iterable[Segment]) -> dict[str, int]:
    """Count the addresses, dates and numbers in the text."""
    found = sum((part.patterns for part in segments), Counter[str]())
    return {kind: found[kind] for kind in _PATTERN.groupindex}


@task
def merge_analyses(statistics: dict[str, float], overall: tuple[Any, ...]) -> Analyses:
    """Combine all analyses of the text."""
    return Analyses(statistics, *overall)


@task
def metrics(analyses: Analyses) -> dict[str, float]:
    """Collect all figures about the text, and its density of facts."""
    facts = 100 * sum(analyses.patterns.values()) / max(1, analyses.statistics["words"])
    return {**analyses.statistics, **analyses.readability, "facts per 100 words": round(facts, 2)}


@task
def summary(analyses: Analyses, segments: Iterable[Segment]) -> tuple[str, ...]:
    """Return the two most informative sentences, in the order of the text."""
    scores = dict(analyses.keywords)
    sentences = list(dict.fromkeys(part.best for part in segments if part.best))
    best = sorted(sentences, key=lambda sentence: _weight(sentence, scores))[-2:]
    return tuple(shorten(sentence, 100) for sentence in sentences if sentence in best)


@task
def report(analyses: Analyses, metrics: dict[str, float], summary: tuple[str, ...]) -> TextReport:
    """Return the report on the text."""
    return TextReport(int(metrics["lines"]), int(metrics["words"]), analyses, metrics, summary)


def _part(items: Sequence[str], i: int, parts: int) -> Sequence[str]:
    """Return the i-th of several parts that together contain all items."""
    return items[i * len(items) // parts : (i + 1) * len(items) // parts]


def _word(token: str) -> str:
    return token.strip(_MARKS).lower() or token


def _syllables(word: str) -> int:
    return max(1, len(_VOWELS.findall(word)) - (word[-1] == "e" and word[-2:] != "le"))


def _distinctive(words: Counter[str], overall: Counter[str]) -> dict[str, float]:
    """Return the words that are more frequent in a part than in the whole, by log-likelihood."""
    share = words.total() / max(1, overall.total())
    candidates = [word for word in words if word.isalpha() and word not in _STOP_WORDS]
    scores = {word: words[word] * log(words[word] / (overall[word] * share)) for word in candidates}
    return {word: score for word, score in scores.items() if score > 0}


def _weight(sentence: str, scores: Mapping[str, float]) -> float:
    words = dict.fromkeys(map(_word, sentence.split()))
    return sum(scores.get(word, 0.0) for word in words) / max(8, len(words))


def _top(scores: Mapping[str, float], most: int) -> Ranking:
    return tuple(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:most])
