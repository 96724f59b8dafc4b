"""transformers as the GPU's benchmark runs it, on a tiny model and not compiled: each batch size gives numbers, and what is decoded."""

import json
from pathlib import Path

import torch

from ridgeline.compute.cuda.bench import parts, peer
from ridgeline.compute.cuda.device import interpreted
from ridgeline.facts.headers.checkpoint import read_config_facts

CONFIG = {
    "model_type": "llama", "tie_word_embeddings": False, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 64,
    "auto_map": {"AutoModel": "no.Model"},
}  # fmt: skip


def test_transformers(tmp_path: Path) -> None:
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(CONFIG))
    settings = {"model": str(config), "dtype": "bf16", "batches": [1, 2], "context": 8, "steps": 2, "modes": [None]}
    rows = list(parts.transformers(read_config_facts(config), interpreted(1 << 20), settings))
    assert [row.get("error") for row in rows] == [None, None]
    assert [row["batch"] for row in rows] == [1, 2] and rows[0]["mode"] == "not compiled" and rows[0]["cache"] == 7 + 3 + 2
    assert all(row["tokens_per_second"] > 0 and row["transformers"] for row in rows)


def test_a_step_with_a_static_cache_is_the_step_without(tmp_path: Path) -> None:
    """So what is timed is decoding, and not something cheaper."""
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(CONFIG))
    model = peer.build(config, "f32", interpreted(1 << 20))
    prompt = torch.tensor([[5, 9, 33], [7, 1, 2]], device="cpu")
    cache = peer.transformers.StaticCache(config=model.config, max_cache_len=8)
    with torch.no_grad():
        first = peer.step_of(model, None)(prompt, cache)
        second = peer.step_of(model, None)(first, cache)
        whole = model(input_ids=torch.cat([prompt, first], dim=1)).logits[:, -1:].argmax(-1)
    assert torch.equal(second, whole)
