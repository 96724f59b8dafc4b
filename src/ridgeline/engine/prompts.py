"""Prompts as callers of `LLM` give them: one or several, with parameters and adapters for all or for each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ridgeline.core.params import SamplingParams
from ridgeline.engine.adapters import LoRARequest
from ridgeline.errors import RequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's {"prompt": text} or {"prompt_token_ids": ids}."""
Prompts = Prompt | Sequence[Prompt]
Progressing = bool | Callable[..., Any]
"""Choice of a progress bar: whether one is shown, or what makes it, as tqdm does: with `total` and `desc`."""
Lora = str | LoRARequest | Sequence[str | LoRARequest | None] | None
"""An adapter for all prompts, or one for each."""
Messages = Sequence[Mapping[str, object]]
"""A conversation: objects with role and content, as in OpenAI's API."""


def is_conversation(prompt: object) -> bool:
    """True of a list of messages."""
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def read_conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One conversation is a list of objects, several are a list of such lists."""
    return [messages] if is_conversation(messages) else list(messages)  # type: ignore[list-item,arg-type]


def as_list(prompts: Prompts) -> list[Prompt]:
    """One prompt is a string or a non-empty list of integers; anything else is several."""
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts is {prompts!r:.60}; it must be a text, token ids, or a list of these", param="prompts")
    if isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and all(isinstance(each, int) for each in prompts)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def plain_prompt(prompt: Prompt) -> str | Sequence[int]:
    """The text or the ids of a prompt that may be an object. Raises RequestError."""
    if not isinstance(prompt, Mapping):
        return prompt
    found = {name: value for name, value in prompt.items() if value is not None}
    if len(found) == 1 and (isinstance(found.get("prompt"), str) or isinstance(found.get("prompt_token_ids"), Sequence)):
        return next(iter(found.values()))  # type: ignore[no-any-return]
    names = ", ".join(map(str, found)) or "nothing"
    raise RequestError(f"a prompt has {names:.60}; give it as prompt, a text, or prompt_token_ids, a list", param="prompt")


def one_per_prompt(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """Parameters of each prompt. Raises RequestError."""
    result = [params] * count if isinstance(params, SamplingParams) else list(params)
    if len(result) != count:
        message = f"{count} prompts come with {len(result)} sampling_params; give one, or one per prompt."
        raise RequestError(message, param="sampling_params")
    return result


def one_adapter_per_prompt(asked: Lora, count: int) -> list[str | LoRARequest | None]:
    """The adapter of each prompt. Raises RequestError."""
    if asked is None or isinstance(asked, (str, LoRARequest)):
        return [asked] * count
    if not isinstance(asked, Sequence) or len(asked) != count:
        raise RequestError(f"lora is {asked!r:.80}; give a name or a LoRARequest for all prompts, or {count} of them", param="lora")
    return list(asked)


@contextmanager
def progress_bar(total: int, show: Progressing) -> Iterator[Callable[[int], Any]]:
    """Yields a function to call after each finished request; it advances a bar on the terminal, or the caller's own."""
    if callable(show):
        own = show(total=total, desc="requests")
        try:
            yield own.update
        finally:
            own.close()
        return
    if not show:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)
