"""Mailboxes in every store: reading, waiting, hanging up."""

from __future__ import annotations

from shoal.errors import RunOver
from shoal.storage.base import (
    Completion,
    Opening,
    Store,
)
from shoal.storage.keys import CLIENT
from shoal.storage.letters import Failure, Letter, OutputReady, TaskFailed
from shoal.testing.pytest_required import pytest
from shoal.testing.store_examples import (
    Connect,
    fields,
    flat,
    in_background,
    mark,
    t,
    w0,
    w1,
)
from shoal.testing.waiting import TIMEOUT
from shoal.types import RunId, TaskId


class StoreMail:
    """A mailbox keeps its messages, and a reader waits until one comes or somebody hangs up."""

    def test_message_sent_before_its_reader_starts_is_there(
        self, connect: Connect, run: RunId
    ) -> None:
        sender = connect()
        sender.open(run, Opening([w0]))
        sender.complete(run, w0, 1, Completion((), [mark(t, w1, w0, payload=b"x")]))
        reader = connect()
        reader.enter(run, w1, 1)
        assert fields(reader.receive(run, w1, "", 0)) == [("ready", t, b"x")]

    def test_reading_takes_nothing_out(self, connect: Connect, run: RunId) -> None:
        store = connect()
        store.open(run, Opening([w0]))
        for number in range(3):
            store.post(run, OutputReady(TaskId(f"o{number}"), b"%d" % number))
        first = store.receive(run, CLIENT, "", 0)
        assert fields(first) == [("output", f"o{number}", b"%d" % number) for number in range(3)]
        assert store.receive(run, CLIENT, "", 0) == first
        assert connect().receive(run, CLIENT, "", 0) == first

    def test_receive_returns_only_the_messages_behind_the_one_named(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0]))
        for number in range(4):
            store.complete(run, w0, 1, Completion(letters=[OutputReady(TaskId(f"o{number}"))]))
        letters = store.receive(run, CLIENT, "", 0)
        assert len({letter.id for letter in letters}) == 4
        for position, letter in enumerate(letters):
            assert store.receive(run, CLIENT, letter.id, 0) == letters[position + 1 :]

    def test_letters_of_one_completion_keep_their_order(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        letters: list[Letter] = []
        for number in range(7):  # of no, one and two parts
            task = TaskId(f"o{number}")
            letters += [OutputReady(task), OutputReady(task, b"x" * number)]
            letters += [TaskFailed(task, Failure(w0, "why", cause=b"x" * number))]
        store.complete(run, w0, 1, Completion(letters=letters))
        assert [letter for _, letter in store.receive(run, CLIENT, "", 0)] == letters

    @pytest.mark.parametrize("timeout", [0, 0.02])
    def test_no_message_in_time_is_an_empty_list(
        self, store: Store, run: RunId, timeout: float
    ) -> None:
        store.open(run, Opening([w0]))
        assert store.receive(run, CLIENT, "", timeout) == []
        store.post(run, OutputReady(TaskId("o")))
        read = store.receive(run, CLIENT, "", timeout)[0].id
        assert store.receive(run, CLIENT, read, timeout) == []

    def test_receive_waits_for_a_message(self, connect: Connect, run: RunId) -> None:
        reader, sender = connect(), connect()
        reader.open(run, Opening([w0]))
        read = ""
        for number in range(5):
            thread, results = in_background(reader.receive, run, CLIENT, read, TIMEOUT)
            thread.join(0.01)
            assert results == []
            sender.post(run, OutputReady(TaskId(f"o{number}")))
            thread.join(TIMEOUT)
            assert fields(results[0]) == [("output", f"o{number}")]
            read = results[0][0].id

    def test_waiting_for_mail_blocks_nobody_else(self, store: Store, run: RunId) -> None:
        """One thread of a worker waits for mail while others use the same store."""
        store.open(run, Opening([w0]))
        waiting = [in_background(store.receive, run, box, "", TIMEOUT)[0] for box in (w0, CLIENT)]
        waiting[0].join(0.02)
        store.complete(run, w0, 1, Completion([("a", [b"a"])], executed=1))
        assert flat(store.fetch(run, ["a"])[0]) == b"a"
        assert all(thread.is_alive() for thread in waiting)
        store.hang_up(run, w0)
        store.hang_up(run, CLIENT)
        for thread in waiting:
            thread.join(TIMEOUT)
            assert not thread.is_alive()

    def test_two_threads_may_wait_for_one_mailbox(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        waiting = [in_background(store.receive, run, CLIENT, "", TIMEOUT) for _ in range(2)]
        waiting[0][0].join(0.02)
        store.post(run, OutputReady(TaskId("o")))
        for thread, results in waiting:
            thread.join(TIMEOUT)
            assert fields(results[0]) == [("output", "o")]

    def test_hanging_up_ends_the_waiting_and_nothing_else(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        for _ in range(3):
            thread, results = in_background(store.receive, run, w0, "", TIMEOUT)
            thread.join(0.02)
            store.hang_up(run, w0)
            thread.join(TIMEOUT)
            assert results == [[]]
        store.complete(run, w0, 1, Completion((), [mark(t, w0, w0)]))
        assert fields(store.receive(run, w0, "", TIMEOUT)) == [("ready", t, b"")]

    def test_hanging_up_just_before_the_waiting_ends_it_too(self, store: Store, run: RunId) -> None:
        """A worker finishes just before its mail thread begins to wait.

        1. The thread that reads mail sees that the worker isn't finished.
        2. The worker finishes and hangs up. Nobody waits yet.
        3. The thread begins to wait, and would keep the worker alive until its timeout.
        """
        store.open(run, Opening([w0]))
        for _ in range(2):
            store.hang_up(run, w0)
            thread, results = in_background(store.receive, run, w0, "", TIMEOUT)
            thread.join(TIMEOUT / 2)
            assert results == [[]]
        store.complete(run, w0, 1, Completion((), [mark(t, w0, w0)]))
        assert fields(store.receive(run, w0, "", TIMEOUT)) == [("ready", t, b"")]

    def test_hanging_up_at_any_moment_ends_the_waiting(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        for _ in range(50):
            thread, results = in_background(store.receive, run, w0, "", TIMEOUT)
            store.hang_up(run, w0)
            thread.join(TIMEOUT / 2)
            assert results == [[]]

    def test_closing_the_run_ends_the_waiting(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        waiting = [in_background(store.receive, run, box, "", TIMEOUT) for box in (w0, CLIENT)]
        waiting[0][0].join(0.02)
        store.close(run, [w0])
        for thread, results in waiting:
            thread.join(TIMEOUT / 2)
            assert not thread.is_alive()
            assert results == [[]] or isinstance(results[0], RunOver)
