#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile without a container engine: every step runs in a chroot, on a Debian root made here.
# The image stays in buildah's store as localhost/ridgeline. SSL_CERT_FILE, where it is set, is the bundle that downloads trust.
set -euo pipefail
cd "$(dirname "$0")/.."
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}" BUILDAH_ISOLATION=chroot
base=localhost/debian-bookworm

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    root="$(mktemp -d)"
    debootstrap --variant=minbase bookworm "$root/debian" http://deb.debian.org/debian
    tar --directory "$root/debian" --create --file "$root/debian.tar" .
    container="$(buildah from scratch)"
    buildah add --quiet "$container" "$root/debian.tar" /
    buildah commit --quiet --rm "$container" "$base"
    rm -rf "$root"
fi

trust=()
if [ -n "${SSL_CERT_FILE:-}" ]; then
    settings="$(mktemp)"
    trap 'rm -f "$settings"' EXIT
    printf '[global]\ncert = /etc/trust.pem\n' >"$settings"
    trust=(--volume "$SSL_CERT_FILE:/etc/trust.pem:ro" --volume "$settings:/etc/pip.conf:ro")
fi
buildah build --pull=never --format docker --build-arg BASE="$base" "${trust[@]}" --file deploy/Dockerfile --tag localhost/ridgeline .
