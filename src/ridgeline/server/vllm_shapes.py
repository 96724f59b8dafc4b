"""The shapes of answers that vLLM has beside OpenAI's: fields that its clients and operators read."""

from msgspec import Struct


class RenderedChat(Struct, frozen=True):
    """The prompt of a chat, as ids."""

    request_id: str
    model: str
    token_ids: list[int]


class Load(Struct, frozen=True):
    """Requests that have not ended."""

    server_load: int


class Sleeping(Struct, frozen=True):
    is_sleeping: bool = False


class EffectiveSetting(Struct, frozen=True):
    """origin: where the value comes from; reason: why it is that."""

    name: str
    value: int | str
    origin: str
    reason: str


class ServerInfo(Struct, frozen=True):
    """Parts of the engine. weights_bytes, kv_bytes: of its memory."""

    version: str
    model: str
    runner: str
    rows: int
    max_model_len: int
    weights_bytes: int
    kv_bytes: int
    settings: list[EffectiveSetting]


class TokenizerInfo(Struct, frozen=True):
    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
