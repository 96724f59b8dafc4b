"""A loaded model as endpoints see it, and its text side, read while the engine loads the weights: tokenizer, chat template, its authors'
defaults."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

from ridgeline.config.groups import FAKE_PREFIX, ServerConfig
from ridgeline.engine.admit import ModelLimits, check_number
from ridgeline.engine.messages import Ready
from ridgeline.errors import ConfigError, Finding, RequestError
from ridgeline.facts.files.gguf import headers_kept
from ridgeline.server.callers import private_salt
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.files import ModelFiles, read_files
from ridgeline.text.fim import Fim, find_fim
from ridgeline.text.prompt_cache import Encoder, PromptCache
from ridgeline.text.statements import ModelKind
from ridgeline.text.token_text import token_text
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tokenizer_check import check_vocabulary


@dataclass(frozen=True)
class Model:
    """A loaded model.

    created   seconds since 1970
    kind      base or instruct, and why
    chat      None: the model has no template
    findings  problems that checks found before the first request
    defaults  values that its authors recommend for fields that a client leaves out, by the names of `SamplingParams`
    fim       how it is asked for a text between two; None: it cannot be. The first call may read a file
    path      of its file or directory, which no answer tells; None: it has none
    """

    name: str
    tokenizer: Tokenizer
    limits: ModelLimits
    engine: Ready
    created: int
    prompts: PromptCache
    kind: ModelKind
    chat: ChatTemplate | None = None
    findings: tuple[Finding, ...] = ()
    defaults: Mapping[str, int | float] = field(default_factory=dict)
    fim: Callable[[], Fim | None] = lambda: None
    path: Path | None = None

    def check_name(self, name: str | None) -> None:
        """Raises RequestError unless `name` is this model's. None means the only model there is."""
        if name is not None and name != self.name:
            message = f"there is no model of that name here; this server has {self.name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)

    def check_generates(self) -> None:
        """Raises RequestError where the model has vectors alone."""
        if not self.engine.info.generates:
            message = "this model makes vectors of texts and generates none; send the text to /v1/embeddings, or use another model"
            raise RequestError(message, param="model")

    def prompt_encoder(self, salt: str | None) -> Encoder:
        """Encoder of prompts, which reuses the ids of prefixes that the caller's requests with the same salt had before. Not for a thread
        to ask: see `server.callers`."""
        return self.prompts.encoder(private_salt(salt).encode())

    @cached_property
    def turn_end_ids(self) -> frozenset[int]:
        """Ids that end an answer to a chat beside those that end any."""
        stop_ids = frozenset[int]() if self.chat is None else self.chat.stop_ids
        return frozenset(token for token in stop_ids if token < self.limits.vocab)

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """Names of the token that begins a text and of one that ends it; None: there is none."""
        bos, eos = self.tokenizer.bos, min(self.limits.eos_ids, default=None)
        return None if bos is None else token_text(self.tokenizer, bos), None if eos is None else token_text(self.tokenizer, eos)

    @cached_property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: changes with weights and KV layout."""
        return "fp_" + hashlib.sha256(self.limits.kv.fingerprint).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class TextAssets:
    """The text side of a model.

    chat      None where it has no template
    findings  problems of tokenizer and template
    """

    files: ModelFiles
    prompts: PromptCache
    chat: ChatTemplate | None
    kind: ModelKind
    findings: tuple[Finding, ...]


@headers_kept()
def load_text_assets(name: str, path: Path | None, config: ServerConfig) -> TextAssets:
    """Reads the text side of the model that the user calls `name`, at `path`; None: a model without files, whose tokens are bytes.

    Raises ConfigError for a template or defaults that do not work, ModelFormatError for malformed files.
    """
    files = read_files(name, path, chat_template=config.chat_template, generation_config=config.generation_config)
    _check_defaults(files.generation.sampling)
    chat = files.load_template()
    return TextAssets(files, PromptCache(files.tokenizer), chat, *files.check(chat))


def _check_defaults(sampling: Mapping[str, int | float]) -> None:
    """Raises ConfigError for a default out of range: every request that leaves the field out would be rejected."""
    for name, value in sampling.items():
        try:
            check_number(name, value)
        except RequestError as error:
            raise ConfigError(f"the model's default for {error}", fix={"--generation-config": "none"}) from None


def served_name(model: str, config: ServerConfig) -> str:
    """The name by which clients call the model that the user calls `model`."""
    if config.served_model_name is not None:
        return config.served_model_name
    return "fake" if model.startswith(FAKE_PREFIX) else Path(model).stem if model.endswith(".gguf") else model


def make_model(name: str, assets: TextAssets, ready: Ready) -> Model:
    """The model that clients call `name`, of its text side and a ready engine, with what their comparison finds."""
    files, info = assets.files, ready.info
    vocab = files.vocab(info.vocab)
    limits = ModelLimits(vocab, info.max_model_len, files.eos_ids(vocab), info.kv)
    findings = (*info.findings, *assets.findings)
    if files.path is not None:
        findings += tuple(check_vocabulary(files.tokenizer, info.vocab))
    now, defaults, fim = int(time.time()), files.generation.sampling, cache(partial(find_fim, files.tokenizer, files.path))
    return Model(name, files.tokenizer, limits, ready, now, assets.prompts, assets.kind, assets.chat, findings, defaults, fim, files.path)
