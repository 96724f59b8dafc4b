#!/bin/sh
# Clients of others against `ridgeline serve demo`: makes a virtual environment of their own, starts the server, runs them all.
# Usage: tests/clients/run.sh [VENV]; `ridgeline` is the one on the path, or $RIDGELINE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$(mktemp -d)/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q langchain-openai litellm "lm_eval[api]" "transformers>=5,<6"
log=$(mktemp)
${RIDGELINE:-ridgeline} serve demo --port 0 --max-model-len 1024 >"$log" 2>&1 &
server=$!
trap 'kill $server; rm -f "$log"' EXIT
url=
for _ in $(seq 240); do
    url=$(sed -n 's/.* at \(http:[^ ]*\).*/\1/p' "$log" | head -n 1)
    [ -n "$url" ] && break
    kill -0 $server || { cat "$log"; exit 1; }
    sleep 0.5
done
[ -n "$url" ] || { cat "$log"; exit 1; }
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
for client in langchain_client litellm_client lm_eval_client; do
    "$venv/bin/python" "$here/$client.py" "$url/v1" demo
done
