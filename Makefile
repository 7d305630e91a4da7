# `make demo` and `make test` set everything up by themselves; all they need is Python and make.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
CXX_SOURCES := $(shell find src tests examples \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -not -path '*/template/*')
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal --durations=30

.PHONY: setup demo bench bench-cuda figures test test-all test-opinfo test-cuda test-versions soak lint format docs release wheels clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(VENV)/bin/opwright build
	touch $@

demo: setup
	$(RUN) examples/demo.py

RESULTS := benchmarks/results

bench: setup
	$(RUN) -m opwright bench --renew-limits
	$(RUN) -P benchmarks/see_through.py --json $(RESULTS)/see_through.json
	$(RUN) -P benchmarks/build.py --json $(RESULTS)/build.json
	$(RUN) -P benchmarks/calls.py --sweep --json $(RESULTS)/calls.json
	$(RUN) -P benchmarks/autograd.py --json $(RESULTS)/autograd.json
	$(RUN) -P benchmarks/operators.py --json $(RESULTS)/operators.json
	$(RUN) -P benchmarks/cpp.py --json $(RESULTS)/cpp.json
	$(RUN) -P benchmarks/sharding.py --json $(RESULTS)/sharding.json
	$(RUN) -P benchmarks/lltm.py --compile --json $(RESULTS)/lltm-cpu.json
	$(RUN) -P benchmarks/conv_bn.py --json $(RESULTS)/conv_bn-cpu.json
	$(RUN) -P benchmarks/conv_bn_training.py --json $(RESULTS)/conv_bn-training.json
	$(RUN) -P benchmarks/graph_conv.py --json $(RESULTS)/graph_conv-cpu.json
	scratch=$$(mktemp -d) && $(RUN) -P benchmarks/ways_in.py "$$scratch" --json $(RESULTS)/ways_in.json; rm -rf "$$scratch"
	$(RUN) -P benchmarks/check.py --json $(RESULTS)/check.json
	$(RUN) -P benchmarks/shipping.py --json $(RESULTS)/shipping.json $(if $(wildcard dist/opwright-*.whl),--wheel $(lastword $(wildcard dist/opwright-*.whl)))

figures: setup
	$(RUN) benchmarks/figures.py
	$(RUN) benchmarks/tables.py

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(if $(CXX_SOURCES),$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES))

# A test that hangs outside Python, where pytest's timeout cannot reach it, ends its worker with a traceback.
test: lint
	$(PYTEST) -m "not slow and not soak" -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true

test-all: lint
	$(PYTEST) -m "not soak"

# PyTorch's own operators, made into operators of ours; what it finds out is stored.
test-opinfo: setup
	$(RUN) -m tests.opinfo --json tests/opinfo/results.json

# On a machine with a GPU, from a plain source tree, with the Python at hand: torch, numpy, pytest, typer and rich. What
# came of each file is stored in tests/on_gpu.json. ON_GPU: files, or `--within SECONDS`.
test-cuda:
	PYTHONPATH=$(CURDIR)/src $(PYTHON) -m opwright build
	$(PYTHON) tests/on_gpu.py $(ON_GPU)

# Under other versions of torch, in environments of their own: ENVIRONMENTS/.venv-torch-VERSION, 7 GB each, kept.
VERSIONS ?= 2.10.0 2.15.0
ENVIRONMENTS ?= .

test-versions:
	$(PYTHON) tests/versions.py $(VERSIONS) --place $(ENVIRONMENTS)

bench-cuda: export PYTHONPATH = src
bench-cuda:
	$(PYTHON) -m opwright build
	$(PYTHON) -P benchmarks/gpu.py --json $(RESULTS)/cuda.json
	$(PYTHON) -P benchmarks/gpu.py --only calls --json $(RESULTS)/cuda-calls.json
	$(PYTHON) -P benchmarks/conv_bn.py --json $(RESULTS)/conv_bn-cuda.json
	$(PYTHON) -P benchmarks/graph_conv.py --device cuda --json $(RESULTS)/graph_conv-cuda.json
	$(PYTHON) -P benchmarks/lltm.py --device cuda --only cell --json $(RESULTS)/lltm-cuda.json
	$(PYTHON) -P benchmarks/recurrent.py --json $(RESULTS)/recurrent.json
	$(PYTHON) -P benchmarks/right.py --device cuda --at-once 6 --json $(RESULTS)/right-cuda.json

soak: setup
	$(PYTEST) -m soak
	OMP_NUM_THREADS=1 $(RUN) -P benchmarks/soak.py --json benchmarks/results/soak.json
	OMP_NUM_THREADS=1 $(RUN) -P benchmarks/right.py --json benchmarks/results/right.json

format: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	$(if $(CXX_SOURCES),$(VENV)/bin/clang-format -i $(CXX_SOURCES))

# The checklist of a release: what holds, what to do where it does not, and the commands to run by hand.
release: setup
	$(RUN) -m release

# The files of a release alone, into dist/, tried in an environment of their own. TAG: the tag they are for.
wheels: setup
	$(RUN) -m release $(if $(TAG),--tag "$$TAG" --only version --only changelog) --only build --only install

docs: setup
	$(RUN) -m opwright docs docs/reference
	$(RUN) benchmarks/tables.py

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
