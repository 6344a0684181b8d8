"""The event loop of a server: it steps quick environments itself, and survives one that hangs.

A quick step takes a tenth of the time that waking a thread for it takes, and being woken again. So
the loop runs such calls between two of its turns, in its own thread. If one of them hangs, the loop
goes on without it:

- Before a call the loop puts it down as its token, and afterwards it picks the token up again.
- A watcher thread looks at the token every `TICK_S`. If it sees the same call twice, it picks the
  token up itself. From then on the loop runs in the watcher's thread, with the same sockets, timers
  and tasks: nothing was on the stack of the old thread but that one call. There is a new watcher.
- When the call returns, the old thread finds its token gone. It hands the outcome in and serves the
  environments that it ran so far, as a thread of the pool.

The thread that has picked the token up runs the loop; `list.pop` decides. So a call that hangs
costs its thread, and delays others by two ticks at most. Calls that wait for the loop's thread
share it with everything else on the loop: after `TURN_S` of them there is another turn.

The loop also moves on request (`leave_thread`): away from environments that are slow, and
to the thread of environments that have become quick.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from asyncio import _set_running_loop  # public, for loops like this one
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, final

from envweave.wire.polling import SPIN_S, SpinBackoff, has_cores

TICK_S = 0.010
"""How often the watcher looks. A call is left behind after one to two ticks."""

TURN_S = 0.001
"""How long waiting calls run before the loop looks for other work again."""

SWITCH_S = 0.0005
"""Python's switch interval while a call that was left behind runs: it may be computing."""

_IDLE_TICKS = 20  # after this many without a call the watcher sleeps until there is one

Work: TypeAlias = Callable[[], Any]
"""What a thread does: it returns what the thread does next, or `None` if it ends."""


def run_thread(work: Work | None) -> None:
    """Do one work after the other. None of them is on the stack of the next."""
    while work is not None:
        work = work()


class InlineCall(Protocol):
    """A call of an author's code that the loop runs in its own thread.

    Attributes:
        since: When the code began to run (`time.monotonic`); set by the loop.
    """

    since: float

    def run(self) -> None:
        """Run the code and store its outcome. Raises nothing."""

    def finish(self) -> None:
        """Deliver the outcome, on the loop, or let the rest run later. Raises nothing."""

    def leave_behind(self, thread: threading.Thread) -> None:
        """Called on the loop, which has left this thread because `run` takes long."""

    def serve_behind(self) -> Work | None:
        """Called after `run` instead of `finish`, in the thread that the loop has left.

        That thread is free to serve other calls then. Returns what it does next.
        """
        ...


class Departure(NamedTuple):
    """How the loop leaves a thread.

    Attributes:
        then: What the thread does next.
        lead: Runs the loop, which it is given as work, in another thread.
    """

    then: Work | None
    lead: Callable[[Work], Any]


@final
class SpinningSelector(selectors.DefaultSelector):
    """A selector that polls for a moment before it sleeps, as long as that pays.

    It polls while one peer alone sends one message after the other. With several, the cores have
    other work.

    Attributes:
        may_spin: Whether one peer alone was active last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may_spin = False
        self._has_cores = has_cores()
        self._backoff = SpinBackoff()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        may_spin = self.may_spin and self._has_cores and (timeout is None or timeout > SPIN_S)
        if may_spin and self._backoff.is_due() and (ready := self._spin()):
            return ready
        return super().select(timeout)

    def _spin(self) -> list[tuple[selectors.SelectorKey, int]]:
        clock, poll = time.perf_counter, super().select
        ends_s = clock() + SPIN_S
        ready: list[tuple[selectors.SelectorKey, int]] = []
        while not ready and clock() < ends_s:
            ready = poll(0)
        self._backoff.record(arrived=bool(ready))
        return ready


@final
class _SwitchInterval:
    """Python's switch interval, which every loop of the process shares.

    Attributes:
        users: How many calls that were left behind still run.
    """

    def __init__(self) -> None:
        self.users = 0
        self._normal_s = 0.0
        self._lock = threading.Lock()

    def shorten(self) -> None:
        """Shorten it, until `restore` was called as often."""
        with self._lock:
            if not self.users:
                self._normal_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_S)
            self.users += 1

    def restore(self) -> None:
        """Restore it if no other call needs it short."""
        with self._lock:
            self.users -= 1
            if not self.users:
                sys.setswitchinterval(self._normal_s)


_switch_interval = _SwitchInterval()


@final
class ServerEventLoop(asyncio.SelectorEventLoop):
    """An event loop that runs quick calls itself, and moves when one of them hangs.

    It never runs in the thread that calls `run_forever`, which only waits: that one, often the
    main thread, could not leave a call that hangs.

    Attributes:
        moves: How many calls it has left behind.
        delayed_s: How long calls that are not quick have held it up, in total.
        thread: The thread that it runs in now.
        selector: Its selector.
        calls: The calls to run in the thread of the loop after this turn. Only callbacks of the
            loop may add to them.
    """

    if TYPE_CHECKING:  # what it uses of its base class, which `run_forever` uses there
        _stopping: bool
        _thread_id: int | None

        def _check_closed(self) -> None: ...
        def _check_running(self) -> None: ...
        def _run_once(self) -> None: ...
        def _asyncgen_firstiter_hook(self, agen: Any) -> None: ...
        def _asyncgen_finalizer_hook(self, agen: Any) -> None: ...

    def __init__(self) -> None:
        self.selector = SpinningSelector()
        super().__init__(self.selector)
        self.moves = 0
        self.delayed_s = 0.0
        self.calls: deque[InlineCall] = deque()
        # The call that runs now. A list of its own for each thread that runs the loop: one that
        # comes back late must not find the token of another.
        self._token: list[InlineCall] = []
        self._leave: Callable[[], Departure | None] | None = None
        self._left: tuple[InlineCall, threading.Thread] | None = None  # behind, just now
        self._last_peer = 0
        self._is_watched = True
        self._wake_watcher = threading.Event()
        self._is_over = threading.Event()
        self.thread = self._watcher = threading.current_thread()
        self._failure: BaseException | None = None

    def note_peer(self, peer: object) -> bool:
        """Record the sender of a message; return whether it sent the previous one too."""
        is_alone = self._last_peer == id(peer)
        self._last_peer = id(peer)
        self.selector.may_spin = is_alone
        return is_alone

    def take_back(self, is_wanted: Callable[[InlineCall], bool]) -> list[InlineCall]:
        """Return, in order, the calls that have not begun, and do not run them."""
        calls, self.calls = list(self.calls), deque()
        self.calls.extend(call for call in calls if not is_wanted(call))
        return [call for call in calls if is_wanted(call)]

    def leave_thread(self, leave: Callable[[], Departure | None]) -> None:
        """Move to another thread before the next call or turn.

        Args:
            leave: Called then, in the thread that is left; returns `None` to stay.
        """
        self._leave = leave

    @property
    def is_crowded(self) -> bool:
        """Whether calls that were left behind compete for the interpreter."""
        return bool(_switch_interval.users)

    def run_forever(self) -> None:
        """Run in threads of its own until `stop` is called; wait for that."""
        self._check_closed()
        self._check_running()
        self._is_over = over = threading.Event()
        self._failure = None
        start_loop(self._lead)
        self._watcher = _start(partial(self._watch, over), "watcher")
        over.wait()
        for thread in (self.thread, self._watcher):
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _lead(self) -> Work | None:
        """Run the loop in this thread until it ends or moves; return what the thread does then."""
        self.thread = threading.current_thread()
        self._thread_id = threading.get_ident()
        token: list[InlineCall] = []
        self._token = token
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        _set_running_loop(self)
        try:
            self._note_left()
            self.call_soon(_turn)  # calls may wait
            while not self._stopping:
                self._run_once()
                if self.calls and (serve_behind := self._run_calls(token)) is not None:
                    return serve_behind
                if self._leave is not None:
                    leave, self._leave = self._leave, None
                    if (departure := leave()) is not None:
                        departure.lead(self._lead)
                        return departure.then
        except BaseException as error:  # noqa: BLE001 - raised by `run_forever`
            self._failure = error
        finally:
            _set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        self._stopping, self._thread_id = False, None
        self._is_over.set()
        self._wake_watcher.set()
        return None

    def _note_left(self) -> None:
        """Tell a call that it was left behind, before anything else happens."""
        left, self._left = self._left, None
        if left is not None:
            call, thread = left
            try:
                call.leave_behind(thread)
            except Exception as error:  # noqa: BLE001 - as for every callback of a loop
                self.call_exception_handler({"message": "a call has failed", "exception": error})

    def _run_calls(self, token: list[InlineCall]) -> Work | None:
        """Run calls that wait; if the loop has left this thread, return what it does then."""
        ends_s = 0.0
        for _ in range(len(self.calls)):  # those that are added meanwhile wait for another turn
            call = self.calls.popleft()
            # The author's code may run an event loop of its own.
            _set_running_loop(None)
            call.since = now_s = monotonic()
            ends_s = ends_s or now_s + TURN_S
            token.append(call)
            if not self._is_watched:
                self._is_watched = True
                self._wake_watcher.set()
            call.run()
            try:
                token.pop()
            except IndexError:
                _switch_interval.restore()
                return call.serve_behind
            _set_running_loop(self)
            try:
                call.finish()
            except Exception as error:  # noqa: BLE001 - as for every callback of a loop
                self.call_exception_handler({"message": "a call has failed", "exception": error})
            if not self.calls:
                return None
            if self._leave is not None or monotonic() > ends_s:
                break
        self.call_soon(_turn)  # else the next turn might wait for a message
        return None

    # The watcher

    def _watch(self, over: threading.Event) -> Work | None:
        seen: tuple[InlineCall, float] | None = None  # a call may run in several parts
        quiet = 0
        while not over.is_set():
            over.wait(TICK_S)
            token = self._token
            last, seen = seen, next(((call, call.since) for call in token), None)
            quiet = quiet + 1 if seen is None else 0
            if quiet > _IDLE_TICKS:
                self._wake_watcher.clear()
                self._is_watched = False
                # The loop puts its token down first, and looks whether it is watched afterwards.
                if not self._token and not over.is_set():
                    self._wake_watcher.wait()
                self._is_watched, quiet = True, 0
            if seen is None or seen != last:
                continue
            _switch_interval.shorten()
            try:
                call = token.pop()
            except IndexError:  # it returned just now
                _switch_interval.restore()
                continue
            self._watcher = _start(partial(self._watch, over), "watcher")
            self.moves += 1
            self.delayed_s += monotonic() - call.since
            self._left = call, self.thread
            return self._lead
        return None


@final
class GatheringTransport(asyncio.Transport):
    """A transport that sends the head of an HTTP response together with its body.

    They are written one after the other, and would be two packets. A head without a body is sent at
    the end of the loop's turn.

    Attributes:
        direct: The transport of the loop, which sends at once.
    """

    def __init__(self, direct: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.direct = direct
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:  # type: ignore[override] # as uvicorn calls it
        """Write a head, or what follows it."""
        if self._head or not data.startswith(b"HTTP/"):
            self.direct.write(self._head + data)
            self._head = b""
        else:
            self._head = data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.direct.write(head)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection."""
        return self.direct.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self.direct.is_closing()

    def close(self) -> None:
        """Close after everything was sent."""
        self._flush()
        self.direct.close()

    def abort(self) -> None:
        """Close at once."""
        self._head = b""
        self.direct.abort()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return self.direct.get_write_buffer_size() + len(self._head)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self.direct.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self.direct.get_protocol()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self.direct.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.direct.resume_reading()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return self.direct.is_reading()


def start_loop(lead: Work) -> None:
    """Run the loop in a new thread."""
    _start(lead, "loop")


def _start(work: Work, name: str) -> threading.Thread:
    thread = threading.Thread(target=run_thread, args=(work,), name=f"envweave-{name}", daemon=True)
    thread.start()
    return thread


def _turn() -> None:
    """Scheduled so that the next turn of the loop does not wait."""
