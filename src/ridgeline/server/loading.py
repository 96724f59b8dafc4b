"""The text side of a model, read while the engine loads the weights: tokenizer, chat template, its authors' defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.config.groups import FAKE_PREFIX, ServerConfig
from ridgeline.engine.admit import check_number
from ridgeline.errors import ConfigError, Finding, RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.files import ModelFiles, read_files
from ridgeline.text.prompt_cache import PromptCache
from ridgeline.text.statements import ModelKind


@dataclass(frozen=True, slots=True)
class TextAssets:
    """The text side of a model.

    chat      None where it has no template
    findings  problems of tokenizer and template
    """

    files: ModelFiles
    prompts: PromptCache
    chat: ChatTemplate | None
    kind: ModelKind
    findings: tuple[Finding, ...]


def load_text_assets(name: str, path: Path | None, config: ServerConfig) -> TextAssets:
    """Reads the text side of the model that the user calls `name`, at `path`; None: a model without files, whose tokens are bytes.

    Raises ConfigError for a template or defaults that do not work, ModelFormatError for malformed files.
    """
    files = read_files(name, path, chat_template=config.chat_template, generation_config=config.generation_config)
    _check_defaults(files.generation.sampling)
    chat = files.load_template()
    return TextAssets(files, PromptCache(files.tokenizer), chat, *files.check(chat))


def _check_defaults(sampling: Mapping[str, int | float]) -> None:
    """Raises ConfigError for a default out of range: every request that leaves the field out would be rejected."""
    for name, value in sampling.items():
        try:
            check_number(name, value)
        except RequestError as error:
            raise ConfigError(f"the model's default for {error}", fix={"--generation-config": "none"}) from None


def served_name(model: str, config: ServerConfig) -> str:
    """The name by which clients call the model that the user calls `model`."""
    if config.served_model_name is not None:
        return config.served_model_name
    return "fake" if model.startswith(FAKE_PREFIX) else Path(model).stem if model.endswith(".gguf") else model
