"""`docs/flags.md`: flags of other servers and what they are here. `python tests/arch/flag_table.py > docs/flags.md` writes it anew."""

from ridgeline.config.foreign import ANY, FOREIGN, SWITCH, Foreign
from ridgeline.config.values import flag_of
from ridgeline.core.arguments import OTHERS

HEAD = """# Flags of other servers

`ridgeline serve` takes the command lines of vLLM, llama.cpp, SGLang and TGI where they mean the same, and `LLM` their arguments
(`tensor_parallel_size=1`). A flag that asks for something else is an error that says what to write. Made of `config/foreign.py` by
`tests/arch/flag_table.py`. Flags that are the same under the same name are not listed: `ridgeline serve --help` is.

| theirs | here |
|---|---|
"""

VARIABLES = """
Ollama is set by variables:

| theirs | here |
|---|---|
| `OLLAMA_HOST=0.0.0.0:11434` | `--host 0.0.0.0 --port 11434`, with a key |
| `OLLAMA_CONTEXT_LENGTH` | `--max-model-len` |
| `OLLAMA_NUM_PARALLEL` | `--max-num-seqs` |
| `OLLAMA_MAX_QUEUE` | `--max-num-queued-reqs` |
| `OLLAMA_KV_CACHE_TYPE=q8_0` | `--kv-dtype int8` |
| `OLLAMA_ORIGINS` | `--allowed-origins` |
| `OLLAMA_MODELS` | the same: its models are found where they lie |
| `OLLAMA_DEBUG=1` | `--log-level debug` |
| `OLLAMA_KEEP_ALIVE` | a model stays loaded as long as its server runs |
"""

IN_PYTHON = """
Arguments of vLLM's `SamplingParams`, `StructuredOutputsParams`, `PoolingParams`, `BeamSearchParams`, `generate`, `chat`, `beam_search`,
`embed`, `encode` and `score` have their meaning here, but for these (`core/arguments.py`), which are taken with the value that asks
for nothing:

| theirs | taken | else |
|---|---|---|
"""


def meaning(each: Foreign) -> str:
    """What a flag is here, in words."""
    if each.ours:
        target = "the model, as the first argument" if each.ours == "model" else f"`{flag_of(each.ours)}`"
        if each.switch:
            word = each.values[SWITCH]
            target = f"`--no-{flag_of(each.ours)[2:]}`" if word == "false" else f"`{flag_of(each.ours)} {word}`"
        words = [f"`{word}`: {'left open' if not ours else f'`{ours}`'}" for word, ours in each.values.items() if not each.switch]
        return target + (f" ({', '.join(words)})" if words else "")
    if each.harmless == ANY:
        return f"no effect: {each.advice}"
    allowed = [f"`{value}`" for value in each.harmless if value not in ("", "none", "false")]
    return (f"{', '.join(allowed)} taken; else " if allowed else "") + f"refused: {each.advice}"


def table() -> str:
    """The whole document."""
    lines = [f"| {', '.join(f'`{name}`' for name in each.names)} | {meaning(each).replace('|', '/')} |" for each in FOREIGN]
    others = [f"| `{name}` | `{harmless!r}` | {advice} |" for name, (harmless, advice) in OTHERS.items()]
    return HEAD + "\n".join(lines) + "\n" + IN_PYTHON + "\n".join(others) + "\n" + VARIABLES


if __name__ == "__main__":
    print(table(), end="")
