#!/usr/bin/env bash
# Builds the extension with an emulated level, avx512vnni or neon, into a folder of its own and runs the tests of native kernels with it:
# that level must give the bits of the others. tests/compute/cpu/emulated/run.sh LEVEL FOLDER [pytest arguments]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../../../.."
level="$1"
work="$2"
shift 2
python="${PYTHON:-python}"
processor=()
if [ "$level" = neon ]; then processor=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64); fi
cmake -S "$root" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER="$here/compile" "${processor[@]}" \
    -DPython_EXECUTABLE="$(command -v "$python")" -DSKBUILD_PROJECT_NAME=ridgeline
cmake --build "$work/build" --parallel "$(env -u OMP_NUM_THREADS nproc)"
cp -R "$root/src" "$work/src"
rm -f "$work"/src/ridgeline/compute/cpu/_C*.so
cp "$work"/build/_C*.so "$work/src/ridgeline/compute/cpu/"
cd "$root"
PYTHONPATH="$work/src" "$python" - -n 0 "$@" <<PROGRAM
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "ridgeline" not in type(each).__module__]  # where it is installed to be edited
import pytest
from ridgeline.compute.cpu import ext
assert "$level" in ext.isa_levels(), ext.isa_levels()
sys.exit(pytest.main(sys.argv[1:]))
PROGRAM
