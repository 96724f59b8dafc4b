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
    "flat_logprobs": (False, "log-probabilities are objects"),
    "logprob_token_ids": (None, "use logprobs, or allowed_token_ids"),
    "prompt_logprob_token_ids": (None, "use prompt_logprobs"),
    "prompt_logprob_start": (None, "use prompt_logprobs"),
    "skip_reading_prefix_cache": (None, "LLM(enable_prefix_caching=False)"),
    "repetition_detection": (None, "use frequency_penalty, or repetition_penalty"),
    "routed_experts_prompt_start": (0, "which experts a token had is not told"),
    "trace_decode_token_ids": (None, "give the ids as the prompt, with prompt_logprobs"),
    "stream_interval": (None, "an output of LLM.stream has what its step brought"),
    "skip_clone": (False, "parameters are values"),
    "output_text_buffer_length": (0, "text is given as soon as it cannot be the begin of a stop string"),
    "disable_any_whitespace": (False, "use whitespace_pattern"),
    "disable_fallback": (False, "there is one backend"),
    "disable_additional_properties": (False, "write additionalProperties into the schema"),
    "use_beam_search": (False, "use LLM.beam_search"),
    "length_penalty": (1.0, "use LLM.beam_search"),
    "early_stopping": (False, "use LLM.beam_search"),
    "use_tqdm": (False, "a search of beams shows no progress"),
    "temperature": (0.0, "a search of beams samples nothing"),
    "concurrency_limit": (None, "searches run one after the other"),
    "pooling_task": ("embed", "there are vectors alone"),
    "task": ("embed", "there are vectors alone"),
    "use_activation": (True, "vectors are normalised; PoolingParams(normalize=False)"),
    "activation": (True, "vectors are normalised; PoolingParams(normalize=False)"),
    "pooling_params": (None, "a score is the cosine of whole vectors"),
    "softmax": (None, "models that classify are not supported"),
    "step_tag_id": (None, "models that score steps are not supported"),
    "returned_token_ids": (None, "models that score steps are not supported"),
    "requires_token_ids": (False, "outputs have prompt_token_ids"),
    "extra_kwargs": (None, "there are no others"),
    "tokenization_kwargs": (None, "cut texts by truncate_prompt_tokens"),
    "lora_request": (None, "name the adapter as lora"),
    "prompt_token_ids": (None, "give the ids as the prompt"),
    "prompt_adapter_request": (None, "name a LoRA adapter as lora"),
    "guided_options_request": (None, "use SamplingParams(structured_outputs=…)"),
    "chat_template": (None, "LLM(chat_template=…) replaces the model's"),
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
