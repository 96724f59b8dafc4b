"""llguidance through its C interface: a vocabulary, and matchers of grammars over it.

Its Python classes hold the interpreter's lock while they read a vocabulary (a second at 262,144 ids), and nothing else runs meanwhile.
Calls through `ctypes.CDLL` release it. Structures are those of `parser/llguidance.h` in release 1.9; `library` refuses others.
"""

import ctypes
import importlib.util
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

RELEASE: Final = "llguidance@1.9."
CONTROL: Final = b"\xff"
"""Byte in front of those of an id that stands for no text; no UTF-8 has it."""
MESSAGE_BYTES: Final = 1_000
MAX_LEXER_STATES: Final = 50_000
"""States of a grammar's lexer, at some 2 kB each: all rows that follow it share them, and they are kept with it."""
STEP_FUEL: Final = 50_000
"""Expressions that may be made for one mask: some 0.1 s, and 25 MB."""
TOGETHER: Final = 4_096
"""Ids that are read without a break."""
FORCED_BYTES: Final = 256
"""Bytes of forced text that are told at a time."""
ROOM: Final = 256
"""Bytes of zeros behind a structure, so that the library never writes past one."""


class _Limits(ctypes.Structure):
    _fields_ = (
        ("max_items_in_row", ctypes.c_size_t),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", ctypes.c_size_t),
        ("max_lexer_states", ctypes.c_size_t),
        ("max_grammar_size", ctypes.c_size_t),
        ("precompute_large_lexemes", ctypes.c_bool),
        ("verbose_errors", ctypes.c_bool),
    )


class _MatcherOptions(ctypes.Structure):
    _fields_ = (
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("limits", _Limits),
        ("room", ctypes.c_byte * ROOM),
    )


class _TokenizerOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_void_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("tok_eos_extra", ctypes.c_void_p),
        ("tok_eos_extra_count", ctypes.c_uint32),
    )


_DEFAULTS: Final = (2_000, 1_000_000, 200_000, 50_000, 250_000, 500_000, True, True)
"""Values of `_Limits` in the release that the structures are of: found in their places, the places are right."""
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("llg_get_version", ctypes.c_char_p, ()),
    ("llg_new_tokenizer_v2", _POINTER, (ctypes.POINTER(_TokenizerOptions), ctypes.c_char_p, _SIZE)),
    ("llg_free_tokenizer", None, (_POINTER,)),
    ("llg_constraint_init_set_defaults", None, (ctypes.POINTER(_MatcherOptions), _POINTER)),
    ("llg_new_matcher", _POINTER, (ctypes.POINTER(_MatcherOptions), ctypes.c_char_p, ctypes.c_char_p)),
    ("llg_clone_matcher", _POINTER, (_POINTER,)),
    ("llg_free_matcher", None, (_POINTER,)),
    ("llg_matcher_get_error", ctypes.c_char_p, (_POINTER,)),
    ("llg_matcher_is_stopped", ctypes.c_bool, (_POINTER,)),
    ("llg_matcher_get_mask_byte_size", _SIZE, (_POINTER,)),
    ("llg_matcher_compute_mask_into", _INT, (_POINTER, _POINTER, _SIZE)),
    ("llg_matcher_consume_tokens", _INT, (_POINTER, _POINTER, _SIZE)),
    ("llg_matcher_validate_tokens", _INT, (_POINTER, _POINTER, _SIZE)),
    ("llg_matcher_rollback", _INT, (_POINTER, _SIZE)),
    ("llg_matcher_compute_ff_tokens", _INT, (_POINTER, _POINTER, _SIZE)),
)


@ctypes.CFUNCTYPE(_SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE)  # type: ignore[untyped-decorator]
def _ids_of_bytes(_: int, text: int, length: int, found: int, room: int) -> int:
    """Splits a text into ids where ids are bytes; the library asks again with more room for a longer one."""
    ids = np.frombuffer(ctypes.string_at(text, min(length, room)), np.uint8).astype(np.uint32)
    ctypes.memmove(found, ids.ctypes.data, ids.nbytes)
    return length


@cache
def library() -> Any:
    """The functions of the installed library. Raises ImportError where it is missing, or of another release."""
    package = importlib.util.find_spec("llguidance")
    folder = Path((package and package.origin) or "").parent
    path = next(folder.glob("_lib*.so"), None)
    if package is None or path is None:
        raise ImportError("llguidance is not installed; pip install llguidance")
    found = ctypes.CDLL(str(path))
    for name, result, arguments in _FUNCTIONS:
        function = getattr(found, name, None)
        if function is None:
            raise ImportError(f"{path} has no {name}; pip install 'llguidance>=1.9,<1.10'")
        function.restype, function.argtypes = result, arguments
    version = (found.llg_get_version() or b"").decode(errors="replace")
    if not version.startswith(RELEASE) or _limits(_options(found, None)) != _DEFAULTS:
        raise ImportError(f"{version.partition(' ')[0] or path} is not known here; pip install 'llguidance>=1.9,<1.10'")
    return found


def _options(functions: Any, tokenizer: int | None) -> _MatcherOptions:
    options = _MatcherOptions()
    functions.llg_constraint_init_set_defaults(ctypes.byref(options), tokenizer)
    return options


def _limits(options: _MatcherOptions) -> tuple[int, ...]:
    return tuple(getattr(options.limits, name) for name, _ in _Limits._fields_)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    ))  # fmt: skip


def allocated_bytes() -> int:
    """Bytes that this process has of the C library, the library's among them; 0 where the C library does not say."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return 0
    info.restype = _MallocInfo
    found: _MallocInfo = info()
    return int(found.uordblks + found.hblkhd)


class Tokenizer:
    """A vocabulary as the library knows it. Texts that a grammar forces stay open to every split into ids: no tokenizer is asked. Where ids
    are bytes there is but one split, and `Matcher.forced` tells these texts."""

    def __init__(self, pieces: Sequence[bytes], control: Sequence[int], ends: Sequence[int], *, are_bytes: bool = False) -> None:
        """pieces: bytes of each id. control: ids that stand for no text. ends: ids that may end an output. are_bytes: ids below 256 are
        bytes, and others stand for no text.

        Raises ImportError; ValueError where the library refuses the vocabulary.
        """
        functions = library()
        lengths, text = _joined(pieces, frozenset(control))
        others = np.array(sorted(ends)[1:], np.uint32)
        options = _TokenizerOptions(
            struct_size=ctypes.sizeof(_TokenizerOptions),
            vocab_size=len(pieces),
            tok_eos=min(ends),
            token_lens=lengths.ctypes.data,
            token_bytes=ctypes.cast(text, _POINTER),
            tokenize_fn=ctypes.cast(_ids_of_bytes, _POINTER) if are_bytes else None,
            use_approximate_greedy_tokenize_fn=not are_bytes,
            tok_eos_extra=others.ctypes.data,
            tok_eos_extra_count=len(others),
        )
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        self.address = functions.llg_new_tokenizer_v2(ctypes.byref(options), message, MESSAGE_BYTES)
        if not self.address:
            raise ValueError(message.value.decode(errors="replace"))
        finalize(self, functions.llg_free_tokenizer, self.address).atexit = False
        self._ids = len(pieces)

    def calls(self, room: int) -> NDArray[np.int64]:
        """Functions that the native runner calls to move rows and to make masks of `room` bytes, in the order of csrc/runtime/follow.h."""
        names = ("consume_tokens", "validate_tokens", "compute_mask_into", "is_stopped")
        functions = [getattr(library(), f"llg_matcher_{name}") for name in names]
        addresses = [ctypes.cast(function, _POINTER).value for function in functions]
        return np.array([*addresses, self._ids, -(-self._ids // 32) * 4, room], np.int64)


def _joined(pieces: Sequence[bytes], control: Collection[int]) -> tuple[NDArray[np.uint32], bytes]:
    """Lengths and bytes of ids, some at a time: other threads get their turn in between."""
    lengths, texts = np.empty(len(pieces), np.uint32), []
    for first in range(0, len(pieces), TOGETHER):
        words = [
            CONTROL + piece if token in control and piece[:1] != CONTROL else piece
            for token, piece in enumerate(pieces[first : first + TOGETHER], first)
        ]
        lengths[first : first + len(words)] = [len(word) for word in words]
        texts.append(b"".join(words))
    return lengths, b"".join(texts)


class Matcher:
    """A place in a grammar. Used by one thread at a time; those of one grammar by several, as they lock what they share."""

    def __init__(self, address: int, tokenizer: Tokenizer) -> None:
        self._functions, self._address, self._tokenizer = library(), address, tokenizer
        finalize(self, self._functions.llg_free_matcher, address).atexit = False
        self._bytes = self._functions.llg_matcher_get_mask_byte_size(address)

    @classmethod
    def of(cls, tokenizer: Tokenizer, grammar: str) -> "Matcher":
        """The beginning of a grammar, as `core.params.Grammar` writes it; see `error`."""
        functions = library()
        options = _options(functions, tokenizer.address)
        options.log_stderr_level = 0
        options.limits.verbose_errors = False
        options.limits.max_lexer_states, options.limits.step_lexer_fuel = MAX_LEXER_STATES, STEP_FUEL
        made = functions.llg_new_matcher(ctypes.byref(options), b"guidance", grammar.replace("\0", " ").encode())
        return cls(made, tokenizer)

    def copy(self) -> "Matcher":
        """Another one in the same place, which shares what has been found out about the grammar."""
        return Matcher(self._functions.llg_clone_matcher(self._address), self._tokenizer)

    @property
    def address(self) -> int:
        """Address of the library's matcher, which lives as long as this one."""
        return self._address

    @property
    def error(self) -> str | None:
        """The reason why it cannot go on."""
        message = self._functions.llg_matcher_get_error(self._address)
        return None if message is None else message.decode(errors="replace")

    @property
    def stopped(self) -> bool:
        """True behind the end of an output, and where it cannot go on."""
        return bool(self._functions.llg_matcher_is_stopped(self._address))

    def mask(self, found: NDArray[np.uint32]) -> bool:
        """Writes a bit for each id to the beginning of `found`: set where it may come next, behind the end where it ends an output.

        False: see `error`.
        """
        assert found.nbytes >= self._bytes and found.flags.c_contiguous
        return bool(self._functions.llg_matcher_compute_mask_into(self._address, found.ctypes.data, self._bytes) == 0)

    def consume(self, ids: Sequence[int]) -> bool:
        """Goes on by ids. False: see `error`."""
        tokens = np.array(ids, np.uint32)
        return bool(self._functions.llg_matcher_consume_tokens(self._address, tokens.ctypes.data, len(tokens)) == 0)

    def forced(self) -> bytes:
        """Text that must come next, `FORCED_BYTES` at most; of a vocabulary whose ids are bytes. Empty where there is a choice."""
        found = np.zeros(FORCED_BYTES, np.uint32)
        count = self._functions.llg_matcher_compute_ff_tokens(self._address, found.ctypes.data, len(found))
        return bytes(found[: max(0, count)].astype(np.uint8))

    def rollback(self, count: int) -> bool:
        """Goes back by `count` ids. False: see `error`."""
        return bool(self._functions.llg_matcher_rollback(self._address, count) == 0)
