"""Prompts as the replicas' token ids: the router's own tokenizer and chat template, those of the replicas' model.

What the router cannot tokenise, or what will be refused, has no ids: the replica says what is wrong with it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from ridgeline.config.env import model_stores
from ridgeline.config.groups import FAKE_PREFIX
from ridgeline.errors import RidgelineError
from ridgeline.facts.hub.source import resolve_model
from ridgeline.router.prompts import Prompt
from ridgeline.server import body, chat_prompts, wire
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.text.files import read_files
from ridgeline.text.prompt_cache import PromptCache

COMPLETIONS: Final = "/v1/completions"
MOST_ID: Final = 1 << 31
CHATS: Final = ("/v1/chat/completions", "/chat/completions")


class PromptTokens:
    """Tokenises for one model. `close` ends the process of its template."""

    def __init__(self, model: str, chat_template: str | None = None) -> None:
        """Reads the tokenizer of the model that users call so; `chat_template`: a file in the place of its template. Raises a
        RidgelineError."""
        path = None if model.startswith(FAKE_PREFIX) else resolve_model(model, model_stores(), lambda *_: None)
        files = read_files(model, path, chat_template=chat_template, generation_config="none")
        self._tokenizer, self._template = files.tokenizer, files.load_template()
        self._cache = PromptCache(files.tokenizer)

    def fill_now(self, prompt: Prompt, path: str, data: bytes, tenant: str) -> Prompt | None:
        """The prompt with its ids, where they take no time: a text that is not long. None: `fill` it."""
        if path != COMPLETIONS:
            return None if path in CHATS else prompt
        try:
            asked = body.parse(wire.CompletionRequest, data)
        except ApiError:
            return prompt
        if (text := _only(asked)) is None:
            return prompt
        if isinstance(text, str):
            if len(text) > self._tokenizer.quick_characters:
                return None
            text = self._encode(asked, text, tenant)
        return self._filled(prompt, text, asked, tenant)

    async def fill(self, prompt: Prompt, path: str, data: bytes, tenant: str) -> Prompt:
        """The prompt with its ids, and the number of them."""
        try:
            if path in CHATS and self._template is not None:
                chatting = body.parse(wire.ChatCompletionRequest, data)
                encoder = self._cache.encoder(_domain(chatting, tenant))
                ids = await chat_prompts.tokenise_by(self._template, self._tokenizer, encoder, chatting, Notes())
                return self._filled(prompt, ids, chatting, tenant)
            if path == COMPLETIONS and isinstance(text := _only(asked := body.parse(wire.CompletionRequest, data)), str):
                ids = await run_encoding(self._tokenizer, len(text), lambda: self._encode(asked, text, tenant))
                return self._filled(prompt, ids, asked, tenant)
        except RidgelineError:
            return prompt
        return self.fill_now(prompt, path, data, tenant) or prompt

    def close(self) -> None:
        """Ends the template's process. Safe to call twice."""
        if self._template is not None:
            self._template.close()

    def _encode(self, asked: wire.CompletionRequest, text: str, tenant: str) -> list[int]:
        return self._cache.encode(text, asked.add_special_tokens is not False, _domain(asked, tenant))

    def _filled(self, prompt: Prompt, ids: Sequence[int], asked: wire.GenerationRequest, tenant: str) -> Prompt:
        scope = blake2b(_domain(asked, tenant) + b"\0" + (asked.model or "").encode(), digest_size=16).digest()
        return prompt._replace(tokens=len(ids), ids=ids, scope=scope)


def _domain(asked: wire.GenerationRequest, tenant: str) -> bytes:
    return f"{tenant}\0{asked.cache_salt or ''}".encode()


def _only(asked: wire.CompletionRequest) -> str | Sequence[int] | None:
    """The text or the ids of the only prompt; None where there are several, or what is computed is something else."""
    prompt: Any = asked.prompt
    if asked.suffix or asked.truncate_prompt_tokens is not None or not prompt:
        return None
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    is_one = isinstance(prompt, str) or all(isinstance(each, int) and 0 <= each < MOST_ID for each in prompt)
    return prompt if is_one else None
