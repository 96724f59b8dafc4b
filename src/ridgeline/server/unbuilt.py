"""Fields that are known and not built: refused by name unless their value asks for nothing. A field nobody knows is ignored.

Owns the tables. Fields that are built are in `server.wire`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ridgeline.server.errors import ApiError
from ridgeline.server.parse import parse

Neutral = tuple[object, ...]


class Unbuilt:
    """The unbuilt fields of one endpoint. `fields`: name → values beside null that ask for nothing."""

    def __init__(self, fields: Mapping[str, Neutral]) -> None:
        self.fields = MappingProxyType(dict(fields))
        self._shape = msgspec.defstruct("_Sent", [(name, Any, None) for name in fields], frozen=True)

    def refuse(self, body: bytes) -> None:
        """Raises ApiError naming the first field that asks for something."""
        sent = parse(self._shape, body)
        for name, neutral in self.fields.items():
            value = getattr(sent, name)
            if value is not None and value not in neutral:
                raise ApiError("unsupported_parameter", _WHY.get(name, f"{name} is not supported by this server; leave it out"), param=name)


_EVERYWHERE: Final[Mapping[str, Neutral]] = {
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "logprob_token_ids": ([],),
    "repetition_detection": (),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "session_id": (),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "vllm_xargs": ({},),
}
_WHY: Final[Mapping[str, str]] = {
    "chat_template": "chat_template is never taken from a request; start the server with --chat-template FILE",
    "response_format": "response_format is not supported by this server; leave it out, or send type text",
}

COMPLETION: Final = Unbuilt({**_EVERYWHERE, "prompt_embeds": (), "suffix": ("",), "truncation_side": ("left",)})
CHAT: Final = Unbuilt({
    **_EVERYWHERE,
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "truncate_prompt_tokens": (),
    "verbosity": (),
    "web_search_options": (),
})
TOKENIZE: Final = Unbuilt({"chat_template": (), "mm_processor_kwargs": ({},)})
