"""lm-eval's `local-completions` with the demo: `python lm_eval_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

The harness sends token ids; here they come from the server's own /tokenize, so that nothing is downloaded. Its log-likelihoods of
continuations are compared with the sums that the server's `prompt_logprobs` give, and must agree to 1e-4.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from urllib.request import Request, urlopen

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

TASK = Path(__file__).with_name("lm_eval_task")


class Client(LocalCompletionsAPI):
    """The harness's client with the server's tokenizer in place of a downloaded one."""

    def __init__(self, base_url: str, model: str) -> None:
        self._root = base_url.removesuffix("/v1")
        super().__init__(base_url=f"{base_url}/completions", model=model, tokenizer_backend="None", max_retries=1)
        self.tokenizer = self
        self.tokenizer_backend = "remote"
        self.tokenized_requests = True

    @property
    def eot_token_id(self) -> int:
        return 1

    @property
    def prefix_token_id(self) -> int:
        return 2

    @property
    def eos_string(self) -> str:
        return "<eos>"

    def tok_encode(self, string, add_special_tokens=True, **more):
        if not isinstance(string, str):
            return [self.tok_encode(each) for each in string]
        return post(f"{self._root}/tokenize", {"prompt": string, "add_special_tokens": bool(add_special_tokens)})["tokens"]


def post(url: str, body: dict) -> dict:
    with urlopen(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


def scored(base_url: str, model: str, ids: list[int], start: int) -> float:
    """The sum of the log-probabilities of `ids[start:]`, by `prompt_logprobs`."""
    answer = post(f"{base_url}/completions", {"model": model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})
    found = answer["choices"][0]["prompt_logprobs"]
    return sum(found[at][str(ids[at])]["logprob"] for at in range(start, len(ids)))


def main(base_url: str, _: str) -> None:
    model = "demo"
    client = Client(base_url, model)
    docs = [json.loads(line) for line in (TASK / "questions.jsonl").read_text().splitlines()]
    pairs = [(doc["question"], f" {choice}") for doc in docs for choice in doc["choices"]]
    found = client.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
    for (context, continuation), (total, _) in zip(pairs, found, strict=True):
        start, whole = len(client.tok_encode(context)), client.tok_encode(context + continuation)
        mine = scored(base_url, model, whole, start)
        assert abs(mine - total) < 1e-4, (context, continuation, mine, total)

    with tempfile.TemporaryDirectory() as folder:
        for name in ("choose.yaml", "write.yaml"):
            text = (TASK / name).read_text().replace("DATA", str(TASK / "questions.jsonl"))
            (Path(folder) / name).write_text(text)
        tasks = TaskManager(include_path=folder, include_defaults=False)
        results = simple_evaluate(model=client, tasks=["ridgeline_choose", "ridgeline_write"], task_manager=tasks, bootstrap_iters=0)
    accuracy = results["results"]["ridgeline_choose"]["acc,none"]
    assert accuracy >= 0.75, results["results"]
    assert len(results["samples"]["ridgeline_write"]) == len(docs)
    assert all(sample["resps"][0][0] for sample in results["samples"]["ridgeline_write"])
    print(f"lm_eval {version('lm_eval')}: {len(pairs)} log-likelihoods agree, accuracy {accuracy:.2f}, pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
