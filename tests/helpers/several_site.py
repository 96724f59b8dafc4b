"""The application of several fake models, on a loop of its own."""

from typing import Any

import httpx
from app_client import AppLoop

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.server.app import build_models_app
from ridgeline.server.several.roster import make_roster

QUICK = 'fake:{"rows": 2, "max_model_len": 400}'
SLOW = 'fake:{"rows": 2, "step_seconds": 0.004, "max_model_len": 300}'
CONFIG = ServerConfig(min_residence=0.0)


class Models(AppLoop):
    """Requests to the application of several fake models."""

    def __init__(self, config: ServerConfig, engine: EngineConfig | None = None, **models: str) -> None:
        super().__init__()
        self.roster = make_roster(models, engine or EngineConfig("unused"), config, lambda engine: 0, lambda stage, fraction: None)
        self.connect(build_models_app(self.roster))

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def complete(self, model: str | None, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", model=model, **{"prompt": [1], "max_tokens": 3, **body})

    def phases(self) -> list[str]:
        return [each.phase.value for each in self.roster.residents.values()]

    def pids(self) -> list[int | None]:
        clients = [each.service.deployments.current.client for each in self.roster.residents.values()]
        return [None if client is None else client.pid for client in clients]

    def unload(self, name: str) -> None:
        self.wait(self.roster.unload(self.roster.residents[name]))

    def close(self) -> None:
        self.end(self.roster.stop())
