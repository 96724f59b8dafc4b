"""The fold of roles that a template lacks: each rule by example, and what holds of random conversations."""

import random
from itertools import pairwise
from typing import Any

import pytest

from ridgeline.text.chat_content import MAX_MESSAGES
from ridgeline.text.chat_roles import ALL_ROLES, Roles, fold

NO = frozenset[str]()
GEMMA = Roles(first=frozenset({"system"}), later=NO, tool=False, calls=False, repeated=NO)
"""What the demo's template takes: a system message at the start, then users and assistants in turn."""
BARE = Roles(first=NO, later=NO, tool=False, calls=False, repeated=NO)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}]}


def told(roles: Roles, *turns: tuple[str, Any] | dict[str, Any]) -> tuple[list[tuple[str, Any]], list[str]]:
    messages = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]
    found, folded = fold(messages, roles)
    assert fold(found, roles) == (found, []), "folding twice changes nothing more"
    return [(message["role"], message.get("content")) for message in found], folded


def test_what_a_template_takes_is_not_touched() -> None:
    turns: list[Any] = [("developer", "d"), ("system", "s"), ("user", [{"type": "text", "text": "a"}]), ("user", "b"), CALL, ("tool", "r")]
    messages = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]
    assert fold(messages, ALL_ROLES) == (messages, [])
    assert fold([{"role": "critic", "content": "x"}] * 2, BARE) == ([{"role": "critic", "content": "x"}] * 2, [])


@pytest.mark.parametrize(("turns", "result", "folded"), [
    ([("developer", "d"), ("user", "u")], [("system", "d"), ("user", "u")], ["developer"]),
    ([("developer", "d"), ("system", "s"), ("user", "u")], [("system", "d\n\ns"), ("user", "u")], ["developer", "system"]),
    ([("system", "s"), ("developer", "d"), ("user", "u")], [("system", "s\n\nd"), ("user", "u")], ["developer"]),
    ([("user", "u"), ("user", "v"), ("user", "w")], [("user", "u\n\nv\n\nw")], ["user"]),
    ([("user", "u"), ("assistant", "a"), ("assistant", "b")], [("user", "u"), ("assistant", "a\n\nb")], ["assistant"]),
    ([("user", "u"), ("assistant", "a"), ("system", "s"), ("user", "v")],
     [("user", "u"), ("assistant", "a"), ("user", "s\n\nv")], ["system"]),
    ([("user", "u"), ("system", "s"), ("assistant", "a"), ("user", "v")],
     [("user", "u\n\ns"), ("assistant", "a"), ("user", "v")], ["system"]),
    ([("user", "u"), ("system", "s"), ("user", "v")], [("user", "u\n\ns\n\nv")], ["system", "user"]),
    ([("user", "u"), ("system", "s"), ("system", "t")], [("user", "u\n\ns\n\nt")], ["system"]),
    ([("user", "u"), ("assistant", "a"), ("developer", "d")], [("user", "u\n\nd"), ("assistant", "a")], ["developer"]),
    ([("user", "u"), CALL, {"role": "tool", "tool_call_id": "c1", "content": "r"}],
     [("user", "u"), ("assistant", '[tool call: f]\n{"a": 1}'), ("user", "[tool result: f]\nr")], ["assistant", "tool"]),
    ([("user", "u"), {**CALL, "content": "wait"}, {"role": "tool", "name": "g", "content": "r"}, ("tool", "q"), ("user", "v")],
     [("user", "u"), ("assistant", 'wait\n\n[tool call: f]\n{"a": 1}'), ("user", "[tool result: g]\nr\n\n[tool result]\nq\n\nv")],
     ["assistant", "tool", "user"]),
    ([("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), ("user", "c")], [("user", "a\nb\n\nc")], ["user"]),
    ([("user", "u"), ("user", ""), ("user", "v")], [("user", "u\n\nv")], ["user"]),
    ([("system", "s")], [("system", "s")], []),
])  # fmt: skip
def test_the_rules_by_example(turns: list[Any], result: list[tuple[str, str]], folded: list[str]) -> None:
    assert told(GEMMA, *turns) == (result, folded)


def test_instructions_behind_a_result_stay_there() -> None:
    """A conversation that grows keeps its beginning, and with it what the prefix cache has."""
    turns: list[Any] = [("user", "u"), CALL, {"role": "tool", "tool_call_id": "c1", "content": "r"}, ("system", "s")]
    grown = [*turns, ("assistant", "a"), ("user", "v"), ("system", "t")]
    whole, before = told(Roles(later=NO), *grown)[0], told(Roles(later=NO), *turns)[0]
    assert [content for _, content in whole] == ["u", None, "r\n\ns", "a", "v\n\nt"] and whole[:3] == before


def test_templates_without_system_messages() -> None:
    assert told(BARE, ("system", "s"), ("user", "u")) == ([("user", "s\n\nu")], ["system"])
    assert told(BARE, ("system", "s"), ("assistant", "a"), ("user", "u"))[0] == [("assistant", "a"), ("user", "s\n\nu")]
    assert told(BARE, ("system", "s"), ("developer", "d")) == ([("user", "s\n\nd")], ["developer", "system"])


def test_a_native_developer_stays_where_it_may_stand() -> None:
    harmony = Roles(first=frozenset({"system", "developer"}), later=NO, repeated=frozenset({"user", "assistant"}))
    assert told(harmony, ("developer", "d"), ("user", "u"))[1] == []
    assert told(harmony, ("developer", "d"), ("system", "s"), ("user", "u")) == ([("developer", "d\n\ns"), ("user", "u")], ["system"])
    assert told(harmony, ("user", "u"), ("developer", "d"), ("user", "v"))[0] == [("user", "u"), ("user", "d\n\nv")]


def test_calls_of_joined_turns_are_kept() -> None:
    found, _ = fold([{"role": "user", "content": "u"}, CALL, CALL], Roles(repeated=NO))
    assert len(found) == 2 and len(found[1]["tool_calls"]) == 2
    assert fold([CALL], Roles(empty={"content": ""}))[0][0]["content"] == ""


@pytest.mark.timeout(5)
@pytest.mark.parametrize("roles", [["user"], ["system"], ["developer"], ["user", "system"], ["assistant", "tool"]])
def test_long_conversations_take_linear_time(roles: list[str]) -> None:
    """Joined one by one, those of one role took half a minute."""
    messages = [{"role": roles[at % len(roles)], "content": "q" * 2_000, "tool_call_id": "c"} for at in range(MAX_MESSAGES)]
    found, _ = fold(messages, BARE)
    assert sum(message["content"].count("q") for message in found) == 2_000 * MAX_MESSAGES


@pytest.mark.parametrize("seed", range(30))
def test_random_conversations_lose_nothing_and_alternate(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        roles = rng.choices(["system", "developer", "user", "assistant", "tool"], k=rng.randint(1, 12))
        messages = [{"role": role, "content": f"<{number}>"} for number, role in enumerate(roles)]
        for taken in (GEMMA, BARE):
            found, folded = fold(messages, taken)
            text = "".join(message["content"] for message in found)
            assert all(text.count(message["content"]) == 1 for message in messages)
            assert all(one["role"] != other["role"] for one, other in pairwise(found))
            assert {message["role"] for message in found[1:]} <= {"user", "assistant"}
            assert set(folded) <= set(roles) and fold(found, taken) == (found, [])
            if [message["role"] for message in found] == roles:
                assert not folded
