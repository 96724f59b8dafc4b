"""What the text side reads of a model's files: tokenizer, its authors' defaults, chat template. One place for the server and for `LLM`."""

from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.facts.headers.generation import GenerationDefaults, read_generation
from ridgeline.text.bytes import ByteTokenizer
from ridgeline.text.chat import ChatTemplate, load_chat_template
from ridgeline.text.choose import load_tokenizer
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Read, but for the template.

    name           what the user calls the model        path  where it is; None: one without files, which speaks bytes
    generation     what its authors recommend, and ids that end an answer
    template_file  replaces the model's template
    """

    name: str
    path: Path | None
    tokenizer: Tokenizer
    generation: GenerationDefaults
    template_file: Path | None

    def vocab(self, inputs: int) -> int:
        """Ids that are inputs of the model, which has `inputs` of them, and tokens: padded embeddings have rows that no token names."""
        return min(inputs, self.tokenizer.vocab_size)

    def ends(self, vocab: int) -> frozenset[int]:
        """Ids below `vocab` that end any answer."""
        return frozenset(token for token in self.tokenizer.eos_ids | self.generation.eos_ids if token < vocab)

    def load_template(self) -> ChatTemplate | None:
        """The model's, or the one that replaces it; None where there is none. Starts the process that renders.

        Raises ConfigError for a template that is of no use.
        """
        return load_chat_template(self.path, self.name, self.tokenizer, self.template_file)


def read_files(name: str, path: Path | None, *, chat_template: str | Path | None, generation_config: str) -> ModelFiles:
    """Of the model that the user calls `name`, at `path`. generation_config "none": its authors' recommendations are left out.

    Raises ModelFormatError for malformed files.
    """
    tokenizer = ByteTokenizer() if path is None else load_tokenizer(path)
    generation = GenerationDefaults() if path is None else read_generation(path)
    if generation_config == "none":
        generation = replace(generation, sampling={})
    return ModelFiles(name, path, tokenizer, generation, None if chat_template is None else Path(chat_template).expanduser())
