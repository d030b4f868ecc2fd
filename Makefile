# Every target sets up what it needs in .venv; Python 3.11 or later, Rust and make are all that must be there.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# What the installed module is built from.
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

.venv/ready: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

.venv/built: .venv/ready $(SOURCES)
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --quiet > /dev/null
	@touch $@

.PHONY: demo
demo: .venv/built ## threads come and go and share handles, on a GPU if there is one
	@$(BIN)/gpupool demo

.PHONY: test
test: .venv/built ## all tests; those that need a GPU skip without one
	cargo test --quiet
	$(BIN)/python -m pytest tests/python
	@echo "tests that need a GPU:"
	$(BIN)/python -m pytest --quiet -r '' tests/gpu

.PHONY: lint
lint: .venv/built ## formatting, clippy, ruff, and the stubs against the module
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --all-targets --features python -- -D warnings
	cargo clippy --quiet --lib --no-default-features --features cuda-12080 -- -D warnings
	cargo clippy --quiet --lib --no-default-features --features cuda-13000 -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest gpupool._native

.PHONY: bench
bench: ## the Rust benches, on whatever runtime is here
	cargo bench

.PHONY: gpu
gpu: .venv/ready ## build/gpu: all that a GPU machine without Rust or network needs, and run.sh to run it there
	bash tests/gpu/build.sh build/gpu

.PHONY: clean
clean: ## remove everything built
	cargo clean
	rm -rf .venv build
