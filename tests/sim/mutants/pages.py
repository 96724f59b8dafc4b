"""Planted bugs in the life of pages: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "a page is freed while a step in flight may touch it",
        "T3: vLLM#45357, #32255, vllm-ascend#14055",
        [("_let_go", "if sequence.in_flight:", "if False:")],
    ),
    (
        "pages handed to a step in flight never come back",
        "T4: vLLM#46283",
        [("committed", "self._drop(page)", "pass")],
    ),
    (
        "a block is let go one position before its window has passed",
        "T8: vLLM#8268",
        [("release_behind", "first_seen(window, sequence.scheduled)", "first_seen(window, sequence.scheduled + 1)")],
    ),
    (
        "a second holder is not counted",
        "T3: SGL#21652",
        [("hold", "self.holders[page] += 1", "self.holders[page] = 1")],
    ),
    (
        "a cached page that is held again stays evictable",
        "T3: vLLM#48085",
        [("hold", "del self.cached[page]", "pass")],
    ),
    (
        "a page is handed out twice",
        "T3: vllm-ascend#13501",
        [("take", "del free[-count:]", "pass")],
    ),
    (
        "a page is free although one still holds it",
        "T3: tpu-inference#3449",
        [("drop", "if self.holders[page] > 0:", "if self.holders[page] > 1:")],
    ),
    (
        "a request that its client ends leaks its pages",
        "T5: vLLM#49146",
        [("_stop", "self.cache.release(sequence)", "len(sequence.known) < sequence.limit or self.cache.release(sequence)")],
    ),
)
