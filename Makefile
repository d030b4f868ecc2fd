# Every target sets up what it needs in .venv; Python 3.11 or later, Rust and make are all that must be there.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# A small real cuDNN, without the libraries it computes with: it loads, tells its version and refuses to make a handle.
CUDNN := nvidia-cudnn-jit-cu12==9.27.0.42
# What the module has for tests, and the wheel that is published has not: faults on demand. These stand for those of
# pyproject.toml, which maturin leaves out where some are given.
TEST_FEATURES := python,fault-injection
# How long `make fuzz` tries; what it finds stays in build/fuzz, where the next run begins.
FUZZ_SECONDS ?= 60
# The Python without a GIL that `make free-threaded` and `make dist` try gpupool on. Where there is none, `make dist` builds
# it from CPython's source archive, PYTHON_SOURCES, and always so that for aarch64.
FREE_THREADED ?= python3.14t
PYTHON_SOURCES ?=
# What the installed module is built from.
SOURCES := Cargo.toml Cargo.lock build.rs pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

.venv/ready: pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

# What the tests run gpupool with, some hundreds of megabytes that the demo does without. Python compiles what is imported
# of it.
.venv/frameworks: .venv/ready requirements/frameworks.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements/frameworks.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps $(CUDNN)
	@touch $@

# What `make thorough` runs besides, and what `make lint` runs.
.venv/clusters: .venv/frameworks requirements/clusters.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements/clusters.txt
	@touch $@

.venv/lint: .venv/ready requirements/lint.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lint.txt
	@touch $@

# What `make fuzz` runs.
.venv/fuzz: .venv/ready requirements/fuzz.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/fuzz.txt
	@touch $@

# What builds the guide, and what makes packages to publish.
.venv/docs: .venv/ready requirements/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

.venv/package: .venv/ready requirements/package.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/package.txt
	@touch $@

.venv/conda: .venv/ready requirements/conda.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/conda.txt
	@touch $@

# What counts who holds a GPU's memory, for programs that are started with it.
WATCH := crates/watch/Cargo.toml
WATCH_SOURCES := $(wildcard crates/watch/Cargo.* crates/watch/src/*.rs)

# In a folder of its own, for Cargo calls it and the library for C both libgpupool.so.
.venv/built: .venv/ready $(SOURCES)
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --quiet --target-dir target/python --features $(TEST_FEATURES) > /dev/null
	@touch $@

# The library for C and C++: with the features of Cargo.toml's dev-dependencies it is the crate that Rust's tests use.
.venv/library: $(SOURCES) $(WATCH_SOURCES)
	@mkdir -p .venv
	cargo build --quiet --manifest-path $(WATCH) --target-dir target/watch
	install -D -s target/watch/debug/libgpupool_watch.so python/gpupool/lib/libgpupool_watch.so
	cargo build --quiet --features c-api,cudarc,fault-injection
	install -D -s target/debug/libgpupool.so python/gpupool/lib/libgpupool.so.0
	@touch $@

# On the module that the tests use, which is compiled in half the time of the one that is published.
.PHONY: demo
demo: .venv/built ## threads share handles and trace files are replayed, on a GPU if there is one; its times are those of an unoptimised build
	@echo "This build is not optimised: its counts and sizes are those of gpupool, its times are no measure of it."
	@$(BIN)/gpupool demo
	@echo
	@$(BIN)/gpupool replay tests/data/gnn_sampled-1.csv.gz tests/data/two_streams-1.csv.gz

# In place of the library for tests, which the next target that needs it makes again.
.PHONY: library
library: ## python/gpupool/lib: the library for C and C++, optimised, with its files for pkg-config and CMake; needs no Python
	@rm -f .venv/library
	cargo build --quiet --release --lib --features c-api
	install -D -s target/release/libgpupool.so python/gpupool/lib/libgpupool.so.0
	cargo build --quiet --release --manifest-path $(WATCH) --target-dir target/watch
	install -D -s target/watch/release/libgpupool_watch.so python/gpupool/lib/libgpupool_watch.so
	@echo "$(CURDIR)/python/gpupool/lib/libgpupool.so.0; the headers are in $(CURDIR)/python/gpupool/include"

# How many processes Python's tests run in, and what pytest is told besides, as SKIPS=tests/skips.txt of CI.
PROCESSES ?= auto
SKIPS ?=
# Python keeps what it compiles, also where the environment says not to: thousands of processes import the same.
unexport PYTHONDONTWRITEBYTECODE
# What a process of the tests writes as it ends too early is seen: nothing takes over its descriptors.
PYTEST := $(BIN)/python -m pytest --quiet -r fE --capture=sys --numprocesses $(PROCESSES) --dist worksteal \
  --durations 10 --durations-min 1 $(if $(SKIPS),--skips $(SKIPS))
# For how long `make thorough` goes on with each test of random work or of faults, in seconds; `make test` takes one.
SECONDS ?= 5
# What Rust's tests say of themselves, one line each.
RUST_TESTS := $(CURDIR)/build/tests/rust

.PHONY: test
test: ## all tests but the thorough ones; those that need a GPU skip without one
	@bash tests/timed.sh build/tests/took $(MAKE) --no-print-directory tests

# What is fetched and what is compiled goes two at a time, and the tests, which have a process for each core, come after.
.PHONY: tests
tests:
	@$(MAKE) --no-print-directory --jobs=2 rust-programs .venv/built .venv/frameworks
	@$(MAKE) --no-print-directory rust-tests python-tests

.PHONY: thorough
thorough: models long-random user-crate .venv/built .venv/library .venv/clusters ## models of the lock-free parts, longer random work, and tests that compare with whole frameworks
	$(PYTEST) -m thorough tests/gpu
	$(PYTEST) -m thorough tests/python

.PHONY: test-all
test-all: test thorough miri thread-sanitizer ## `make test`, `make thorough` and the sanitizers

# The library is built where Rust's tests are, and Cargo would exchange what these are compiled against meanwhile.
rust-programs long-random: | .venv/library

.PHONY: rust-programs
rust-programs:
	cargo test --quiet --no-run

.PHONY: rust-tests
rust-tests: rust-programs .venv/frameworks
	@mkdir -p $(dir $(RUST_TESTS)) && rm -f $(RUST_TESTS)
	GPUPOOL_TEST_REPORT=$(RUST_TESTS) cargo test --quiet
	VIRTUAL_ENV=$(CURDIR)/.venv cargo test --quiet --test handles -- --ignored real_library
	VIRTUAL_ENV=$(CURDIR)/.venv cargo run --quiet --example cudarc_stream
	cargo run --quiet --example cudarc_training
	$(BIN)/python tests/rust_report.py $(RUST_TESTS)

.PHONY: python-tests
python-tests: .venv/built .venv/library .venv/frameworks
	$(PYTEST) -m "not thorough" tests/gpu
	$(PYTEST) -m "not thorough" --ignore=tests/python/test_ray.py tests/python

.PHONY: models
models: ## every interleaving of the lock-free parts, by loom
	RUSTFLAGS="--cfg loom" cargo test --quiet --target-dir target/loom --lib models

.PHONY: long-random
long-random: ## Rust's tests of random work, schedules and faults, each for SECONDS (5)
	GPUPOOL_TEST_SECONDS=$(SECONDS) cargo test --quiet --test models --test memory --test handles -- \
	  $$(grep -l 'turns(' tests/*/*.rs | sed 's,.*/\(.*\)\.rs,\1::,')
	GPUPOOL_TEST_SECONDS=$(SECONDS) cargo test --quiet --lib codec::

.PHONY: user-crate
user-crate: ## a program that depends on gpupool, with its default features alone
	GPUPOOL_RUNTIME=host cargo run --quiet --manifest-path tests/user_crate/Cargo.toml --target-dir target/user

.PHONY: cuda-core
cuda-core: ## crates/cuda-core, with CUDA's headers from wheels (105 MB) and on a double of the driver; not in CI
	PYTHON=$(PYTHON) bash tests/package/cuda_core.sh

.PHONY: miri
miri: ## what needs no driver under Miri, where a nightly toolchain has it; not in CI
	bash tests/sanitizers/miri.sh

.PHONY: thread-sanitizer
thread-sanitizer: ## the tests in which threads meet under ThreadSanitizer, where a nightly toolchain has std's sources; not in CI
	bash tests/sanitizers/threads.sh

.PHONY: oldest
oldest: ## the Python module on the oldest Rust that Cargo.toml promises, fetched by rustup
	bash tests/package/oldest_rust.sh

.PHONY: pythons
pythons: .venv/built ## Python's tests that need no framework, on each other Python that is promised and is here
	bash tests/package/pythons.sh build/pythons

.PHONY: fuzz
fuzz: .venv/built .venv/frameworks .venv/fuzz ## for FUZZ_SECONDS trace files that are made to break their readers
	$(BIN)/python tests/fuzz/readers.py build/fuzz -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1

.PHONY: fuzz-c
fuzz-c: .venv/library ## for FUZZ_SECONDS random calls of gpupool.h's functions, right and wrong ones, under AddressSanitizer
	bash tests/fuzz/c_table.sh build/fuzz-c $(FUZZ_SECONDS)

.PHONY: lint
lint: .venv/built .venv/clusters .venv/lint ## formatting, clippy, ruff, the stubs against the module, the layout, and CI's workflows
	cargo fmt --check
	cargo fmt --check --manifest-path tests/user_crate/Cargo.toml
	cargo fmt --check --manifest-path crates/cuda-core/Cargo.toml
	cargo fmt --check --manifest-path $(WATCH)
	cargo clippy --quiet --manifest-path $(WATCH) --target-dir target/watch -- -D warnings
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --all-targets --features python -- -D warnings
	cargo clippy --quiet --lib --features python -- -D warnings
	cargo clippy --quiet --lib --no-default-features --features cuda-12080 -- -D warnings
	cargo clippy --quiet --lib --no-default-features --features cuda-13000 -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest gpupool._native --allowlist tests/stubtest.txt
	$(BIN)/python tests/layout.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows

.PHONY: rustdoc
rustdoc: ## the Rust reference, in which a warning, such as of a broken link, fails
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps

.PHONY: docs
docs: .venv/built .venv/docs ## site: the guide as web pages; a broken link, and a page that does not fit a phone fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest --quiet $(if $(SKIPS),--skips $(SKIPS)) tests/site

.PHONY: figures
figures: .venv/built ## the figures, tables and outputs in README.md and docs, anew; and the list of files that they are from
	$(BIN)/python benches/parts.py
	$(BIN)/python benches/provenance.py

.PHONY: pictures
pictures: .venv/docs ## the pictures in docs/pictures, what the notebooks print and pages quote, made anew with an optimised build; no GPU is needed
	@rm -rf build/pictures
	$(BIN)/maturin build --release --quiet --target-dir target/python --features python --compatibility linux --out build/pictures
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/pictures/site build/pictures/*.whl
	PYTHONPATH=$(CURDIR)/build/pictures/site $(BIN)/python docs/hooks/draw.py

.PHONY: allocators
allocators: .venv/ready ## build/allocators: the library of PyTorch's allocator for each version of PyTorch, as the wheel has them
	$(BIN)/python tests/package/allocators.py build/pytorch build/allocators

.PHONY: resources
resources: .venv/ready ## build/resources: the module with RMM's resources for each version of RMM, as the wheel has them
	$(BIN)/python tests/package/resources.py build/rmm build/resources

.PHONY: wheel
wheel: .venv/package allocators resources ## build/dist: the wheel for x86-64 and the source distribution, each tried in a fresh virtual environment
	rm -rf build/dist
	bash tests/package/sdist.sh build/dist build
	bash tests/package/sdist.sh build/dist try & tried=$$!; \
	  bash tests/package/wheel.sh build/dist x86_64 abi3 $(CURDIR)/$(BIN)/python && wait $$tried
	du -h build/dist/*

.PHONY: dist
dist: .venv/package allocators resources ## build/dist: all that is published for Python, also for aarch64 and free-threaded, tried the same, if the pages' figures are of this code; not in CI
	$(BIN)/python benches/provenance.py --check
	bash tests/package/dist.sh build/dist $(CURDIR)/$(BIN)/python "$(FREE_THREADED)" $(PYTHON_SOURCES)

.PHONY: aarch64
aarch64: ## the crate's unit tests for aarch64, under emulation; not in CI
	bash tests/package/aarch64.sh

.PHONY: conda
conda: .venv/conda ## build/conda: the conda recipe filled in for the source distribution in build/dist, and its package, tried; CHANNEL=stand-ins where conda-forge cannot be reached
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python tests/package/conda.py build/dist/*.tar.gz build/conda $(CHANNEL)

.PHONY: free-threaded
free-threaded: .venv/ready ## all Python tests on free-threaded Python; not in CI
	bash tests/package/free_threaded.sh "$(FREE_THREADED)" build/free-threaded

.PHONY: package
package: ## target/package: the crate as it would be published, built from its own files
	cargo package --quiet --locked --allow-dirty

.PHONY: bench
bench: ## the Rust benches, on whatever runtime is here
	cargo bench

.PHONY: soak
soak: SECONDS = 3600
soak: .venv/library ## SECONDS (3600) of random operations against the naive model, half with faults, and as long of random schedules; ten minutes of fuzz-c
	bash tests/fuzz/c_table.sh build/fuzz-c 600
	bash tests/soak.sh "$$(tests/program.sh test --release --no-run --test models)" \
	  "$$(tests/program.sh test --no-run --test models)" $(SECONDS)

.PHONY: gpu
gpu: .venv/ready .venv/frameworks allocators resources ## build/gpu: all that a GPU machine without Rust or network needs, and run.sh to run it there; PROFILE=dev only to see that it can be built
	bash tests/gpu/build.sh build/gpu $(PROFILE)

.PHONY: clean
clean: ## remove everything built
	cargo clean
	rm -rf .venv build site
