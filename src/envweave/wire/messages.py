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

The third form is a step of many sessions at once, in a form that is fast to read. Actions that have
the same fields may be a dict of columns (`{"move": [1, 0]}`). `rest` has the replies that say more
than an observation, a reward and an info. The observations are columns if they are of one kind
(`columns.py`), otherwise a list.

A session is named by its client, with an unguessable id, so that `open` may be repeated like every
other call. The calls on one session are numbered from 1 and made one after the other; a call that
is repeated with its number, on this or another connection, gets the same reply again. Calls
without a session are answered anew each time.

| method | params | result |
|---|---|---|
| `describe` | | a `Description` |
| `tasks` | `split`, `start`, `count` | a list of tasks |
| `task` | `id` | a task |
| `open` | `autoreset`, `timeout_s`, `position`, `wait_s`, `snapshot` | `{"agents": […]}` |
| `reset` | `seed`, `task`, `options`, `episode_id` | a result (`results.py`) |
| `check_reset` | the same | null; fails if `reset` would refuse its arguments |
| `step` | `action`, or `answer` to a tool call; `timeout_s` | a result |
| `state` | | the fields of the state |
| `snapshot` | | its token, the episode and its steps: `["…", "…", 4]` |
| `restore` | `token` | a result, with the steps of then |
| `close` | | null |

The server keeps what a snapshot holds; its token is all that a client gets. Any session of the
server may be restored from it, also after the session that it was taken of is closed. `open` takes
the token if the session is to be restored at once, so that it begins where the snapshot is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from envweave.errors import WireError
from envweave.wire.columns import ActionBatch, count_of, rows_of
from envweave.wire.encoding import MSGPACK, Data, Encoding, read_extension

T = TypeVar("T")


def read_as(plain: Any, kind: type[T], refusal: str) -> T:
    """Return decoded data as a `kind`.

    Raises:
        WireError: It is not one; the message begins with `refusal`.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{refusal}: {error}") from None
    except Exception as error:  # noqa: BLE001 - untrusted input
        raise WireError(f"{refusal}: {type(error).__name__}") from None


OF_SESSIONS = frozenset(
    {"open", "reset", "check_reset", "step", "state", "snapshot", "restore", "close"}
)
"""The methods that are called on a session."""

OF_SERVERS = frozenset({"describe", "tasks", "task"})
"""The methods that are called without a session."""

MAX_CALLS = 4096
"""How many calls one frame may have."""


Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""The number of a call."""


class Call(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A client's call on one session, or on the server.

    Attributes:
        id: The number of the call in its session, from 1; without a session, any number.
        method: The name of the method.
        session: The id of the session; empty for the server itself.
        params: The parameters by name.
    """

    id: Number
    method: str
    session: str = ""
    params: dict[str, Any] = {}


class Calls(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Many calls in one frame.

    Attributes:
        calls: At most one per session.
        together: Whether the replies are sent in one frame, when all are done; otherwise each
            as soon as it is done.
    """

    calls: list[Call]
    together: bool = True


class WireFault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a call failed.

    Attributes:
        code: A code of the closed table in `faults.py`.
        message: The error message, for the caller.
    """

    code: str
    message: str


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The reply to a call. It has a fault or a result, which may be null.

    Attributes:
        alone: Whether no other connection is active at the server. A client on the same machine
            may then poll for its next reply.
    """

    id: int
    session: str = ""
    result: Any = None
    fault: WireFault | None = None
    alone: bool = False


class Replies(msgspec.Struct, kw_only=True):
    """The replies to many calls, in their order."""

    replies: list[Reply]


class Steps(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A step of many sessions in one frame; the replies are sent in one, when all are done.

    Attributes:
        sessions: The ids of the sessions, each once.
        numbers: The number of each call in its session.
        actions: The action of each: a list, or a dict of columns if all have the same fields.
    """

    sessions: list[str]
    numbers: list[Number]
    actions: list[Any] | dict[str, list[Any]]

    @property
    def rows(self) -> Sequence[Any]:
        """The action of each session."""
        return self.actions if isinstance(self.actions, list) else ActionBatch(self.actions)

    def call(self, i: int) -> Call:
        """Return one of the calls by itself."""
        params = {"action": self.rows[i]}
        return Call(id=self.numbers[i], session=self.sessions[i], method="step", params=params)


class Stepped(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The reply to `Steps`: columns over the ordinary steps, and `rest`.

    Attributes:
        observations: A list of them, or columns (`columns.py`).
        is_implied: Whether each observation also has the reward and the info of its step (as
            `reward` and `metadata`), and `done` and `truncated`, which are false.
        infos: The infos that are not empty, with their indices.
        tasks: The task ids of the episodes; empty if none has a task.
        rest: The replies to the other steps.
        alone: As in `Reply`.
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
    alone: bool = False


def bundle_calls(calls: Sequence[Call], *, together: bool) -> Call | Calls | Steps:
    """Return calls as the shortest message for them."""
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


def read_calls_in(data: Data, encoding: Encoding) -> Call | Calls | Steps:
    """Return the call or calls in a frame.

    Raises:
        WireError: It cannot be read, or has none.
    """
    if encoding is not MSGPACK or isinstance(data, str):
        return read_calls(encoding.decode(data))
    try:
        read: Call | Calls | Steps = _CALL_DECODERS.get(_first_key(data), _read_call)(data)
    except Exception:  # noqa: BLE001 - read again, to say what is wrong with it
        return read_calls(encoding.decode(data))
    return read if isinstance(read, Call) else _checked_calls(read)


def _first_key(data: bytes | bytearray | memoryview) -> bytes:
    """Return the first key of a short MessagePack map, which tells the messages apart."""
    return bytes(data[2 : 2 + (data[1] & 0x1F)])


def _decoder(kind: Any) -> Callable[[bytes | bytearray | memoryview], Any]:
    return msgspec.msgpack.Decoder(kind, ext_hook=read_extension).decode


_read_call = _decoder(Call)
_read_reply = _decoder(Reply)
_CALL_DECODERS = {b"calls": _decoder(Calls), b"sessions": _decoder(Steps)}
_REPLY_DECODERS = {b"replies": _decoder(Replies), b"sessions": _decoder(Stepped)}


def read_calls(plain: Any) -> Call | Calls | Steps:
    """Return the call or calls in a decoded frame.

    Raises:
        WireError: It has none.
    """
    if isinstance(plain, dict) and "calls" in plain:
        return _checked_calls(read_as(plain, Calls, "The frame has no calls"))
    if isinstance(plain, dict) and "actions" in plain:
        return _checked_calls(read_as(plain, Steps, "The frame has no steps"))
    return read_as(plain, Call, "The frame has no call")


def _checked_calls(read: Calls | Steps) -> Calls | Steps:
    if isinstance(read, Calls):
        named = [call.session for call in read.calls if call.session]
    else:
        named, actions = read.sessions, read.actions
        counts = {len(named), len(read.numbers)}
        counts.update([len(actions)] if isinstance(actions, list) else map(len, actions.values()))
        if len(counts) > 1 or (not actions and named):
            raise WireError("The frame has steps without a session, a number or an action.")
    if len(named) > MAX_CALLS or (isinstance(read, Calls) and len(read.calls) > MAX_CALLS):
        raise WireError(f"The frame has more than {MAX_CALLS} calls.")
    if len(set(named)) < len(named):
        raise WireError("The frame has two calls on one session. Make one after the other.")
    return read


def read_replies_in(data: Data, encoding: Encoding) -> list[Reply]:
    """Return the replies in a frame.

    Raises:
        WireError: It cannot be read, or has none.
    """
    sent = read_answer_in(data, encoding)
    return [sent] if type(sent) is Reply else split_replies(sent)


def read_answer_in(data: Data, encoding: Encoding) -> Reply | Replies | Stepped:
    """Return the reply or replies in a frame, as they were sent.

    Raises:
        WireError: It cannot be read, or has none.
    """
    if encoding is not MSGPACK or isinstance(data, str):
        return read_answer(encoding.decode(data))
    try:
        sent: Reply | Replies | Stepped
        sent = _REPLY_DECODERS.get(_first_key(data), _read_reply)(data)
    except Exception:  # noqa: BLE001 - read again, to say what is wrong with it
        return read_answer(encoding.decode(data))
    return _checked_columns(sent) if type(sent) is Stepped else sent


def read_replies(plain: Any) -> list[Reply]:
    """Return the replies in a decoded frame.

    Raises:
        WireError: It has none.
    """
    return split_replies(read_answer(plain))


def read_answer(plain: Any) -> Reply | Replies | Stepped:
    """Return the reply or replies in a decoded frame, as they were sent.

    Raises:
        WireError: It has none, or its columns have different lengths.
    """
    if isinstance(plain, dict) and "replies" in plain:
        return read_as(plain, Replies, "The frame has no replies")
    if isinstance(plain, dict) and "observations" in plain:
        return _checked_columns(read_as(plain, Stepped, "The frame has no steps"))
    return read_as(plain, Reply, "The frame has no reply")


def _checked_columns(sent: Stepped) -> Stepped:
    count = len(sent.sessions)
    columns = (sent.numbers, sent.rewards, sent.episodes, sent.indices, sent.tasks or sent.sessions)
    if {count_of(sent.observations), *map(len, columns)} != {count}:
        raise WireError("The frame has columns of different lengths.")
    if not all(0 <= i < count for i, _ in sent.infos):
        raise WireError("The frame has an info with an invalid index.")
    return sent


def split_replies(sent: Reply | Replies | Stepped) -> list[Reply]:
    """Return the replies in a frame one by one."""
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
"""The largest frame of gathered calls."""

REPLIES_BYTES: Final = 1 << 18
"""The largest frame of gathered replies."""

_CALLS: Final = {
    False: (b"\x82\xa5calls", b"\xa8together\xc2"),
    True: (b'{"calls":[', b'],"together":false}'),
}
_REPLIES: Final = {False: (b"\x81\xa7replies", b""), True: (b'{"replies":[', b"]}")}

_AROUND: Final = 64  # at least the bytes around the parts


def gather_calls(
    encoding: Encoding, calls: Iterable[bytes], limit_bytes: int = 0
) -> Iterator[bytes]:
    """Yield encoded calls in as few frames as possible; each call is answered by itself.

    Args:
        encoding: Their encoding.
        calls: At most one per session.
        limit_bytes: The largest frame that the server accepts; 0 if unknown.
    """
    limit = min(CALLS_BYTES, limit_bytes - _AROUND) if limit_bytes else CALLS_BYTES
    return _gather(encoding, _CALLS[encoding.is_text], calls, limit)


def gather_replies(encoding: Encoding, replies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded replies in as few frames as possible.

    Each is encoded when the frame before it has been taken.
    """
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
