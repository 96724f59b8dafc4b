#!/usr/bin/env bash
# Builds the extension with an emulated avx512vnni level into a folder of its own and runs the tests of native kernels with it:
# that level must give the bits of the others. tests/compute/cpu/emulated/run.sh FOLDER [pytest arguments]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../../../.."
work="$1"
shift
python="${PYTHON:-python}"
cmake -S "$root" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER="$here/compile" \
    -DPython_EXECUTABLE="$(command -v "$python")" -DSKBUILD_PROJECT_NAME=ridgeline
cmake --build "$work/build" --parallel "$(env -u OMP_NUM_THREADS nproc)"
cp -R "$root/src" "$work/src"
rm -f "$work"/src/ridgeline/compute/cpu/_C*.so
cp "$work"/build/_C*.so "$work/src/ridgeline/compute/cpu/"
cd "$root"
PYTHONPATH="$work/src" "$python" -m pytest "$@"
