#!/bin/sh
# Ridgeline on a Ray cluster of two nodes on this machine: makes an environment of its own, as Ray is large, and runs ray_cluster.py.
# Usage: tests/deploy/ray.sh [VENV]; VENV is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
venv=${1:-$work/venv}
trap 'rm -rf "$work"' EXIT
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q "$here/../..[ray]"
fi
"$venv/bin/python" "$here/ray_cluster.py"
