"""The process that compiles clients' grammars: `python -m ridgeline.text.grammar_sandbox FD`. Started by `text.structured`.

Owns what each way to ask means as a grammar of llguidance. It compiles every grammar once, over bytes in place of a vocabulary, and follows
it for some bytes, so that only grammars that compile within its time and memory, and begin some text, reach an engine. Answers each frame
with one frame until the other end closes.
"""

import json
import re
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ridgeline.text.json_schema import Unsupported, prepared
from ridgeline.text.sandbox_frames import frame, receive, send
from ridgeline.text.tools.grammar import CallForm, to_lark
from ridgeline.text.tools.thought import INNER, JSON, Reasoned, reasoned_to_lark

WHITESPACE: Final = r" ?|\n {0,16}"
"""Between tokens of JSON. The library's default takes any amount: models that fall into it never come to an end."""
MEMORY_BYTES: Final = 512 << 20
ORPHAN_SECONDS: Final = 8.0
"""Work of this length has no parent any more: the kernel ends this process."""
FOLLOWED_BYTES: Final = 4
"""Bytes for which a grammar is followed: what is too large mostly shows by then."""
END: Final = 256
"""Id of the end of an output, behind those of bytes."""
TRUSTED: Final = "no tokenizer"
"""Beginning of the library's words about control tokens, of which this process knows none. Grammars of clients may not have them."""
PLAINER: Final[Mapping[str, str]] = {
    "Unimplemented keys: ": "keywords that cannot be followed: {}",
    "Unknown format: ": "the format {} cannot be followed; leave it out, or send a pattern",
    "oneOf constraints": "oneOf can be followed only where no value fits two of its schemas, as their types or a property with const show; "
    "use anyOf",
    "Failed to generate regex for float range: ": "a minimum or maximum is too large to be followed: {}",
    "lexer precomputation failed": "its regular expressions have too many states together; simplify them",
    "lexer error: ": "its regular expressions have too many states together ({}); simplify them",
    "Parser Error: Current row has ": "it has too many ways to go on at one place: {}",
    "parser error: Too many items": "it has too many ways to be read; make it less ambiguous",
    "NoExtension": "no text follows this grammar; change it",
}
"""Beginnings of the library's messages."""
IN_A_RULE: Final = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ")
"""Words that it puts in front where the schema stands in a rule of a grammar; lines of that grammar come behind."""


def to_grammar(kind: str, value: Any, whitespace: str | None) -> str:
    """A structured output (`text.structured.StructuredOutputs`) as a grammar of llguidance. Raises Unsupported."""
    from llguidance import LLMatcher

    if kind in ("json", "json_object"):
        schema = {"type": "object"} if kind == "json_object" else value
        return LLMatcher.grammar_from_json_schema(json.dumps(prepared(schema, whitespace or WHITESPACE)))
    if kind == "regex":
        return LLMatcher.grammar_from_regex(_text(kind, value))
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in value))
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(_lark(_text(kind, value)))
    return LLMatcher.grammar_from_lark(_tags(value))


def _text(kind: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unsupported(f"{kind} is a text, not empty; send one")
    return value


def _lark(text: str) -> str:
    """Lark as it is; GBNF, whose rules have `::=`, converted."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except (GbnfToLarkError, ValueError, KeyError, IndexError) as error:
        raise Unsupported(f"the GBNF grammar cannot be read: {error}") from None


def _tags(value: Any) -> str:
    """A structural tag of vLLM: `structures` of begin, schema and end, and `triggers` that begin them."""
    from llguidance import StructTag

    structures = value.get("structures") if isinstance(value, dict) else None
    triggers = value.get("triggers") if isinstance(value, dict) else None
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise Unsupported("a structural tag needs structures (begin, schema, end) and triggers")
    tags = []
    for each in structures:
        begin, end = (each.get(name) if isinstance(each, dict) else None for name in ("begin", "end"))
        if not isinstance(begin, str) or not isinstance(end, str):
            raise Unsupported("a structure needs begin, schema and end")
        trigger = next((word for word in triggers if isinstance(word, str) and word and begin.startswith(word)), None)
        if trigger is None:
            raise Unsupported(f"no trigger begins the structure {begin!r:.60}; add one")
        schema = prepared(each.get("schema", {}), WHITESPACE)
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=schema, end=end))
    return StructTag.to_grammar(tags, assume_special=False)


def main(descriptor: int) -> None:
    """Loads the library, limits the process, and compiles until the other end closes."""
    stream = socket.socket(fileno=descriptor)
    receive(stream)
    try:
        import llguidance.gbnf_to_lark  # noqa: F401
    except ImportError as error:
        send(stream, frame({"failed": str(error)}))
        return
    _limit()
    tokenizer = _bytes()
    send(stream, frame({}))
    while (request := receive(stream)) is not None:
        signal.setitimer(signal.ITIMER_REAL, ORPHAN_SECONDS)
        send(stream, frame(_compile(request, tokenizer)))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _bytes() -> Any:
    """A vocabulary of all bytes and an end."""
    from llguidance import LLTokenizer, TokenizerWrapper

    def encode(text: str) -> list[int]:
        return [*text.encode()]

    pieces = [*(bytes((value,)) for value in range(END)), b"<end>"]
    vars(encode).update(tokens=pieces, special_token_ids=[END], bos_token_id=None, eos_token_id=END)
    return LLTokenizer(TokenizerWrapper(encode), n_vocab=END + 1, eos_token=END, slices=[])


def _compile(request: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The grammar of a request, or why there is none."""
    try:
        if request["kind"] == "calls":
            text, reason = _calls(CallForm(**request["value"]), tokenizer)
        elif request["kind"] == "reasoned":
            text, reason = _reasoned(Reasoned(**request["value"]), tokenizer)
        else:
            text = to_grammar(request["kind"], request["value"], request["whitespace"])
            reason = _fault(text, tokenizer)
    except (Unsupported, ValueError) as error:
        return {"error": str(error)}
    except (MemoryError, RecursionError):
        return {"error": "the grammar is too large"}
    return {"error": reason} if reason else {"grammar": text}


def _fault(text: str, tokenizer: Any) -> str | None:
    """The reason why a grammar cannot be followed; None for one that can. A warning counts: what the library would ignore is not
    followed."""
    message = _warning(text) or _followed(text, tokenizer)
    return _explained(message) if message else None


def _warning(text: str, trusted: str | None = None) -> str | None:
    """The first message about a grammar; those that begin with `trusted` mean nothing."""
    from llguidance import LLMatcher

    _, messages = LLMatcher.validate_grammar_with_warnings(text)
    return next((each for each in messages if trusted is None or not each.startswith(trusted)), None)


def _followed(text: str, tokenizer: Any) -> str:
    """The reason why a grammar cannot be compiled and followed; "" if it can, for some bytes of the text that begins it with the lowest
    ones."""
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    for _ in range(FOLLOWED_BYTES):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            break
        allowed = [value for value in range(END) if mask[value // 8] >> value % 8 & 1]
        if not allowed:
            break
        matcher.consume_token(allowed[0])
    return str(matcher.get_error())


def _calls(form: CallForm, tokenizer: Any) -> tuple[str, str | None]:
    """The grammar of calls, and why it cannot be followed. A tool that is not strict has any arguments where its schema cannot be.

    It is followed with marks as texts, since here are no control tokens. Raises Unsupported.
    """
    loose: list[str] = []
    plain = replace(form, control={}, free=())
    for tool in form.tools:
        try:
            reason = _fault(to_lark(replace(plain, tools=[tool], must=True, thought=None), WHITESPACE), tokenizer)
        except Unsupported as error:
            reason = str(error)
        if reason and tool["strict"]:
            raise Unsupported(f"the parameters of {tool['name']}: {reason}")
        if reason:
            loose.append(tool["name"])
    text = to_lark(form, WHITESPACE, loose)
    message = _warning(text, TRUSTED) or _followed(to_lark(plain, WHITESPACE, loose), tokenizer)
    return text, _explained(message) if message else None


def _reasoned(form: Reasoned, tokenizer: Any) -> tuple[str, str | None]:
    """The grammar of a structured output behind reasoning, and why it cannot be followed: as `_calls`, and first of all that alone."""
    inner = to_grammar(form.kind, form.value, form.whitespace)
    reason = _fault(inner, tokenizer)

    def whole(form: Reasoned) -> str:
        outer = reasoned_to_lark(form, WHITESPACE)
        if form.kind in JSON:
            return outer
        found = json.loads(inner)["grammars"][0] if inner.startswith('{"grammars"') else {"lark_grammar": inner}
        return json.dumps({"grammars": [{"lark_grammar": outer}, {**found, "name": INNER}]})

    text = whole(form)
    message = _warning(text, TRUSTED) or _followed(whole(replace(form, control={}, free=())), tokenizer)
    return text, reason or (_explained(message) if message else None)


def _explained(message: str) -> str:
    """The library's message; those that its users meet often in plainer words."""
    message = message.partition("<non-verbose/>")[0].strip()
    told = IN_A_RULE.sub("", message)
    for begin, plainer in PLAINER.items():
        if told.startswith(begin):
            return plainer.format(told[len(begin) :].partition(";")[0].partition("\n")[0])
    return message


def _limit() -> None:
    """Limits the address space (on Linux), files, processes and core dumps."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


if __name__ == "__main__":
    main(int(sys.argv[1]))
