"""Would trees of drafts beat chains here, or early exit pay? By the measured cost of steps of several tokens, in favour of trees: their
masks, and moving keys and values of the branch that was right, cost nothing.

    python tests/speed/trees.py [MODEL] [--prompts 40] [--tokens 64] [--cpu]

The first table has, for drafters whose first choice is right with chance `a` and whose second is in a share `b` of the other cases, the
expected ids per cost of one token, E / c(1 + drafts), of the best chain and of the best tree. The second has what recent answers and the
sequence itself offer (suffix tree) on the prompts of `pairs.py`: how often the first and the second continuation are right, and the same
two figures from that. Between them, early exit: drafts of the model's own first layers and its head, each of which costs a share `f` of a
step. Lookahead decoding (Fu et al. 2024) needs W + G n-grams of N - 1 ids in every step, 20 tokens at least; c(17) says what that costs.

Chains: Leviathan et al. 2023. The best tree of m drafts has the m likeliest paths: Chen et al. 2024, "Sequoia".
"""

import argparse
import heapq
import time
from itertools import count

import pairs
import planted

from ridgeline import LLM
from ridgeline.core.drafts.suffix import LEAST_MATCH, SuffixAutomaton

DRAFTS = 16
FIRST = (0.3, 0.5, 0.7, 0.8, 0.9)
SECOND = (0.2, 0.4, 0.6)
PASS = (0.25, 0.4)


def best_chain(first: float, costs: list[float], each: float = 0.0) -> tuple[float, int]:
    """(E / c, drafts) of the best chain. costs[m]: of 1 + m tokens over one; each: of drafting one id."""
    return max((planted.expected(first, drafts) / (cost + each * drafts), drafts) for drafts, cost in enumerate(costs))


def best_tree(chances: tuple[float, ...], costs: list[float]) -> tuple[float, int]:
    """As `best_chain`, of trees whose nodes have a child for each of `chances`."""
    numbers, found, total = count(), [(1.0, 0)], 1.0
    ahead = [(-chance, next(numbers)) for chance in chances]
    heapq.heapify(ahead)
    for drafts in range(1, len(costs)):
        path, _ = heapq.heappop(ahead)
        total -= path
        for chance in chances:
            heapq.heappush(ahead, (path * chance, next(numbers)))
        found.append((total / costs[drafts], drafts))
    return max(found)


def offered(answers: list[list[int]]) -> tuple[int, int, int]:
    """(offers, right first choices, right second choices) of a suffix tree over these answers, one after the other."""
    automaton, offers, first, second = SuffixAutomaton(), 0, 0, 0
    for answer in answers:
        state, matched, last = 0, 0, 0
        for token in answer:
            taken = automaton._states[state].taken
            if matched >= LEAST_MATCH and taken:
                ranked = sorted(taken, key=lambda each: -taken[each])[:2]
                offers += 1
                first += token == ranked[0]
                second += token in ranked[1:]
            state, matched = automaton.walk(state, matched, token)
            last = automaton.add(last, token)
    return offers, first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        planted.clock = time.process_time
    with LLM(options.model, max_num_seqs=8, max_model_len=1_024, speculative="suffix", enable_prefix_caching=False) as llm:
        one = planted.step_seconds(llm, 1, 1, 64, 8)
        costs = [1.0] + [planted.step_seconds(llm, 1, 1 + drafts, 64, 8) / one for drafts in range(1, DRAFTS + 1)]
        print("c(m): " + ", ".join(f"{1 + drafts} {cost:.2f}" for drafts, cost in enumerate(costs)))
        print("| first right | second, of the rest | best chain, drafts | best tree, drafts | tree over chain |\n|---|---|---|---|---|")
        for first in FIRST:
            for share in SECOND:
                show(f"| {first} | {share}", first, (1 - first) * share, costs)
        print("| first right | f | early exit, drafts | drafts that cost nothing, drafts |\n|---|---|---|---|")
        for first in FIRST:
            for each in PASS:
                early, free = best_chain(first, costs, each), best_chain(first, costs)
                print(f"| {first} | {each} | {early[0]:.2f}, {early[1]} | {free[0]:.2f}, {free[1]} |")
        asked = pairs.prompts(options.prompts)
        kinds = {kind: [pairs.answer(llm, prompt, options.tokens)[0] for prompt in some] for kind, some in asked.items()}
    print("| answers | offers per token | first | second | best chain, drafts | best tree, drafts | tree over chain |")
    print("|---|---|---|---|---|---|---|")
    for kind, answers in kinds.items():
        offers, first, second = offered(answers)
        number = max(1, offers)
        shares = f"{first / number:.2f} | {second / number:.2f}"
        show(f"| {kind} | {offers / sum(map(len, answers)):.2f} | {shares}", first / number, second / number, costs)


def show(begin: str, first: float, second: float, costs: list[float]) -> None:
    (chain, chained), (tree, treed) = best_chain(first, costs), best_tree((first, second), costs)
    print(f"{begin} | {chain:.2f}, {chained} | {tree:.2f}, {treed} | {tree / chain:.3f} |", flush=True)


if __name__ == "__main__":
    main()
