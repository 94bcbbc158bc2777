# Every target makes its own environment first: .venv, in this directory.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help env demo test check lint types unit newest browser jail fuzz soak bench bench-attention bench-bounds bench-choice bench-events bench-models bench-sol gpu
.PHONY: coverage coverage-blocks coverage-packs changelog figures lines docs screenshot format proofs clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

env: $(STAMP) ## make .venv, with PyPM in it and the tested version of everything it needs

demo: env ## run four scenes beside torch.compile alone; compare speed and results
	$(PY) -m examples.demo

test: proofs browser jail lint types unit ## all checks

lint: env ## style and format (ruff)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: env ## static types (mypy, strict)
	$(PY) -m mypy --strict pypm

WORKERS := 2
unit: env ## tests and doctests, a file at a time on each worker (make unit ARGS='-k name' WORKERS=4)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types ## style, types, and the tests nearest to what changed since main (make check BASE=HEAD~3)
	@tests=$$($(PY) -m tests.affected $(BASE)) || exit; test -z "$$tests" || \
	    OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $$tests

NEWEST := build/newest
TORCH :=

newest: env ## the tests nearest to torch, with the newest torch, in build/newest (make newest TORCH=2.14.1)
	mkdir -p build
	sed '/^torch==/d; /^triton==/d' constraints.txt >build/newest.txt
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q --disable-pip-version-check --upgrade -c build/newest.txt \
	    torch$(if $(TORCH),==$(TORCH)) -e '.[models,test]'
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	    tests/test_torch_internals.py tests/fx tests/integrations tests/kernels $(ARGS)
	$(PY) -m tests.models.sites build/sites.json
	$(NEWEST)/bin/python -m tests.models.sites build/sites-newest.json --against build/sites.json

PAIRS := 1000000
MODELS := 1000
EXPLAINED := 10000
SAMPLES := 200
GRAPHS := 200000
JUDGED := 200000
PAGED := 10000
CALLED := 5000
SCORED := 20000
fuzz: env ## hunt on random pairs, models, explanations, samples of rules and graphs (make fuzz PAIRS=...)
	$(PY) -m tests.properties.fuzz $(PAIRS)
	$(PY) -m tests.rules.fuzz_models $(MODELS)
	$(PY) -m tests.fx.fuzz_explain $(EXPLAINED)
	$(PY) -m tests.tools.fuzz_verify $(SAMPLES)
	$(PY) -m tests.hunt $(GRAPHS)
	$(PY) -m tests.legality $(JUDGED)
	$(PY) -m tests.kernels.pages $(PAGED)
	$(PY) -m tests.kernels.adversarial $(CALLED)
	$(PY) -m tests.rules.fuzz_scores $(SCORED)

soak: env newest ## long tests, guards and mutants that no check notices, mended defects not found again; hours
	OMP_NUM_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile -m soak -v
	$(PY) -m tests.mutants
	$(PY) -m tests.rules.guard_mutants
	$(PY) -m tests.hunt.holes

bench: env ## PyPM beside other rewriters, in one table (make bench ARGS=--quick)
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(PY) -m benchmarks $(ARGS)
	$(PY) -m benchmarks.entries

bench-attention: env ## windows, documents, ALiBi and soft caps over torch.compile alone (make bench-attention ARGS=window)
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.attention $(ARGS)
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.decoding

bench-bounds: env ## times of 200 regions beside their bounds (make bench-bounds ARGS=--compiled)
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.bounds $(ARGS)

bench-calls: env ## what a call of a kernel costs inside of compiled code (make bench-calls ARGS=rotary)
	$(PY) -m benchmarks.calls $(ARGS)
	$(PY) -m benchmarks.limits

bench-choice: env ## attention and whole models with the default choice and without (make bench-choice ARGS=bfloat16)
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	mkdir -p build
	$(PY) -m benchmarks.choice --output build/choice.json $(ARGS)
	$(PY) -m benchmarks.choice_map build/choice.json build/choice.svg
	$(PY) -m benchmarks.choice_models $(ARGS)
	$(PY) -m benchmarks.regret $(ARGS)
	$(PY) -m benchmarks.lengths
	$(PY) -m benchmarks.compile_time

bench-events: env ## steps of decoding as one persistent kernel, over torch.compile (make bench-events ARGS='64 256')
	$(PY) -m benchmarks.events $(ARGS)

gpu: ## all that needs a GPU, in nine minutes; installs nothing (make gpu ARGS='choice --results FOLDER')
	@$(PYTHON) -m benchmarks.gpu $(ARGS)

bench-sol: env ## ten problems in the files of SOL-ExecBench (make bench-sol ARGS=norm)
	$(PY) -m benchmarks.sol $(ARGS)

changelog: env ## what the files of changelog.d make together
	$(PY) -m towncrier build --draft --version Unreleased

figures: env ## write the figures of result files into README and docs
	$(PY) -m benchmarks.figures

lines: env ## lines of code a fusion, PyPM's and Inductor's (make lines ARGS='--output FILE')
	$(PY) -m benchmarks.lines $(ARGS)

# torchvision has no build for CPUs alone: beside the environment it can do no harm there
VISION = $(PY) -m pip install -q --disable-pip-version-check --no-deps --upgrade \
             --target build/vision torchvision==0.28.0 timm==1.0.31

bench-models: env ## models with and without PyPM, timed in turn (make bench-models ARGS=--quick)
	$(VISION)
	PYTHONPATH=build/vision $(PY) -m benchmarks.models $(ARGS)

coverage: env ## attention sites found in models, by PyPM and by Inductor (make coverage ARGS=bert)
	$(VISION)
	PYTHONPATH=build/vision $(PY) -m benchmarks.coverage $(ARGS)

coverage-packs: env ## layers of every other family found in models (make coverage-packs ARGS=bert)
	$(VISION)
	PYTHONPATH=build/vision $(PY) -m benchmarks.coverage.packs $(ARGS)

coverage-blocks: env ## loops, experts and latent attention found in models (make coverage-blocks ARGS=mamba)
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(PY) -m benchmarks.coverage.blocks $(ARGS)

browser: ## Chromium for the tests of the report's page; installs it if it is missing
	@command -v chromedriver >/dev/null || { $(call INSTALL,$(BROWSER_PACKAGES)); } || \
	    echo "make browser: chromedriver is missing and could not be installed, so the page is not" \
	         "tested in a browser (Debian: apt-get install $(BROWSER_PACKAGES))" >&2

jail: ## bubblewrap for the tests of code that is isolated; installs it if it is missing
	@command -v bwrap >/dev/null || { $(call INSTALL,bubblewrap); } || \
	    echo "make jail: bwrap is missing and could not be installed, so isolation is not tested" \
	         "(Debian: apt-get install bubblewrap)" >&2

screenshot: env browser ## draw docs/report.png anew
	$(PY) -m tests.tools.screenshot docs/report.png

docs: env ## the documentation, built into site/, with the Coq development where Coq is installed
	@if command -v coqdoc >/dev/null; then $(MAKE) -C coq html; fi
	$(PY) -m mkdocs build --strict

format: env ## put the sources into the form that lint asks for
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

proofs: ## check the Coq development; installs Coq if it is missing
	@test -f coq/Makefile || { echo "make proofs: there is no coq/Makefile" >&2; exit 1; }
	@command -v coqc >/dev/null || { $(call INSTALL,$(COQ_PACKAGES)); } || { \
	    echo "make proofs: coqc is missing and could not be installed;" \
	         "install Coq (Debian: apt-get install $(COQ_PACKAGES)), then try again" >&2; exit 1; }
	$(MAKE) -C coq -j2 check test

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -f coq/Makefile ]; then $(MAKE) -C coq clean; fi

# ---------------------------------------------------------------------------------------------

COQ_PACKAGES     := coq ocaml-nox
BROWSER_PACKAGES := chromium chromium-driver fonts-dejavu-core
SUDO             := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
INSTALL           = command -v apt-get >/dev/null && $(SUDO) apt-get update && \
                    $(SUDO) env DEBIAN_FRONTEND=noninteractive \
                        apt-get install -y --no-install-recommends $(1)

# Done again when what to install has changed. The stamp comes last, so a failure is not taken
# for success.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make env: $(PYTHON) not found; name one: make env PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make env: PyPM needs Python 3.11 or newer, and $(PYTHON) is older;" \
	         "name another: make env PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make env: $(PYTHON) comes without venv;" \
	         "install it (Debian and Ubuntu: apt-get install python3-venv), then try again" >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || \
	    echo "make env: no C++ compiler found; torch.compile needs one on the CPU, and so do demo and test" >&2
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[diffusion,docs,evolve,kernels,models,test,notebooks]'
	$(PY) -m coq_jupyter.install --sys-prefix --kernel-name coq-pypm \
	    --kernel-display-name 'Coq (PyPM)' --coqtop-args "-Q ../../coq/theories PyPM"
	@touch $@
