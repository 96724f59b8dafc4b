"""Command line, environment, file, default: which wins, where it says it comes from, and what is refused."""

import os
import re
from itertools import permutations
from pathlib import Path

import pytest

from ridgeline.config.env import child_environment
from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.resolve import Decision
from ridgeline.config.setting import setting_of
from ridgeline.config.sources import Settings, gather
from ridgeline.config.values import parse_size
from ridgeline.core.policy import POLICIES
from ridgeline.errors import ConfigError


def write(path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def places(settings: Settings) -> dict[str, str]:
    return {name: str(origin) for name, origin in settings.origins.items()}


def test_the_nearest_source_wins_and_names_those_it_overrides(tmp_path: Path) -> None:
    file = write(tmp_path / "r.yaml", "model: fake:{}\nport: 1\nhost: localhost\ndepth: 1\nmax-model-len: 8K\n")
    found = gather({"port": "3"}, {"RIDGELINE_PORT": "2", "RIDGELINE_HOST": "::1", "RIDGELINE_CONFIG": "other"}, file, None)
    assert (found.engine.model, found.engine.depth, found.engine.max_model_len) == ("fake:{}", 1, 8_192)
    assert (found.server.host, found.server.port, found.server.shutdown_timeout) == ("::1", 3, 30.0)
    assert places(found) == {
        "model": f"file: {file}: model",
        "port": f"--port, over RIDGELINE_PORT and {file}: port",
        "host": f"environment: RIDGELINE_HOST, over {file}: host",
        "depth": f"file: {file}: depth",
        "max_model_len": f"file: {file}: max-model-len",
    }


def test_every_setting_has_a_variable_and_a_key(tmp_path: Path) -> None:
    samples = {int: "3", float: "2.5", str: "words"}
    for name, each in public_fields(EngineConfig, ServerConfig).items():
        setting = setting_of(each)
        kind = next(kind for kind in (bool, int, float, str) if kind.__name__ in str(each.type))
        text = "no" if each.default is True else "yes" if kind is bool else samples[kind]
        if setting.choices:
            text = next(choice for choice in setting.choices if choice != each.default)
        elif setting.bounds is not None and setting.bounds[0] > float(text):
            text = str(setting.bounds[0])
        by_variable = gather({}, {"RIDGELINE_MODEL": "m", f"RIDGELINE_{name.upper()}": text})
        for suffix, line in ((".yaml", f"{name.replace('_', '-')}: {text}"), (".toml", f"{name} = '{text}'")):
            file = write(tmp_path / f"one{suffix}", line)
            by_file = gather({}, {}, file, None if name == "model" else "m")
            assert (by_file.engine, by_file.server) == (by_variable.engine, by_variable.server)
        group = by_variable.engine if each.name in EngineConfig.__slots__ else by_variable.server
        assert getattr(group, each.name) != each.default, name


def test_typed_values_of_toml(tmp_path: Path) -> None:
    file = write(
        tmp_path / "r.toml", 'model = "m"\nport = 9\nswap_space = 1\nbatch_invariant = true\nallowed_origins = ["https://a.example"]\n'
    )
    found = gather({}, {}, file)
    assert (found.server.port, found.engine.swap_space, found.engine.batch_invariant) == (9, 1.0, True)
    assert found.server.allowed_origins == ("https://a.example",)
    for line in (
        "port = '9x'",
        "port = 1.5",
        "port = true",
        "port = 2000-01-01",
        "host = 3",
        "host = [1]",
        "[server]\nport = 1",
        "port = nan",
    ):
        with pytest.raises(ConfigError, match=r"r.toml: (port|host)|'server' is not a setting"):
            gather({}, {}, write(tmp_path / "r.toml", line), "m")


WRONG_FILES = {
    "max_modle_len: 3": "'max_modle_len' is not a setting; did you mean max_model_len?",
    "port: 1\nport: 2": "line 2: 'port' stands here a second time",
    "max-model-len: 1\nmax_model_len: 2": "has max-model-len and max_model_len, which are the same setting",
    "port: &a 1": "line 1: anchors, aliases and tags are not read",
    "host: *a": "anchors, aliases and tags are not read",
    "port: !!int 1": "anchors, aliases and tags are not read",
    "port: !!python/object/apply:os.system [id]": "anchors, aliases and tags are not read",
    "server:\n  port: 1": "line 2: a mapping within another",
    "allowed_origins: [[a]]": "a list within another",
    "- port": "settings are written as name: value",
    "port": "settings are written as name: value",
    "port: 1\n---\nport: 2": "a mapping within another",
    "port: [": "is not YAML",
    "port: 'x": "is not YAML",
    "port: 99999": "r.yaml: port is 99999, outside 0 … 65535",
    "port: many": "r.yaml: port is 'many'; a whole number was expected",
    "enable_prefix_caching: maybe": "true or false was expected",
    "speculative: ngran": "must be one of off, ngram",
    "#" * 70_000: "has more than 65,536 bytes",
    "port: " + "[" * 60_000: "a list|settings|YAML|nested",
}


@pytest.mark.parametrize("text", WRONG_FILES, ids=lambda text: text[:30])
def test_files_that_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG_FILES[text].replace("?", r"\?")):
        gather({}, {}, write(tmp_path / "r.yaml", text), "m")


def test_what_is_no_file_of_settings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    texts = {
        "r.json": ("{}", "neither YAML nor TOML"),
        "r.yaml": (b"host: \xff", "not UTF-8 .byte 6"),
        "r.toml": ("a = 1\na = 2", "is not TOML"),
        "deep.toml": ("a = " + "[" * 50_000, "is not TOML"),
    }
    messages = {write(tmp_path / name, text): message for name, (text, message) in texts.items()}
    others = {"none.yaml": "No such file", "folder.yaml": "not a regular|Is a directory", "pipe.yaml": "not a regular file"}
    for path, message in (messages | {str(tmp_path / name): message for name, message in others.items()}).items():
        with pytest.raises(ConfigError, match=message):
            gather({}, {}, path, "m")
    assert gather({}, {}, write(tmp_path / "empty.yaml", "# nothing\n"), "m").origins.keys() == {"model"}
    assert gather({}, {}, write(tmp_path / "open.yaml", "port: null\nhost:\n"), "m").server == ServerConfig()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_with_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path / "r.yaml", "api_key: hush\nmodel: m\n", mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o} .*chmod 600 {re.escape(file)}") as error:
        gather({}, {}, file)
    assert "hush" not in str(error.value)
    Path(file).chmod(0o600)
    assert gather({}, {}, file).server.api_key == "hush"
    assert gather({}, {}, write(tmp_path / "r.yaml", "port: 1\nmodel: m\n", mode)).server.port == 1


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    found = gather({"api_key": "hush"}, {"RIDGELINE_API_KEY": "hush-2"}, write(tmp_path / "r.yaml", "api_key: hush-3"), "m")
    assert found.server.api_key == "hush"
    shown = [*found.shown()]
    assert [(name, value) for name, value, _ in shown if name == "api_key"] == [("api_key", "set")]
    assert "hush" not in f"{found} {shown} {found.notes}"
    assert "ps" in found.notes[0] and not gather({}, {"RIDGELINE_API_KEY": "hush"}, None, "m").notes


def test_variables_of_others() -> None:
    kubernetes = {
        "RIDGELINE_PORT": "tcp://10.0.0.1:8000",
        "RIDGELINE_SERVICE_HOST": "10.0.0.1",
        "RIDGELINE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    }
    found = gather({}, {**kubernetes, "RIDGELINE_PROT": "1", "RIDGELINE_ISA": "avx2", "RIDGELINE_HOST": ""}, None, "m")
    assert (found.server.port, found.server.host, places(found)) == (8_000, "127.0.0.1", {"model": "MODEL"})
    assert len(found.notes) == 2
    assert "enableServiceLinks" in found.notes[0] and "did you mean RIDGELINE_PORT?" in found.notes[1]


def test_without_a_model() -> None:
    with pytest.raises(ConfigError, match="no model is given") as error:
        gather({"port": "1"}, {})
    assert error.value.fix == {"MODEL": "demo"}


def test_an_error_says_where_the_setting_stands() -> None:
    settings = gather({"depth": "2"}, {"RIDGELINE_MAX_MODEL_LEN": "9", "RIDGELINE_BLOCK_SIZE": "8"}, None, "m")
    error = ConfigError("too long", fix={"--max-model-len": None, "--block-size": "4", "--depth": None})
    located = settings.located(error)
    assert "--max-model-len is set by RIDGELINE_MAX_MODEL_LEN, --block-size is set by RIDGELINE_BLOCK_SIZE" in str(located)
    assert located.fix == {"--block-size": "4", "--depth": None}, "what the command line cannot mend is not suggested"
    assert settings.located(plain := ConfigError("x", fix={"--depth": None})) is plain


def test_decisions_name_the_place() -> None:
    settings = gather({"depth": "2"}, {"RIDGELINE_MAX_MODEL_LEN": "9"}, None, "m")
    decisions = (
        Decision("max_model_len", 9, "flag", "--max-model-len"),
        Decision("depth", 2, "flag", "--depth"),
        Decision("x", 1, "model", "y"),
    )
    found = settings.with_origins(decisions)
    assert [(each.origin, each.reason) for each in found] == [
        ("environment", "RIDGELINE_MAX_MODEL_LEN"),
        ("flag", "--depth"),
        ("model", "y"),
    ]


SIZES = {
    "4096": 4_096, "4_096": 4_096, "4k": 4_000, "4K": 4_096, "4Ki": 4_096, "4ki": 4_096, "1m": 10**6, "1M": 1 << 20, "0.5M": 1 << 19,
    "25.6k": 25_600, " 8 ": 8, "2g": 2 * 10**9, "2G": 2 << 30, "1T": 1 << 40, "0": 0,
}  # fmt: skip
BYTES = {"4GiB": 4 << 30, "4GB": 4 * 10**9, "4 GiB": 4 << 30, "512MiB": 512 << 20, "1kB": 1_000, "16B": 16, "1TiB": 1 << 40}
NO_SIZES = (
    "",
    "k",
    "4q",
    "4.k",
    ".5k",
    "4 4",
    "-4",
    "+4",
    "4e3",
    "1e400",
    "nan",
    "inf",
    "4kk",
    "0x10",
    "9" * 65,
    "٤",
    "1.5",
    "0.3k3",
    "9" * 40,
    "_4",
)


def test_sizes() -> None:
    for text, number in SIZES.items():
        assert parse_size(text, "--x", unit="tokens") == parse_size(text, "--x") == number, text
    for text, number in BYTES.items():
        assert parse_size(text, "--x") == number
        with pytest.raises(ConfigError, match="not a number of tokens"):
            parse_size(text, "--x", unit="tokens")
    for text in NO_SIZES:
        with pytest.raises(ConfigError, match=r"^--x is "):
            parse_size(text, "--x")


def test_settings_take_sizes() -> None:
    found = gather(
        {"max_model_len": "4k", "kv_cache_memory_bytes": "4GiB", "swap_space": "512MiB", "max_num_batched_tokens": "1K"}, {}, None, "m"
    )
    engine = found.engine
    assert (engine.max_model_len, engine.kv_cache_memory_bytes, engine.swap_space, engine.max_num_batched_tokens) == (
        4_000,
        4 << 30,
        0.5,
        1_024,
    )
    assert gather({"swap_space": "2.5"}, {}, None, "m").engine.swap_space == 2.5
    for name, text in (("max_num_batched_tokens", "2M"), ("swap_space", "nan"), ("block_size", "2k"), ("depth", "4k"), ("seed", "-2")):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is "):
            gather({name: text}, {}, None, "m")


def test_policies_are_those_of_the_scheduler() -> None:
    assert setting_of(public_fields(EngineConfig)["scheduling_policy"]).choices == tuple(POLICIES)


def test_children_inherit_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = (
        "RIDGELINE_API_KEY",
        "RIDGELINE_CONFIG",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "HTTPS_PROXY",
        "X",
    )
    for name in secrets:
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = child_environment()
    assert "hush" not in found.values() and {"PATH", "CUDA_VISIBLE_DEVICES"} <= found.keys()


def test_any_order_of_variables_gives_the_same() -> None:
    variables = {"RIDGELINE_PORT": "1", "RIDGELINE_DEPTH": "1", "RIDGELINE_HOST": "::1"}
    assert len({str(gather({}, dict(order), None, "m")) for order in permutations(variables.items())}) == 1
