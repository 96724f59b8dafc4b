"""A tiny random Llama that chats, as a checkpoint directory: for tests that need a real tokenizer and a template, made without torch."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, HEADER, HEADER_END, TURN_END = "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"

TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    f"{{{{- '{HEADER}' + message['role'] + '{HEADER_END}\\n\\n' + message['content'] | trim + '{TURN_END}' }}}}"
    "{%- endfor %}{%- if add_generation_prompt %}"
    f"{{{{- '{HEADER}assistant{HEADER_END}\\n\\n' }}}}"
    "{%- endif %}"
)

PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 cuts text before merging."""

CORPUS = [
    "The quick brown fox jumps over the lazy dog while the other dogs are watching the river.",
    "Hello! How can I help you today? You are a helpful assistant. Tell me a story about the sea.",
    "In the beginning there was a small model, and the model was random; it answered every question with noise.",
    "1 2 3 10 42 100 2024 3.14 — numbers, dates and other things: [a, b], {c}, (d) <e> \"f\" 'g'.",
]


def chat_tokenizer() -> Tokenizer:
    """Byte-level BPE of 400 pieces and Llama 3's control tokens; puts the beginning of text in front."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, HEADER, HEADER_END, TURN_END)])
    start = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), start])
    return tokenizer


def write_chat_llama(directory: Path, *, context: int = 2048, template: str | None = TEMPLATE, seed: int = 0) -> Path:
    """Config, weights (safetensors, F32), tokenizer, chat template and generation config in `directory`, which is returned.

    Two layers, 4 query and 2 KV heads of 16; the vocabulary is padded to a multiple of 64. Without a `template` it is a base model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = chat_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in (BOS, EOS, TURN_END)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": ids[BOS],
        "eos_token_id": [ids[EOS], ids[TURN_END]],
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": context,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": -(-tokenizer.get_vocab_size() // 64) * 64,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": TURN_END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **({"chat_template": template} if template else {}),
    }
    generation = {"bos_token_id": ids[BOS], "eos_token_id": config["eos_token_id"], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    for name, values in (("config", config), ("tokenizer_config", settings), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(values, indent=2))
    save_file(_weights(config["vocab_size"], seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _weights(vocab: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.2 * random.standard_normal(64)).astype(np.float32)

    # Rows as long as this make a few tokens likely at every step, so that greedy answers do not hang on rounding.
    weights = {"model.embed_tokens.weight": matrix(vocab, 64) * 2, "model.norm.weight": norm()}
    shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
    for i in range(2):
        layer = {f"self_attn.{part}_proj": matrix(*shape) for part, shape in shapes.items()}
        layer |= {f"mlp.{part}_proj": matrix(96, 64) for part in ("gate", "up")} | {"mlp.down_proj": matrix(64, 96)}
        layer |= {"input_layernorm": norm(), "post_attention_layernorm": norm()}
        weights |= {f"model.layers.{i}.{name}.weight": values for name, values in layer.items()}
    return weights
