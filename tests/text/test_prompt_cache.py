"""The prompt cache gives the ids of the whole text, always, and saves time in growing conversations."""

import random
import time

import pytest

from gold import vocabulary
from ridgeline.text import prompt_cache
from ridgeline.text.files import load_tokenizer
from ridgeline.text.prompt_cache import PromptCache, split_names
from ridgeline.text.tokenizer import MASK, Tokenizer

FAMILIES = ("llama-bpe", "qwen2", "gpt-2", "deepseek-llm", "falcon", "starcoder", "mpt", "llama-spm", "phi-3")
POINTS = [*range(0x20, 0x7F), 0x0A, 0x0A, 0x20, 0x20, 0xE9, 0x4E2D, 0x1F999, 0x301]


class CountingCache(PromptCache):
    """Counts texts of which a prefix was cached."""

    hits = 0

    def _longest_prefix(self, keys: list[bytes], splits: list[int]) -> tuple[list[int], int]:
        ids, length = super()._longest_prefix(keys, splits)
        self.hits += length > 0
        return ids, length


def cache_of(family: str) -> CountingCache:
    return CountingCache(load_tokenizer(vocabulary(family)))


def texts(tokenizer: Tokenizer, rng: random.Random, count: int) -> list[str]:
    """Texts that begin alike, with names of control tokens, spaces and halves of names between random characters."""
    names = split_names(tokenizer)[:6] or ["<none>"]
    found = [""]
    for _ in range(count):
        parts = [rng.choice(found)]
        for _ in range(rng.randint(1, 4)):
            words = "".join(map(chr, rng.choices(POINTS, k=rng.randint(0, 9))))
            parts += [words, rng.choice([*names, *names, " ", "\n\n", names[0][:-1], MASK])]
        found.append("".join(parts)[-400:])
        found = found[-12:] if rng.random() < 0.9 else [""]
    return found


def check(family: str, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(prompt_cache, "MIN_CHARACTERS", 0)
    cache, rng, done = cache_of(family), random.Random(family), 0
    while done < count:
        for text in texts(cache.tokenizer, rng, 60):
            for bos in (False, True):
                assert cache.encoder(b"a").encode(text, bos, special=True) == cache.tokenizer.encode(text, bos, special=True), text
            done += 1
    return cache.hits


@pytest.mark.parametrize("family", ["llama-bpe", "llama-spm", "gpt-2"])
def test_ids_are_those_of_the_whole_text(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(family, 600, monkeypatch) > 50


@pytest.mark.night
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_whole_text_in_every_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(family, 20_000 // len(FAMILIES), monkeypatch)


def test_a_growing_conversation_is_read_once() -> None:
    cache = cache_of("llama-bpe")
    encoder, text, spent = cache.encoder(b""), "<|begin_of_text|>", [0.0, 0.0]
    for turn in range(40):
        text += f"<|start_header_id|>user<|end_header_id|>\n\n{'a word and another ' * 30}{turn}<|eot_id|>"
        for number, tokenizer in enumerate((encoder, cache.tokenizer)):
            began = time.process_time()
            ids = tokenizer.encode(text, False, special=True)
            spent[number] += time.process_time() - began
            assert len(ids) > 100
    assert cache.hits >= 30
    assert spent[0] < spent[1] / 2, spent
    print(f"{len(text)} characters at the end: {spent[0] * 1e3:.1f} ms with the cache, {spent[1] * 1e3:.1f} ms without")


def test_tenants_share_nothing_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of("gpt-2")
    text = "some words " * 400 + "<|endoftext|>" + "more"
    cache.encoder(b"one").encode(text, False, special=True)
    cache.encoder(b"two").encode(text, False, special=True)
    assert cache.hits == 0
    cache.encoder(b"one").encode(text, False, special=True)
    assert cache.hits == 1
    monkeypatch.setattr(prompt_cache, "MAX_IDS", 2_000)
    for number in range(20):
        cache.encoder(b"one").encode(f"{number} " * 500 + "<|endoftext|>", False, special=True)
    assert cache._size <= 2_000 and sum(map(len, cache._entries.values())) == cache._size


def test_no_text_reaches_into_the_keys_of_another_domain() -> None:
    cache = cache_of("gpt-2")
    text = "some words " * 400 + "<|endoftext|>" + "more"
    for bos in (False, True):
        cache.encoder(b"x" + bytes((bos,)) + b"y").encode(text, bos, special=True)
        theirs = "y" + chr(bos) + text
        assert cache.encoder(b"x").encode(theirs, bos, special=True) == cache.tokenizer.encode(theirs, bos, special=True)
    assert cache.hits == 0
