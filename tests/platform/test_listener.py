"""The listener calls back for files that are ready, and can be woken."""

from __future__ import annotations

import socket

from shoal.platform.listener import Listener


def test_a_callback_is_called_when_its_file_is_readable() -> None:
    listener, called = Listener(), list[str]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        listener.add(ours, lambda: called.append("read"))
        listener.call(listener.wait(0.0))
        assert called == []
        theirs.send(b"!")
        listener.call(listener.wait(0.0))
        assert called == ["read"]
        listener.remove(ours)
        listener.remove(ours)
        assert listener.wait(0.0) == []
    listener.close()


def test_a_file_that_a_callback_removes_gets_no_further_calls() -> None:
    listener, called = Listener(), list[str]()
    pairs = [socket.socketpair() for _ in range(2)]

    def remove_all() -> None:
        called.append("once")
        for ours, _ in pairs:
            listener.remove(ours)

    for ours, theirs in pairs:
        listener.add(ours, remove_all)
        theirs.send(b"!")
    listener.call(listener.wait(0.0))
    assert called == ["once"]
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    listener.close()


def test_writability_is_reported_only_while_requested() -> None:
    listener, called = Listener(), list[str]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        listener.await_writable(ours, True)  # nobody listens to it
        listener.add(ours, lambda: called.append("written"))
        for wanted in (True, False):
            listener.await_writable(ours, wanted)
            listener.call(listener.wait(0.0))
        assert called == ["written"]
        listener.remove(ours)
    listener.close()


def test_it_can_be_woken_any_number_of_times() -> None:
    listener = Listener()
    for _ in range(10_000):
        listener.wake()
    while ready := listener.wait(0.0):
        listener.call(ready)
    listener.close()
