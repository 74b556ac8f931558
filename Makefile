# One command for each habit. The environment is .venv: make creates it on first use, and updates it when pyproject.toml
# or the kernels change. Needs python3 >= 3.11 with venv, make and g++.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Python keeps its bytecode, whatever the environment says. A mesh is several processes and the tests start hundreds: each
# would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --no-compile
REQUIREMENTS := import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	print(*project['dependencies'], *project['optional-dependencies']['serve'])
TORCH := torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu

SERVE := $(VENV)/.serve
DEV := $(VENV)/.dev
SCHEMATHESIS := build/schemathesis
FORMATS := build/formats
REAL := build/real
PEERS := build/peers
FORMATS_PIP := $(FORMATS)/bin/pip --disable-pip-version-check --quiet install
FORMAT_WRITERS := auto-round==0.16.1 llmcompressor==0.14.0.1
FORMAT_TOOLS := transformers==5.24.0 compressed-tensors==0.20.0 bitsandbytes==0.50.2 gguf==0.19.0 accelerate safetensors \
	datasets loguru pydantic py-cpuinfo threadpoolctl numba
SEEDS ?= 200
FIRST ?= 0
BUILT_FROM := pyproject.toml $(wildcard hatch_build.py) \
	$(shell find kernels/baton_kernels -name '*.cpp' -o -name '*.cc' -o -name '*.h' -o -name '*.hpp' 2>/dev/null)

# ---- for users

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: $(SERVE) ## start a mesh, ask it one question, draw where the time went
	@$(BIN)/baton demo $(ARGS)

.PHONY: up
up: $(SERVE) ## start a mesh and keep it running; ARGS="--model FOLDER --prefill 1"
	@$(BIN)/baton up $(ARGS)

.PHONY: test
test: $(DEV) ## all tests that need no GPU and kill nothing; ARGS="-k name"
	$(BIN)/python -m pytest -n auto $(ARGS)

# Two at a time: types take as long as all others together. Tests that are collected are compiled, which the processes of
# `make test` then need not do, each for itself.
.PHONY: check lint types layers generated collected
check: $(DEV) ## lint, format, types, layers, generated code
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types lint layers generated collected

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports

generated: $(DEV)
	@out="$$(mktemp -d)"; trap 'rm -rf "$$out"' EXIT; \
		$(BIN)/python protos/generate.py "$$out"; \
		cd "$$out"; for file in $$(find . -type f); do \
			cmp "$$file" "$(CURDIR)/protos/$$file" || { echo "generated code is stale: make protos" >&2; exit 1; }; \
		done

collected: $(DEV)
	$(BIN)/python -m pytest --collect-only -qq >/dev/null

# ---- what Baton promises, measured

.PHONY: fuzz
fuzz: $(DEV) ## a million random cases for all parsers, wires and handshakes; ARGS="--cases 10000000"
	@$(BIN)/python -m tests.fuzz --json $(ARGS)

.PHONY: fuzz-asan
fuzz-asan: $(DEV) ## the same for what reaches native code, under AddressSanitizer
	@$(BIN)/python -m tests.fuzz --asan --json --cases 100000 $(ARGS)

.PHONY: neon
neon: $(DEV) ## the kernels of aarch64, compiled for it and emulated; ARGS=--sabotage: wrong ones must be noticed
	@$(BIN)/python -m tests.neon --json $(ARGS)

.PHONY: bodies
bodies: $(DEV) ## integer products of 10,000 random forms and shapes, on every body of this machine
	@$(BIN)/python -m tests.bodies --json $(ARGS)

.PHONY: schemathesis
schemathesis: $(DEV) ## ten thousand requests made of /openapi.json, against a mesh; ARGS="--cases 4000 --seed 2"
	@test -x $(SCHEMATHESIS)/bin/st || { $(PYTHON) -m venv $(SCHEMATHESIS) \
		&& $(SCHEMATHESIS)/bin/pip --disable-pip-version-check --quiet install 'schemathesis==4.32.5'; }
	@$(BIN)/python -m tests.schemathesis --st $(SCHEMATHESIS)/bin/st --json $(ARGS)

.PHONY: formats
formats: $(DEV) ## checkpoints that other tools write, read by Baton and compared bit for bit (downloads these tools)
	@test -x $(FORMATS)/bin/auto-round || { $(PYTHON) -m venv $(FORMATS) \
		&& { $(FORMATS_PIP) '$(TORCH)' --index-url $(TORCH_INDEX) || $(FORMATS_PIP) '$(TORCH)'; } \
		&& $(FORMATS_PIP) $(FORMAT_TOOLS) && $(FORMATS_PIP) --no-deps $(FORMAT_WRITERS); }
	@$(BIN)/python -m tests.formats --tools $(FORMATS)/bin/python --json $(ARGS)

.PHONY: real
real: $(DEV) ## a real model: every tensor as other readers of GGUF have it, answers beside llama.cpp's, quality in 8 and 4 bits
	@test -d $(REAL)/node_modules/node-llama-cpp || { $(PYTHON) -m venv $(REAL) \
		&& $(REAL)/bin/pip --disable-pip-version-check --quiet install gguf==0.19.0 libgguf==0.2.2 \
		&& cd $(REAL) && npm install --silent --ignore-scripts --no-fund node-llama-cpp@3.21.1; }
	@$(BIN)/python -m tests.real --tools $(REAL) --json $(ARGS)
	@$(BIN)/python -m tests.real.quality --own-text --json

.PHONY: verify
verify: $(DEV) ## equal bits: one process against the mesh (5 minutes, and a GPU's cells)
	@$(BIN)/baton verify --json $(ARGS)

.PHONY: verify-full
verify-full: $(DEV) ## the same over the full product of settings
	@$(BIN)/baton verify --full --json $(ARGS)

.PHONY: verify-shape
verify-shape: $(DEV) ## equal bits on a 0.5B-shaped model
	@$(BIN)/python -m bench.verify_shape $(ARGS)

.PHONY: handoff
handoff: $(DEV) ## how much of the hand-off is hidden behind prefill
	@$(BIN)/python -m bench.handoff --json $(ARGS)

.PHONY: peers
peers: $(DEV) ## Baton beside OpenVINO, vLLM and llama.cpp on this machine, at equal precision; ARGS="--quick"
	@bench/peers/install.sh $(PEERS) $(PYTHON)
	@$(BIN)/python -m bench.peers --tools $(PEERS) --picture $(PEERS)/peers.svg --json $(ARGS)

.PHONY: transport
transport: $(DEV) ## how fast pages move between two processes, beside memcpy
	@$(BIN)/python -m bench.transport --json $(ARGS)

.PHONY: clearing
clearing: $(DEV) ## what it costs to clear pages that change their tenant, beside the steps that fill them
	@$(BIN)/python -m bench.clearing --json $(ARGS)

.PHONY: rdma-check
rdma-check: $(DEV) ## pages over this host's RDMA device (hardware or soft-RoCE): every byte, late writers, the suite
	@$(BIN)/python -m tests.rdma --json $(ARGS)

.PHONY: start
start: $(DEV) ## how long a mesh takes to start, and how much memory its host gives
	@$(BIN)/python -m bench.start --json $(ARGS)

.PHONY: speculation
speculation: $(DEV) ## how much faster drafts make decode, with the same answers
	@$(BIN)/python -m bench.speculation --json $(ARGS)

.PHONY: door
door: $(DEV) ## what the front door costs beside a bare server, and what slow readers cost the others
	@$(BIN)/python -m bench.gateway --json $(ARGS)

.PHONY: faults
faults: $(DEV) cancel ## kill, freeze and replace processes, check all messages against the model, cancel a thousand requests
	$(BIN)/python -m pytest tests/chaos tests/mesh -m chaos $(ARGS)

.PHONY: cancel
cancel: $(DEV) ## a thousand random cancels; no page may leak
	@$(BIN)/python -m tests.chaos.cancel --count 1000 --json

.PHONY: chaos
chaos: $(DEV) ## MINUTES=30: kill, stop and cut off processes of every role under load; clients notice nothing
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),30) --json $(ARGS)

.PHONY: network-faults
network-faults: $(DEV) ## what each fault of the kernel in `make chaos` does to a network; needs root and nftables
	@$(BIN)/python -m tests.chaos.namespace_check

.PHONY: corruption
corruption: $(DEV) ## a thousand damaged pages and late senders; no token may be wrong
	@$(BIN)/python -m tests.chaos.corruption --count 1000 --json $(ARGS)

.PHONY: timing
timing: $(DEV) ## can a stranger tell by time whether a prompt was sent? With salts it must not
	@$(BIN)/python -m tests.chaos.timing --json $(ARGS)

.PHONY: drops
drops: $(DEV) ## ten thousand connections dropped in mid-request; nothing may be left running
	@$(BIN)/python -m tests.chaos.drops --json $(ARGS)

.PHONY: envoy-check
envoy-check: $(DEV) ## real Envoys: configurations, identities, a worker's death, the API's tests through them
	$(BIN)/python -m pytest tests/mesh/test_envoy_*.py -m "mesh or envoy" $(ARGS)

.PHONY: schemas
schemas: $(DEV) ## answers to 300 JSON schemas, greedy and sampled: does every one validate? (2 minutes)
	@$(BIN)/python -m tests.schemas --json $(ARGS)

.PHONY: receipts
receipts: $(DEV) ## replay 100 receipts on another mesh: are all equal, and does a changed weight refuse all? (2 minutes)
	@$(BIN)/python -m tests.receipts --json $(ARGS)

.PHONY: ways
ways: $(DEV) ## 500 prompts in one process, behind LLM(workers=(1, 1)) and over HTTP: equal tokens and logprob bits; ARGS="--prompts 50"
	@$(BIN)/python -m tests.ways --json $(ARGS)

.PHONY: clients
clients: $(DEV) ## real clients against a running mesh, each in an environment of its own; ARGS="--only instructor"
	@$(BIN)/python -m tests.clients $(ARGS)

.PHONY: traces
traces: $(DEV) ## do traces add up? mixed requests behind Envoys, and delays put into every stage
	@$(BIN)/python -m bench.traces --json $(ARGS)

.PHONY: overload
overload: $(DEV) ## goodput at three and ten times the capacity, and what refusals cost
	@$(BIN)/python -m bench.overload --json $(ARGS)

.PHONY: crowd
crowd: $(DEV) ## what small requests get beside the large batches of another client
	@$(BIN)/python -m bench.crowd --json $(ARGS)

.PHONY: offline
offline: $(DEV) ## `LLM.generate` beside the engine's own steps
	@$(BIN)/python -m bench.offline --json $(ARGS)

.PHONY: routing
routing: $(DEV) ## how long a route takes to choose among 1,000 workers, and what it is worth on a conversation trace
	@$(BIN)/python -m bench.routing --json $(ARGS)

.PHONY: arrangements
arrangements: $(DEV) ## is what `baton up` starts by default the best arrangement of workers for this machine?
	@$(BIN)/python -m bench.arrangements --json $(ARGS)

.PHONY: overhead
overhead: $(DEV) ## what tracing and metrics cost, in tokens per second
	@$(BIN)/python -m bench.overhead --json $(ARGS)

.PHONY: model
model: $(DEV) ## explore the hand-off protocol: every state of small worlds, and each rule removed
	@$(BIN)/python -m tests.protocol --json $(ARGS)

.PHONY: sim
sim: $(DEV) ## simulate meshes under faults in virtual time; SEEDS=20000 FIRST=0, ARGS="--remove-each"
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) --first $(FIRST) --json $(ARGS)

.PHONY: proofs
proofs: $(DEV) ## long proofs in slices that add up; ARGS="--minutes 10", ARGS="--only sim,fuzz", ARGS=--list
	@$(BIN)/python -m tests.proofs $(ARGS)

.PHONY: ui-check
ui-check: $(DEV) ## the page /ui in headless Chromium, with screenshots in build/ui
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null \
		|| { echo "these tests need Chromium: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest tests/ui -m ui $(ARGS)

.PHONY: dashboards-check
dashboards-check: $(DEV) ## every query of the dashboards and every rule, against a real Prometheus; draws the dashboards
	@$(BIN)/python -m tests.dashboards $(ARGS)

.PHONY: sanitize
sanitize: ## the kernels' C++ tests under ASan and UBSan
	bash tests/unit/kernels_cpp/sanitize.sh

.PHONY: gpu-gate
gpu-gate: $(DEV) ## compile every GPU kernel in all configurations for sm_80, sm_90 and sm_100; needs no GPU
	@$(BIN)/python -m tests.gpu_gate.aot --json $(ARGS)

.PHONY: gpu-emulated
gpu-emulated: $(DEV) ## kernels, runner and mesh on a GPU that Triton's interpreter emulates (8 minutes)
	$(BIN)/python -m pytest tests/unit/kernels tests/unit/gpu_gate tests/unit/engine/test_cuda.py tests/mesh/test_cuda.py \
		tests/unit/bench/test_gpu_run.py -m emulated $(ARGS)

.PHONY: gpu-test
gpu-test: $(DEV) ## the kernels' tests on a real GPU
	$(BIN)/python -m pytest tests/gpu -m gpu $(ARGS)

.PHONY: gpu-bench
gpu-bench: $(DEV) ## all GPU tests and benchmarks into bench/results, in ten minutes
	PYTHON=$(BIN)/python bash bench/gpu/run.sh $(ARGS)

.PHONY: bench
bench: $(DEV) ## every benchmark, one after the other
	$(MAKE) --no-print-directory verify-shape handoff start speculation

# ---- upkeep

.PHONY: protos
protos: $(DEV) ## regenerate the code of protos/
	$(BIN)/python protos/generate.py

.PHONY: format
format: $(DEV) ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: wheel
wheel: $(DEV) ## dist/baton-*.whl: for any Linux on x86-64, with every body of the kernels; and the sdist
	@rm -rf dist && $(BIN)/python -m build --outdir dist . >&2
	@ls -l dist >&2

.PHONY: wheel-check
wheel-check: $(DEV) ## build the wheel and use it in an empty environment without a compiler; ARGS=--json
	@$(BIN)/python -m pytest tests/unit/test_packaging.py -m wheel -q >&2
	@$(BIN)/python .ci/wheel_check.py $(ARGS)

.PHONY: docs-check
docs-check: $(DEV) ## run every command of README.md and docs/; ARGS="--page docs/api.md"
	@$(BIN)/python -m tests.docs_check $(ARGS)

.PHONY: helm-check
helm-check: $(DEV) ## lint, render and validate the Helm chart with Helm's own code; ARGS=--update writes golden files
	@$(BIN)/python -c 'import helm_python' 2>/dev/null || $(PIP) install 'helm-python-sdk==0.2.2'
	@$(BIN)/python -m tests.helm_check $(ARGS)

.PHONY: clean
clean: ## remove the environment and everything built
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find kernels -name '*.so' -delete -o -name '*.o' -delete

# ---- the environment

# The kernels compile in the background while the environment is made; pip's build of the package waits for them. They are
# the bodies that this processor runs; the tests compare all bodies, so $(DEV) compiles the others too. A current pip comes
# first, since old ones take twice as long for the rest.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Baton needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up $(VENV): half a minute to a minute the first time" >&2
	@echo "  an empty environment with a current pip" >&2
	@{ $(PYTHON) kernels/baton_kernels/build.py --here >/dev/null 2>&1 || true; } &
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $@ --disable-pip-version-check --quiet install --no-compile pip 2>/dev/null \
		|| { $@ -m ensurepip >/dev/null && $(PIP) install --upgrade pip; }

$(SERVE): $(BUILT_FROM) | $(BIN)/python
	@echo "  packages that Baton needs" >&2
	@$(INSTALL) hatchling editables $$($(BIN)/python -c "$(REQUIREMENTS)")
	@echo "  Baton itself, and its kernels: g++ compiles them" >&2
	@$(INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

# The tests compare with torch on a CPU. It is installed before any package that requires it: pip would install gigabytes of CUDA.
$(DEV): $(SERVE) pyproject.toml
	@echo "adding what the tests need to $(VENV) (a minute or two the first time)" >&2
	@{ $(BIN)/python kernels/baton_kernels/build.py >/dev/null 2>&1 || true; } &
	$(BIN)/python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null \
		|| { bash .ci/answers $(BIN)/python $(TORCH_INDEX)/torch/ && $(PIP) install "$(TORCH)" --index-url $(TORCH_INDEX); } \
		|| $(PIP) install "$(TORCH)"
	$(PIP) install -e '.[dev]'
	@$(BIN)/python kernels/baton_kernels/build.py >&2 || true
	@touch $@
