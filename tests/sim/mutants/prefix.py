"""Planted bugs in the prefix cache: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "the prefix key leaves the tenant's domain out",
        "section 1.10: CVE-2025-46570, vLLM#53347",
        [("identity", '(b"tenant", request.domain)', '(b"tenant",)')],
    ),
    (
        "the prefix key leaves the parent out",
        "section 1.10: CVE-2025-25183",
        [
            ("keys", "keys[-1] if keys else sha256(", "sha256("),
            ("unit_keys", "parent = sha256(parent", "own = sha256(parent"),
            ("unit_keys", "yield parent", "yield own"),
        ],
    ),
    (
        "the prefix key is cut to 8 bits and ids are not compared",
        "T2: LMCache#3301, Dynamo#8340",
        [
            ("unit_keys", "[begin : begin + unit])).digest()", "[begin : begin + unit])).digest()[:1]"),
            ("_same", "return found.ids == tuple(", "return True or found.ids == tuple("),
        ],
    ),
    (
        "a fully cached prompt computes nothing",
        "T8: vLLM#11186",
        [("reusable", "len(self.known) - 1", "len(self.known)")],
    ),
    (
        "every window is one position short",
        "T8: vLLM#13105",
        [("first_visible_block", "position - window + 1", "position - window + 2")],
    ),
    (
        "who waits for a prefix is not told that its owner gave up",
        "T4: vLLM#46240, #43226",
        [("unmark_computing", "if self.computing.get(key) is sequence:", "if False:")],
    ),
    (
        "an evicted block stays in the prefix index",
        "T3: vLLM#48085",
        [("remove", "found.block_ids[found.block_ids.index(block_id)] = 0", "pass")],
    ),
    (
        "blocks of a row that is not finite are published",
        "T20: SGL#33187, vLLM#50283",
        [("commit", "if not finite:", "if not finite and sampled:")],
    ),
)
