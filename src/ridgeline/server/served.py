"""The model as endpoints see it: its name, its tokenizer, its chat template, the defaults of its authors; and how these are loaded.

Owns what the front end reads of a model's files. Weights are the engine's.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.config.groups import FAKE_PREFIX, ServerConfig
from ridgeline.engine.admit import ModelLimits, check_number
from ridgeline.engine.messages import Ready
from ridgeline.errors import ConfigError, RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.files import ModelFiles, read_files
from ridgeline.text.prompt_cache import PromptCache
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    created   seconds since 1970
    chat      None: the model has no template
    defaults  what its authors recommend for fields that a client leaves out, by the names of `SamplingParams`
    """

    name: str
    tokenizer: Tokenizer
    limits: ModelLimits
    engine: Ready
    created: int
    prompts: PromptCache
    chat: ChatTemplate | None = None
    defaults: Mapping[str, int | float] = field(default_factory=dict)

    def check_name(self, asked: str | None) -> None:
        """Raises RequestError unless a client means this model. One that gives no name means the only one there is."""
        if asked is not None and asked != self.name:
            message = f"there is no model of that name here; this server has {self.name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)

    def reading(self, salt: str | None) -> Tokenizer:
        """The tokenizer for prompts; it knows the beginnings that requests with the same salt had before."""
        return self.prompts.view((salt or "").encode())

    @property
    def turn_ends(self) -> frozenset[int]:
        """Ids that end an answer to a chat beside those that end any."""
        stop_ids = frozenset[int]() if self.chat is None else self.chat.stop_ids
        return frozenset(token for token in stop_ids if token < self.limits.vocab)

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: changes with weights and KV layout."""
        return "fp_" + hashlib.sha256(self.limits.kv.fingerprint).hexdigest()[:12]

    @property
    def notes(self) -> list[str]:
        """What an operator should know of the template and the defaults, a line each, warnings last."""
        chat = "chat: no template; /v1/chat/completions needs --chat-template FILE"
        if self.chat is not None:
            chat = f"chat template: {_SOURCES[self.chat.source]}; turns end at {_names(self.tokenizer, self.turn_ends)}"
        stated = ", ".join(f"{name} {value}" for name, value in self.defaults.items())
        defaults = [f"defaults of the model: {stated} (--generation-config none ignores them)"] if stated else []
        return [chat, *defaults, *(f"warning: {each}" for each in (self.chat.warnings if self.chat else ()))]


@dataclass(frozen=True, slots=True)
class Texts:
    """What the front end reads of a model's files, before the engine is ready."""

    files: ModelFiles
    prompts: PromptCache
    chat: ChatTemplate | None

    def model(self, name: str, ready: Ready) -> Model:
        """Together with what the engine says of itself."""
        files, info = self.files, ready.info
        vocab = files.vocab(info.vocab)
        limits = ModelLimits(vocab, info.max_model_len, files.ends(vocab), info.kv)
        return Model(name, files.tokenizer, limits, ready, int(time.time()), self.prompts, self.chat, files.generation.sampling)


def load_texts(name: str, path: Path | None, config: ServerConfig) -> Texts:
    """Of the model that the user calls `name`, at `path`; None: one without files, which speaks bytes.

    Raises ConfigError for a template or defaults that are of no use, ModelFormatError for malformed files.
    """
    files = read_files(name, path, chat_template=config.chat_template, generation_config=config.generation_config)
    _check_defaults(files.generation.sampling)
    return Texts(files, PromptCache(files.tokenizer), files.load_template())


def _check_defaults(sampling: Mapping[str, int | float]) -> None:
    """Raises ConfigError for a default that no client could send: it would refuse every request that leaves the field out."""
    for name, value in sampling.items():
        try:
            check_number(name, value)
        except RequestError as error:
            raise ConfigError(f"the model's default for {error}", fix={"--generation-config": "none"}) from None


def served_name(model: str, config: ServerConfig) -> str:
    """What clients call the model that the user calls `model`."""
    if config.served_model_name is not None:
        return config.served_model_name
    return "fake" if model.startswith(FAKE_PREFIX) else Path(model).stem if model.endswith(".gguf") else model


_SOURCES: Mapping[str, str] = {
    "model": "the model's own",
    "file": "from --chat-template",
    "built in": "Ridgeline's own (the model has none)",
}


def _names(tokenizer: Tokenizer, ids: frozenset[int]) -> str:
    return " ".join(repr(tokenizer.piece(token).decode("utf-8", "replace")) for token in sorted(ids)) or "no token of their own"
