"""The table of families: how each writes calls and reasoning, and which of them a model's template belongs to.

A row is found by what the model's own template makes of a call: the family is the first whose parser reads that same call back.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from ridgeline.text.tools.channels import CONTROL
from ridgeline.text.tools.elements import Elements
from ridgeline.text.tools.forms import Addressed, Form, Head, Literal, Objects, Pythonic, Recipients, Tagged
from ridgeline.text.tools.scan import Marks
from ridgeline.text.tools.written import Written, invocations, marks_in, objects

_NAME: Final = r"(?P<name>[\w.:/-]{1,128})"


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models by the way it writes calls.

    begin  mark before a call, or before a list of them; empty: an answer that begins so is a call
    form   what follows it
    drop   marks around calls that say nothing
    inner  marks within calls that `written` does not show
    written  how calls are written, so that `form` reads them
    seen     how templates begin a call, where they write its values in a way of which `form` reads none; with a place for the name
    """

    name: str
    begin: str
    form: Form
    drop: tuple[str, ...]
    inner: tuple[str, ...]
    written: Written
    seen: str = ""

    @property
    def opener(self) -> str:
        """The letter with which calls begin that have no mark before them."""
        return (self.written.open or self.written.calls[0])[0]

    @property
    def all_marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens within calls or around them."""
        return (*self.marks, *self.written.marks, *self.inner)

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that the family's parser looks for in a text."""
        return (*([self.begin] if self.begin else ()), *self.drop)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The marks around reasoning, at the beginning of an answer. in_channels: it may come again, as `channels` says."""

    begin: str
    end: str
    in_channels: bool = False

    @property
    def all_marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens around reasoning."""
        return CONTROL if self.in_channels else (self.begin, self.end, *marks_in((self.begin, self.end)))


def _tagged(head: str, key: str, after: str, close: str, over: str | None = None, *, lines: bool = False) -> Tagged:
    end = None if over is None else re.compile(over)
    return Tagged(re.compile(head), re.compile(key), Marks([after]), re.compile(close), lines, end)


def _invoke(prefix: str, over: str, attributes: str = "") -> Tagged:
    return _tagged(
        rf'\s*<{prefix}invoke name="{_NAME}">', rf'\s*<{prefix}parameter name="(?P<key>[^"<>]{{1,128}})"{attributes}>',
        f"</{prefix}parameter>", rf"\s*</{prefix}invoke>", rf"\s*{over}",
    )  # fmt: skip


_NS: Final = "]<]minimax[>["
_TEXT: Final = ' string="(?P<string>true|false)"'
FAMILIES: Final = (
    Family("hermes", "<tool_call>", Objects(), ("</tool_call>",), (), objects(
        "", "", before="<tool_call>‹s›", behind="‹s›</tool_call>"
    )),
    Family("qwen3-coder", "<tool_call>", _tagged(
        rf"\s*<function={_NAME}>", r"\s*<parameter=(?P<key>[^<>\n]{1,128})>", "</parameter>", r"\s*</function>", lines=True
    ), ("</tool_call>",), (), Written(
        ("<tool_call>‹s›<function=‹name›>‹s›‹tags›</function>‹s›</tool_call>",), parameter="<parameter=‹key›>\n‹value›\n</parameter>‹s›"
    )),
    Family("glm", "<tool_call>", _tagged(
        rf"\s*{_NAME}\s*(?=<)", r"\s*<arg_key>(?P<key>[^<>]{1,128})</arg_key>\s*<arg_value>", "</arg_value>", r"\s*</tool_call>"
    ), (), (), Written(
        ("<tool_call>‹name›‹s›‹tags›</tool_call>",), parameter="<arg_key>‹key›</arg_key>‹s›<arg_value>‹value›</arg_value>‹s›"
    )),
    Family("mistral", "[TOOL_CALLS]", Head(re.compile(
        rf"\s*{_NAME}(?:\[CALL_ID\](?P<id>[^\[\]{{]{{1,64}}))?(?:\[ARGS\])?\s*(?=\{{)"
    )), (), (), Written(
        tuple(f"[TOOL_CALLS]‹name›{arguments}‹json›" for arguments in ("[ARGS]", "[CALL_ID]‹id›[ARGS]", "")), between=""
    )),
    Family("mistral-list", "[TOOL_CALLS]", Objects(), (), (), objects("[TOOL_CALLS]‹ ›[", "]")),
    Family("deepseek", "<｜tool▁call▁begin｜>", Head(
        re.compile(rf"(?:function<｜tool▁sep｜>)?{_NAME}(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*(?=\{{)"), Marks(["<｜tool▁call▁end｜>"])
    ), ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), (), Written(
        (
            "<｜tool▁call▁begin｜>‹name›<｜tool▁sep｜>‹json›<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>‹name›\n```json\n‹json›\n```<｜tool▁call▁end｜>",
        ), "<｜tool▁calls▁begin｜>", "‹s›", "<｜tool▁calls▁end｜>",
    )),
    Family(
        "deepseek-dsml", "<｜DSML｜function_calls>", _invoke("｜DSML｜", "</｜DSML｜function_calls>", _TEXT), (), (),
        invocations("｜DSML｜", "function_calls", ' string="‹kind›"')
    ),
    Family(
        "deepseek-dsml-tools", "<｜DSML｜tool_calls>", _invoke("｜DSML｜", "</｜DSML｜tool_calls>", _TEXT), (), (),
        invocations("｜DSML｜", "tool_calls", ' string="‹kind›"')
    ),
    Family("kimi", "<|tool_call_begin|>", Head(
        re.compile(r"\s*(?P<id>functions\.(?P<name>[\w.-]{1,128}):\d{1,6})\s*<\|tool_call_argument_begin\|>\s*(?=\{)"),
        Marks(["<|tool_call_end|>"]),
    ), ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), (), Written(
        ("<|tool_call_begin|>functions.‹name›:‹number›<|tool_call_argument_begin|>‹json›<|tool_call_end|>",),
        "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>",
    )),
    Family("kimi-k3", "<|open|>tools<|sep|>", _tagged(
        rf'\s*<\|open\|>call tool="{_NAME}" index="\d{{1,4}}"<\|sep\|>',
        r'\s*<\|open\|>argument key="(?P<key>[^"<>]{1,128})" type="\w{1,16}"<\|sep\|>', "<|close|>argument<|sep|>",
        r"\s*<\|close\|>call<\|sep\|>", r"\s*<\|close\|>tools<\|sep\|>",
    ), ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"), (), Written(
        ('<|open|>call tool="‹name›" index="‹number›"<|sep|>‹tags›<|close|>call<|sep|>',), "<|open|>tools<|sep|>", "",
        "<|close|>tools<|sep|>", '<|open|>argument key="‹key›" type="‹type›"<|sep|>‹value›<|close|>argument<|sep|>',
    )),
    Family("gemma", "<|tool_call>", Literal("<tool_call|>", '<|"|>'), ("<|tool_response>",), ('<|"|>',), Written(
        ("<|tool_call>call:‹name›{‹members›}<tool_call|>",), between="", literal="bare"
    )),
    Family("lfm2", "<|tool_call_start|>", Literal("<|tool_call_end|>"), (), (), Written(
        ("‹name›(‹members›)",), "<|tool_call_start|>[", ",‹ ›", "]<|tool_call_end|>", literal="keywords"
    )),
    Family(
        "minimax", "<minimax:tool_call>", _invoke("", "</minimax:tool_call>"), (), (),
        invocations("", "minimax:tool_call")
    ),
    Family("minimax-m3", f"{_NS}<tool_call>", Elements(_NS), (), (_NS,), Written(
        (f'{_NS}<invoke name="‹name›">‹elements›{_NS}</invoke>',), f"{_NS}<tool_call>‹s›", "‹s›", f"‹s›{_NS}</tool_call>",
        f"{_NS}<‹key›>‹value›{_NS}</‹key›>",
    )),
    Family("olmo", "<function_calls>", Literal("</function_calls>"), (), (), Written(
        ("‹name›(‹members›)",), "<function_calls>‹s›", "‹s›", "‹s›</function_calls>", literal="keywords"
    )),
    Family("cohere", "<|START_ACTION|>", Objects(name="tool_name"), (
        "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"
    ), (), Written(
        ('{"tool_call_id":‹ ›"‹number›",‹ ›"tool_name":‹ ›"‹name›",‹ ›"parameters":‹ ›‹json›}',),
        "<|START_ACTION|>[‹s›‹s›", ",‹s›‹s›", "‹s›]<|END_ACTION|>",
    )),
    Family("nemotron", "<TOOLCALL>", Objects(), ("</TOOLCALL>",), (), objects("<TOOLCALL>[", "]</TOOLCALL>")),
    Family("apriel", "<tool_calls>", Objects(), ("</tool_calls>",), (), objects("<tool_calls>[", "]</tool_calls>")),
    Family("apertus", "<|tools_prefix|>", Objects(keyed=True), ("<|tools_suffix|>",), (), Written(
        ('{"‹name›":‹ ›‹json›}',), "<|tools_prefix|>[", ",‹ ›", "]<|tools_suffix|>"
    )),
    Family("granite-3", "<|tool_call|>", Objects(), ("<|/tool_call|>",), (), objects("<|tool_call|>‹ ›[", "]")),
    Family("functionary", "<function=", Head(re.compile(rf"{_NAME}>\s*(?=\{{)"), Marks(["</function>"])), (), (), Written(
        ("<function=‹name›>‹json›</function>",)
    )),
    Family("gigachat", "<|function_call|>", Objects(), (), (), replace(
        objects("", "", before="<|function_call|>"), several=False
    )),
    Family("solar", "<|tool_call:begin|>", Head(
        re.compile(rf"(?P<id>[\w-]{{1,64}})<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>\s*(?=\{{)"), Marks(["<|tool_call:end|>"])
    ), ("<|tool_calls|>",), (), Written(
        ("<|tool_call:begin|>‹id›<|tool_call:name|>‹name›<|tool_call:args|>‹json›<|tool_call:end|>",), "<|tool_calls|>", ""
    )),
    Family("harmony", "<|channel|>", Addressed(), (), CONTROL, Written(
        (
            "<|channel|>commentary to=functions.‹name›‹ ›<|constrain|>json<|message|>‹json›",
            "<|channel|>commentary to=functions.‹name› json<|message|>‹json›",
            " to=functions.‹name›<|channel|>commentary json<|message|>‹json›",
            " to=functions.‹name›<|channel|>commentary‹ ›<|constrain|>json<|message|>‹json›",
        ), several=False,
    )),
    Family("llama", "", Objects(), ("<|python_tag|>",), (), replace(objects("", "", arguments="parameters"), several=False)),
    Family("pythonic", "", Pythonic(), ("<|python_tag|>", "<|python_start|>", "<|python_end|>"), (), Written(
        ("‹name›(‹members›)",), "[", ",‹ ›", "]", literal="keywords"
    ), "[‹name›("),
    Family("functionary-3.2", "", Recipients(), (), (), Written(("‹name›\n‹json›",), between=">>>")),
)  # fmt: skip

REASONING: Final = (
    Reasoning("<think>", "</think>"),
    Reasoning("<mm:think>", "</mm:think>"),
    Reasoning("<seed:think>", "</seed:think>"),
    Reasoning("[THINK]", "[/THINK]"),
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    Reasoning("<|channel>thought\n", "<channel|>"),
    Reasoning("<|channel|>analysis<|message|>", "<|end|>", in_channels=True),
)


SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables by which templates are told whether to think."""


def reasoning_of(templates: Collection[str]) -> Reasoning | None:
    """The marks that a model's templates know."""
    known = (each for each in REASONING if any((each.begin if each.in_channels else each.end) in text for text in templates))
    return next(known, None)
