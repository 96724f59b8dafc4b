"""What every tokenizer offers. Owns the `Tokenizer` protocol; which one a model asks for is `text.choose`'s to say."""

from collections.abc import Sequence
from typing import Final, Protocol

MASK: Final = "\ufdd0"
"""A code point that Unicode sets aside for internal use: in message contents it keeps names of control tokens from becoming their ids."""


class Tokenizer(Protocol):
    """Text to ids and back. Immutable, hence safe to share between threads and requests.

    bos      the id that starts every prompt; None: the model wants none
    eos_ids  ids that end a generation, from every source that names one
    """

    @property
    def bos(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """Ids of `text`. `add_bos` puts `bos` first where there is one and, with `special`, the text does not begin with its name.

        special  names of control tokens become their ids, but where `MASK` stands inside the name; else they are ordinary text.
                 `MASK` itself stands for nothing: it is removed from the text before ordinary text is encoded.
        """
        ...

    def id_of(self, piece: str) -> int | None:
        """The id of the token with exactly this name (`<|im_end|>`), control tokens included; None where there is none."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for, not always whole UTF-8; a control token's are its name. 0 ≤ token < vocab_size."""
        ...

    def is_control(self, token: int) -> bool:
        """Whether an id stands for no text (BOS, EOS, padding, unknown …)."""
        ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """Text of a whole prompt; bytes that are not UTF-8 become U+FFFD. `skip_special` leaves control tokens out."""
        ...
