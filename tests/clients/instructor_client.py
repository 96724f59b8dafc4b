"""instructor: `python instructor_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

An object by tools, by JSON and by responses; a partial one while it streams. With the demo a schema that its answer must follow.
"""

import sys
from importlib.metadata import version
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class Judgement(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["animal", "plant", "stone"]
    legs: int = Field(ge=0, le=8)


def main(demo_url: str, scripted_url: str) -> None:
    scripted = OpenAI(base_url=scripted_url, api_key="none", max_retries=0)
    anna = {"name": "Anna Keller", "age": 30}
    modes = {
        instructor.Mode.TOOLS: "Store: Anna Keller, 30.",
        instructor.Mode.JSON: "Anna Keller is 30 years old.",
        instructor.Mode.JSON_SCHEMA: "Anna Keller is 30 years old.",
    }
    for mode, question in modes.items():
        client = instructor.from_openai(scripted, mode=mode)
        asked: dict = {"model": "scripted", "messages": [{"role": "user", "content": question}], "max_retries": 0}
        person, raw = client.create_with_completion(response_model=Person, **asked)
        assert person.model_dump() == anna and raw.usage.completion_tokens > 20, mode
        if mode is instructor.Mode.TOOLS:
            asked["messages"] = [{"role": "user", "content": "Partly: Anna Keller, 30."}]  # it calls the tool by another name here
        parts = list(client.create_partial(response_model=Person, **asked))
        assert len(parts) > 2 and parts[-1].model_dump() == anna, (mode, parts[-1])

    client = instructor.from_openai(scripted, mode=instructor.Mode.RESPONSES_TOOLS)
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "Store: Anna Keller, 30."}], "max_retries": 0}
    assert client.create(response_model=Person, **asked).model_dump() == anna

    demo = instructor.from_openai(OpenAI(base_url=demo_url, api_key="none", max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
    found = demo.create(
        model="demo", messages=[{"role": "user", "content": "A dog, as JSON."}], response_model=Judgement, max_tokens=100, max_retries=0,
        temperature=0,
    )  # fmt: skip
    assert isinstance(found, Judgement)
    print(f"instructor {version('instructor')}, openai {version('openai')}: pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
