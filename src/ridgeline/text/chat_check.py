"""Round trips of a chat template at load: short conversations are rendered, encoded, and compared with what was put in.

Owns what a template's text says about itself (the message format and the roles that it takes, the token that ends a turn) and the known
errors of real files: contents left out, written twice or out of order, roles that run together, a missing header of the answer, BOS twice,
names that are no tokens of the model. Starts no process: a `Render` is passed in.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal

from ridgeline.errors import Finding, RequestError
from ridgeline.text.chat_content import Conversation, MessageFormat
from ridgeline.text.chat_roles import ALL_ROLES, Roles
from ridgeline.text.tokenizer import Tokenizer

Render = Callable[[Conversation], str]
"""Raises `RequestError`."""

CHECK: Final = "template"
FIX: Final = "give the template that belongs to this model with --chat-template FILE"

_USER, _ANSWER, _SYSTEM, _SECOND_USER, _RESULT = "Zebra crossing", "Quiet harbour", "Amber lantern", "Velvet orbit", "Copper meadow"
"""Contents of test messages, which no template writes by itself."""
_PARAMETERS: Final = {"type": "object", "properties": {"place": {"type": "string", "description": "Where."}}, "required": ["place"]}
TOOLS: Final = ({"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": _PARAMETERS}},)
_TAG: Final = re.compile(r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|<(?:start|end)_of_[a-z]{1,20}>")
"""Names that only control tokens have; `<tool_call>`, `[INST]` and the like may be plain text."""
_EMPTY: Final[Sequence[Mapping[str, Any]]] = ({}, {"content": None}, {"content": ""})
_MAX_QUOTED_CHARACTERS: Final = 40
_UNDEFINED: Final = re.compile(r"'([a-zA-Z][a-zA-Z0-9_]{0,63})' is undefined")
_MAX_NEEDED_VARIABLES: Final = 4


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """Results of checking a template.

    stop_ids   ids that end an assistant's turn
    findings   problems; of an unusable template the first is the reason
    is_usable  False: every conversation would fail, or lose what the user says
    """

    stop_ids: frozenset[int]
    findings: tuple[Finding, ...]
    is_usable: bool = True


def unusable(cause: str) -> TemplateCheck:
    """The result for a template with which no chat is possible."""
    return TemplateCheck(frozenset(), (_finding("error", cause),), is_usable=False)


def detect_format(render: Render) -> MessageFormat:
    """The message format that a template takes: parts of a content, a tool call's arguments. `render` passes on both as they are."""
    as_text = _render_or_empty(render, _message("user", _USER))
    as_parts = _render_or_empty(render, _message("user", [{"type": "text", "text": _USER}]))
    written_out = any(as_parts.count(key) > as_text.count(key) for key in ("'text'", '"text"'))
    as_object = _render_or_empty(render, _message("user", _USER), _tool_call({"place": _ANSWER}))
    as_string = _render_or_empty(render, _message("user", _USER), _tool_call(f'{{"place": "{_ANSWER}"}}'))
    return MessageFormat(_USER in as_parts and not written_out, object_arguments=_ANSWER in as_object or _ANSWER not in as_string)


def probe_roles(render: Render, tools: Sequence[Mapping[str, Any]] | None = None) -> Roles:
    """The roles that a template takes, in conversations with these `tools`: what a message says has to stand somewhere, and not as the
    assistant's. A template that does not even render a user's turn is told everything as it is."""

    def text(messages: Sequence[Mapping[str, Any]]) -> str:
        return _attempt(render, Conversation(messages, tools, add_generation_prompt=False))

    def takes(messages: Sequence[Mapping[str, Any]], own: Mapping[str, Any] | None = None) -> bool:
        found = text(messages)
        if any((message.get("content") or "") not in found for message in messages):
            return False
        if own is None:
            return True
        as_assistant, as_user = (
            text([_message(role, own["content"]) if message is own else message for message in messages]) for role in ("assistant", "user")
        )
        return found != as_assistant or found == as_user

    user, answer, second = _message("user", _USER), _message("assistant", _ANSWER), _message("user", _SECOND_USER)
    if not takes([user]):
        return ALL_ROLES
    system, developer, other = _message("system", _SYSTEM), _message("developer", _SYSTEM), _message("assistant", _SYSTEM)
    result = {"role": "tool", "tool_call_id": "call00001", "name": "find", "content": _RESULT}
    plain_call = {name: value for name, value in _tool_call(f'{{"place": "{_ANSWER}"}}').items() if name != "content"}
    empty = next((each for each in _EMPTY if _ANSWER in text([user, {**plain_call, **each}, result])), None)
    call = answer if empty is None else {**plain_call, **empty}
    repeated = {
        "system": [system, _message("system", _RESULT), user], "user": [user, second], "assistant": [user, answer, other, second]
    }  # fmt: skip
    return Roles(
        first=frozenset(each["role"] for each in (system, developer) if takes([each, user], each)),
        later=frozenset(each["role"] for each in (system, developer) if takes([user, answer, each, second], each)),
        tool=takes([user, call, result], result),
        calls=empty is not None,
        empty=empty or {},
        repeated=frozenset(role for role, messages in repeated.items() if takes(messages)),
    )


@dataclass(frozen=True, slots=True)
class _Texts:
    """Rendered conversations: a user's turn without and with the header of the answer, an answer behind it, a second user's turn behind
    that, and a user's turn behind a system message. The last two are empty where the template refuses them."""

    asked: str
    prompted: str
    answered: str
    followed: str
    system: str


def check_template(render: Render, tokenizer: Tokenizer, variables: Collection[str] = ()) -> TemplateCheck:
    """Renders a user's, an assistant's and a system's turn and looks for known errors of real files.

    variables  names that the template reads and only a client can set
    """
    user, answer = _message("user", _USER), _message("assistant", _ANSWER)
    try:
        texts = _Texts(
            asked=render(Conversation((user,), add_generation_prompt=False)),
            prompted=render(Conversation((user,))),
            answered=render(Conversation((user, answer), add_generation_prompt=False)),
            followed=_render_or_empty(render, user, answer, _message("user", _SECOND_USER)),
            system=_render_or_empty(render, _message("system", _SYSTEM), user),
        )
    except RequestError as error:
        return _check_failure(render, error, variables)
    for text in (texts.asked, texts.prompted):
        if _USER not in text:
            return unusable("the chat template leaves out what the user says")
    findings = [*_check_contents(texts), *_check_turns(texts), *_check_tokens(texts, tokenizer)]
    if _ANSWER not in texts.answered:
        return TemplateCheck(frozenset(), tuple(findings))
    end = texts.answered.rpartition(_ANSWER)[2]
    between = texts.followed.rpartition(_ANSWER)[2].partition(_SECOND_USER)[0]
    stop_ids = _turn_end(end, between, tokenizer)
    if not stop_ids and tokenizer.eos_ids.isdisjoint(_ids(end, tokenizer)):
        findings.append(_no_end(end or between))
    return TemplateCheck(stop_ids, tuple(findings))


def _check_failure(render: Render, error: RequestError, variables: Collection[str]) -> TemplateCheck:
    """The result for a template that cannot render a plain conversation: some need tools, or variables of their own. One that exceeds its
    limits is not retried."""
    if error.code == "template_budget":
        return unusable(f"a single message cannot be rendered ({error.message})")
    user = (_message("user", _USER),)
    if _USER in _attempt(render, Conversation(user, tools=TOOLS)):
        return _needs(f"only conversations with tools can be rendered ({error.message})", "send tools")
    if names := _needed_variables(render, error, variables):
        return _needs(f"a plain conversation cannot be rendered ({error.message})", f"send chat_template_kwargs with {', '.join(names)}")
    return unusable(f"a plain conversation cannot be rendered ({error.message})")


def _needed_variables(render: Render, error: RequestError, variables: Collection[str]) -> tuple[str, ...]:
    """Variables without which no conversation is rendered, and with which one is; empty where others are missing, or none is."""
    arguments: dict[str, object] = {}
    for _ in range(_MAX_NEEDED_VARIABLES):
        missing = _UNDEFINED.search(error.message)
        if missing is None or missing[1] not in variables:
            return ()
        arguments[missing[1]] = ""
        try:
            text = render(Conversation((_message("user", _USER),), arguments=arguments))
        except RequestError as next_error:
            error = next_error
        else:
            return tuple(arguments) if _USER in text else ()
    return ()


def _needs(cause: str, fix: str) -> TemplateCheck:
    return TemplateCheck(frozenset(), (Finding("note", CHECK, cause, f"{FIX}, or {fix}"),))


def _attempt(render: Render, conversation: Conversation) -> str:
    try:
        return render(conversation)
    except RequestError:
        return ""


def _check_contents(texts: _Texts) -> list[Finding]:
    """Every content appears exactly once, in the order of the messages."""
    found = []
    if _ANSWER not in texts.answered:
        found.append(_finding("error", "the chat template leaves out what the assistant said before"))
    elif texts.followed and _SECOND_USER not in texts.followed:
        found.append(_finding("error", "the chat template leaves out a user's second turn"))
    elif texts.followed and not _ascending(texts.followed, (_USER, _ANSWER, _SECOND_USER)):
        found.append(_finding("error", "the chat template writes turns in another order than that of the messages"))
    if texts.system and _SYSTEM not in texts.system:
        found.append(_finding("warning", "the chat template leaves out system messages without refusing them", f"{FIX}, or send none"))
    for who, content, text in (("user", _USER, texts.prompted), ("assistant", _ANSWER, texts.answered), ("system", _SYSTEM, texts.system)):
        if (count := text.count(content)) > 1:
            found.append(_finding("warning", f"the chat template writes what the {who} says {count} times"))
    return found


def _ascending(text: str, contents: Sequence[str]) -> bool:
    places = [text.rfind(content) for content in contents]
    return places == sorted(places)


def _check_turns(texts: _Texts) -> list[Finding]:
    """A model can tell whose turn it is, and that the next one is its own."""
    found = []
    behind_user = texts.asked.rpartition(_USER)[2]
    if texts.prompted == texts.asked and not behind_user.strip():
        found.append(_finding("warning", "the chat template writes nothing between a user's turn and the answer, so roles run together"))
    elif texts.prompted == texts.asked and _ANSWER in texts.answered:
        header = texts.answered.partition(_USER)[2].partition(_ANSWER)[0]
        if rest := header.strip().removeprefix(behind_user.strip()).strip():
            cause = f"the chat template has no generation prompt: answers of its examples begin with {_quoted(rest)}, prompts do not end so"
            found.append(_finding("warning", cause))
    to_answer, _, behind = texts.followed.partition(_USER)[2].partition(_ANSWER)
    to_user = behind.partition(_SECOND_USER)[0]
    if to_answer.strip() and to_answer == to_user:
        found.append(_finding("warning", f"the chat template begins every turn with {_quoted(to_user)}, whoever speaks"))
    return found


def _check_tokens(texts: _Texts, tokenizer: Tokenizer) -> list[Finding]:
    """BOS stands at the start alone, and names of control tokens are control tokens of this model."""
    found = []
    count = 0 if tokenizer.bos is None else _ids(texts.prompted, tokenizer).count(tokenizer.bos)
    if count > 1:
        found.append(_finding("warning", f"the chat template begins a prompt with BOS {count} times, which models are not trained on"))
    names = sorted(set(_TAG.findall(texts.prompted)) | set(_TAG.findall(texts.followed)))
    unknown = [name for name in names if not _is_token(name, tokenizer)]
    # Some models write all of their turns with names that are plain text; a misspelt one stands among others that are tokens.
    if unknown and len(unknown) < len(names):
        known = len(names) - len(unknown)
        cause = f"the chat template writes {_quoted(unknown[0])}, which is no token of this model, beside {known} that are"
        found.append(_finding("warning", cause))
    return found


def _is_token(name: str, tokenizer: Tokenizer) -> bool:
    return tokenizer.id_of(name) is not None and len(_ids(name, tokenizer)) == 1


def _turn_end(end: str, between: str, tokenizer: Tokenizer) -> frozenset[int]:
    """The token that ends an assistant's turn, given the text after its content: at the end, and before the next turn.

    Their common prefix is the turn's end; where that is empty, the start of the next turn is. EOS is preferred to other tokens in it.
    """
    at_end, at_next = _ids(end.lstrip(), tokenizer), _ids(between.lstrip(), tokenizer)
    shared = [one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(at_end, at_next, strict=False))]
    ids = shared or at_end or at_next
    for token in ids:
        if token in tokenizer.eos_ids:
            return frozenset({token})
    for token in ids[:2]:  # some tokenizers put a space first
        name = tokenizer.piece(token).decode("utf-8", "replace")
        tag = len(name) > 2 and name[0] in "<[" and name[-1] in ">]"
        if tag or tokenizer.is_control(token):
            return frozenset({token})
        if name.strip(" ▁"):
            break
    return frozenset()


def _no_end(tail: str) -> Finding:
    quoted = tail.strip()
    what = f"what ends an assistant's turn, {_quoted(quoted)}, is no single token of this model" if quoted else "nothing ends a turn"
    return _finding("warning", f"{what}, so answers may run on", f"{FIX}, or send stop strings")


def _finding(severity: Literal["error", "warning"], cause: str, fix: str = FIX) -> Finding:
    return Finding(severity, CHECK, cause, fix)


def _quoted(text: str) -> str:
    return repr(text[:_MAX_QUOTED_CHARACTERS])


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, add_bos=False, special=True)


def _render_or_empty(render: Render, *messages: Mapping[str, Any]) -> str:
    """The rendered text; empty where the template raises an error."""
    return _attempt(render, Conversation(messages, add_generation_prompt=False))


def _message(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


def _tool_call(arguments: object) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": function}]}
