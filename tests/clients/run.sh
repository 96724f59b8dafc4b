#!/bin/sh
# Clients of others against `ridgeline serve`: makes environments of their own, starts a server of the demo and one of a model whose answers are
# scripted (script.json), and runs them all. Prints a line per client; ends with 1 if one fails. Those in JavaScript need npm.
# Usage: tests/clients/run.sh [VENV [CLIENT...]]; `ridgeline` is the one on the path, or $RIDGELINE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
venv=${1:-$work/venv}
[ $# -eq 0 ] || shift
servers=
trap 'kill $servers 2>/dev/null; rm -rf "$work"' EXIT
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q uv  # it finds versions that agree within seconds; pip tries for many minutes
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" -r "$here/requirements.txt"
fi
if [ -n "$(command -v npm)" ] && [ ! -d "$here/node_modules" ]; then
    npm install --silent --no-save --no-package-lock --prefix "$here"
fi

# start NAME ARGUMENT...: a server, whose address goes to the file $work/NAME
start() {
    name=$1
    shift
    : >"$work/$name.log"
    ${RIDGELINE:-ridgeline} serve --port 0 "$@" >"$work/$name.log" 2>&1 &
    server=$!
    servers="$servers $server"
    for _ in $(seq 240); do
        sed -n 's/.* at \(http:[^ ]*\).*/\1/p' "$work/$name.log" | head -n 1 >"$work/$name"
        [ ! -s "$work/$name" ] || return 0
        kill -0 $server || break
        sleep 0.5
    done
    cat "$work/$name.log"
    exit 1
}

model=$("$venv/bin/python" - "$here"/script.json "$here"/bodies/*.json <<'END'
import json, sys
files = [json.load(open(name)) for name in sys.argv[1:]]
script = [entry for file in files for entry in (file if isinstance(file, list) else file["script"])]
print(json.dumps({"vocab": 258, "max_model_len": 65536, "blocks": 16384, "script": script}))
END
)
start demo demo --max-model-len 2048
start scripted "fake:$model" \
    --served-model-name scripted --chat-template "$here/../gold/templates/Qwen-Qwen3-0.6B.jinja"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*_client.* | sed 's/^\.\///; s/_client\..*//')
failed=0
for client in "$@"; do
    program="$venv/bin/python $here/${client}_client.py"
    [ ! -f "$here/${client}_client.mjs" ] || program="node $here/${client}_client.mjs"
    if ! $program "$(cat "$work/demo")/v1" "$(cat "$work/scripted")/v1" >"$work/out" 2>&1; then
        failed=1
        cat "$work/out"
        echo "$client: FAIL"
    else
        tail -n 1 "$work/out"
    fi
done
exit $failed
