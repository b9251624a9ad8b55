# make bench    measure this machine in a few minutes, and say where the results lie
# make test     lint, types and the quick tests: a minute and a half on two cores
# make test-families  representatives of the slow tests, as tests/families.py lists them
# make test-all all tests and all ways to install; names what failed and how to run just that
# make nightly  test-all and its repeats: cheats, kills, drills, spoiled inputs; ONLY="kills fuzz" runs these steps
# make fuzz     give every reader of other people's data 100,000 spoiled inputs; an hour on two cores
# make gpu-check PART=1   check the GPU path; parts 2 and 3 follow; FOLDER= takes log, summary, records (docs/gpu.md)
# make site     the documentation as a site below build/site; needs mkdocs
# make coverage  lines and branches of the package that the quick tests run, and those that they do not
# make mutants MODULE=pyperf_suite/measure/sampling.py   change 60 places of a module in turn: which do its tests notice?
# make clean    remove what the others made, except results
#
# PYTHON=python3.12 picks the Python. Of bench, test and test-families: ARGS='-k tile' is handed to pytest; of the last two:
# TESTS=tests/core/laws tests only these;
# SEED= draws sets of parameters and representatives as the run did whose first lines name it.

PYTHON ?= python3
ARGS ?=
TESTS ?= tests
SEED ?=
ONLY ?=
PART ?= 1
FOLDER ?= $(or $(OUT),gpu_check)
VENV := .venv
RUN := $(VENV)/bin/python
MADE := $(VENV)/.made
# Benchmarks and tests start many processes; without its compiled modules each of them begins a second later.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(shell find csrc kernels -name '*.cpp' -o -name '*.h' -o -name '*.cuh')

.PHONY: bench test test-families test-all test-gpu nightly can-test lint coverage mutants fuzz gpu-check test-sanitize site clean

bench: $(MADE)
	$(RUN) -m pytest pyperf_suite/benchmarks --benchmark-only $(ARGS)

# Whether the environment has all of these modules.
HAS := $(RUN) -c 'import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))'

# One process a core, each with whole files: most of the time goes into starting the processes that tests are about.
PYTEST := $(RUN) -m pytest $(TESTS)
SPREAD = $$($(HAS) xdist && printf %s '-n logical --dist loadfile')
DRAWN := $(if $(SEED),--draw-seed $(SEED))

# Of a test with more than 2 sets of parameters 2 are drawn. Threads of these small products would only wait for each
# other where each core has a process.
test: lint
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not gpu" --draw 2 $(DRAWN) $(SPREAD) $(ARGS)

test-families: can-test
	$(PYTEST) -m "slow and not gpu" --families $(DRAWN) $(SPREAD) $(ARGS) || [ $$? = 5 ]

test-all: can-test
	$(RUN) tools/nightly.py --once $(ONLY)

nightly: can-test
	$(RUN) tools/nightly.py $(ONLY)

# They time kernels, so they run one at a time.
test-gpu: can-test
	@if $(RUN) -c 'import sys; from pyperf_suite.hardware.devices import gpus; sys.exit(not gpus())'; then \
	  $(PYTEST) -m gpu $$($(HAS) xdist && printf %s '-n 1') $(ARGS) || [ $$? = 5 ]; \
	else echo "GPU tests are skipped: CUDA finds no GPU here."; fi

can-test: $(MADE)
	@$(HAS) hypothesis || { echo "error: the tests need hypothesis, which $(VENV) lacks:" \
	  "install it, or measure with make bench." >&2; exit 2; }

lint: can-test
	@if $(HAS) ruff mypy; then \
	  $(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy; \
	else echo "Lint is skipped: $(VENV) lacks ruff or mypy, and no package index gave them when it was made."; fi

# The modules that pyproject.toml omits need a GPU.
coverage: can-test
	@$(HAS) coverage || { echo "error: $(VENV) lacks coverage, and no package index gave it when it was made." >&2; exit 2; }
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest $(TESTS) -m "not slow and not gpu" $(SPREAD) $(ARGS)
	$(RUN) -m coverage combine -q
	$(RUN) -m coverage report

mutants: can-test
	$(RUN) tools/mutants.py $(MODULE) $(filter-out tests,$(TESTS)) $(ARGS)

fuzz: $(MADE)
	$(RUN) -m pytest tests/hardening -k any_ --hypothesis-profile=thorough -n logical $(ARGS)

site: $(MADE)
	@$(HAS) mkdocs || { echo "error: the site is made by mkdocs, which $(VENV) lacks: install it there." >&2; exit 2; }
	$(RUN) -m mkdocs build --strict

gpu-check:
	PYTHON=$(PYTHON) tools/gpu_check.sh $(PART) $(FOLDER)

# A build of its own beside the usual one; it runs only under the sanitizer's run-time libraries, preloaded.
# SANITIZER=thread looks for data races; OpenBLAS has some that are none, so it gets no threads.
SANITIZER ?= address
SANITIZED := build/sanitize-$(SANITIZER)/lib
RUNTIMES := $(if $(filter thread,$(SANITIZER)),tsan,asan ubsan) stdc++
test-sanitize: $(MADE)
	PYPERF_SANITIZE=$(SANITIZER) $(RUN) setup.py -q build --build-base $(dir $(SANITIZED)) --build-lib $(SANITIZED)
	cd $(SANITIZED) && PYPERF_SANITIZE=$(SANITIZER) PYTHONPATH=$(CURDIR) ASAN_OPTIONS=detect_leaks=0 OPENBLAS_NUM_THREADS=1 \
	  TSAN_OPTIONS="report_thread_leaks=0 die_after_fork=0" LD_PRELOAD="$(foreach library,$(RUNTIMES),$(shell \
	  $${CXX:-c++} -print-file-name=lib$(library).so))" $(CURDIR)/$(RUN) -m pytest $(CURDIR)/tests/core/native -m "not slow" $(ARGS)

$(MADE): setup.py pyproject.toml constraints.txt tools/make_venv.py tools/compiler.py $(SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "error: PYTHON=$(PYTHON) cannot be run:" \
	  "install Python 3.10 or newer, or name one with make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: PYTHON=$(PYTHON) is" \
	  "$$($(PYTHON) -V 2>&1), and pyperf_suite needs 3.10 or newer: name one with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) tools/make_venv.py $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info pyperf_suite/_native*.so .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
