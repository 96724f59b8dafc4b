"""Names of arguments that callers of `LLM` get wrong: the nearest one in the error, and vLLM's that ask for nothing here.

Python's own TypeError names neither.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ridgeline.errors import RequestError, nearest

OTHERS: Final[Mapping[str, tuple[Any, str]]] = MappingProxyType({
    "detokenize": (True, "answers have token_ids and text"),
    "spaces_between_special_tokens": (True, "text is as the tokenizer makes it"),
    "truncate_prompt_tokens": (None, "cut the prompt before it is given"),
    "guided_decoding": (None, "use structured_outputs"),
    "logits_processors": (None, "use logit_bias, bad_words or allowed_token_ids"),
    "output_kind": (None, "use LLM.stream"),
    "extra_args": (None, "there are no others"),
    "use_beam_search": (False, "use LLM.beam_search"),
    "length_penalty": (1.0, "use LLM.beam_search"),
    "early_stopping": (False, "use LLM.beam_search"),
    "pooling_task": ("embed", "there are vectors alone"),
    "task": ("embed", "there are vectors alone"),
    "use_activation": (True, "vectors are normalised; PoolingParams(normalize=False)"),
    "tokenization_kwargs": (None, "cut texts by truncate_prompt_tokens"),
    "lora_request": (None, "name the adapter as lora"),
    "mm_processor_kwargs": (None, "images and sound are not supported yet"),
    "use_tqdm_on_load": (True, "on_progress gets the progress of loading"),
    "chat_template_content_format": ("auto", "templates get content as they ask for it"),
})  # fmt: skip
"""Arguments of vLLM's methods → the value that asks for nothing, and what to do instead of others."""


def check_other(name: str, value: object, known: Iterable[str], owner: str) -> None:
    """Raises RequestError for an argument that `owner` does not have, unless it is one of `OTHERS` and asks for nothing."""
    if name in OTHERS:
        harmless, advice = OTHERS[name]
        if value is None or value == harmless:
            return
        raise RequestError(f"{owner} has no argument {name!r}: {advice}", param=name)
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
    raise RequestError(f"{owner} has no argument {name!r:.60}; {hint}", param=name)
