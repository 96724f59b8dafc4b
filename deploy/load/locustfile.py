"""Load by Locust: `locust -f deploy/load/locustfile.py --headless -u 16 -r 16 -t 60s -H http://127.0.0.1:8000`.

Each user sends one completion after the other and reads its stream; `TTFT` is a row of its own. TOKENS, PROMPT and API_KEY are variables
of the environment.
"""

import os
import time

from locust import FastHttpUser, task

TOKENS, PROMPT, KEY = int(os.environ.get("TOKENS", "64")), os.environ.get("PROMPT", "Once upon a time"), os.environ.get("API_KEY", "")


class Completions(FastHttpUser):
    """A closed loop: the next request is sent when the answer to the one before is whole."""

    @task
    def complete(self) -> None:
        """One streamed completion. A refusal is a failure; the user pauses as it is told to."""
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
        began = time.perf_counter()
        with self.client.post("/v1/completions", json=body, headers=headers, stream=True, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                time.sleep(float(answer.headers.get("retry-after", 1)))
                return
            data = next(answer.iter_content(1, decode_content=False), b"")
            first = (time.perf_counter() - began) * 1e3
            for part in answer.iter_content(1 << 16, decode_content=False):
                data += part
            answer.request_meta |= {"response_time": (time.perf_counter() - began) * 1e3, "response_length": len(data)}
            if not data.endswith(b"data: [DONE]\n\n"):
                answer.failure(f"the stream broke off after {len(data)} bytes")
            fire = self.environment.events.request.fire
            fire(request_type="SSE", name="TTFT", response_time=first, response_length=0, exception=None, context={})
