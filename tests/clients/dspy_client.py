"""DSPy: `python dspy_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

Typed outputs in DSPy's own form of answers, by chat completions and by responses, and by JSON of a schema, which DSPy sends to servers that
are declared to follow one.
"""

import sys
from importlib.metadata import version
from typing import Literal

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider


class Moons(dspy.Signature):
    """Say how many moons a planet has."""

    question: str = dspy.InputField()
    moons: int = dspy.OutputField()
    names: list[str] = dspy.OutputField()


class Kind(dspy.Signature):
    """Say what it is."""

    thing: str = dspy.InputField()
    kind: Literal["animal", "plant", "stone"] = dspy.OutputField()


def main(demo_url: str, scripted_url: str) -> None:
    more = {"api_key": "none", "cache": False, "num_retries": 0}
    for kind in ("chat", "responses"):
        lm = dspy.LM("openai/scripted", api_base=scripted_url, model_type=kind, **more)
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            found = dspy.Predict(Moons)(question="How many moons has Mars?")
        assert (found.moons, found.names) == (2, ["Phobos", "Deimos"]), found

    access = AccessPolicy(provider="ridgeline", base_url=scripted_url)
    register_provider(
        ProviderDefinition.chat(access, compat=OpenAIChatCompat.preset("vllm"), placeholder_key="none"),
        supports=ModelSupport(function_calling=True, response_schema=True),
    )
    lm = dspy.LM("ridgeline/scripted", api_base=scripted_url, **more)
    assert lm.supports_response_schema
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Moons)(question="How many moons has Mars, as JSON?")
    assert (found.moons, found.names) == (2, ["Phobos", "Deimos"]), found
    demo = dspy.LM("ridgeline/demo", api_base=demo_url, max_tokens=200, temperature=0, **more)
    with dspy.context(lm=demo, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Kind)(thing="A dog").kind in ("animal", "plant", "stone")
    print(f"dspy {version('dspy')}: pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
