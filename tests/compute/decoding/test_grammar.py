"""Rows that follow a grammar: masks in every sampler, masks behind drafts, and grammars that cannot go on."""

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import numpy as np
import pytest
from fake_grammars import FakeGrammars, packed_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from small_grammars import END, VOCAB, WORDS, grammar, ready

from ridgeline.compute.backend import RowState
from ridgeline.compute.cpu import ext, sampling
from ridgeline.compute.decoding import llguidance, sampler
from ridgeline.compute.decoding.edits import history_of
from ridgeline.compute.decoding.following import Following
from ridgeline.compute.decoding.grammar import READING_PRIORITY, GrammarCompiler, GrammarError, Vocabulary
from ridgeline.compute.runner import Places
from ridgeline.core.params import Grammar, RowParams, Sampling


def vocabulary() -> Vocabulary:
    return Vocabulary(WORDS, [END], [END])


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(vocabulary, VOCAB)
    yield made
    made.close()


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_a_mask_has_what_the_grammar_takes_next(compiler: GrammarCompiler) -> None:
    asked = grammar('start: "abc" | "b"')
    assert ready(compiler, asked) is None
    row, masks = compiler.start(asked, ()), np.zeros((1, compiler.words), np.uint32)
    row.masks((), masks)
    assert allowed(masks[0]) == {ord("a"), ord("b"), WORDS.index(b"ab"), WORDS.index(b"abc")}
    row.advance([WORDS.index(b"ab")])
    row.masks((), masks)
    assert allowed(masks[0]) == {ord("c")}
    row.advance([ord("c")])
    row.masks((), masks)
    assert allowed(masks[0]) == {END}
    row.advance([END])
    row.masks((), masks)
    assert allowed(masks[0]) == {END}, "behind its end too"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([ord("a"), ord("b"), ord("c"), WORDS.index(b"ab"), WORDS.index(b"bc"), END]), max_size=5))
def test_masks_behind_drafts_are_those_of_single_steps(compiler: GrammarCompiler, drafts: list[int]) -> None:
    asked = grammar('start: ("abc" | "b")*')
    assert ready(compiler, asked) is None
    together, alone = compiler.start(asked, ()), compiler.start(asked, ())
    masks, single = np.zeros((1 + len(drafts), compiler.words), np.uint32), np.zeros((1, compiler.words), np.uint32)
    together.masks(drafts, masks)
    for place in range(len(drafts) + 1):
        alone.masks((), single)
        assert allowed(masks[place]) == allowed(single[0])
        if place == len(drafts) or drafts[place] not in allowed(single[0]) or drafts[place] == END:
            break
        alone.advance([drafts[place]])
    together.masks((), masks[:1])
    assert allowed(masks[0]) == allowed(masks_of(compiler, asked)), "drafts leave nothing behind"


def masks_of(compiler: GrammarCompiler, asked: Grammar) -> np.ndarray:
    found = np.zeros((1, compiler.words), np.uint32)
    compiler.start(asked, ()).masks((), found)
    return found[0]


def test_a_place_is_a_function_of_the_outputs(compiler: GrammarCompiler) -> None:
    asked = grammar('start: "a" "b" "c"')
    assert ready(compiler, asked) is None
    masks = np.zeros((1, compiler.words), np.uint32)
    compiler.start(asked, [ord("a")]).masks((), masks)
    assert allowed(masks[0]) == {ord("b"), WORDS.index(b"bc")}, "text without a choice too may be split as the model likes"


def test_errors_are_reported() -> None:
    compiler = GrammarCompiler(vocabulary, VOCAB)
    assert "unknown" in (ready(compiler, grammar("start: nothing")) or "")
    compiler.close()
    compiler.close()

    def lost() -> Vocabulary:
        raise OSError("gone")

    compiler = GrammarCompiler(lost, VOCAB)
    assert ready(compiler, grammar('start: "a"')) == "no grammar can be followed: OSError: gone"
    compiler.close()


def test_a_library_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance, "_DEFAULTS", (1, *llguidance._DEFAULTS[1:]))
    llguidance.library.cache_clear()
    compiler = GrammarCompiler(vocabulary, VOCAB)
    assert "llguidance@1.9.1 is not known" in (ready(compiler, grammar('start: "a"')) or "")
    compiler.close()
    monkeypatch.undo()


@pytest.mark.parametrize("ahead", [True, False])
def test_a_vocabulary_that_a_request_waits_for_is_read_at_full_priority(ahead: bool) -> None:
    levels: list[int] = []

    def seen() -> Vocabulary:
        levels.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return vocabulary()

    compiler = GrammarCompiler(seen, VOCAB)
    if ahead:
        compiler.warm_up()
    assert ready(compiler, grammar('start: "a"')) is None
    assert levels == [READING_PRIORITY if ahead else os.getpriority(os.PRIO_PROCESS, 0)]
    compiler.close()


def test_others_run_while_a_vocabulary_is_read() -> None:
    pieces = [f"{number:x}".encode() for number in range(80_000)]
    began, longest, stop = perf_counter(), 0.0, threading.Event()
    reader = threading.Thread(target=lambda: (llguidance.Tokenizer(pieces, [0], [0]), stop.set()))
    reader.start()
    last = began
    while not stop.is_set():
        sleep(0.0005)
        longest, last = max(longest, perf_counter() - last), perf_counter()
    reader.join()
    assert longest < (last - began) / 3


def test_a_vocabulary_that_is_refused_says_why() -> None:
    with pytest.raises(ValueError, match="out of range"):
        llguidance.Tokenizer([b"a"], [], [7])


def test_what_is_dropped_is_freed(monkeypatch: pytest.MonkeyPatch, compiler: GrammarCompiler) -> None:
    asked = grammar('start: "ab" "c"*')
    assert ready(compiler, asked) is None
    rows = [compiler.start(asked, ()) for _ in range(3)]
    ends = [finalizer for finalizer in finalize._registry if finalizer.peek() and finalizer.peek()[0] in [row._matcher for row in rows]]
    assert len(ends) == 3
    del rows
    gc.collect()
    assert not any(finalizer.alive for finalizer in ends)


def test_a_grammar_that_grows_too_complex_says_so(compiler: GrammarCompiler) -> None:
    rules = [f'r{number}: "x" "{number}"' for number in range(3_000)]
    asked = grammar("\n".join(["start: " + " | ".join(rule.partition(":")[0] for rule in rules), *rules]))
    assert ready(compiler, asked) is None
    row, masks = compiler.start(asked, ()), np.zeros((1, compiler.words), np.uint32)
    row.masks((), masks)
    row.advance([ord("x")])
    with pytest.raises(GrammarError, match="3000 items"):
        row.masks((), masks)
    assert asked.digest not in compiler._compiled, "what rows share may be what is too complex"
    compiler.start(asked, ()).masks((), masks)
    assert allowed(masks[0]) == {ord("x")}


def test_a_grammar_is_taken_once_its_signal_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, write = GrammarCompiler(vocabulary, VOCAB), os.write
    seen = []

    def late(descriptor: int, data: bytes) -> int:
        seen.append(compiler.take())
        return write(descriptor, data)

    monkeypatch.setattr("ridgeline.compute.decoding.grammar.os.write", late)
    assert ready(compiler, grammar('start: "a"')) is None
    assert seen == [[]], "ready, and not signalled yet"
    compiler.close()


def test_a_grammar_of_no_text_says_so(compiler: GrammarCompiler) -> None:
    asked = grammar("start: X\nX: /a/ & /b/")
    assert ready(compiler, asked) is None
    with pytest.raises(GrammarError, match="no text goes on"):
        compiler.start(asked, ()).masks((), np.zeros((1, compiler.words), np.uint32))


def test_ids_behind_the_vocabulary_stay_forbidden(compiler: GrammarCompiler) -> None:
    """Whatever masks of earlier steps have left where the library does not write."""
    asked = grammar('start: "abc" | "b"')
    assert ready(compiler, asked) is None
    state = RowState(2, VOCAB)
    state.grammars[0], state._bits = compiler.start(asked, ()), np.full((3, compiler.words), -1 & 0xFFFFFFFF, np.uint32)
    work = SimpleNamespace(
        rows=SimpleNamespace(sampling_ids=np.array([0, 1], np.int32)), inputs=SimpleNamespace(select=np.arange(3)), drafts=[[ord("z")], []]
    )
    masks = state.masks(work)  # type: ignore[arg-type]
    assert masks.of_rows[0] is not None and masks.of_rows[1] is None
    assert max(allowed(masks.of_rows[0][0])) < len(WORDS) and not allowed(masks.of_rows[0][1])
    assert (masks.addresses > 0).tolist() == [True, True, False]


@pytest.mark.parametrize("is_optional", [False, True])
def test_an_optional_grammar_that_cannot_go_on_leaves_its_row_free(compiler: GrammarCompiler, is_optional: bool) -> None:
    asked = replace(grammar("start: X\nX: /a/ & /b/"), is_optional=is_optional)
    assert ready(compiler, asked) is None
    state = RowState(1, VOCAB)
    state.grammars[0] = compiler.start(asked, ())
    work = SimpleNamespace(
        rows=SimpleNamespace(sampling_ids=np.array([0], np.int32)), inputs=SimpleNamespace(select=np.arange(1)), drafts=[[]]
    )
    masks = state.masks(work)  # type: ignore[arg-type]
    assert masks.of_rows[0] is not None and bool(masks.of_rows[0].all()) is is_optional
    assert bool(masks.failures) is not is_optional and (state.grammars[0] is None) is is_optional


@pytest.mark.parametrize("is_optional", [False, True])
def test_what_a_step_says_of_its_rows(compiler: GrammarCompiler, is_optional: bool) -> None:
    """Those that are lost or took too long; a row that has to move by several ids is left to masks first."""
    asked = replace(grammar('start: x\nx: x x | "a" | "b"'), is_optional=is_optional)
    assert ready(compiler, asked) is None
    state, params = RowState(3, VOCAB), [RowParams(0, 0, 1, Sampling(logprobs=count)) for count in (None, 1, None)]
    state.compiler = compiler
    state.grammars[:] = [compiler.start(asked, [ord("a")] * outputs) for outputs in (0, 1, 2)]
    rows = SimpleNamespace(sampling_ids=np.arange(3, dtype=np.int32), sampling_params=params)
    work: Any = SimpleNamespace(rows=rows, inputs=SimpleNamespace(select=np.arange(3)), drafts=[[]] * 3, keep=np.zeros(3, np.int32))
    assert state.follow(work) is None
    state.masks(work)
    state.sampled(rows.sampling_ids, [(), (ord("b"),), (ord("b"),)])
    following = state.follow(work)
    assert following is not None
    records, addresses = following.places.records, following.places.addresses
    assert records[:, 2].tolist() == [-1, ord("b"), ord("b")] and (addresses > 0).tolist() == [True, False, True]
    assert [mask is not None for mask in following.masks(are_applied=True)] == [False, True, False]
    records[:, 4:] = [(-1, 0, 0), (1, 10**9, 1), (1, 1000, 1)]
    failures = state.followed(work, following)
    assert sorted(failures) == ([] if is_optional else [0, 1]) and [each is None for each in state.grammars] == [is_optional] * 2 + [False]
    if not is_optional:
        assert "4 ms per token" in failures[1]


@pytest.mark.parametrize(
    ("keep", "left", "seconds", "asks"),
    [(1, VOCAB, 0.0, True), (1, 3, 0.0, False), (1, 3, 1e-3, False), (0, 3, 1e-3, True), (0, VOCAB, 0.0, True), (9, VOCAB, 1e-3, False)],
)
def test_a_grammar_is_asked_first_where_that_pays(compiler: GrammarCompiler, keep: int, left: int, seconds: float, asks: bool) -> None:
    """Where the last mask left most ids or was dear; not where the step makes some of the logits, nor a row that samples with a filter."""
    asked = grammar("start: /(.|\\n)*/")
    assert ready(compiler, asked) is None
    places, bits = [compiler.start(asked, ()) for _ in range(2)], np.zeros((2, compiler.words), np.uint32)
    for place in places:
        place.leave()
        place.moved(1, seconds, left)
    params = [RowParams(0, 0, 1, Sampling(temperature=0.7 * (keep == 0), top_p=top_p)) for top_p in (1.0, 0.5)]
    following = Following(compiler.calls, places, params, bits, np.full(2, keep, np.int32))
    assert following.places.records[:, 3].tolist() == [asks, asks and keep == 1]
    assert (following.places.addresses > 0).tolist() == [not asks or keep == 1, True]
    assert [mask is None for mask in following.masks(are_applied=False)] == [asks, asks and keep == 1]


def samplers() -> list[sampler.Sampled]:
    native = [sampling.Sampler(VOCAB, ext.native().Team(1), level=level) for level in ext.isa_levels()]
    return [sampler.sample_rows, *(each.sample_rows for each in native)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.7, 1.5)), st.sampled_from((0, 3)), st.integers(1, VOCAB), st.integers(0, 2))
def test_samplers_agree_under_masks(seed: int, temperature: float, top_k: int, count: int, drafts: int) -> None:
    draws = np.random.default_rng(seed)
    asked = Sampling(temperature=temperature, top_k=top_k, repetition_penalty=1.3, grammar=grammar("any"))
    rows = [RowParams(seed % 2**63, 0, 2, asked), RowParams(seed % 2**63, 1, 2, Sampling(temperature=temperature))]
    logits = draws.normal(size=(2 * (1 + drafts), VOCAB)).astype(np.float32)
    bits = np.zeros((1 + drafts, 512), bool)
    for place in range(1 + drafts):
        bits[place, draws.choice(VOCAB, count, replace=False)] = True
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    drafted = [int(np.flatnonzero(bits[place])[0]) for place in range(drafts)]
    answers = []
    for sample in samplers():
        histories = [history_of(row, (1, 2)) for row in rows]
        answers.append(sample(logits, rows, [drafted, drafted], [2, 2], histories, None, None, [mask, None]).ids)
    assert all(answer == answers[0] for answer in answers)
    assert all(bits[place, token] for place, token in enumerate(answers[0][0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.7, 5.0)), st.integers(1, 900))
def test_a_draw_before_there_is_a_mask_is_the_one_under_it(seed: int, temperature: float, count: int) -> None:
    """Rows that ask their grammar; the others have their masks already."""
    draws = np.random.default_rng(seed)
    asked = Sampling(temperature=temperature, grammar=grammar("any"))
    rows = [RowParams(seed % 2**63, place, 2, asked) for place in range(4)]
    logits = (3 * draws.normal(size=(4, 1_000))).astype(np.float32)
    bits = np.zeros((4, 1_000), bool)
    for row in bits:
        row[draws.choice(1_000, count, replace=False)] = True
    bits[::2][np.arange(2), logits[::2].argmax(axis=1)] = True
    masks = [packed_mask(row) for row in bits]
    for level in ext.isa_levels():
        native = sampling.Sampler(1_000, ext.native().Team(1), level=level)
        expected = native.sample_rows(logits, rows, [()] * 4, [9] * 4, [None] * 4, None, None, masks).ids
        grammars = FakeGrammars(bits)
        made, records = grammars.records(4)
        records[:3, 3] = 1
        places, given = Places(grammars.calls, records, np.zeros(4, np.int64)), [None, None, None, masks[3]]
        assert native.sample_rows(logits, rows, [()] * 4, [9] * 4, [None] * 4, None, None, given, places).ids == expected
        assert set(grammars.asked) == {0, 1, 2}
        takes = [bits[row, logits[row].argmax()] and records[row, 4] == 0 for row in range(3)]
        assert [records[row, 4] == 1 and np.array_equal(made[row], masks[row][0]) for row in range(3)] == [not each for each in takes]


def test_closing_frees_descriptors() -> None:
    def open_files() -> Sequence[str]:
        return os.listdir("/proc/self/fd")

    before = len(open_files())
    for _ in range(5):
        GrammarCompiler(vocabulary, VOCAB).close()
    assert len(open_files()) == before


def test_a_grammar_whose_masks_take_long_ends_its_row(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = grammar('start: x\nx: x x | "a" | "b"')
    assert ready(compiler, asked) is None
    masks = np.zeros((1, compiler.words), np.uint32)
    row = compiler.start(asked, ())
    for _ in range(5):
        row.masks((), masks)
        row.advance([ord("a")])
    monkeypatch.setattr("ridgeline.compute.decoding.grammar.thread_time", iter(range(100)).__next__)
    with pytest.raises(GrammarError, match="ms per token; simplify it"):
        row.masks((), masks)
    monkeypatch.undo()
    compiler.start(asked, ()).masks((), masks)


def test_grammars_are_kept_within_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.decoding.grammar.TRIM_SECONDS", 0.0)
    monkeypatch.setattr("ridgeline.compute.decoding.grammar.MIN_KEPT", 2)
    compiler = GrammarCompiler(vocabulary, VOCAB)
    for number in range(5):
        assert ready(compiler, grammar(f'start: "a{number}"')) is None
    assert len(compiler._compiled) == 5
    monkeypatch.setattr("ridgeline.compute.decoding.grammar.MAX_COMPILED_BYTES", 0)
    assert ready(compiler, grammar('start: "a0"')) is None, "known; the memory is looked at behind it"
    compiler.close()
    assert compiler._thread is not None
    compiler._thread.join()
    assert len(compiler._compiled) == 2
