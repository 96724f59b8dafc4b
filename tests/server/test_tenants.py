"""Tenants: prefixes are never shared between them, limits of keys hold, and headers tell of them."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.commands import Admit
from ridgeline.core.events import PrefixHit
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.admit import tenant_domain
from ridgeline.observe import requests
from ridgeline.server.callers import private_salt, serving
from ridgeline.server.errors import ApiError
from ridgeline.server.keys import Caller
from ridgeline.server.quotas import Quota
from ridgeline.sim.laws.executor import fake_executor

KEYS = """
plain one
other two tenant=other
same three tenant=other
few four tenant=few rpm=2
small five tenant=small tpm=40 rpd=1000
boss six scope=admin
"""


@pytest.fixture(scope="module")
def shared(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with keys of several tenants."""
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "keys").write_text(KEYS)
    (folder / "keys").chmod(0o600)
    config = ServerConfig(api_key_file=str(folder / "keys"), cache_secret_file=str(folder / "secret"))
    shared = type(site)(EngineConfig('fake:{"vocab": 258}'), config)
    shared.wait(shared.service.start())
    yield shared
    shared.close()


def complete(site: Any, key: str, path: str = "/v1/completions", **body: Any) -> Any:
    given = {"prompt": "a prompt of some blocks " * 8, "max_tokens": 2, "temperature": 0} | body
    return site.request("POST", path, json=given, headers={"Authorization": f"Bearer {key}"})


def cached(site: Any, key: str, **body: Any) -> int:
    answer = complete(site, key, **body)
    assert answer.status_code == 200, answer.text
    return (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def test_prefixes_are_a_tenants_own(shared: Any) -> None:
    assert cached(shared, "one") == 0
    assert cached(shared, "one") > 100
    assert cached(shared, "two") == 0, "the prefix of another tenant"
    assert cached(shared, "three") > 100, "another key of the same tenant"
    assert cached(shared, "three", cache_salt="a") == 0
    assert cached(shared, "one", cache_salt="a") == 0, "the same salt of another tenant"
    assert cached(shared, "two", cache_salt="a") > 100
    assert cached(shared, "one", cache_salt="other\0") == cached(shared, "one", cache_salt="\0other") == 0


@pytest.mark.parametrize("requests", [1_500, pytest.param(100_000, marks=pytest.mark.night)])
def test_no_hit_crosses_tenants(requests: int) -> None:
    """Random prompts that mostly share their beginnings, of 16 tenants with 3 salts each: every hit is a prefix that the same tenant and
    salt have computed, and many would be hits if tenants counted for nothing."""
    rng, size = Random(18), 4
    executor = fake_executor(8, 4_096, size, (0,), max_model_len=64)
    scheduler = Scheduler(Limits(rows=8, max_model_len=64), executor.info.kv, POLICIES["fcfs"])
    prompts = [tuple(rng.randrange(100, 110) for _ in range(32)) for _ in range(12)]
    seen: dict[bytes, set[tuple[int, ...]]] = {}
    of: dict[str, tuple[bytes, tuple[int, ...]]] = {}
    hits = others = 0
    for number in range(requests):
        with serving(Caller(tenant=rng.choice(("", *(f"t{at}" for at in range(15)))))):
            domain = tenant_domain(b"secret" * 6, private_salt(rng.choice((None, "a", "t1"))))
        prompt = (*rng.choice(prompts)[: rng.randrange(5, 33)], rng.randrange(90, 99))
        of[str(number)] = domain, prompt
        scheduler.apply([Admit(Admitted(str(number), prompt, 1, seed=number, domain=domain))], float(number))
        while (plan := scheduler.schedule(float(number))) is not None:
            scheduler.commit(plan, executor.collect(executor.submit(plan)), float(number))
        for event in scheduler.take_events():
            if type(event) is PrefixHit:
                domain, prompt = of[event.request_id]
                assert prompt[: event.tokens] in seen.get(domain, ()), f"request {event.request_id} hits {event.tokens} tokens of others"
                hits += 1
        whole = [prompt[:end] for end in range(size, len(prompt) + 1, size)]
        others += whole[0] not in seen.get(domain, ()) and any(whole[0] in prefixes for prefixes in seen.values())
        seen.setdefault(domain, set()).update(whole)
        del of[str(number)]
    assert hits > requests / 2 and others > 100


def test_requests_per_minute(shared: Any) -> None:
    first, second, third = (complete(shared, "four") for _ in range(3))
    assert [each.status_code for each in (first, second, third)] == [200, 200, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in (first, second, third)] == ["1", "0", "0"]
    assert first.headers["x-ratelimit-limit-requests"] == "2" and "x-ratelimit-limit-tokens" not in first.headers
    assert 25 < float(first.headers["x-ratelimit-reset-requests"].rstrip("s")) <= 30 and 25 <= int(third.headers["retry-after"]) <= 30
    error = third.json()["error"]
    assert error["code"] == "rate_limit_exceeded" and "2 requests per minute (rpm)" in error["message"]
    assert shared.get("/v1/models", headers={"Authorization": "Bearer four"}).status_code == 200, "only what generates is limited"
    message = complete(shared, "four", "/v1/messages", messages=[{"role": "user", "content": "x"}])
    assert message.status_code == 429 and message.json()["error"]["type"] == "rate_limit_error"
    assert "x-ratelimit-limit-requests" not in complete(shared, "one").headers


def test_tokens_per_minute(shared: Any) -> None:
    ids = list(range(100, 120))
    answer = complete(shared, "five", prompt=ids, max_tokens=30, ignore_eos=True)
    assert answer.status_code == 200 and answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert answer.headers["x-ratelimit-limit-requests"] == "1000"
    refused = complete(shared, "five", prompt=ids)
    assert refused.status_code == 429 and refused.headers["x-ratelimit-remaining-tokens"] == "0", "10 are owed"
    assert 10 <= int(refused.headers["retry-after"]) <= 17 and refused.headers["x-ratelimit-remaining-requests"] == "999"


def test_metrics_of_all_tenants_are_for_admins(shared: Any) -> None:
    """Any 429 counts for its tenant; a key of scope client reads of its own."""
    while complete(shared, "four").status_code == 200:
        pass
    texts = {key: shared.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text for key in ("one", "four", "six")}
    count = shared.service.metrics.tenants.by_label["few"].rejected
    rejected = f'ridgeline_tenant_rejected_requests_total{{model_name="fake",tenant="few"}} {float(count)}'
    assert count > 0
    assert rejected in texts["six"] and rejected in texts["four"] and rejected not in texts["one"]
    assert 'ridgeline_rejected_requests_total{model_name="fake",reason="rate_limit_exceeded"}' in texts["one"]
    tenants = {text: set(re.findall(r'tenant="([^"]*)"', text)) for text in texts.values()}
    assert tenants[texts["four"]] == {"few"} and len(tenants[texts["six"]]) > 1 and len(tenants[texts["one"]]) == 1


def test_who_shares_metrics_with_other_tenants_reads_none(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_TENANTS", 0)
    monkeypatch.setattr(shared.service.metrics, "tenants", requests.Tenants())
    assert complete(shared, "two").status_code == 200
    for key, seen in (("six", {"(other)"}), ("two", set())):
        text = shared.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text
        assert set(re.findall(r'tenant="([^"]*)"', text)) == seen, key


def test_buckets() -> None:
    quota = Quota.of((("tpm", 600), ("tpd", 1_000)))
    assert quota is not None and Quota.of(()) is None
    quota.take_tokens(600, 0.0)
    with pytest.raises(ApiError, match="600 tokens per minute") as error:
        quota.take_tokens(100, 1.0)
    assert error.value.headers["Retry-After"] == "9"
    quota.take_tokens(100, 10.0)
    quota.settle(290, 10.0)
    with pytest.raises(ApiError, match=r"600 tokens per minute \(tpm\).*has 0 left"):
        quota.take_request(10.0)
    quota.take_request(40.0)
    with pytest.raises(ApiError, match="1000 tokens per day"):
        quota.take_tokens(500, 100.0)
    quota.take_tokens(5_000, 90_000.0)  # as much as a full bucket is enough for a prompt of any length
    assert quota.headers(90_000.0)["x-ratelimit-remaining-tokens"] == "0"
