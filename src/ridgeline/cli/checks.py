"""Checks of a command line without running it: for each verb, what it would refuse before its work begins.

Suggestions (`cli.suggest`) are printed only if the check of their verb finds nothing. A check reads headers of models and files named by
flags, and never a network: what only that could tell is `Unchecked`.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ridgeline.errors import ConfigError

Given = Mapping[str, Any]
"""Parameter of a verb → its value."""
CONNECT_SECONDS: Final = 0.5


class Unchecked(Exception):
    """Nothing is wrong as far as can be known without a network or a load of the model."""


def find_check(path: str) -> Callable[[Given], None]:
    """The check of the verb, for instance "bench serve"; for one that has none, a check that finds nothing and does not vouch for it."""
    return CHECKS.get(path, _unknown)


def _unknown(given: Given) -> None:
    raise Unchecked


def _nothing(given: Given) -> None:
    """Checks nothing: the parser of these verbs checks all."""


def check_model(name: str) -> None:
    """Raises where there is no such model on this machine, or where it is damaged or not supported; Unchecked for one of a hub."""
    from ridgeline.config.env import model_stores
    from ridgeline.config.groups import FAKE_PREFIX
    from ridgeline.facts.headers.read import RANDOM_PREFIX, read_model_facts, read_random_facts
    from ridgeline.facts.hub.source import resolve_model

    if name.startswith(FAKE_PREFIX):
        return
    if name.startswith(RANDOM_PREFIX):
        read_random_facts(name)
        return
    _check_local(name)
    read_model_facts(resolve_model(name, model_stores()))


def _check_local(name: str) -> None:
    """Raises Unchecked for a model that only a hub could tell about."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.hub.source import is_remote
    from ridgeline.models.table import known_names

    if name.lower() not in known_names() and is_remote(name, model_stores()):
        raise Unchecked


def _check_engine(config: Any) -> None:
    """Raises what is wrong with the settings of an engine on this machine, the model's last."""
    from ridgeline.config.env import model_stores
    from ridgeline.config.groups import FAKE_PREFIX
    from ridgeline.config.resolve import resolve
    from ridgeline.config.runner import resolve_runner
    from ridgeline.config.values import check_settings
    from ridgeline.facts.hardware.gpu import gpu_missing
    from ridgeline.facts.hardware.machine import extension_missing, machine_facts
    from ridgeline.facts.headers.read import read_model_facts
    from ridgeline.facts.hub.source import resolve_model
    from ridgeline.planning.memory import kv_costs

    check_settings(config)
    for flag, file in (("--record", config.record), ("--trace", config.trace)):
        if file is not None and not os.access(Path(file).expanduser().resolve().parent, os.W_OK):
            raise ConfigError(f"{flag} {file[:200]!r} cannot be written", fix={flag: None})
    machine = machine_facts()
    config, _ = resolve_runner(config, no_extension=extension_missing(), no_gpu=gpu_missing(), cpu_cores=machine.cpu_cores)
    check_model(config.model)
    if config.expect_sha256 is not None:
        raise Unchecked  # it takes as long as reading the weights
    if not config.model.startswith(FAKE_PREFIX) and config.runner != "cuda":
        facts = read_model_facts(resolve_model(config.model, model_stores()))
        costs = kv_costs(facts, config)
        resolve(config, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs)


def _check_local_engine(given: Given, **decided: Any) -> None:
    """Raises what is wrong with the settings of an engine in this process, but for those that its verb decides."""
    from ridgeline.cli.setting_flags import located, read_engine_flags

    settings = read_engine_flags(given, given["model"])
    with located(settings):
        _check_file("--chat-template", settings.server.chat_template)
        _check_engine(replace(settings.engine, **decided))


def _check_serve(given: Given) -> None:
    from ridgeline.cli.serve import named_models
    from ridgeline.cli.setting_flags import located, read_flags
    from ridgeline.config.per_model import own_settings
    from ridgeline.server.auth import check_exposure

    settings = read_flags(given, given["model"])
    with located(settings):
        check_exposure(settings.server)
        _check_port(settings.server.host, settings.server.port)
        models = named_models(settings, given["others"] or ())
        for name, model in models.items():
            several = len(models) > 1
            engine, server = own_settings(name, models, settings.engine, settings.server) if several else (settings.engine, settings.server)
            _check_file("--chat-template", server.chat_template)
            _check_engine(replace(engine, model=model))


def _check_top(given: Given) -> None:
    from ridgeline.cli.top import find_url

    find_url(given["url"])
    raise Unchecked


def _check_route(given: Given) -> None:
    from ridgeline.cli.route import config_of
    from ridgeline.router.run import check_config

    config = config_of(given)
    check_config(config)
    _check_port(config.server.host, config.server.port)


def _check_port(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        socket.create_server(found[0][4][:2], family=found[0][0]).close()
    except OSError as error:
        raise ConfigError(f"{host} port {port}: {error.strerror}", fix={"--port": "0"}) from None


def _check_file(flag: str, file: str | os.PathLike[str] | None) -> None:
    if file is not None and str(file) != "-" and not os.access(Path(file).expanduser(), os.R_OK):
        raise ConfigError(f"{flag} {str(file)[:200]!r} cannot be read", fix={flag: None})


def _check_generate(given: Given) -> None:
    from ridgeline.cli.sampling import FLAGS, check_sampling, read_vote

    _check_file("--input", given.get("input_file"))
    sampling = {name: given[name] for name in (*FLAGS, "n", "best_of", "logprobs", "prompt_logprobs") if name in given}
    check_sampling({**sampling, "vote": read_vote(given)})
    _check_local_engine(given, **({} if "prompts" in given else {"max_num_seqs": 1}))
    if "prompts" in given and not given["prompts"] and given["input_file"] is None:
        raise ConfigError("there are 0 prompts") if sys.stdin.isatty() else Unchecked  # what is piped


def _check_batch(given: Given) -> None:
    from ridgeline.cli.batch import check_files

    _check_local_engine(given)
    check_files(Path(given["requests"]).expanduser(), Path(given["output"]).expanduser())


def _check_run(given: Given) -> None:
    _check_generate(given)
    if not given["prompt"] and not sys.stdin.isatty():
        raise Unchecked  # what is piped


def _check_plan(given: Given) -> None:
    from ridgeline.cli.output import check_writable
    from ridgeline.cli.plan import prepare_plan
    from ridgeline.planning.arguments import PlanOptions, device_of, parse_objective

    check_writable(given["html"])
    parse_objective(given["slo"])
    device_of(PlanOptions(given["device"]))
    _check_local(given["model"])
    prepare_plan(given)


def _check_sim(given: Given) -> None:
    from ridgeline.cli.sim import prepare_sim

    _check_local(given["model"])
    prepare_sim(given)


def _check_whatif(given: Given) -> None:
    from ridgeline.cli.sim import prepare_whatif

    if given["model"] is not None:
        _check_local(given["model"])
    prepare_whatif(given)


def _check_replay(given: Given) -> None:
    from ridgeline.engine.record import read_recording

    read_recording(given["recording"])


def _check_show(given: Given) -> None:
    from ridgeline.config.env import model_stores
    from ridgeline.facts.headers.read import describe_files
    from ridgeline.facts.hub.source import resolve_model

    _check_local(given["model"])
    describe_files(resolve_model(given["model"], model_stores()))


def _check_rm(given: Given) -> None:
    from ridgeline.cli.library import find_own
    from ridgeline.config.env import model_stores

    find_own(given["name"], model_stores())


def _check_config(given: Given) -> None:
    from ridgeline.cli.config import config
    from ridgeline.cli.setting_flags import read_flags

    _check_local(read_flags(given, given["model"]).engine.model)
    config(**{**given, "as_json": True})


def _check_address(url: str, flag: str) -> None:
    """Raises where no server listens on an address of this machine."""
    from ridgeline.bench.http import ServerAddress

    target = ServerAddress.parse(url)
    if urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1"):
        raise Unchecked
    try:
        socket.create_connection((target.host, target.port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"{flag} {url[:80]}: {error.strerror or error}") from None


def _check_bench_serve(given: Given) -> None:
    from ridgeline.cli.bench_serve import LoadOptions, make_loads, parse_api, parse_body
    from ridgeline.cli.output import check_json, check_writable
    from ridgeline.planning.arguments import parse_objective

    parse_api(given["api"])
    parse_body(given["extra_body"])
    parse_objective(given["slo"])
    make_loads(LoadOptions(**{field.name: given[field.name] for field in fields(LoadOptions) if field.name != "seed"}, seed=0))
    check_writable(given["html"])
    check_json(given["as_json"])
    _check_address(given["url"], "--url")


def _check_bench_compare(given: Given) -> None:
    from ridgeline.bench.compare import parse_scenarios
    from ridgeline.cli.bench_compare import parse_servers
    from ridgeline.cli.bench_serve import parse_api, parse_body
    from ridgeline.cli.output import check_json

    parse_api(given["api"])
    parse_body(given["extra_body"])
    check_json(given["as_json"])
    for spec in parse_servers(given["servers"], parse_scenarios(given["scenarios"])[1], given["threads"], given["program"] or [])[0]:
        if not spec.command:
            _check_address(spec.url, "server")
    raise Unchecked  # whether each server starts with its model


def _check_bench_kernels(given: Given) -> None:
    from ridgeline.cli.bench import import_compute, parse_numbers, parse_shapes

    kinds = [] if given["formats"] is None else [each.strip().upper() for each in given["formats"].split(",")]
    import_compute("kernels").cases(kinds, parse_numbers("--tokens", given["tokens"]), parse_shapes("--shape", given["shape"]))


def _check_bench_offline(given: Given) -> None:
    from ridgeline.bench.offline import OfflineLoad
    from ridgeline.cli.bench import parse_numbers

    names = ("prompt_tokens", "output_tokens", "repeats", "busy_processes")
    OfflineLoad(parse_numbers("--batch", given["batch"]), *(given[name] for name in names)).check()
    _check_local_engine(given)


def _check_bench_gpu(given: Given) -> None:
    from ridgeline.bench.gpu import check_gpu
    from ridgeline.cli.bench_gpu import prepare_gpu

    jobs = prepare_gpu(given)
    if not given["dry_run"]:
        check_gpu(jobs)


def _check_investigate(given: Given) -> None:
    from ridgeline.cli.investigate import check

    check(given["alert"], given["incident"], given["window"])
    if given["incident"] is None:
        raise Unchecked  # whether a server runs


def _check_explain(given: Given) -> None:
    from ridgeline.cli.explain import make_query

    make_query(given["request"], given["slowest"], given["window"])
    raise Unchecked  # whether a server runs, and knows the request


def _check_merge(given: Given) -> None:
    check_model(given["base"])


CHECKS: Final[Mapping[str, Callable[[Given], None]]] = {
    "serve": _check_serve,
    "route": _check_route,
    "pull": _check_show,
    "show": _check_show,
    "list": _nothing,
    "rm": _check_rm,
    "ps": _nothing,
    "chaos": _nothing,
    "top": _check_top,
    "profile": _nothing,
    "admin status": _nothing,
    "admin cost": _nothing,
    "admin knobs": _nothing,
    "admin swap": _nothing,
    "admin models": _nothing,
    "admin load": _nothing,
    "admin unload": _nothing,
    "admin profile": _nothing,
    "admin drain": _nothing,
    "explain": _check_explain,
    "investigate": _check_investigate,
    "run": _check_run,
    "generate": _check_generate,
    "batch": _check_batch,
    "merge": _check_merge,
    "plan": _check_plan,
    "config": _check_config,
    "sim": _check_sim,
    "whatif": _check_whatif,
    "replay": _check_replay,
    "bench serve": _check_bench_serve,
    "bench compare": _check_bench_compare,
    "bench roofline": _nothing,
    "bench kernels": _check_bench_kernels,
    "bench offline": _check_bench_offline,
    "bench gpu": _check_bench_gpu,
    "doctor": _nothing,
    "laws": _nothing,
}
"""Path of a verb → its check."""
