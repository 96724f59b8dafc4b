#!/bin/sh
# Ridgeline on a Ray cluster of two nodes on this machine: makes an environment of its own, as Ray is large, and runs ray_cluster.py.
# Usage: tests/deploy/ray.sh [VENV]; VENV is kept. Needs root, for the nodes' namespaces, and Debian's iproute2 and nftables.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
venv=${1:-$work/venv}
trap 'rm -rf "$work"' EXIT
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    # The models are fakes, which need no extension; the code that runs is this checkout's, whatever lies in the environment.
    RIDGELINE_NO_EXT=true "$venv/bin/pip" install -q "$here/../..[ray]" pytest
fi
PYTHONPATH="$here/../../src" "$venv/bin/python" "$here/ray_cluster.py"
