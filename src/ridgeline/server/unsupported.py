"""Fields of OpenAI's and vLLM's requests that are known and not supported, per endpoint, as data.

Each name has the values, beside null, that ask for nothing and are accepted; any other value is rejected by name (`server.body`).
"""

from collections.abc import Mapping
from typing import Final

Fields = Mapping[str, tuple[object, ...]]

_GENERATION: Final[Fields] = {
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
REASONS: Final[Mapping[str, str]] = {
    "chat_template": "chat_template is never taken from a request; start the server with --chat-template FILE",
    "response_format": "response_format is not supported by this server; leave it out, or send type text",
}

COMPLETION: Final[Fields] = {**_GENERATION, "prompt_embeds": (), "suffix": ("",), "truncation_side": ("left",)}
CHAT: Final[Fields] = {
    **_GENERATION,
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
}
TOKENIZE: Final[Fields] = {"chat_template": (), "mm_processor_kwargs": ({},)}
