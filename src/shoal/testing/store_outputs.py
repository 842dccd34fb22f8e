"""Outputs in every store: saved, saved again, fetched."""

from __future__ import annotations

import secrets

from shoal.storage.base import (
    Completion,
    Opening,
    Store,
)
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.letters import Failure, OutputReady, TaskFailed, WorkerFinished
from shoal.testing.pytest_required import pytest
from shoal.testing.store_examples import (
    BINARY,
    LARGE,
    LONG,
    Connect,
    fields,
    flat,
    in_background,
    mark,
    t,
    u,
    w0,
    w1,
)
from shoal.testing.waiting import TIMEOUT
from shoal.types import RunId, TaskId, WorkerId


class StoreOutputs:
    """An output is saved before it is announced, whatever its size."""

    def test_missing_output_is_none(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        store.complete(run, w0, 1, Completion([("a", [b"a"])]))
        assert [flat(data) for data in store.fetch(run, ["b", "a", "c"])] == [None, b"a", None]

    def test_empty_output_is_not_a_missing_one(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0], outputs={"c": [b""]}))
        store.complete(run, w0, 1, Completion([("a", [b"", b""]), ("b", [])]))
        assert [flat(data) for data in store.fetch(run, ["a", "b", "c"])] == [b"", b"", b""]

    def test_outputs_come_in_the_order_asked_for_whatever_their_size(
        self, store: Store, run: RunId
    ) -> None:
        sizes = {"a": 1, "b": LARGE, "c": 65_536, "d": 65_537, "e": 0, "f": LONG, "g": 2**20 + 1}
        contents = {name: name.encode() * size for name, size in sizes.items()}
        constants = {"k": b"k", "K": b"K" * LARGE, "L": b"L" * LONG}
        store.open(run, Opening([w0], outputs={name: [data] for name, data in constants.items()}))
        store.complete(run, w0, 1, Completion([(name, [data]) for name, data in contents.items()]))
        names = ["K", "d", "a", "f", "c", "L", "k", "e", "b", "g", "d"]
        found = [flat(data) for data in store.fetch(run, names)]
        assert found == [{**contents, **constants}[name] for name in names]

    def test_output_of_10_mb_in_several_buffers_survives(self, store: Store, run: RunId) -> None:
        random = secrets.token_bytes(5_000_000)
        pieces: Blob = [
            b"head",
            memoryview(random),
            b"",
            bytearray(3),
            memoryview(random)[1:],
            b"tail",
        ]
        store.open(run, Opening([w0]))
        store.complete(run, w0, 1, Completion([("A", pieces), ("b", [b"small"])]))
        found = store.fetch(run, ["A", "b"])
        assert flat(found[0]) == b"".join(pieces)
        assert flat(found[1]) == b"small"

    @pytest.mark.parametrize(
        "contents",
        [
            (b"s", b"t"),
            (b"s", b"L" * LARGE),
            (b"L" * LARGE, b"s"),
            (b"L" * LARGE, b"M" * LARGE),
            (b"L" * LARGE, b"N" * LONG),
            (b"N" * LONG, b"O" * LONG),
        ],
        ids=[
            *("small, small", "small, large", "large, small", "large, large"),
            *("large, long", "long, long"),
        ],
    )
    def test_output_that_is_saved_again_is_the_latest(
        self, store: Store, run: RunId, contents: tuple[bytes, bytes]
    ) -> None:
        store.open(run, Opening([w0]))
        for content in (*contents, *contents):
            store.complete(run, w0, 1, Completion([("a", [content])]))
            assert flat(store.fetch(run, ["a"])[0]) == content

    @pytest.mark.parametrize("length", [1, LARGE])
    def test_the_owner_of_a_ready_task_finds_what_was_saved_with_its_marks(
        self, connect: Connect, run: RunId, length: int
    ) -> None:
        producer, owner = connect(), connect()
        producer.open(run, Opening([w0, w1]))
        thread, results = in_background(owner.receive, run, w1, "", TIMEOUT)
        save: tuple[str, Blob] = ("a", [b"x" * length])
        producer.complete(run, w0, 1, Completion([save], [mark(t, w1, w0)]))
        thread.join(TIMEOUT)
        assert fields(results[0]) == [("ready", t, b"")]
        assert flat(owner.fetch(run, ["a"])[0]) == b"x" * length

    def test_names_and_values_may_be_any_bytes_and_letters(self, store: Store, run: RunId) -> None:
        name = "größe\r\n#1 \x00 {x} * ?"
        failure = Failure(w0, name, name, name, BINARY)
        store.open(run, Opening([w0], {w0: [BINARY]}, {name: [BINARY]}))
        assert flat(store.enter(run, w0, 1).part) == BINARY
        store.complete(
            run,
            w0,
            1,
            Completion(
                [(name + "2", [BINARY, BINARY]), (name + "3", [BINARY * 1000])],
                [mark(TaskId(name), w1, w0, payload=BINARY)],
                [TaskFailed(TaskId(name), failure), OutputReady(TaskId(name), BINARY)],
            ),
        )
        found = [flat(data) for data in store.fetch(run, [name, name + "2", name + "3"])]
        assert found == [BINARY, BINARY * 2, BINARY * 1000]
        assert fields(store.receive(run, w1, "", 0)) == [("ready", name, BINARY)]
        failed, output = (letter for _, letter in store.receive(run, CLIENT, "", 0))
        assert failed == TaskFailed(TaskId(name), failure)
        assert output == OutputReady(TaskId(name), BINARY)
        store.post(run, WorkerFinished(WorkerId(name), BINARY, (WorkerId(name),)))
        (_, finished) = store.receive(run, CLIENT, "", 0)[-1]
        assert finished == WorkerFinished(WorkerId(name), BINARY, (WorkerId(name),))
        assert store.park(run, w0, 1, "", BINARY)
        store.complete(run, w0, 1, Completion((), [mark(u, w0, w0)]))
        assert flat(store.enter(run, w0, 2).executed) == BINARY
