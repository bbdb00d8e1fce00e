# Two commands for a newcomer: `make run` and `make test`. Both prepare .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed.stamp
BUILT := $(VENV)/.built.stamp
CSRC := $(wildcard framesmith/csrc/*.cpp framesmith/csrc/*.h framesmith/codegen/cpp/*.h)

.PHONY: run test test-gpu lint bench bench-training bench-gpu clean

# torch first: whatever asks for plain `torch` afterwards must find it installed.
$(STAMP): requirements.txt requirements-nodeps.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-nodeps.txt
	touch $@

$(BUILT): $(STAMP) setup.py pyproject.toml $(CSRC)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -q framesmith benchmarks
	touch $@

run: $(BUILT)
	$(BIN)/python -m benchmarks.demo

test: $(BUILT)
	$(BIN)/python -m pytest -n auto --dist worksteal

# On a machine with a CUDA device, with its own Python, PyTorch and Triton.
test-gpu:
	$(PYTHON) setup.py --quiet build_ext --inplace
	$(PYTHON) -m pytest -m gpu tests
	FRAMESMITH_TEST_DEVICE=cuda $(PYTHON) -m pytest tests/capture/test_programs.py tests/autograd/test_programs.py

lint: $(BUILT)
	$(BIN)/ruff check framesmith tests benchmarks
	$(BIN)/mypy

bench: $(BUILT)
	$(BIN)/python -m benchmarks --peers --cold --plot --readme

bench-gpu:
	$(PYTHON) -m benchmarks.gpu --everything --peers --warm --readme

bench-training: $(BUILT)
	$(BIN)/python -m benchmarks.training --peers --cold --memory --readme

clean:
	rm -rf $(VENV) build *.egg-info framesmith/*.so
