"""The messages of envweave's own dialect.

A client and a server agree on it by WebSocket subprotocol, `envweave.v1.msgpack` or
`envweave.v1.json`. A frame holds one call, or many:

    {"id": 4, "session": "…", "method": "step", "params": {"action": {…}}}
    {"calls": [{…}, {…}], "together": true}
    {"sessions": ["…", "…"], "numbers": [4, 9], "actions": [{…}, {…}]}

and is answered by

    {"id": 4, "session": "…", "result": {…}}   or   {"id": 4, "session": "…", "fault": {…}}
    {"replies": [{…}, {…}]}
    {"sessions": ["…"], "numbers": [4], "observations": {…}, "rewards": [0.5], …, "rest": [{…}]}

The third form is a step of many sessions at once, written so that it is quick to read: `rest` has
the replies that say more than an observation, a reward and an info. The observations are columns
if they are of one kind (`columns.py`), and else a list.

A session is named by its caller, with an id that nobody can guess, so that `open` may be
repeated like every other call. The calls on one session are numbered from 1 and made one after
the other; a call that is repeated with its number, on this or on another connection, is answered
by the reply to the first. Calls without a session are answered anew each time.

| method | params | result |
|---|---|---|
| `describe` | | a `Description` |
| `tasks` | `split`, `start`, `count` | a list of tasks |
| `task` | `id` | a task |
| `open` | `autoreset`, `timeout_s`, `position` | `{"agents": […]}` |
| `reset` | `seed`, `task`, `options`, `episode_id` | a result (`results.py`) |
| `check_reset` | the same | null; it refuses what `reset` would refuse |
| `step` | `action`, or `answer` to a tool call; `timeout_s` | a result |
| `state` | | the fields of the state |
| `close` | | null |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from envweave.errors import WireError
from envweave.wire.columns import count_of, rows_of
from envweave.wire.encoding import Encoding

T = TypeVar("T")


def read_as(plain: Any, kind: type[T], refusal: str) -> T:
    """Return decoded data as a `kind`.

    Raises:
        WireError: It is none; the message begins with `refusal`.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{refusal}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever a stranger sent
        raise WireError(f"{refusal}: {type(error).__name__}") from None


OF_SESSIONS = frozenset({"open", "reset", "check_reset", "step", "state", "close"})
"""The methods that are called on a session."""

OF_SERVERS = frozenset({"describe", "tasks", "task"})
"""The methods that are called without one."""

MAX_CALLS = 4096
"""How many calls one frame may hold."""


Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What a call is known by."""


class Call(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a client asks of one session, or of the server.

    Attributes:
        id: The number of the call in its session, from 1; without a session, any number.
        method: What to do.
        session: Whom to ask; empty for the server itself.
        params: What the method is given, by name.
    """

    id: Number
    method: str
    session: str = ""
    params: dict[str, Any] = {}


class Calls(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Many calls in one frame.

    Attributes:
        calls: At most one a session.
        together: Whether the replies are sent in one frame, when all are there; otherwise
            each as soon as it is.
    """

    calls: list[Call]
    together: bool = True


class WireFault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a call was not carried out.

    Attributes:
        code: Which of the closed table in `faults.py`.
        message: The same in words, for whoever made the call.
    """

    code: str
    message: str


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of a call. It has a fault, or else a result, which may be null."""

    id: int
    session: str = ""
    result: Any = None
    fault: WireFault | None = None


class Replies(msgspec.Struct, kw_only=True):
    """What came of many calls, in their order."""

    replies: list[Reply]


class Steps(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A step of many sessions, in one frame; the replies are sent in one, when all are there.

    Attributes:
        sessions: Whom to ask, each once.
        numbers: The number of each call in its session.
        actions: What each is given.
    """

    sessions: list[str]
    numbers: list[Number]
    actions: list[Any]

    def call(self, i: int) -> Call:
        """Return one of the calls by itself."""
        params = {"action": self.actions[i]}
        return Call(id=self.numbers[i], session=self.sessions[i], method="step", params=params)


class Stepped(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of `Steps`. But for `rest`, a column each, over the steps that were ordinary.

    Attributes:
        observations: A list of them, or columns (`columns.py`).
        is_implied: Whether an observation has, besides its columns, the reward and the info of
            its step (as `reward` and `metadata`), and `done` and `truncated`, which are false.
        infos: What is not empty, with its place.
        tasks: What the episodes are about; empty if none has a task.
        rest: The replies to the others.
    """

    sessions: list[str]
    numbers: list[int]
    observations: Any
    rewards: list[Any]
    episodes: list[str | None]
    indices: list[int]
    is_implied: bool = False
    infos: list[tuple[int, dict[Any, Any]]] = []
    tasks: list[str | None] = []
    rest: list[Reply] = []


def bundled(calls: Sequence[Call], *, together: bool) -> Call | Calls | Steps:
    """Return calls as the message that says them most shortly."""
    if len(calls) == 1:
        return calls[0]
    if together and all(
        call.method == "step" and len(call.params) == 1 and "action" in call.params
        for call in calls
    ):
        return Steps(
            sessions=[call.session for call in calls],
            numbers=[call.id for call in calls],
            actions=[call.params["action"] for call in calls],
        )
    return Calls(calls=list(calls), together=together)


def read_calls(plain: Any) -> Call | Calls | Steps:
    """Return the call or calls in a frame that was decoded.

    Raises:
        WireError: It holds neither.
    """
    read: Calls | Steps
    if isinstance(plain, dict) and "calls" in plain:
        read = read_as(plain, Calls, "The frame holds no calls")
        named = [call.session for call in read.calls if call.session]
    elif isinstance(plain, dict) and "actions" in plain:
        read = read_as(plain, Steps, "The frame holds no steps")
        named = read.sessions
        if not len(named) == len(read.numbers) == len(read.actions):
            raise WireError("The frame holds steps without a session, a number or an action.")
    else:
        return read_as(plain, Call, "The frame holds no call")
    if len(named) > MAX_CALLS or (isinstance(read, Calls) and len(read.calls) > MAX_CALLS):
        raise WireError(f"The frame holds more than {MAX_CALLS} calls.")
    if len(set(named)) < len(named):
        raise WireError("The frame holds two calls on one session. Make one after the other.")
    return read


def read_replies(plain: Any) -> list[Reply]:
    """Return the replies in a frame that was decoded.

    Raises:
        WireError: It holds none.
    """
    if isinstance(plain, dict) and "replies" in plain:
        return read_as(plain, Replies, "The frame holds no replies").replies
    if has_stepped(plain):
        return unbundled(read_stepped(plain))
    return [read_as(plain, Reply, "The frame holds no reply")]


def has_stepped(plain: Any) -> bool:
    """Whether a frame that was decoded is the answer to `Steps`."""
    return isinstance(plain, dict) and "observations" in plain


def read_stepped(plain: Any) -> Stepped:
    """Return the answer to `Steps` in a frame that was decoded.

    Raises:
        WireError: It holds none, or its columns don't fit together.
    """
    sent = read_as(plain, Stepped, "The frame holds no steps")
    count = len(sent.sessions)
    columns = (sent.numbers, sent.rewards, sent.episodes, sent.indices, sent.tasks or sent.sessions)
    if {count_of(sent.observations), *map(len, columns)} != {count}:
        raise WireError("The frame holds columns of different lengths.")
    if not all(0 <= i < count for i, _ in sent.infos):
        raise WireError("The frame holds an info of no step.")
    return sent


def unbundled(sent: Reply | Replies | Stepped) -> list[Reply]:
    """Return the replies that a frame stands for, as if each had come by itself."""
    if isinstance(sent, Reply):
        return [sent]
    if isinstance(sent, Replies):
        return sent.replies
    rows = rows_of(sent.observations, sent.rewards, dict(sent.infos), implied=sent.is_implied)
    columns = (sent.numbers, rows, sent.rewards, sent.episodes, sent.indices)
    replies = [
        Reply(
            id=number,
            session=session,
            result={
                "observation": observation,
                "reward": reward,
                "episode_id": episode,
                "step_index": index,
            },
        )
        for session, number, observation, reward, episode, index in zip(
            sent.sessions, *columns, strict=True
        )
    ]
    for i, info in sent.infos:
        replies[i].result["info"] = info
    if sent.tasks:
        for reply, task in zip(replies, sent.tasks, strict=True):
            reply.result["task_id"] = task
    return [*replies, *sent.rest]


CALLS_BYTES: Final = 1 << 14
"""How large a frame of gathered calls may be."""

REPLIES_BYTES: Final = 1 << 18
"""How large a frame of gathered replies may be."""

_CALLS: Final = {
    False: (b"\x82\xa5calls", b"\xa8together\xc2"),
    True: (b'{"calls":[', b'],"together":false}'),
}
_REPLIES: Final = {False: (b"\x81\xa7replies", b""), True: (b'{"replies":[', b"]}")}

_AROUND: Final = 64  # no less than what is put around the parts


def gather_calls(
    encoding: Encoding, calls: Iterable[bytes], limit_bytes: int = 0
) -> Iterator[bytes]:
    """Yield encoded calls in as few frames as they fit in; each call is answered by itself.

    Args:
        encoding: How they are encoded.
        calls: At most one a session.
        limit_bytes: How large a frame the server takes; 0 if that is not known.
    """
    limit = min(CALLS_BYTES, limit_bytes - _AROUND) if limit_bytes else CALLS_BYTES
    return _gather(encoding, _CALLS[encoding.is_text], calls, limit)


def gather_replies(encoding: Encoding, replies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded replies in as few frames as they fit in. They are asked for one by one."""
    return _gather(encoding, _REPLIES[encoding.is_text], replies, REPLIES_BYTES)


def _gather(
    encoding: Encoding, around: tuple[bytes, bytes], parts: Iterable[bytes], limit: int
) -> Iterator[bytes]:
    some: list[bytes] = []
    size = 0
    for part in parts:
        if some and (size + len(part) > limit or len(some) == MAX_CALLS):
            yield _joined(some, around, is_text=encoding.is_text)
            some, size = [], 0
        some.append(part)
        size += len(part) + 1  # in JSON, a comma
    if some:
        yield _joined(some, around, is_text=encoding.is_text)


def _joined(parts: list[bytes], around: tuple[bytes, bytes], *, is_text: bool) -> bytes:
    if len(parts) == 1:
        return parts[0]
    before, after = around
    if is_text:
        return before + b",".join(parts) + after
    count = len(parts)
    length = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return b"".join((before, length, *parts, after))
