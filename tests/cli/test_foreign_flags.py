"""Flags of other servers: every line of the table, on a real command line and as arguments of `LLM`."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from flag_table import table

from ridgeline.cli.main import PROGRAM, make_app
from ridgeline.cli.setting_flags import read_flags
from ridgeline.config.arguments import read_arguments
from ridgeline.config.foreign import ANY, ARGUMENTS, FOREIGN, SWITCH, Foreign
from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.sources import Settings, show_value
from ridgeline.errors import ConfigError

VALUES = {
    "model": "fake:{}", "max_model_len": "4096", "max_num_seqs": "8", "max_num_batched_tokens": "256", "max_num_queued_reqs": "7",
    "threads": "2", "kv_dtype": "bf16", "swap_space": "2", "seed": "5", "runner": "native", "scheduling_policy": "priority",
    "num_speculative_tokens": "3", "served_model_name": "name", "host": "::1", "chat_template": "t.jinja", "ssl_certfile": "c.pem",
    "ssl_keyfile": "k.pem", "log_level": "error",
    "draft_model": "draft.gguf",
}  # fmt: skip
"""Setting → a value of other servers that is not Ridgeline's default."""


def expected(each: Foreign) -> str:
    """What a flag sets with the value of `VALUES`, or as a switch."""
    return each.values[SWITCH] if each.switch else VALUES[each.ours]


def parse(*words: str) -> Settings:
    """The settings of `ridgeline serve …`, by the program's own parser."""
    seen: list[Settings] = []

    def check(given: Any) -> None:
        seen.append(read_flags(given, given["model"]))

    program: Any = typer.main.get_command(make_app())
    program.main(["serve", *words], PROGRAM, standalone_mode=False, obj=lambda path: check)
    return seen[0]


@pytest.mark.parametrize(("each", "name"), [(each, name) for each in FOREIGN for name in each.names], ids=lambda value: str(value)[:30])
def test_every_flag(each: Foreign, name: str) -> None:
    model = [] if each.ours == "model" else ["fake:{}"]
    if each.ours:
        words = [name] if each.switch else [name, VALUES[each.ours]]
        found = parse(*model, *words)
        field = public_fields(EngineConfig, ServerConfig)[each.ours]
        value = getattr(found.engine if each.ours in public_fields(EngineConfig) else found.server, field.name)
        assert str(value).lower() in (expected(each), f"{expected(each)}.0")
        for word, ours in each.values.items():
            if not each.switch and ours == "":
                assert each.ours not in parse(*model, name, word).origins
        return
    if each.harmless == ANY:
        found = parse(*model, name, *([] if each.switch else ["1"]))
        assert len(found.notes) == 1 and re.match(r"-\S+ has no effect: \S", found.notes[0])
        return
    for value in each.harmless:
        if not each.switch:
            quiet = parse(*model, name, value)
            assert (quiet.engine, quiet.notes) == (EngineConfig("fake:{}"), ())
    with pytest.raises(ConfigError, match="is not possible here: ") as error:
        parse(*model, *([name] if each.switch else [name, "something"]))
    assert set(error.value.fix) == set(each.names)
    flags = {f"--{each.replace('_', '-')}" for each in public_fields(EngineConfig, ServerConfig)}
    assert {flag.rstrip("-") for flag in re.findall(r"--[a-z][a-z-]*", each.advice)} <= flags, "advice names flags that exist"


def test_the_document_lists_them() -> None:
    path = Path(__file__).parents[2] / "docs/flags.md"
    assert path.read_text() == table(), "python tests/arch/flag_table.py > docs/flags.md"


def test_there_are_sixty_at_least_and_no_two_alike() -> None:
    names = [name for each in FOREIGN for name in each.names]
    own = {f"--{name.replace('_', '-')}" for name in public_fields(EngineConfig, ServerConfig)} - {"--model"}
    assert len(FOREIGN) >= 100 and len(names) == len(set(names)) and not own & set(names)
    assert all(each.advice or each.ours for each in FOREIGN)


def test_two_names_of_one_setting() -> None:
    assert parse("fake:{}", "-c", "4k", "--max-model-len", "4k").engine.max_model_len == 4_000
    with pytest.raises(ConfigError, match="--ctx-size '4k' and '8k' are the same setting, max_model_len"):
        parse("fake:{}", "-c", "4k", "--max-model-len", "8k")
    with pytest.raises(ConfigError, match="are the same setting, model"):
        parse("fake:{}", "--model", "other")


def test_words_of_others() -> None:
    found = parse(
        "fake:{}",
        "--dtype",
        "bfloat16",
        "--kv-dtype",
        "q8_0",
        "--threads",
        "-1",
        "--generation-config",
        "vllm",
    )
    engine = found.engine
    assert (engine.dtype, engine.kv_dtype, engine.threads) == ("bf16", "int8", None)
    assert found.server.generation_config == "none"
    assert parse("fake:{}", "--max-model-len", "auto", "--seed", "-1").engine == EngineConfig("fake:{}")


VLLM_SCRIPT = {
    "tensor_parallel_size": 1, "gpu_memory_utilization": 0.9, "quantization": None, "kv_cache_dtype": "auto", "trust_remote_code": False,
    "enforce_eager": True, "dtype": "auto", "swap_space": 0, "seed": None, "max_logprobs": 20, "tokenizer_mode": "auto", "revision": None,
    "max_model_len": 4096, "disable_log_stats": True, "cpu_offload_gb": 0, "load_format": "auto", "enable_prefix_caching": True,
}  # fmt: skip


def test_arguments_of_a_vllm_script() -> None:
    assert read_arguments("m", VLLM_SCRIPT) == EngineConfig("m", max_model_len=4_096)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument(name: str) -> None:
    each = ARGUMENTS[name]
    if each.ours in public_fields(EngineConfig):
        assert read_arguments("m", {name: None}) == EngineConfig("m")
        value: Any = True if each.switch else VALUES[each.ours]
        found = getattr(read_arguments("m", {name: value}), public_fields(EngineConfig)[each.ours].name)
        assert show_value(found, public_fields(EngineConfig)[each.ours].metadata["setting"]).replace(",", "") == expected(each)
        assert not each.switch or read_arguments("m", {name: False}) == EngineConfig("m")
    elif not each.ours and each.harmless != ANY:
        with pytest.raises(ConfigError, match=rf"'{name}( something)?' is not possible here: [^-]*$|{name}"):
            read_arguments("m", {name: SWITCH if each.switch else "something"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_modle_len": 3}, "'max_modle_len' is not a setting; did you mean max_model_len?"),
        ({"api_key": "hush"}, "'api_key' is not a setting"),
        ({"hostname": "::1"}, "'hostname' is not a setting"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is '2.5'; a whole number was expected"),
        ({"max_num_seqs": True}, "a whole number was expected"),
        ({"max_num_seqs": [1]}, "a whole number was expected"),
        ({"enable_prefix_caching": 1}, "true or false was expected"),
        ({"swap_space": "lots"}, "a number was expected"),
        ({"gpu_memory_utilization": 0.3}, "to leave memory to others write kv_cache_memory_bytes 4GiB"),
        ({"kv_cache_dtype": "bf16", "kv_dtype": "int8"}, "are the same setting"),
    ],
)
def test_arguments_that_are_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as error:
        read_arguments("m", given)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(("word", "figure"), [
    ("early-exit", "1.05 to 1.42 times.*facebook/layerskip"), ("early_exit", "layerskip"), ("lookahead", "seven steps of one"),
    ("tree", "1.00 times the best chain"), ("eagle-tree", "1.00 times the best chain"),
])  # fmt: skip
def test_kinds_of_drafts_that_there_are_not_are_refused_with_their_figure(word: str, figure: str) -> None:
    with pytest.raises(ConfigError, match=f"--speculative '{word}' is not possible here: .*{figure}.*write --speculative") as caught:
        parse("fake:{}", "--speculative", word)
    assert caught.value.fix == {"--speculative": "suffix"}
