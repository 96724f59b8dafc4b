"""Runs on the head: starts Serve with the application of `deploy/ray_serve.py`, then answers each line with what Serve says of it.

The first line has the address of Serve's proxy, the models, and fields of `autoscaling_config`.
"""

import json
import os
import sys
from typing import Any

import ray
import ray_serve
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray_recorder import Recording, recording


def status() -> dict[str, Any]:
    """Engines by their state, the number that is wanted, and the nodes that are alive."""
    found = serve.status().applications[ray_serve.APPLICATION].deployments[ray_serve.ENGINES]
    states = {str(getattr(state, "value", state)): number for state, number in found.replica_states.items()}
    return {"states": states, "nodes": sum(each["Alive"] for each in ray.nodes()), "message": found.message}


def main() -> None:
    """Ends with its input."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray writes to its driver's output too
    asked = json.loads(sys.stdin.readline())
    ray.init(address="auto", log_to_driver=False)
    serve.start(http_options={"host": asked["host"], "port": asked["port"]})
    recorded = RequestRouterConfig(request_router_class=Recording, request_routing_stats_period_s=1)
    engine = recording(ray_serve.Engine.func_or_class)
    ray_serve.Engine = ray_serve.Engine.options(func_or_class=engine, request_router_config=recorded)
    made = ray_serve.make_app(*asked["models"], variables=os.environ, **asked["scaling"])
    serve.run(made, name=ray_serve.APPLICATION)
    print(json.dumps(status()), file=told, flush=True)
    for _ in sys.stdin:
        print(json.dumps(status()), file=told, flush=True)
    serve.shutdown()


if __name__ == "__main__":
    main()
