# Two commands for a newcomer: `make run` and `make test`. Both prepare .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(VENV)/.torch.stamp
STAMP := $(VENV)/.installed.stamp
BUILT := $(VENV)/.built.stamp
CSRC := $(wildcard framesmith/csrc/*.cpp framesmith/csrc/*.h framesmith/codegen/cpp/*.h native/src/* native/include/*)

.PHONY: ready run test test-fast test-gpu sanitize sanitize-threads damage lint docs wheel
.PHONY: bench bench-training bench-gpu bench-sizes clean

# torch first: whatever asks for plain `torch` afterwards must find it installed. The core is built while pip fetches
# the rest, which it does on one thread.
ready:
	@$(MAKE) --no-print-directory --jobs=2 $(STAMP) $(BUILT)

$(TORCH):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" "setuptools>=77" ninja
	touch $@

$(STAMP): $(TORCH) requirements.txt requirements-nodeps.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-nodeps.txt
	touch $@

# the ninja of .venv compiles several units at once, and asks no make for leave
$(BUILT): export PATH := $(abspath $(BIN)):$(PATH)
$(BUILT): $(TORCH) setup.py pyproject.toml $(CSRC)
	env -u MAKEFLAGS $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -q framesmith benchmarks
	touch $@

run: ready
	$(BIN)/python -m benchmarks.demo

test: ready
	$(BIN)/python -m pytest -n auto --dist worksteal

# Quick files of each subject: under three minutes on two cores.
test-fast: ready
	$(BIN)/python -m pytest -n auto --dist worksteal $(shell cat tests/fast.txt)

# On a machine with a CUDA device, with its own Python, PyTorch and Triton.
test-gpu:
	$(PYTHON) setup.py --quiet build_ext --inplace
	$(PYTHON) -m pytest -m gpu tests
	FRAMESMITH_TEST_DEVICE=cuda $(PYTHON) -m pytest tests/capture/test_programs.py tests/autograd/test_programs.py

# The reader of packages on damaged files, under AddressSanitizer and UndefinedBehaviorSanitizer.
DAMAGED ?= 100000
PACKAGE := build/damage/model.fsm
damage: ready
	cmake -S native -B build/damage -DFRAMESMITH_FUZZ=ON && cmake --build build/damage
	$(BIN)/python -m native.fuzz.model $(PACKAGE)
	build/damage/damage $(PACKAGE) $(DAMAGED)

# The C++ core and the generated kernels under AddressSanitizer and UndefinedBehaviorSanitizer, built in a copy of the
# tree: tests of hook, guards, call path, training node, watched memory, argument forms, lifetimes and threads, then
# cases of the argument grid.
SANITIZED := $(addprefix tests/,hook runtime/test_compiled_graph.py runtime/test_watch.py fake/test_argument_forms.py \
	autograd/test_lifetimes.py autograd/test_engine.py autograd/test_functions.py autograd/test_hooks.py \
	lower/test_convolution_training.py capture/test_breaks.py capture/test_lifetimes.py capture/test_identity.py \
	capture/test_lang_generators.py api/test_living_lifetimes.py api/test_living_threads.py \
	api/test_lazy_bits.py api/test_side_effects.py)
CASES ?= 300
PART ?= 1/1
COPY := build/sanitize
# GCC 13's stacks for the detection of uses after a return are not aligned for vectors of 64 bytes (GCC bug 110027).
ASAN_OPTIONS := detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0
IN_COPY = cd $(COPY) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=$(ASAN_OPTIONS) UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	CXX=$(CURDIR)/$(COPY)/g++ FRAMESMITH_CACHE_DIR=$(CURDIR)/$(COPY)/cache \
	PYTHONPATH=$(CURDIR)/$(COPY) $(abspath $(BIN))/python -m
COPY_TREE = mkdir -p $(COPY) && \
	git ls-files -z framesmith native tests benchmarks setup.py pyproject.toml | xargs -0 cp -pu --parents -t $(COPY)
sanitize: ready
	$(COPY_TREE)
	printf '#!/bin/sh\nexec env -u LD_PRELOAD g++ -fsanitize=address,undefined -fno-sanitize=vptr "$$@"\n' > $(COPY)/g++
	chmod +x $(COPY)/g++
	cd $(COPY) && FRAMESMITH_SANITIZE=address,undefined $(abspath $(BIN))/python setup.py --quiet build_ext --inplace
	$(IN_COPY) pytest -q -p no:xdist $(SANITIZED)
	$(IN_COPY) tests.nets.argument_grid --sample $(CASES) --part $(PART)

# The C++ core under ThreadSanitizer: the net of threads for LENGTH seconds. It sees the order that the interpreter's
# lock makes, but no access of Python's and PyTorch's own code. Its shadow memory wants addresses in place.
LENGTH ?= 120
sanitize-threads: COPY := build/sanitize-threads
sanitize-threads: ready
	$(COPY_TREE)
	cd $(COPY) && FRAMESMITH_SANITIZE=thread $(abspath $(BIN))/python setup.py --quiet build_ext --inplace
	cd $(COPY) && LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" OMP_NUM_THREADS=1 TSAN_OPTIONS=exitcode=66 \
	PYTHONPATH=$(CURDIR)/$(COPY) setarch -R $(abspath $(BIN))/python -m tests.nets.threads --no-fork --seconds $(LENGTH)

lint: ready
	$(BIN)/ruff check framesmith tests benchmarks examples
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

# The figures of README.md and docs/benchmarks/, from the JSON that is committed: nothing is measured.
docs: ready
	$(BIN)/python -m benchmarks.document

# In dist/. The core is built for this processor (-march=native): a wheel is for machines like this one.
wheel: ready
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w dist .

# Each writes its JSON and then the documents.
bench: ready
	$(BIN)/python -m benchmarks --peers --cold
	$(BIN)/python -m benchmarks.document

bench-gpu:
	$(PYTHON) -m benchmarks.gpu --everything --peers --warm
	$(PYTHON) -m benchmarks.document

bench-training: ready
	$(BIN)/python -m benchmarks.training --peers --cold --memory
	$(BIN)/python -m benchmarks.document

bench-sizes: ready
	$(BIN)/python -m benchmarks.dynamic
	$(BIN)/python -m benchmarks.symbolic
	$(BIN)/python -m benchmarks.export named --times
	$(BIN)/python -m benchmarks.document

clean:
	rm -rf $(VENV) build *.egg-info framesmith/*.so
