"""The actions of an environment as tools: for dialects whose clients know only tool calls.

An action is the arguments of the tool `step`. If an action is one of several classes, each class is
a tool, and what cannot be an object of arguments is the argument `action`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envweave.errors import ActionError, OptionError, suggest
from envweave.wire.description import Description
from envweave.wire.openenv import is_bare

STEP = "step"
"""The tool that takes a step, if an action is of one class."""


@dataclass(frozen=True, slots=True)
class EnvTool:
    """A tool as a client sees it.

    Attributes:
        name: Its name.
        description: Its description.
        schema: The JSON Schema of its arguments.
        holds_action: Whether the action is its argument `action` rather than all arguments.
    """

    name: str
    description: str
    schema: dict[str, Any]
    holds_action: bool = False

    def action(self, arguments: Mapping[str, Any]) -> Any:
        """Return the action of a call with these arguments.

        Raises:
            ActionError: An argument is unknown, or the action is missing.
        """
        if self.holds_action or self.name != STEP:
            # The environment does not see the name of the tool, so the fields of another would fit.
            self.check_arguments(arguments, ActionError)
        if not self.holds_action:
            return dict(arguments)
        if "action" not in arguments:
            raise ActionError(f"{self.name} needs the argument 'action'.")
        return arguments["action"]

    def check_arguments(
        self, arguments: Mapping[str, Any], error: type[OptionError | ActionError]
    ) -> None:
        """Refuse unknown arguments, with this class of error."""
        known = self.schema["properties"]
        for name in arguments:
            if name not in known:
                takes = f"It takes: {', '.join(known)}." if known else "It takes none."
                raise error(f"{self.name} takes no {name[:80]!r}.{suggest(name, known)} {takes}")


def action_tools(about: Description, results: str = "") -> dict[str, EnvTool]:
    """Return the tools that take a step, by name; `results` describes what they return."""
    return {tool.name: tool for tool in _tools_of(about, f" {results}" if results else "")}


def _tools_of(about: Description, results: str) -> Iterator[EnvTool]:
    does = about.description or about.name
    schema = about.action
    members = [_resolved(one, schema) for one in schema.get("anyOf", [])]
    names = [_tool_name(one) for one in members]
    if members and _are_distinct(members, names):
        for name, member in zip(names, members, strict=True):
            text = f"{does} Take one step: {member['title']}.{results}"
            yield EnvTool(name, text, _plain(member))
        return
    resolved = _resolved(schema, schema)
    if about.possible_agents is not None:
        text = f"{does} Take one step, with an action for each agent whose turn it is.{results}"
        properties = {name: _plain(one) for name, one in resolved["properties"].items()}
        yield EnvTool(STEP, text, {**resolved, "properties": properties})
    elif resolved.get("type") == "object" and not is_bare(resolved):
        yield EnvTool(STEP, f"{does} Take one step.{results}", _plain(resolved))
    else:
        # `$defs` must be beside the reference, not below it.
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        action = {name: one for name, one in schema.items() if name != "$defs"}
        wrapped = {**object_schema({"action": action}, ["action"]), **definitions}
        yield EnvTool(STEP, f"{does} Take one step.{results}", wrapped, holds_action=True)


def object_schema(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference, and return the schema with the definitions that it may refer to."""
    definitions = root.get("$defs", {})
    reference = str(schema.get("$ref", ""))
    if reference:
        schema = definitions.get(reference.removeprefix("#/$defs/"), {})
    return {**schema, **({"$defs": definitions} if definitions else {})}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an action's schema without the `metadata` that every action may carry."""
    if schema.get("type") != "object" or "metadata" in schema.get("required", []):
        return schema
    properties = {k: one for k, one in schema.get("properties", {}).items() if k != "metadata"}
    return {**schema, "properties": properties}


def _tool_name(schema: dict[str, Any]) -> str:
    """Return the tool name of a class of actions: `MoveAction` is `move`."""
    title = re.sub(r"Action$", "", str(schema.get("title", "")))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()


def _are_distinct(members: list[dict[str, Any]], names: list[str]) -> bool:
    """Whether the fields of an action determine its class: the tool name is not passed on."""
    if not all(names) or len(set(names)) < len(names) or {"reset", "state", "close"} & set(names):
        return False
    if not all(one.get("type") == "object" and "properties" in one for one in members):
        return False
    return not any(_overlap(a, b) for a, b in itertools.combinations(members, 2))


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether some value is an action of both."""
    needed = set(one.get("required", [])), set(other.get("required", []))
    if not (needed[0] <= other["properties"].keys() and needed[1] <= one["properties"].keys()):
        return False
    for name in needed[0] & needed[1]:
        choices = [side["properties"][name].get("enum") for side in (one, other)]
        if choices[0] and choices[1] and not any(value in choices[1] for value in choices[0]):
            return False
    return True
