# SPDX-License-Identifier: Apache-2.0
"""Calls that destructors defer, and the order in which subsystems restart after a fork and end at exit."""

from __future__ import annotations

import os
import subprocess
import textwrap
import threading

import pytest

from child_process import run_in_child
from own_process import python
from pinning import PinningError
from pinning.runtime.process import WeakRegistry, defer, run_deferred

WAIT = 60  # seconds, for what must happen


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "ignore", "-c", textwrap.dedent(text), timeout=WAIT)


def test_another_thread_does_what_is_left_for_later() -> None:
    done, lock = threading.Event(), threading.Lock()
    threads: list[int] = []

    def give_back(number: int) -> None:
        with lock:
            threads.append(threading.get_ident())
        if number == 9:
            done.set()

    with lock:  # as a destructor may run under any lock
        for number in range(10):
            defer(give_back, number)
    assert done.wait(WAIT)
    assert len(set(threads)) == 1, "one thread for all"
    assert threading.get_ident() not in threads


def test_when_threads_can_be_had_again_nothing_has_been_lost() -> None:
    def check() -> None:
        done = [threading.Event(), threading.Event()]
        before = threading.stack_size(1 << 47)  # all addresses of a process: no thread can be started with that
        defer(done[0].set)
        threading.stack_size(before)
        defer(done[1].set)
        assert all(each.wait(WAIT) for each in done)

    run_in_child(check)


def test_refused_call_does_not_delay_the_others() -> None:
    done = threading.Event()

    def refuse() -> None:
        raise PinningError("no")

    defer(refuse)
    defer(done.set)
    assert done.wait(WAIT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_is_told_and_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: told.append(arguments.exc_type))
    done = threading.Event()
    defer(divmod, 1, 0)
    defer(done.set)
    assert done.wait(WAIT)
    assert told == [ZeroDivisionError]


def test_catching_up_does_it_here() -> None:
    block, began = threading.Event(), threading.Event()

    def hold() -> None:  # called twice, as the service thread's call is not known to be over
        began.set()
        if threading.current_thread() is not threading.main_thread():
            block.wait(WAIT)

    defer(hold)
    assert began.wait(WAIT)
    here: list[int] = []
    defer(lambda: here.append(threading.get_ident()))
    run_deferred()
    block.set()
    assert here == [threading.get_ident()]


def test_an_interrupted_catching_up_loses_nothing() -> None:
    block, began, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        if threading.current_thread() is not threading.main_thread():
            block.wait(WAIT)

    def interrupted_once() -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        done.set()

    defer(hold)
    assert began.wait(WAIT)
    defer(interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        run_deferred()
    block.set()
    assert done.wait(WAIT)


def test_a_child_forgets_what_its_parent_has_left() -> None:
    block, began = threading.Event(), threading.Event()
    calls: list[int] = []

    def hold() -> None:
        began.set()
        block.wait(WAIT)

    defer(hold)
    assert began.wait(WAIT)
    defer(lambda: calls.append(os.getpid()))

    def child() -> None:
        done = threading.Event()
        defer(done.set)  # by a thread of the child's own
        assert done.wait(WAIT)
        assert calls == []

    run_in_child(child)
    block.set()
    done = threading.Event()
    defer(done.set)
    assert done.wait(WAIT)
    assert calls == [os.getpid()]


def test_at_exit_what_is_left_goes_with_the_process() -> None:
    program = run_program("""
        import os, threading, time, pinning
        from pinning.runtime.process import defer

        class Dropped:
            def __del__(self, defer=defer):
                defer(os.write, 1, b"late")

        began = threading.Event()
        defer(lambda: (began.set(), time.sleep(3600)))  # a vendor that does not answer
        began.wait()
        defer(os.write, 1, b"left")
        kept = Dropped()
    """)
    assert (program.returncode, program.stdout, program.stderr) == (0, "", "")


def test_the_parts_begin_anew_and_end_in_order() -> None:
    program = run_program("""
        import os
        from functools import partial
        from pinning.runtime.process import at_exit, at_fork

        for part in ("maps", "queues", "arenas"):
            def say(what, part=part):
                print(what, part, flush=True)

            at_fork(partial(say, "child"), before=partial(say, "before"))
            at_exit(partial(say, "exit"))
            at_exit(lambda: 1 / 0)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
        else:
            os._exit(0)
    """)
    assert program.stdout.splitlines() == [
        "before maps", "before queues", "before arenas",
        "child maps", "child queues", "child arenas",
        "exit arenas", "exit queues", "exit maps",
    ]  # fmt: skip
    assert (program.returncode, program.stderr) == (0, "")


def test_a_set_that_keeps_nothing_alive_changes_under_whoever_goes_through_it() -> None:
    class Thing:
        pass

    living: WeakRegistry[Thing] = WeakRegistry()
    first, others = Thing(), [Thing()]
    living.add(first)
    for each in living:
        living.add(others[0])
        assert each is first
    assert set(living) == {first, others[0]}
    for _ in living:
        others.clear()
    del first, each, _
    assert list(living) == []


def test_an_inbox_whose_thread_gets_signals() -> None:
    """A signal that arrives just before the timeout must not make it wait for ever."""
    program = """\
import random, signal, threading, time
from pinning.runtime.process import Inbox

inbox, taken = Inbox(), 0

def take():
    global taken
    while True:
        inbox.take(0.0002)
        taken += 1

signal.signal(signal.SIGUSR1, lambda number, frame: None)
thread = threading.Thread(target=take, daemon=True)
thread.start()
for _ in range(1000):
    signal.pthread_kill(thread.ident, signal.SIGUSR1)
    time.sleep(random.uniform(0, 0.0004))
before, end = taken, time.monotonic() + 30
while taken == before:
    assert time.monotonic() < end, "it waits for ever"
    time.sleep(0.001)
"""
    done = run_program(program)
    assert done.returncode == 0, done.stderr
