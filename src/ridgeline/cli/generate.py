"""`ridgeline generate`: prompts in, continuations out, with the engine in this process. Data goes to stdout, all else to stderr."""

import json
import sys
from typing import Annotated, Any

import typer


def generate(
    model: Annotated[str, typer.Argument(help="`demo`, or the path of a GGUF file.")],
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue.", metavar="PROMPT...")],
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each choice at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Best tokens to choose from; 0 is all.")] = 0,
    n: Annotated[int, typer.Option(help="Choices a prompt.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of every prompt [random].")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a choice; may be repeated.")] = None,
    min_tokens: Annotated[int, typer.Option(help="Output tokens before which nothing ends a choice.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Log-probabilities of so many best tokens (with --json).")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and output [what model and cache hold].")] = None,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Memory of the KV cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, on a line of its own.")] = False,
) -> None:
    """Continue prompts with a model, in this process."""
    from ridgeline.cli.serve import Loading
    from ridgeline.core.params import SamplingParams
    from ridgeline.engine.llm import LLM

    params = SamplingParams(
        n=n,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        logprobs=logprobs,
    )
    settings = {"max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes}
    with Loading() as loading, LLM(model, on_progress=loading.show, **settings) as llm:
        loading.close()
        answers = llm.generate(prompts, params)
    for answer in answers:
        _print(answer, as_json)


def _print(answer: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_dict(answer), ensure_ascii=False))
        return
    for output in answer.outputs:
        print(f"{answer.prompt}{output.text}")
    sys.stdout.flush()


def _as_dict(answer: Any) -> dict[str, Any]:
    """The answer as JSON: token ids, and log-probabilities as [id, value] pairs, the sampled token's first."""
    return {
        "prompt": answer.prompt,
        "prompt_token_ids": list(answer.prompt_token_ids),
        "cached_tokens": answer.num_cached_tokens,
        "choices": [_choice(output) for output in answer.outputs],
    }


def _choice(output: Any) -> dict[str, Any]:
    choice = {
        "index": output.index,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        choice["logprobs"] = [_pairs(each, token) for each, token in zip(output.logprobs, output.token_ids, strict=True)]
    return choice


def _pairs(found: dict[int, Any], sampled: int) -> list[tuple[int, float]]:
    ordered = sorted(found.items(), key=lambda item: (item[0] != sampled, -item[1].logprob))
    return [(token, each.logprob) for token, each in ordered]
