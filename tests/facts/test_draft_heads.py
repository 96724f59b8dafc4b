"""Heads that draft for another model are refused by name; models of their own are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.facts.headers.heads import check_drafts_alone


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, "Medusa"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, "EAGLE"),
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3DraftModel"]}, "EAGLE"),
        ({"model_type": "eagle", "architectures": ["EagleModel"]}, "EAGLE"),
        ({"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLP speculator"),
        ({"model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]}, "MTP"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, None),
        ({"model_type": "qwen3", "architectures": None}, None),
    ],
)
def test_heads_are_refused_by_name(tmp_path: Path, config: dict[str, Any], kind: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if kind is None:
        check_drafts_alone(tmp_path)
        check_drafts_alone(tmp_path / "draft.gguf")
    else:
        with pytest.raises(ConfigError, match=f"has {kind} heads.*a small model") as caught:
            check_drafts_alone(tmp_path)
        assert caught.value.fix == {"--draft-model": None, "--speculative": "suffix"}
