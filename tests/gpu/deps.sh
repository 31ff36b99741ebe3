#!/usr/bin/env bash
# What the GPU tests need, into the environment of the Python that is named: PyCUDA, and NVIDIA's compiler and headers
# from wheels.  PyCUDA is built here, without a toolkit and without a driver: about two minutes, and once, since pip keeps
# what it built.
set -euo pipefail
python=$1
command -v g++ > /dev/null || { echo "gpu-deps: there is no g++, which builds PyCUDA and the emulated card" >&2; exit 1; }

"$python" -m pip install --quiet 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-cuda-nvrtc==13.*' \
    'nvidia-cuda-profiler-api==13.*' 'nvidia-cuda-cccl==13.*'
headers=$("$python" -c 'import glob, nvidia; print(glob.glob(nvidia.__path__[0] + "/cu*/include/cuda.h")[0][:-7])')

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# PyCUDA's setup looks for this file at home; there are no headers of cuRAND here.
cat > "$scratch/.aksetup-defaults.py" <<SETUP
CUDA_ENABLE_CURAND = False
CUDA_INC_DIR = ["$headers", "$headers/cccl"]
SETUP
# It links against the driver's library by name; which one there is matters only when it runs.
echo 'int cuInit(unsigned flags) { return flags ? 1 : 0; }' | g++ -x c -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$scratch/libcuda.so" -
HOME=$scratch \
    PIP_CACHE_DIR=$("$python" -m pip cache dir) XDG_CONFIG_HOME=${XDG_CONFIG_HOME:-$HOME/.config} \
    LIBRARY_PATH=$scratch CFLAGS="-w -O1 -g0" CXXFLAGS="-w -O1 -g0" \
    "$python" -m pip install --quiet 'pycuda==2026.1'
