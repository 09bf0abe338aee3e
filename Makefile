# demo · test · check · fuzz · bench: each sets up .venv by itself from constraints.txt, then does its work.
# Needs Python >= 3.11 with pip and venv; nothing else. PYTHON=... chooses the interpreter that makes .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEMBERS := core hf2q_quant_kquant hf2q_arch_qwen35 hf2q_arch_gemma4 hf2q_arch_deepseek4 $(sort $(dir $(wildcard plugins/*/pyproject.toml)))
PROJECTS := $(addsuffix pyproject.toml,$(addsuffix /,$(patsubst %/,%,$(MEMBERS))))

.PHONY: demo test fuzz check format bench bench-peer setup clean

setup: $(STAMP)

$(STAMP): constraints.txt .ci/setup $(PROJECTS)
	PYTHON="$(PYTHON)" sh .ci/setup $(VENV) $(patsubst %/,%,$(MEMBERS))
	@touch $@

demo: $(STAMP)
	$(BIN)/python .ci/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# the property tests alone, with examples that no run has seen before
fuzz: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m hypothesis --hypothesis-profile=default $(FUZZ)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard */src) $(wildcard plugins/*/src)
	$(BIN)/python -m pytest -q tests/test_imports.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python bench/quantize.py $(BENCH)
	$(BIN)/python bench/convert.py $(BENCH_CONVERT)
	$(BIN)/python bench/llama.py $(BENCH_LLAMA)

# the peer to compare with (hf2q[bench]); built from source, which takes about 20 minutes on two cores
bench-peer: $(STAMP)
	$(BIN)/python -m pip install llama-cpp-python==0.3.36

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
