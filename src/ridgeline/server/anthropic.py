"""The shapes of Anthropic's API beside those of `wire` and `replies`: typed structs. Endpoints fill them, `server.openapi` has them."""

from typing import Literal

from msgspec import Struct


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model. `max_tokens`: the longest answer, which shares the context with its prompt."""

    id: str
    created_at: str
    display_name: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(Struct, frozen=True, kw_only=True):
    """All models on one page."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: Literal[False] = False
