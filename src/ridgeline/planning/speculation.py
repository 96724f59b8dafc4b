"""Speculative decoding: a draft proposes k tokens, one forward pass of the target verifies them. Tokens and ratios of step times."""


def accepted_tokens(acceptance: float, proposed: int) -> float:
    """Expected tokens of one verification, the target's own included: (1 − αᵏ⁺¹) / (1 − α); k + 1 where α = 1.

    Leviathan, Kalman & Matias 2023, equation 1; the technique: Notes on inference, part 4, section 6.
    """
    if acceptance >= 1.0:
        return proposed + 1.0
    return (1.0 - acceptance ** (proposed + 1)) / (1.0 - acceptance)


def speculation_speedup(tokens: float, passes: float) -> float:
    """Tokens for the time of so many plain decode steps: 4 for about 1.5 is 2.7 times. Notes on inference, part 5, section 14."""
    return tokens / passes


def speculation_passes(proposed: int, draft_step_seconds: float, verify_seconds: float, decode_step_seconds: float) -> float:
    """Time of one round in plain decode steps: k steps of the draft and one verification of k + 1 tokens a sequence.

    While the target waits for memory the verification costs about a decode step; where it is compute-bound it costs k + 1 of them.
    That is why speculation helps at low concurrency and hurts at high: Notes on inference, part 5, section 14.
    """
    return (proposed * draft_step_seconds + verify_seconds) / decode_step_seconds
