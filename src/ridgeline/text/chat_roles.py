"""The fold: messages that a template refuses, leaves out or gives to the assistant are told in roles and turns that it has.

It is exact, and happens only where `Roles` says that the template needs it; `chat_check` finds out. A developer's message becomes a system
message; a tool's result a user's turn that begins with the line `[tool result: NAME]`, a call the line `[tool call: NAME]` and its
arguments in the assistant's text; a system message where none may stand joins the nearest user's turn or tool's result, of two equally near
ones the later: what came before it in a conversation that grows stays as it was. Turns of one role in a row become one. Texts are joined
by a blank line.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, Final

Message = Mapping[str, Any]

_SYSTEM: Final = ("system", "developer")
_BETWEEN: Final = "\n\n"
_JOINED: Final = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles that a template takes.

    first     of system and developer, the roles with which a conversation may begin
    later     of these, the roles that may stand behind other turns
    tool      it writes results of tools
    calls     it writes the assistant's calls
    empty     what a call that comes without a content has for one: nothing, null, or ""
    repeated  roles of which two turns may follow each other
    """

    first: frozenset[str] = frozenset(_SYSTEM)
    later: frozenset[str] = frozenset(_SYSTEM)
    tool: bool = True
    calls: bool = True
    empty: Message = field(default_factory=dict)
    repeated: frozenset[str] = frozenset(_JOINED)


ALL_ROLES: Final = Roles()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message, and the role with which it was sent."""

    message: Message
    sent: str

    @property
    def role(self) -> str:
        return str(self.message["role"])


def fold(messages: Sequence[Message], roles: Roles) -> tuple[list[Message], list[str]]:
    """The messages as a template that takes `roles` can have them; and the roles, as sent, of those that were folded.

    Contents are strings, lists of parts with a text, or absent. Folding twice changes nothing more.
    """
    if _is_plain(messages, roles):
        return list(messages), []
    folded: dict[str, None] = {}
    called = {} if roles.tool else _called(messages)
    turns = [_tool_as_text(message, called, roles, folded) for message in messages]
    turns = _place_system(_developer_as_system(turns, roles, folded), roles, folded)
    result: list[_Turn] = []
    for role, equal in groupby(turns, lambda turn: turn.role):
        run = list(equal)
        if role in _JOINED and role not in roles.repeated:
            folded |= dict.fromkeys(turn.sent for turn in run[1:])
            run = [_joined(run)]
        result += run
    return [turn.message for turn in result], list(folded)


def _is_plain(messages: Sequence[Message], roles: Roles) -> bool:
    """True for texts of user and assistant in turn, behind a system prompt or none: what most conversations are, and all templates take."""
    sent = [message["role"] for message in messages if message.get("content") is not None and not message.get("tool_calls")]
    if len(sent) < len(messages):
        return False
    turns = sent[1:] if sent[:1] == ["system"] and "system" in roles.first else sent
    return all(role in ("user", "assistant") for role in turns) and all(one != other for one, other in pairwise(turns))


def _tool_as_text(message: Message, called: Mapping[object, object], roles: Roles, folded: dict[str, None]) -> _Turn:
    role, calls = str(message["role"]), message.get("tool_calls")
    if role == "tool" and not roles.tool:
        folded[role] = None
        name = message.get("name") or called.get(message.get("tool_call_id"))
        head = f"[tool result: {name}]" if name else "[tool result]"
        return _Turn({"role": "user", "content": f"{head}\n{_text(message)}"}, role)
    if role == "assistant" and calls and not roles.calls:
        folded[role] = None
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return _Turn({**rest, "content": _BETWEEN.join(filter(None, [_text(message), *map(_call_text, calls)]))}, role)
    return _Turn({**message, **roles.empty} if role == "assistant" and message.get("content") is None else message, role)


def _called(messages: Sequence[Message]) -> dict[object, object]:
    """Id of each call → the name of its function."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {call["id"]: _function(call).get("name") for call in reversed(calls) if isinstance(call.get("id"), str)}


def _call_text(call: Message) -> str:
    function = _function(call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"[tool call: {function.get('name')}]\n{text}"


def _function(call: Message) -> Message:
    function = call.get("function")
    return function if isinstance(function, Mapping) else {}


def _developer_as_system(turns: Sequence[_Turn], roles: Roles, folded: dict[str, None]) -> list[_Turn]:
    result = []
    for at, turn in enumerate(turns):
        if turn.role == "developer" and "developer" not in (roles.later if at else roles.first):
            folded[turn.sent] = None
            turn = replace(turn, message={**turn.message, "role": "system"})
        result.append(turn)
    return result


def _place_system(turns: Sequence[_Turn], roles: Roles, folded: dict[str, None]) -> list[_Turn]:
    """System messages where the template takes them: at the start, joined to the first, in their places, or in a user's turn."""
    kept: list[list[_Turn]] = []
    """Each is to be one turn."""
    loose: list[tuple[int, _Turn]] = []
    """Messages with the number of turns before each."""
    is_start = True
    for turn in turns:
        is_start = is_start and not loose and turn.role in _SYSTEM
        if turn.role not in _SYSTEM:
            kept.append([turn])
        elif kept and is_start:
            if turn.role == kept[-1][0].role or turn.role in roles.later:
                kept.append([turn])  # equal roles are joined by `fold`, unless both may stand
            else:
                folded[turn.sent] = None
                kept[-1].append(turn)
        elif turn.role in (roles.later if kept or loose else roles.first):
            kept.append([turn])
        else:
            folded[turn.sent] = None
            loose.append((len(kept), turn))
    return _into_user_turns([_joined(run) for run in kept], loose)


def _into_user_turns(turns: list[_Turn], loose: Sequence[tuple[int, _Turn]]) -> list[_Turn]:
    """Each loose message in front of the next turn of a user or a tool, or behind the last one where that is nearer. Without any it is a
    user's itself."""
    users = [at for at, turn in enumerate(turns) if turn.role in ("user", "tool")]
    if not users:
        for place, turn in reversed(loose):
            turns.insert(place, replace(turn, message={"role": "user", "content": _text(turn.message)}))
        return turns
    before: dict[int, list[str]] = {}
    behind: dict[int, list[str]] = {}
    for place, turn in loose:
        number = bisect_left(users, place)
        follows = number < len(users) and (number == 0 or users[number] - place <= place - 1 - users[number - 1])
        texts = before.setdefault(users[number], []) if follows else behind.setdefault(users[number - 1], [])
        texts.append(_text(turn.message))
    for at in before.keys() | behind.keys():
        texts = [*before.get(at, []), _text(turns[at].message), *behind.get(at, [])]
        turns[at] = replace(turns[at], message={**turns[at].message, "content": _BETWEEN.join(filter(None, texts))})
    return turns


def _joined(turns: Sequence[_Turn]) -> _Turn:
    """One turn of all, under the role of the first."""
    first, *others = turns
    if not others:
        return first
    message: dict[str, Any] = {}
    for turn in reversed(turns):
        message |= turn.message
    message["content"] = _BETWEEN.join(filter(None, (_text(turn.message) for turn in turns)))
    if calls := [call for turn in turns for call in turn.message.get("tool_calls") or ()]:
        message["tool_calls"] = calls
    return replace(first, message=message)


def _text(message: Message) -> str:
    """The content; parts are joined by a line break, as for templates that take none."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part if isinstance(part, str) else str(part["text"]) for part in content)
