"""N6, N7, N14, N21, N22, A5, A9, A10, A12, C6: keys, origins and certificates of a real server; settings; `LLM`'s arguments."""

import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.engine.record import read_recording
from ridgeline.errors import ConfigError, RequestError

SITE = "https://chat.example"
CANARY = "canary-of-another-service"
COMMAND = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]


class Secured:
    """A server with HTTPS, keys of a file, and an allowed origin, all from a file of settings."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.server, self.keys, self.certificate = server, folder / "keys", folder / "cert.pem"
        self.context = ssl.create_default_context(cafile=str(self.certificate))

    def call(self, method: str, path: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with httpx.Client(verify=self.context, base_url=self.server.url) as client:
            return client.request(method, path, headers=named)

    def complete(self, key: str) -> str:
        with (
            httpx.Client(verify=self.context) as http,
            openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0, http_client=http) as client,
        ):
            return client.completions.create(model="fake", prompt="a", max_tokens=4).choices[0].text

    def hang_up(self, text: str, expected: str) -> None:
        """Writes the keys, sends SIGHUP, and waits for a line of the log."""
        before = self.server.output().count("SIGHUP")
        self.keys.write_text(text)
        self.server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 10
        while self.server.output().count("SIGHUP") == before:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert expected in self.server.output()


def make_certificate(folder: Path) -> None:
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *curve, *names, *files], check=True, capture_output=True, timeout=60)
    (folder / "key.pem").chmod(0o600)


@pytest.fixture(scope="module")
def secured(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    make_certificate(folder)
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text("# two\nops alpha-key\nbeta-key\n")
    (folder / "r.yaml").write_text(f"""
model: 'fake:{{"rows": 4}}'
api-key-file: {folder / "keys"}
ssl_certfile: {folder / "cert.pem"}
ssl_keyfile: {folder / "key.pem"}
allowed_origins: [{SITE}]
max_num_queued_reqs: 9
max_num_seqs: 2
port: 1
""")
    more = {"RIDGELINE_MAX_NUM_QUEUED_REQS": "7", "OPENAI_API_KEY": CANARY, "RIDGELINE_PROT": "8000"}
    with serving("--config", str(folder / "r.yaml"), **more) as server:
        yield Secured(server, folder)


def test_n7_keys_of_a_file(secured: Secured) -> None:
    assert secured.server.url.startswith("https://")
    assert len(secured.complete("alpha-key")) > 0 and len(secured.complete("beta-key")) > 0
    for wrong in ("ops", "ops alpha-key", "alpha-key\u00e9", "# two", "gamma-key"):
        with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
            secured.complete(wrong)
    processes = [secured.server.process.pid, secured.server.engine_pid()]
    for pid in processes:
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + (Path(f"/proc/{pid}/environ").read_bytes() if pid != processes[0] else b"")
        assert b"alpha-key" not in seen and b"beta-key" not in seen and CANARY.encode() not in seen and b"RIDGELINE" not in seen
    assert "alpha-key" not in secured.server.output()


def test_n7_keys_are_read_again_on_sighup(secured: Secured) -> None:
    secured.hang_up("gamma-key\n", "SIGHUP")
    assert secured.complete("gamma-key")
    with pytest.raises(openai.AuthenticationError):
        secured.complete("alpha-key")
    secured.hang_up("two words here\n", "line 1: write KEY, or NAME KEY")
    assert secured.complete("gamma-key"), "a file that is wrong changes nothing"
    secured.hang_up("ops alpha-key\nbeta-key\n", "SIGHUP")
    assert secured.complete("beta-key")


def test_n6_c6_pages_of_another_origin(secured: Secured) -> None:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, content-type, x-stainless-os, a b"}
    preflight = secured.call("OPTIONS", "/v1/chat/completions", origin=SITE, **asked)
    assert (preflight.status_code, preflight.content) == (204, b""), "no key is asked for"
    told = {name: value for name, value in preflight.headers.items() if name.startswith("access-control") or name == "vary"}
    assert told == {
        "access-control-allow-origin": SITE, "access-control-allow-methods": "GET, POST, DELETE, OPTIONS", "access-control-max-age": "600",
        "access-control-allow-headers": "authorization, content-type, x-stainless-os", "vary": "Origin",
    }  # fmt: skip
    answers = [
        secured.call("GET", "/v1/models", origin=SITE, authorization="Bearer beta-key"),
        secured.call("GET", "/v1/models", origin=SITE),
        secured.call("GET", "/nowhere", origin=SITE, authorization="Bearer beta-key"),
        secured.call("OPTIONS", "/v1/models", origin=SITE),
    ]
    assert [each.status_code for each in answers] == [200, 401, 404, 401]
    assert all(each.headers["access-control-allow-origin"] == SITE and each.headers["vary"] == "Origin" for each in answers)
    assert all("x-request-id" in each.headers["access-control-expose-headers"] for each in answers)
    for origin in ("https://evil.example", "null", "http://chat.example", f"{SITE}.evil", f"{SITE}:444"):
        answer = secured.call("OPTIONS", "/v1/models", origin=origin, **asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_and_the_metrics_work_with_keys_over_https(secured: Secured) -> None:
    page = secured.call("GET", "/", accept="text/html")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    metrics = secured.call("GET", "/metrics", authorization="Bearer beta-key")
    assert metrics.status_code == 200 and "vllm:num_requests_running" in metrics.text
    assert secured.call("GET", "/metrics").status_code == 401
    with pytest.raises(httpx.ConnectError):
        httpx.get(secured.server.url, timeout=5)  # a certificate that nobody vouched for
    with pytest.raises(httpx.HTTPError):
        httpx.get(secured.server.url.replace("https", "http"), timeout=5)


def test_settings_name_their_place(secured: Secured) -> None:
    said = secured.server.output()
    assert 'name=max_num_queued_reqs value=7 origin="environment: RIDGELINE_MAX_NUM_QUEUED_REQS, over ' in said
    assert f'name=allowed_origins value={SITE} origin="file: ' in said and 'name=port value=0 origin="--port, over ' in said
    assert "RIDGELINE_PROT is no setting and is not used; did you mean RIDGELINE_PORT?" in said


class Page(BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>foreign</title>")

    def log_message(self, *words: object) -> None:
        """Says nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


def test_n6_a_real_browser(serving: Callable[..., Any], browser: Any, site: str) -> None:
    """A page of an allowed origin gets its answer; the same page under another name does not."""
    with serving("fake:{}", "--allowed-origins", site, RIDGELINE_API_KEY="hush") as server:
        headers = '{Authorization: "Bearer hush", "Content-Type": "application/json"}'
        options = '{method: "POST", body: "{\\"prompt\\": \\"a\\"}", headers: ' + headers + "}"
        ask = f'fetch("{server.url}/tokenize", {options}).then(r => r.text()).catch(e => "blocked").then(t => window.answer = t); 1'
        for url, expected in ((site, "count"), (site.replace("127.0.0.1", "localhost"), "blocked")):
            browser.open(url)
            browser.value(ask)
            browser.wait("window.answer !== undefined")
            assert expected in browser.value("window.answer")


def explain(*words: str, **more: str) -> str:
    done = subprocess.run([*COMMAND, "config", "explain", *words], capture_output=True, text=True, timeout=60, check=False, env=more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_n14_explanations_read_well_at_eighty_columns(demo_file: Path, environment: dict[str, str]) -> None:
    said = explain(str(demo_file), **{**environment, "COLUMNS": "80"}).splitlines()
    assert max(map(len, said)) <= 80 or [line for line in said if len(line) > 80] == [said[0]]  # the model's path is as long as it is
    heads = [line.split()[0] for line in said if not line.startswith(" ")]
    assert heads == list(public_fields(EngineConfig, ServerConfig))


def test_n21_sizes_and_flags_of_others(demo_file: Path, environment: dict[str, str]) -> None:
    words = ["-c", "4K", "-np", "8", "--kv-cache-memory-bytes", "1GiB", "--tensor-parallel-size", "1", "--no-cache-prompt", "--json"]
    rows = {row["name"]: row["value"] for row in json.loads(explain(str(demo_file), *words, **environment))}
    assert (rows["max_model_len"], rows["max_num_seqs"], rows["enable_prefix_caching"]) == (4_096, 8, False)
    assert (1 << 30) - (1 << 20) < rows["kv_cache_memory_bytes"] <= 1 << 30


def test_a5_the_cache_of_a_gpu_is_sized_from_its_memory(demo_file: Path, environment: dict[str, str]) -> None:
    rows = {row["name"]: row for row in json.loads(explain(str(demo_file), "--device", "a10", "--json", **environment))}
    assert rows["runner"]["value"] == "cuda" and rows["dtype"]["value"] == "bf16"
    assert set(public_fields(ServerConfig)) <= rows.keys()
    cache = rows["kv_cache_memory_bytes"]
    assert 18e9 < cache["value"] < 23e9 and "100% of the" in cache["reason"], "of its 24 GB, behind the weights; not a share of the host's"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(LLM, "fake:{}", max_modle_len=3), "'max_modle_len' is not a setting; did you mean max_model_len"),
        (partial(LLM, "fake:{}", max_num_seqs="many"), "max_num_seqs is 'many'; a whole number was expected"),
        (partial(LLM, "fake:{}", tensor_parallel_size=2), "'tensor_parallel_size 2' is not possible here: a model runs on one device"),
        (partial(LLM, 5), "model is '5'; text was expected"),
        (partial(SamplingParams, max_token=3), "SamplingParams has no argument 'max_token'; did you mean max_tokens"),
        (partial(SamplingParams, guided_decoding={}), "no argument 'guided_decoding': use structured_outputs"),
        (partial(SamplingParams, zzz=1), "no argument 'zzz'; there are: n, best_of, temperature"),
    ],
)
def test_n22_a_wrong_argument_names_the_nearest(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ConfigError, RequestError), match=message):
        make()


def test_a9_a_script_for_vllm_runs() -> None:
    more: dict[str, Any] = {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 1, "quantization": None, "kv_cache_dtype": "auto"}
    with LLM('fake:{"rows": 4}', max_model_len="1k", enforce_eager=True, trust_remote_code=False, **more) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, stop=["x"], logit_bias={65: 1.0}, detokenize=True)  # type: ignore[arg-type]
        for prompts in ("Hello", ["Hello"], {"prompt": "Hello"}, [{"prompt_token_ids": [256, *b"Hello"]}]):
            (answer,) = llm.generate(prompts, params, use_tqdm=False, lora_request=None)  # type: ignore[arg-type]
            assert answer.prompt_token_ids == (256, *b"Hello") and len(answer.outputs[0].token_ids) == 4
        for call, message in (
            (partial(llm.generate, "a", sampling_param=params), "no argument 'sampling_param'; did you mean sampling_params"),
            (partial(llm.generate, "a", lora_request=1), "give a name or a LoRARequest"),
            (partial(llm.generate, {"promt": "a"}), "a prompt has promt"),
            (partial(llm.generate, 5), "prompts is 5"),
        ):
            with pytest.raises(RequestError, match=message):
                call()


def test_a10_llm_records(tmp_path: Path) -> None:
    with LLM('fake:{"rows": 4}', record=str(tmp_path / "file")) as llm:
        llm.generate("a", SamplingParams(max_tokens=3))
    setup, turns = read_recording(tmp_path / "file")
    assert setup.rows == 4 and sum(len(turn.sampled) for turn in turns) == 3


def test_a12_the_step_timeout_has_a_flag(environment: dict[str, str], demo_file: Path) -> None:
    rows = {row["name"]: row for row in json.loads(explain(str(demo_file), "--step-timeout", "5", "--json", **environment))}
    assert (rows["step_timeout"]["value"], rows["step_timeout"]["place"]) == (5.0, "--step-timeout")
