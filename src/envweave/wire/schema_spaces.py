"""Gymnasium spaces that have no spec of their own, in words that a schema can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave.codec import AnySpec, Spec
from envweave.errors import WireError


def words_for(spec: Spec, write: Callable[[Spec], Any]) -> dict[str, Any] | None:
    """Return the space of a spec in words; `None` where it has none that we can make again."""
    space = getattr(spec, "space", None)  # only a `SpaceSpec` has one, and needs Gymnasium
    if space is None:
        return None
    from gymnasium import spaces

    from envweave.codec.spaces import from_space

    def inner(one: Any) -> Any:
        return None if one is None else write(from_space(one))

    match space:
        case spaces.Text():
            lengths = {"min_length": space.min_length, "max_length": space.max_length}
            return {"kind": "text", **lengths, "charset": "".join(sorted(space.character_set))}
        case spaces.Sequence():
            return {"kind": "sequence", "of": inner(space.feature_space), "stack": space.stack}
        case spaces.OneOf():
            return {"kind": "one_of", "options": [inner(one) for one in space.spaces]}
        case spaces.Graph():
            return {
                "kind": "graph",
                "node": inner(space.node_space),
                "edge": inner(space.edge_space),
            }
    return None


def space_in(said: Any, read: Callable[[Any], Spec]) -> Spec:
    """Return the spec of a space in words; what is not understood takes anything."""
    try:
        from gymnasium import spaces
    except ImportError:
        return AnySpec()
    from envweave.codec.spaces import from_space

    def inner(schema: Any) -> Any:
        return None if schema is None else read(schema).to_space()

    try:
        match said:
            case {"kind": "text", "min_length": int(), "max_length": int(), "charset": str()}:
                lengths = {name: said[name] for name in ("min_length", "max_length")}
                return from_space(spaces.Text(**lengths, charset=said["charset"]))
            case {"kind": "sequence", "of": of, "stack": bool(stack)}:
                return from_space(spaces.Sequence(inner(of), stack=stack))
            case {"kind": "one_of", "options": [*options]}:
                return from_space(spaces.OneOf([inner(one) for one in options]))
            case {"kind": "graph", "node": node, "edge": edge}:
                return from_space(spaces.Graph(inner(node), inner(edge)))
    except WireError:
        raise
    except Exception:  # noqa: BLE001 - what Gymnasium says of a space that a stranger described
        return AnySpec()
    return AnySpec()
