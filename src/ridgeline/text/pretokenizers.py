"""How byte-level BPE vocabularies of GGUF files cut text before merging, as data: one row a value of `tokenizer.ggml.pre`.

Each pattern is applied to the parts that the ones before it left, its matches stand by themselves. The patterns are the models' own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_FIRST = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""GPT-2's (Radford et al. 2019), from which the others come."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns      applied one after the other
    ignore_merges  a part that is itself a piece is taken whole
    add_bos        prompts begin with BOS where the file does not say
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_THREES = PreTokenizer((_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_ONES = PreTokenizer((_ONE_DIGIT,))
_PLAIN = PreTokenizer((_FIRST,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _FIRST))
_NEWER = (
    "\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df1e"
)
"""Letters with case that are not in the list of letters that DeepSeek's pattern spells out, mathematical ones among them."""
_DEEPSEEK = PreTokenizer((
    r"[\r\n]",
    rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{_NEWER}]]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _FIRST, "[0-9][0-9][0-9]"))
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = PreTokenizer(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignore_merges=True,
    add_bos=True,
)
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _FIRST, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _THREES),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _ONES),
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo"), _PLAIN),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _SINGLE_DIGITS),
    **dict.fromkeys(("smaug-bpe", "dbrx"), PreTokenizer((_THREE_DIGITS,))),
    "deepseek-llm": _DEEPSEEK,
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    "default": _DEFAULT,
}
"""`tokenizer.ggml.pre` → how to cut."""
