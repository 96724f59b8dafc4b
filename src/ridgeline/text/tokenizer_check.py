"""Round trips of a tokenizer at load, and what a model's files say about ends: ids that exist, are control tokens, and agree.

Owns the known errors of real vocabularies. Encodes a few short texts; reads no file.
"""

from collections.abc import Sequence
from typing import Final, Literal

from ridgeline.errors import Finding, RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.chat_content import Conversation
from ridgeline.text.statements import Ends, Statements
from ridgeline.text.tokenizer import Tokenizer

CHECK: Final = "tokenizer"
FIX: Final = "use another conversion of the model, or its original tokenizer files"

PLAIN: Final = "Hello, world! The year 2024 has 366 days."
FOREIGN: Final = "naïve café: 你好, мир 🙂"
"""Texts that come back from every sound tokenizer; the second only where all of UTF-8 has ids."""
LEAST_NAMED_SHARE: Final = 0.8
"""Share of a model's inputs whose ids name a token. Padding of embeddings makes 0.98 and more in real models."""
MOST_NAMED_SHARE: Final = 1.05
"""Some real tokenizers name a few ids that the model has no row for; those are never accepted."""


def check_tokenizer(tokenizer: Tokenizer, stated: Statements, template: ChatTemplate | None) -> list[Finding]:
    """Problems of the tokenizer of a model whose files state this."""
    found = [*_check_bos(tokenizer), *_check_names(tokenizer), *_check_added(tokenizer, stated.added)]
    return [*_check_texts(tokenizer), *_check_ends(tokenizer, stated.ends, template), *found] if tokenizer.keeps_text else found


def check_vocabulary(tokenizer: Tokenizer, inputs: int) -> list[Finding]:
    """A problem where the tokenizer is not that of a model with so many inputs (rows of the embedding)."""
    share = tokenizer.vocab_size / inputs
    if LEAST_NAMED_SHARE <= share <= MOST_NAMED_SHARE:
        return []
    return [_finding("warning", f"it names {tokenizer.vocab_size} ids and the model has {inputs} inputs: they may not belong together")]


def _check_texts(tokenizer: Tokenizer) -> list[Finding]:
    texts: tuple[tuple[str, Literal["error", "note"]], ...] = ((PLAIN, "error"), (FOREIGN, "note"))
    found = []
    for text, severity in texts:
        ids = tokenizer.encode(text, add_bos=False)
        back = tokenizer.decode(ids, skip_special=False)
        if back.strip() != text:
            found.append(_finding(severity, f"{text!r} becomes {len(ids)} ids, and these the text {back[:60]!r}"))
    return found


def _check_ends(tokenizer: Tokenizer, ends: Ends, template: ChatTemplate | None) -> list[Finding]:
    if not ends and not tokenizer.eos_ids:
        return [_finding("warning", "no file names an id that ends an answer, so answers run to their limit")]
    stated = frozenset[int]().union(*ends.values())
    turn_end = frozenset[int]() if template is None else template.stop_ids
    in_prompt = _ids_of_a_prompt(tokenizer, template) if turn_end and not turn_end & stated else frozenset[int]()
    found = []
    for place, token in ((place, token) for place, ids in ends.items() for token in sorted(ids)):
        if not 0 <= token < tokenizer.vocab_size:
            what = "a name that is no token" if token < 0 else f"id {token}, which is no token"
            found.append(_finding("warning", f"{place} ends answers at {what}: ids are 0 to {tokenizer.vocab_size - 1}"))
            continue
        name = _name(tokenizer, token)
        if name.strip() and not tokenizer.is_control(token):
            found.append(_finding("error", f"{place} ends answers at id {token}, which is the ordinary text {name!r:.40}"))
        elif token in in_prompt and token != tokenizer.bos:
            end = _name(tokenizer, min(turn_end))
            found.append(_finding("warning", f"{place} ends answers at {name!r:.40}, but turns of the chat template end with {end!r:.40}"))
    return found


def _name(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token).decode("utf-8", "replace")


def _ids_of_a_prompt(tokenizer: Tokenizer, template: ChatTemplate | None) -> frozenset[int]:
    """Ids of a prompt of one user's turn; empty where there is no template, or it renders none."""
    if template is None or not template.is_usable:
        return frozenset()
    try:
        text = template.render(Conversation([{"role": "user", "content": "Zebra crossing"}]))
    except RequestError:
        return frozenset()
    return frozenset(tokenizer.encode(text, add_bos=False, special=True))


def _check_bos(tokenizer: Tokenizer) -> list[Finding]:
    bos = tokenizer.bos
    if bos is None or tokenizer.is_control(bos):
        return []
    cause = f"every prompt begins with id {bos}, which is the ordinary text {_name(tokenizer, bos)!r:.40}, not a control token"
    return [_finding("warning", cause)]


def _check_names(tokenizer: Tokenizer) -> list[Finding]:
    """Names of control tokens are distinct: of two with one name only one can ever be meant."""
    seen: dict[bytes, int] = {}
    for token in tokenizer.control:
        name = tokenizer.piece(token)
        if name and seen.setdefault(name, token) != token:
            return [_finding("warning", f"ids {seen[name]} and {token} are both the control token {_name(tokenizer, token)!r:.40}")]
    return []


def _check_added(tokenizer: Tokenizer, added: Sequence[tuple[int, str]]) -> list[Finding]:
    """Added tokens have the ids that the file gives them, each its own."""
    wrong = [(token, name) for token, name in added if tokenizer.id_of(name) != token]
    if not wrong:
        return []
    (token, name), others = wrong[0], f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return [_finding("warning", f"tokenizer.json adds {name!r:.40} as id {token}, but it is id {tokenizer.id_of(name)}{others}")]


def _finding(severity: Literal["error", "warning", "note"], cause: str) -> Finding:
    return Finding(severity, CHECK, cause, FIX)
