"""The canary: one short text that every language model can continue, scored before the first request.

Owns the text and what its scores mean. Damage that no header and no sample of weights shows (codes that flipped, tensors of another model,
the wrong order of rows) makes a model answer nonsense with status 200; here it shows as a perplexity that no trained model has.
"""

from collections.abc import Iterable
from math import exp, log
from typing import Final

from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.errors import Finding, ModelFormatError, RequestError
from ridgeline.text.tokenizer import Tokenizer

CHECK: Final = "answers"
FIX: Final = "download the model again and compare its SHA-256 with the publisher's, or use another conversion"

TEXT: Final = "1, 2, 3, 4, 5"
PARAMS: Final = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, ignore_eos=True, seed=0)
LEAST_TOKENS: Final = 8
MAX_PERPLEXITY: Final = 5.0
"""Bound on the perplexity of the text's second half. Gemma 3 270M has 1.2, SmolLM2 135M 1.1; with two layers in each other's place they
have 10 and 11."""
RANDOM_SHARE: Final = 0.6
"""Share of ln(vocabulary): a model that knows no more than this of the next token answers nonsense."""
CERTAIN: Final = 1e-4
"""Nats: where the likeliest token never has less, the model says the same whatever it reads."""


def canary_request(tokenizer: Tokenizer, limits: ModelLimits) -> Admitted | None:
    """The request that scores the text; None where the model is too small for it."""
    ids = tokenizer.encode(TEXT, add_bos=True)
    if len(ids) < LEAST_TOKENS:
        return None
    try:
        return admit(ids, PARAMS, limits, request_id="canary", draw_seed=lambda: 0, domain=b"canary")
    except RequestError:
        return None


def judge(found: Iterable[TokenLogprobs | None], end: Finish, vocab: int) -> tuple[Finding, ...]:
    """Problems that the answer to `canary_request` shows.

    found  scores of the prompt's tokens; of the first there is none
    end    of the answer
    vocab  ids that can be sampled
    Raises ModelFormatError where the model's numbers are not finite: every request would fail.
    """
    if end is Finish.ERROR:
        raise ModelFormatError(f"the model's numbers are not finite when it reads {TEXT!r}: {FIX}; on a GPU, try --dtype bf16")
    scores = [score for score in found if score is not None]
    if not scores:
        return ()
    best = [score.top[0][1] for score in scores if score.top]
    tail = scores[len(scores) // 2 :]
    nats = -sum(score.logprob for score in tail) / len(tail)
    perplexity = exp(min(nats, log(1e9)))
    if best and max(best) < 1.0 - log(vocab):
        return (_finding(f"every token of {vocab} is about as likely as any other, whatever it reads"),)
    if best and min(best) > -CERTAIN and len({score.top[0][0] for score in scores}) == 1:
        return (_finding("it says the same token whatever it reads"),)
    if perplexity <= MAX_PERPLEXITY:
        return ()
    cause = f"{TEXT!r} has a perplexity of {perplexity:.3g} in its second half; trained models have about 1.2, at most {MAX_PERPLEXITY:g}"
    if nats > RANDOM_SHARE * log(vocab):
        return (_finding(f"{cause}, and random weights {vocab}: it answers nonsense"),)
    return (Finding("warning", CHECK, cause, FIX),)


def _finding(cause: str) -> Finding:
    return Finding("error", CHECK, cause, FIX)
