"""Calls as real templates write them, and what a parser makes of a text."""

import json
from collections.abc import Sequence
from typing import Any

from ridgeline.text.chat_content import Conversation
from ridgeline.text.tools.parser import AnswerParser, CallArguments, CallBegin, CallEnd, Event, Text, Thought

EXPECTED = {
    "Apertus-8B-Instruct": "apertus", "Apriel-1.6-15b-Thinker-fixed": "apriel", "Bielik-11B-v3.0-Instruct": "hermes",
    "GLM-4.7-Flash": "glm", "GigaChat3.1-10B-A1.8B": "gigachat", "LFM2.5-8B-A1B": "lfm2", "MiMo-VL": "hermes", "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral", "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes", "Qwen-Qwen3-0.6B": "hermes", "Qwen3-Coder": "qwen3-coder", "Reka-Edge": "hermes",
    "Spark2.5": "glm", "StepFun3.5-Flash": "qwen3-coder", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek", "deepseek-ai-DeepSeek-V3.2": "deepseek-dsml",
    "deepseek-ai-DeepSeek-V4": "deepseek-dsml-tools", "google-gemma-4-31B-it": "gemma", "ibm-granite-granite-4.0": "hermes",
    "inclusionai-ling-3.0-flash": "glm", "meetkai-functionary-medium-v3.1": "functionary", "meta-llama-Llama-3.1-8B-Instruct": "llama",
    "meta-llama-Llama-3.3-70B-Instruct": "llama", "mistralai-Ministral-3-14B-Reasoning-2512": "mistral", "moonshotai-Kimi-K2": "kimi",
    "poolside-Laguna-S-2.1": "glm", "poolside-Laguna-XS-2.1": "glm", "poolside-Laguna-XS.2": "glm", "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral", "upstage-Solar-Open-100B": "solar",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3", "Kimi-K2-Instruct": "kimi", "Kimi-K2-Thinking": "kimi",
    "LFM2.5-Instruct": "lfm2", "llama-cpp-deepseek-r1": "deepseek", "openai-gpt-oss-120b": "harmony", "Kimi-K3": "kimi-k3",
    "MiniMax-M3": "minimax-m3", "meetkai-functionary-medium-v3.2": "functionary-3.2",
    "cohere": "cohere", "olmo": "olmo", "pythonic-bare": "pythonic", "pythonic-quoted": "pythonic",
}  # fmt: skip
"""Template → family."""
NO_LITERALS = frozenset({"pythonic-bare", "pythonic-quoted"})
"""Their templates write values as no model does."""
TELLS_NOTHING = NO_LITERALS | frozenset({
    "ibm-granite-granite-3.3-2B-Instruct", "Kimi-K2-Instruct", "Kimi-K2-Thinking", "LFM2.5-Instruct", "llama-cpp-deepseek-r1"
})  # fmt: skip
"""Templates that refuse or leave out calls of an assistant too, so that only marks tell."""
OWN = {
    "cohere": """<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{% for tool in tools or [] %}{{ tool.function | tojson }}
{% endfor %}<|END_OF_TURN_TOKEN|>{% for message in messages %}{% if message.role == "assistant" %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>
{%- if message.tool_calls %}<|START_THINKING|>{{ message.reasoning_content }}<|END_THINKING|><|START_ACTION|>[
{% for call in message.tool_calls %}    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ call.function.name }}", "parameters": {{
call.function.arguments | tojson }}}{{ ",\n" if not loop.last }}
{% endfor %}]<|END_ACTION|>{% else %}<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>
{%- else %}<|START_OF_TURN_TOKEN|>{{ "<|USER_TOKEN|>" if message.role == "user" else "<|SYSTEM_TOKEN|>" }}{{ message.content
}}<|END_OF_TURN_TOKEN|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}""",
    "olmo": """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}<function_calls>
{% for call in message.tool_calls %}{{ call.function.name }}({% for key, value in call.function.arguments.items() %}{{ key }}={{
value | tojson }}{{ ", " if not loop.last }}{% endfor %})
{% endfor %}</function_calls>{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
} | {
    name: """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.tool_calls %}[{% for call in message.tool_calls %}{{ call.function.name }}({% for key in call.function.arguments
%}{{ key }}=QUOTE{{ "%s" | format(call.function.arguments[key]) }}QUOTE{{ ", " if not loop.last }}{% endfor %}){{
", " if not loop.last }}{% endfor %}]{% else %}{{ message.content }}{% endif %}<|eot_id|>{% endfor %}{% if add_generation_prompt
%}<|start_header_id|>assistant<|end_header_id|>

{% endif %}""".replace("QUOTE", quote) for name, quote in (("pythonic-bare", ""), ("pythonic-quoted", '"'))
}  # fmt: skip
"""Templates in forms of which no real one may lie here: Cohere's, OLMo 3's, and Llama's calls like Python's, whose templates write values
without quotes, or all of them in quotes."""
ONLY_TOKENS = {"LFM2.5-Instruct": ("<|tool_call_start|>",)}
"""Marks that the vocabulary alone names."""
ONE_CALL = frozenset({
    "GigaChat3.1-10B-A1.8B", "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct", "openai-gpt-oss-120b"
})  # fmt: skip
REORDERS = frozenset({"google-gemma-4-31B-it", "Reka-Edge"})
"""Their templates write the arguments as other JSON."""
PROPERTIES = {
    "place": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}, "sure": {"type": "boolean"}
}  # fmt: skip
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather.", "parameters": {"type": "object", "properties": PROPERTIES}
}}]  # fmt: skip
NO_NULLS = frozenset({"MiniMax-M3"})
"""Their templates leave out arguments that are null."""
USER = {"role": "user", "content": "Weather?"}
CALLS: list[dict[str, Any]] = [
    {"place": 'Zürich & "Bern" \\ {[<b>', "days": 2},
    {"place": "你好, 2", "days": None, "where": {"at": [1, 2.5, True], "near": "x y"}, "sure": False},
]


def calls_of(name: str) -> list[dict[str, Any]]:
    """`CALLS`, as far as a template can tell them."""
    calls = CALLS[:1] if name in ONE_CALL else CALLS
    return [{key: value for key, value in each.items() if value is not None or name not in NO_NULLS} for each in calls]


def whole(events: Sequence[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and the calls that are complete."""
    content, thought, calls, names, arguments = "", "", [], list[str](), ""
    for event in events:
        match event:
            case Text():
                content += event.text
            case Thought():
                thought += event.text
            case CallBegin():
                names.append(event.name)
                arguments = ""
            case CallArguments():
                arguments += event.text
            case CallEnd():
                calls.append((names[-1], arguments))
    assert len(names) == len(calls)
    return content, thought, calls


def parsed(parser: AnswerParser, text: str, cuts: Sequence[int] = ()) -> tuple[str, str, list[tuple[str, str]]]:
    ends = [*sorted(cuts), len(text)]
    events = [event for start, end in zip([0, *ends], ends, strict=False) for event in parser.push(text[start:end])]
    return whole([*events, *parser.finish()])


def rendered(template: Any, calls: Sequence[dict[str, Any]], content: str) -> str:
    """What the template makes of an answer with these calls."""
    made = [
        {"id": f"abcdef12{at}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(each, ensure_ascii=False)}}
        for at, each in enumerate(calls)
    ]
    prompt = template.render(Conversation([USER], TOOLS))
    answer = {"role": "assistant", "content": content, "tool_calls": made}
    text = template.render(Conversation([USER, answer], TOOLS, add_generation_prompt=False))
    return text[len(prompt) :] if text.startswith(prompt) else text.rpartition("Weather?")[2]
