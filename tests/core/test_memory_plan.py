"""`blocks_needed` against simulated sequences, and against admission."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.admission import blocks_needed
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.planning.memory import longest_sequence, sequence_blocks

GROUPS = st.lists(st.sampled_from([0, 1, 4, 5, 16, 100]), min_size=1, max_size=4).map(
    lambda windows: tuple(KVGroup("window" if window else "full", (i,), window) for i, window in enumerate(windows))
)


def held_at_most(groups: tuple[KVGroup, ...], block_tokens: int, tokens: int, chunk: int) -> int:
    """Returns the peak of held blocks when a sequence is computed in chunks, with blocks behind windows freed before each."""
    most = 0
    for start in range(0, tokens, chunk):
        end = min(tokens, start + chunk)
        blocks = [set(range(-(-end // block_tokens))) for _ in groups]
        for group, held in zip(groups, blocks, strict=True):
            if group.window:
                held -= set(range(max(0, start - group.window + 1) // block_tokens))
        most = max(most, sum(map(len, blocks)))
    return most


@settings(max_examples=300, deadline=None)
@given(GROUPS, st.sampled_from([1, 4, 16]), st.integers(1, 300), st.sampled_from([1, 7, 64, 512]))
def test_a_sequence_never_holds_more_than_planned(groups: tuple[KVGroup, ...], size: int, tokens: int, chunk: int) -> None:
    planned = sequence_blocks(groups, size, tokens, chunk)
    assert held_at_most(groups, size, tokens, chunk) <= planned


@settings(max_examples=300, deadline=None)
@given(GROUPS, st.sampled_from([1, 4, 16]), st.integers(1, 300), st.sampled_from([1, 7, 64, 512]))
def test_the_longest_sequence_fits_and_is_admitted(groups: tuple[KVGroup, ...], size: int, blocks: int, chunk: int) -> None:
    longest = longest_sequence(groups, size, blocks, chunk, limit=1_000)
    if longest < 1_000:
        assert sequence_blocks(groups, size, longest + 1, chunk) > blocks
    if longest:
        assert sequence_blocks(groups, size, longest, chunk) <= blocks
        assert blocks_needed(KVShape(groups, size, blocks, b""), longest) <= blocks
