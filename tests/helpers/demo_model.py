"""The demo model beside llama.cpp's record of it: how far positions agree, and what of that is wrong."""

from dataclasses import dataclass

import numpy as np
from tiny import Driver, log_softmax

from ridgeline.facts.model import ModelFacts

CLEAR_GAP = 0.2
"""Log-probability between llama.cpp's two best: above it, its first choice must be ours. Both round activations, each in its own way, and
are off by 0.1 where they are unlucky."""
AGREEMENT = 0.98
LONG_MISSES = 1
LONG = 9


@dataclass(frozen=True)
class Score:
    """How a prompt's 32 continuations compare: clear positions, those where our first choice differs, median difference."""

    number: int
    clear: int
    missed: int
    median: float


@dataclass
class Demo:
    facts: ModelFacts
    weights: dict
    prompts: list[dict]

    def driver(self, facts: ModelFacts) -> Driver:
        return Driver(facts, self.weights, blocks=1500, threads=2)

    def score(self, driver: Driver, numbers: list[int]) -> list[Score]:
        """Feeds prompts with llama.cpp's continuations in one step, and compares at every position that it predicted."""
        rows = [(number, self.prompts[number]["prompt_ids"] + self.prompts[number]["ids"]) for number in numbers]
        ends = np.cumsum([len(ids) for _, ids in rows])
        select = [at for (n, ids), end in zip(rows, ends, strict=True) for at in self.predicting(n, end - len(ids))]
        chances = log_softmax(driver.step(*rows, select=select))
        return [self.compare(number, part) for number, part in zip(numbers, np.split(chances, len(numbers)), strict=True)]

    def predicting(self, number: int, first: int) -> range:
        """Tokens that predict a continuation id, for a prompt that begins at token `first`."""
        prompt, more = (len(self.prompts[number][part]) for part in ("prompt_ids", "ids"))
        return range(first + prompt - 1, first + prompt + more - 1)

    def compare(self, number: int, chances: np.ndarray) -> Score:
        top = self.prompts[number]["top5"]
        ids, theirs = (np.array([[best[part] for best in at] for at in top]) for part in ("id", "logprob"))
        clear = theirs[:, 0] - theirs[:, 1] > CLEAR_GAP
        apart = np.abs(np.take_along_axis(chances, ids, axis=1) - theirs)
        return Score(number, int(clear.sum()), int((clear & (chances.argmax(1) != ids[:, 0])).sum()), float(np.median(apart)))


def complaints(scores: list[Score]) -> list[str]:
    """What is wrong with the scores of some prompts."""
    clear, missed = sum(score.clear for score in scores), sum(score.missed for score in scores)
    found = [] if clear - missed >= AGREEMENT * clear else [f"{missed} of {clear} clear first choices differ"]
    return found + [f"{s.missed} differ in the long prompt" for s in scores if s.number == LONG and s.missed > LONG_MISSES]
