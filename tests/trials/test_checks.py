"""Checks before the first request: faults planted one at a time in real models are told with cause, number and fix, and real models pass.

SmolLM2 135M Instruct and the demo are damaged in place (`helpers/damaged.py`). What the header says needs no weights; damage of weights is
looked for as a runner's start does; what only answers show needs a loaded model.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import Damage, Damaged

from ridgeline.compute.load.check import check_weights
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import ConfigError, Finding, ModelFormatError, RequestError
from ridgeline.facts.headers.plausible import check_header
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import Rope
from ridgeline.server.service import Service
from ridgeline.text.chat_content import Conversation
from ridgeline.text.files import read_files

Checks = Callable[[Path], tuple[Finding, ...]]
RNG = np.random.default_rng(16)


def of_the_header(path: Path) -> tuple[Finding, ...]:
    facts = read_model_facts(path)
    files = read_files(path.stem, path, chat_template=None, generation_config="auto")
    template = files.load_template()
    with contextlib.closing(template) if template is not None else contextlib.nullcontext():
        return (*check_header(facts), *files.check(template)[1])


def of_the_weights(path: Path) -> tuple[Finding, ...]:
    return check_weights(read_model_facts(path), threads=2)


def of_an_answer(path: Path) -> tuple[Finding, ...]:
    with LLM(str(path), max_model_len=64, max_num_seqs=1) as llm:
        return llm.check()


TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TEMPLATES: dict[str, tuple[str, str]] = {
    "never renders": ("{{ raise_exception('no') }}" + TURNS, "cannot be rendered (no)"),
    "cut off": (TURNS[:-8], "does not compile"),
    "the user left out": (TURNS.replace("m.content", "m.text|default('')") + PROMPT, "leaves out what the user says"),
    "the answers left out": (TURNS.replace("in messages", "in messages if m.role != 'assistant'") + PROMPT, "the assistant said before"),
    "turns backwards": (TURNS.replace("in messages", "in messages|reverse") + PROMPT, "another order"),
    "contents twice": (TURNS.replace("m.content", "m.content + m.content") + PROMPT, "2 times"),
    "one role for all": (TURNS.replace("m.role", "'user'") + PROMPT, "begins every turn with"),
    "no generation prompt": (TURNS, "no generation prompt"),
    "turn end of another family": (TURNS.replace("<|im_end|>", "<end_of_turn>") + PROMPT, "'<end_of_turn>', is no single token"),
    "a start misspelt": (TURNS.replace("<|im_start|>", "<|im_strat|>") + PROMPT, "'<|im_strat|>', which is no token"),
}


def _label_of_another_architecture(file: Damaged) -> None:
    file.text("llama", "qwen2")


def _end_that_is_text(file: Damaged) -> None:
    file.number("tokenizer.ggml.eos_token_id", 5_000)


def _every_start_is_bos(file: Damaged) -> None:
    file.flag("tokenizer.ggml.add_bos_token", True)


def _turn_end_is_no_control_token(file: Damaged) -> None:
    file.element("tokenizer.ggml.token_type", 2, 1)


def _noise_in_codes(file: Damaged) -> None:
    codes = file.tensor("blk.0.ffn_down.weight")[:, 4:]
    codes[:] = RNG.integers(0, 256, codes.shape, np.uint8)


def _two_layers_swapped(file: Damaged) -> None:
    for part in ("ffn_up", "ffn_gate", "attn_q", "attn_k", "attn_output"):
        one, other = file.tensor(f"blk.2.{part}.weight"), file.tensor(f"blk.27.{part}.weight")
        one[:], other[:] = other.copy(), one.copy()


def _rows_of_the_embedding_mixed(file: Damaged) -> None:
    rows = file.tensor("token_embd.weight").reshape(49_152, -1)
    rows[:] = rows[RNG.permutation(len(rows))]


def _scale(name: str, half: int) -> Damage:
    """The scale of a block in the middle becomes these bits of fp16."""

    def damage(file: Damaged) -> None:
        blocks = file.tensor(name)
        blocks[len(blocks) // 2, :2] = (half & 255, half >> 8)

    return damage


def _fill(name: str, value: int, blocks: slice = slice(None)) -> Damage:
    return lambda file: file.tensor(name).__setitem__(blocks, value)


def _element(name: str, half: int) -> Damage:
    """The upper half of the first fp32 element becomes these bits."""
    return lambda file: file.tensor(name).__setitem__((0, slice(2, 4)), (half & 255, half >> 8))


HEADERS: dict[str, tuple[Damage, str]] = {
    "label of another architecture": (_label_of_another_architecture, "qwen2"),
    "context a thousand times as long": (lambda file: file.number("llama.context_length", 8_388_608), "context of 8388608"),
    "epsilon of norms": (lambda file: file.number("llama.attention.layer_norm_rms_epsilon", 0.5), "epsilon of its norms is 0.5"),
    "no pre-tokenizer": (lambda file: file.rename("tokenizer.ggml.pre"), "pre-tokenizer ''"),
    "the end is ordinary text": (_end_that_is_text, "ends answers at id 5000, which is the ordinary text"),
    "the end is the start of a turn": (
        lambda file: file.number("tokenizer.ggml.eos_token_id", 1), "ends answers at '<|im_start|>', but turns of the chat template end"
    ),
    "the end is outside": (lambda file: file.number("tokenizer.ggml.eos_token_id", 60_000), "60000"),
    "every turn begins with BOS": (_every_start_is_bos, "with BOS 3 times"),
    "the turn end is no control token": (_turn_end_is_no_control_token, "'<|im_end|>', which is no token of this model"),
    "two tokens of one name": (lambda file: file.text("<filename>", "<|im_end|>"), "are both the control token"),
    **{name: (lambda file, text=text: file.template(text), told) for name, (text, told) in TEMPLATES.items()},  # type: ignore[misc]
}  # fmt: skip
WEIGHTS: dict[str, tuple[Damage, str]] = {
    "a scale that is no number": (_scale("blk.7.attn_q.weight", 0x7E01), "holds 1 scales that are not finite"),
    "a bit of a scale's exponent": (_scale("blk.9.ffn_down.weight", 0x6E00), "a scale far beyond the others"),
    "an infinite norm": (_element("blk.3.attn_norm.weight", 0x7F80), "holds 1 elements that are not finite"),
    "a norm of zeros": (_fill("blk.4.ffn_norm.weight", 0), "holds nothing but 0"),
    "a hole of zeros": (_fill("blk.11.ffn_gate.weight", 0), "holds nothing but zeros"),
    "one block over and over": (_fill("blk.12.attn_k.weight", 17), "the same 20 bytes over and over"),
}
ANSWERS: dict[str, tuple[Damage, str]] = {
    "noise in the codes of a matrix": (_noise_in_codes, "it answers nonsense"),
    "two layers in each other's place": (_two_layers_swapped, "has a perplexity of"),
    "rows of the embedding mixed": (_rows_of_the_embedding_mixed, "it answers nonsense"),
}
LIKE_NOISE = "rows of the embedding mixed"
"""Told by the same words as noise in codes, at the price of another load."""
PLANTED = [
    *((name, of_the_header, *fault) for name, fault in HEADERS.items()),
    *((name, of_the_weights, *fault) for name, fault in WEIGHTS.items()),
    *((name, of_an_answer, *fault) for name, fault in ANSWERS.items()),
]


def told(check: Checks, path: Path) -> list[str]:
    """Errors and warnings, as a user reads them."""
    try:
        return [str(each) for each in check(path) if each.severity != "note"]
    except (ModelFormatError, ConfigError) as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("name", "check", "damage", "expected"),
    [pytest.param(*each, marks=pytest.mark.night) if each[0] == LIKE_NOISE else each for each in PLANTED],
    ids=[each[0] for each in PLANTED],
)
def test_f19_a_planted_fault_is_told_before_the_first_request(
    name: str, check: Checks, damage: Damage, expected: str, smollm2_file: Path, tmp_path: Path
) -> None:
    file = Damaged(smollm2_file, tmp_path / smollm2_file.name, header_alone=check is of_the_header)
    damage(file)
    assert any(expected in line for line in told(check, file.path)), told(check, file.path)


def test_f19_as_many_faults_as_asked_for() -> None:
    assert len(PLANTED) >= 20


def test_f19_a_rope_base_that_a_file_leaves_out(demo_file: Path, tmp_path: Path) -> None:
    file = Damaged(demo_file, tmp_path / "demo.gguf", header_alone=True)
    file.rename("gemma3.rope.freq_base")
    assert any("the RoPE base is 10000" in line for line in told(of_the_header, file.path))


def test_f19_a_file_cut_short_and_a_tensor_of_another_shape(smollm2_file: Path, tmp_path: Path) -> None:
    file = Damaged(smollm2_file, tmp_path / "cut.gguf", header_alone=True)
    with file.path.open("r+b") as copy:
        copy.truncate(smollm2_file.stat().st_size - 4096)
    assert "truncated" in told(of_the_header, file.path)[0]


@pytest.mark.parametrize("model", [pytest.param("demo_file", marks=pytest.mark.night), "smollm2_file"])
def test_f19_real_models_pass_in_silence(model: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    with LLM(str(path), max_model_len=64, max_num_seqs=1) as llm:
        assert llm.check() == ()
    assert of_the_header(path) == ()


REAL_ROPES = (
    ("llama", 4_096, 32_000, 1e4, 128, 1.0), ("llama", 8_192, 128_256, 5e5, 128, 1.0), ("llama", 131_072, 128_256, 5e5, 128, 8.0),
    ("llama", 32_768, 32_000, 1e4, 128, 1.0), ("llama", 32_768, 32_768, 1e6, 128, 1.0), ("llama", 131_072, 131_072, 1e6, 128, 1.0),
    ("llama", 8_192, 49_152, 1e5, 64, 1.0), ("llama", 16_384, 32_016, 1e6, 128, 1.0), ("llama", 4_096, 131_072, 1e4, 128, 1.0),
    ("llama", 2_048, 32_000, 1e4, 64, 1.0), ("qwen2", 32_768, 151_936, 1e6, 64, 1.0), ("qwen2", 4_096, 151_936, 1e4, 128, 1.0),
    ("qwen2", 1_010_000, 152_064, 1e7, 128, 1.0), ("qwen3", 40_960, 151_936, 1e6, 128, 1.0), ("qwen3", 262_144, 151_936, 5e6, 128, 1.0),
    ("gemma2", 8_192, 256_000, 1e4, 256, 1.0), ("gemma3", 32_768, 262_144, 1e6, 256, 1.0), ("gemma3", 131_072, 262_208, 1e6, 256, 8.0),
    ("phi3", 4_096, 32_064, 1e4, 96, 1.0), ("olmo2", 4_096, 100_352, 5e5, 128, 1.0), ("starcoder2", 16_384, 49_152, 999_999.4, 128, 1.0),
)  # fmt: skip
"""(architecture, context, rows of the embedding, RoPE base, dimensions of a head, divisor of the slowest pair) of published models."""


@pytest.mark.parametrize("numbers", REAL_ROPES, ids=str)
def test_f19_headers_of_published_models_are_plausible(numbers: tuple[Any, ...], smollm2_file: Path) -> None:
    architecture, context, rows, base, dim, divisor = numbers
    rope = {"full": Rope(base, dim, (divisor,) * (dim // 2))}
    facts = read_model_facts(smollm2_file)
    assert not check_header(replace(facts, architecture=architecture, context=context, vocab=rows, tokens=rows, rope=rope))


# ── a real model that chats ─────────────────────────────────────────────────────────────────────────────────────────


QUESTIONS = {
    "What is the capital of France? Answer in one sentence.": ("The capital of France is Paris.", "stop", 42, 8),
    "Which planet is closest to the sun?": ("The planet closest to the sun is Venus, also known as the Earth's twin.", None, 38, None),
    "What is gravity?": ("Gravity is a fundamental concept in physics that describes the curvature of spacetime", None, 34, None),
    "What is the capital of France?": ("L'Étoile, la Marseillaise, la femme", None, 37, None),
}
"""Question → greedy answer of llama.cpp (xllamacpp 2026.10.11549, CPU) or its beginning, its end, tokens of prompt and answer."""


def test_n4_an_instruct_model_answers_as_in_llama_cpp_and_ends_its_turns(smollm2_file: Path) -> None:
    with LLM(str(smollm2_file), max_model_len=256, max_num_seqs=4, runner="native") as llm:
        assert llm.kind.kind == "instruct"
        conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
        answers = llm.chat(conversations, SamplingParams(temperature=0.0, max_tokens=24))
    for answer, (begins, end, prompt, tokens) in zip(answers, QUESTIONS.values(), strict=True):
        (choice,) = answer.outputs
        assert choice.text.startswith(begins[:60]) and len(answer.prompt_token_ids) == prompt
        assert end is None or (choice.text, choice.finish_reason, len(choice.token_ids)) == (begins, end, tokens)


def test_n4_the_demo_is_told_to_be_a_base_model(demo_server: Any) -> None:
    status, body = demo_server.get("/v1/models")
    (card,) = json.loads(body)["data"]
    assert status == 200
    assert card["ridgeline"].items() >= {"kind": "base", "reason": "its files hold no chat template", "checks": []}.items()
    assert "base model (its files hold no chat template): it continues texts" in demo_server.output()


# ── templates at the start ──────────────────────────────────────────────────────────────────────────────────────────


def test_n10_a_chat_template_is_checked_before_weights_are_read(smollm2_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.content }")
    stages: list[str] = []
    service = Service(EngineConfig(str(smollm2_file)), ServerConfig(chat_template=str(template)), lambda stage, _: stages.append(stage))

    async def start() -> None:
        try:
            await service.start()
        finally:
            await service.stop()

    with pytest.raises(ConfigError, match=r"--chat-template: the chat template does not compile.*line 1"):
        asyncio.run(start())
    assert not stages, "the engine had begun"


def test_x10_a_template_that_never_renders_ends_the_start_or_disables_chat(smollm2_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ raise_exception('not this one') }}")
    command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", "serve", str(smollm2_file), "--port", "0"]
    ended = subprocess.run([*command, "--chat-template", str(template)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "cannot be rendered (not this one)" in ended.stderr and "Traceback" not in ended.stderr
    file = Damaged(smollm2_file, tmp_path / smollm2_file.name, header_alone=True)
    file.template("{{ raise_exception('not this one') }}")
    own = read_files("m", file.path, chat_template=None, generation_config="auto").load_template()
    assert own is not None and not own.is_usable
    with contextlib.closing(own), pytest.raises(RequestError, match=r"chat is not possible: .*not this one.*--chat-template FILE"):
        own.render(Conversation([{"role": "user", "content": "Hi"}]))
