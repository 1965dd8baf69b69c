# SPDX-License-Identifier: Apache-2.0
# Every command a person types. Bare `make` prints them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PEER := .venvs/peer

# What is missing is reported in one line, before anything is done. Once there is an environment, its own
# Python counts.
GOALS := $(filter-out help clean,$(or $(MAKECMDGOALS),$(.DEFAULT_GOAL)))
ifneq ($(and $(GOALS),$(if $(wildcard $(PY)),,new)),)
  PYTHON_FAULT := $(shell $(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	print("" if v >= (3, 10) else "is Python %d.%d" % v)' 2>/dev/null || echo 'was not found')
  ifneq ($(PYTHON_FAULT),)
    $(error This needs Python 3.10 or later, and $(PYTHON) $(PYTHON_FAULT). \
	Another one can be named: make PYTHON=python3.11 $(GOALS))
  endif
endif
ifneq ($(filter-out setup,$(GOALS)),)
  ifeq ($(shell command -v cargo || true),)
    $(error This needs Rust 1.89 or later, and cargo was not found; https://rustup.rs has it)
  endif
endif

# The TensorFlow releases that `make test-tf` tests with, and the one that runs the notebooks.
TF ?= 2.15 2.18 2.21
NOTEBOOK_TF := $(lastword $(TF))
# Their interpreter; TensorFlow 2.15 and before need Python 3.11 or before.
TF_PYTHON := $(PYTHON)
# Only Linux on x86-64 has builds without the parts for GPUs, at half the size.
TF_PACKAGE := $(if $(filter Linux-x86_64,$(shell uname -s -m | tr ' ' -)),tensorflow-cpu,tensorflow)

# maturin installs into the environment that these name, whatever shell `make` was started from.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Compiled files of Python are kept: the tests start hundreds of interpreters.
unexport CONDA_PREFIX PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
# One interpreter for every build of the binding crate, so that none makes the others stale.
export PYO3_PYTHON := $(CURDIR)/$(PY)

NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))

# Stamps: what was done already is not done again until its inputs change.
SETUP_DONE := $(VENV)/.setup-done
BUILD_DONE := $(VENV)/.build-done
DOCS_ENV := .venvs/docs
DOCS_DONE := $(DOCS_ENV)/.setup-done
PEER_DONE := $(PEER)/.setup-done
WHEEL_DONE := dist/.wheel-done
# dm-reverb 0.14 was built for this one; its datasets are compared with ours there.
PEER_TF := 2.15
TF_SETUPS := $(patsubst %,.venvs/tf-%/.setup-done,$(sort $(TF) $(NOTEBOOK_TF) $(PEER_TF)))
TF_WHEELS := $(TF_SETUPS:.setup-done=.wheel-done)
# TF-Agents and Acme beside a TensorFlow; tests/integrations/requirements/ has a file of pins for each.
INTEGRATION_ENVS := tf-agents-2.15 tf-agents-2.21 acme-2.15 acme-2.21
# Beside them: buffers for Stable-Baselines3 and TorchRL, and TransferQueue's names, in the environment of
# the learners, whose packages are too large for a quick run.
INTEGRATIONS ?= $(INTEGRATION_ENVS) $(if $(QUICK),,learners)
INTEGRATION_SETUPS := $(INTEGRATION_ENVS:%=.venvs/%/.setup-done)
INTEGRATION_WHEELS := $(INTEGRATION_ENVS:%=.venvs/%/.wheel-done)
# The environments of the demos: the newest TensorFlow, and what Acme's release was made for.
TF_AGENTS_ENV := .venvs/tf-agents-2.21
ACME_ENV := .venvs/acme-2.15
NOTEBOOK_ENV := .venvs/tf-$(NOTEBOOK_TF)
# Groups of servers, and the demo of one.
RAY_ENV := .venvs/ray
# Gymnasium, PyTorch, and what else learners without TensorFlow use; JAX has one of its own.
LEARNERS_ENV := .venvs/learners
JAX_ENV := .venvs/jax
# The libraries of datasets, and TensorFlow for RLDS.
DATASETS_ENV := .venvs/datasets
# The TensorFlow that dm-reverb 0.14 was built for: benchmarks compare like with like.
BENCH_ENV := .venvs/tf-agents-2.15
NOTEBOOK_DONE := $(NOTEBOOK_ENV)/.notebook-tools-done

RELEASE_ENV := .venvs/release
RELEASE_SETUP := $(RELEASE_ENV)/.setup-done
RELEASE_RUN := PATH="$(CURDIR)/$(RELEASE_ENV)/bin:$$PATH" $(RELEASE_ENV)/bin/python
RELEASE_TARGET := $(shell uname -m)-unknown-linux-gnu

# The Pythons that `make test-pythons` tests the wheel with.
PYTHONS ?= python3.10 python3.13
PYTHON_SETUPS := $(PYTHONS:%=.venvs/%/.setup-done)
PYTHON_WHEELS := $(PYTHONS:%=.venvs/%/.wheel-done)

# The library that TensorFlow loads, beside the native module that has the kernels.
SHIM := reverb/tf_ops/_reverb_ops.so
SHIM_SOURCES := $(shell find reverb/tf_ops/shim -name '*.rs' -o -name Cargo.toml) Cargo.toml \
	tools/build_backend.py
RUST_SOURCES := $(shell find reverb -path reverb/tf_ops/shim -prune -o \
	'(' -name '*.rs' -o -name Cargo.toml ')' -print) Cargo.toml Cargo.lock \
	reverb/core/wire/proto/descriptors.bin
PYTHON_SOURCES := $(shell find reverb -name '*.py' -o -name '*.pyi') pyproject.toml README.md LICENSE
GENERATED := reverb/core/wire/src/generated reverb/core/wire/proto

# The binding crate has no Rust tests: it is glue, and its test binary would need libpython.
CARGO_TEST := cargo test --workspace --exclude reverb-bindings --exclude regenerate-protos --exclude round-trip-floor
PYTEST := $(PY) -m pytest

# Special methods of compiled classes take their arguments by position, whatever a stub calls them;
# that a compiled class cannot be mixed with another one is no promise of ours.
STUBTEST_OPTIONS := --allowlist tools/stubtest_allowlist.txt --ignore-positional-only \
	--ignore-disjoint-bases

# Installing packages is for the administrator.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help setup build quick symbols release lines test test-store nets part-tests test-all test-debian test-image test-tf test-pythons test-ray test-gymnasium test-torch test-sb3 test-torchrl test-transferqueue test-jax test-datasets lint check docs-rust fix proto clients figures bench \
	demo demo-numpy demo-acme demo-ray demo-torch demo-grpo demo-sb3 demo-jax demo-quick notebooks notebooks-quick notebooks-in-tensorflow notebooks-in-tf-agents notebooks-in-acme notebooks-in-jax notebooks-in-datasets notebooks-in-learners test-integrations docs docs-pages wheel \
	clean conformance differential rust-tests environments installed-wheels

help: ## print this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(SETUP_DONE) ## make .venv with everything that building and testing need

build: $(BUILD_DONE) $(SHIM) ## compile the native module into .venv, optimised, as an editable install

quick: setup $(SHIM) ## the same in a tenth of the time after a change of Rust code; it runs a little slower
	rm -f $(BUILD_DONE)
	$(PY) -m maturin develop --profile quick

symbols: setup ## build the native module with line tables, for perf, gdb and py-spy; `make build` takes them out
	rm -f $(BUILD_DONE)
	cargo build --profile quick --package reverb-bindings --lib
	rm -f reverb/core/_native.abi3.so
	cp target/quick/lib_native.so reverb/core/_native.abi3.so

# Zig links both libraries with the glibc of manylinux2014, whatever glibc this system has.
release: setup $(RELEASE_SETUP) ## build a manylinux2014 wheel and the source distribution into dist/, and check them (Linux)
	rm -rf dist
	$(RELEASE_RUN) tools/build_backend.py --target $(RELEASE_TARGET) --glibc 2.17
	$(RELEASE_RUN) -m maturin sdist --out dist
	$(RELEASE_RUN) -m maturin build --release --target $(RELEASE_TARGET) --zig \
		--compatibility manylinux2014 --out dist
	touch $(WHEEL_DONE)
	$(RELEASE_RUN) -m auditwheel show dist/*.whl
	$(RELEASE_RUN) -m pytest --noconftest -m 'not slow' tests/package/test_wheel.py

test: build ## run the tests that a change must pass: Rust and Python, eight minutes (RERUN=1: see CONTRIBUTING.md)
	$(PY) tools/rust_tests.py
	$(PY) tools/python_tests.py

test-store: build ## run the fast Python tests with a disk store that forgets every payload at once (JOURNAL=1: a journal; STORE_TESTS=tests/reading for some)
	$(PY) tools/python_tests.py --forgetting-store=$(if $(JOURNAL),journal,payloads) $(STORE_TESTS)

# The module as it was built last.
MODULE := $(if $(wildcard $(BUILD_DONE)),build,quick)
nets: $(MODULE) ## run what finds a place that a change forgot: tests/package, and the nets of the recipes
	$(PY) tools/part_tests.py nets

part-tests: $(MODULE) ## run the tests of parts of the package: PARTS='core/shards cluster'; tests/README.md has them
	$(PY) tools/part_tests.py $(PARTS)

test-all: build ## run every test: also the slow ones, `make conformance` and `make test-tf`
	$(CARGO_TEST)
	$(PY) tools/python_tests.py -m 'not conformance' --limit-s 20000
	$(MAKE) test-store
	$(MAKE) test-store JOURNAL=1
	$(MAKE) conformance
	$(MAKE) test-debian
	$(MAKE) test-tf
	$(MAKE) test-ray
	$(RAY_ENV)/bin/python -m pytest -m slow tests/with_ray
	$(MAKE) test-gymnasium test-torch test-sb3 test-torchrl test-transferqueue test-jax test-datasets
	$(LEARNERS_ENV)/bin/python -m pytest -m slow tests/with_sb3
	$(MAKE) demo-torch demo-sb3 demo-jax demo-grpo
	$(MAKE) demo-grpo DEMO=--chaos
	$(MAKE) test-integrations

# Elsewhere than on Debian these tests are skipped, and say which program is missing.
test-debian: build ## test the page in Chromium, metrics with Prometheus, `reverb top` in tmux, the unit with systemd, a tunnel by stunnel; installs Debian's packages
	{ command -v promtool && command -v prometheus && command -v chromium && command -v tmux && \
		command -v systemd-analyze && command -v strace && command -v stunnel4; } >/dev/null || \
		! command -v apt-get >/dev/null || \
		$(SUDO) apt-get install --yes --no-install-recommends prometheus chromium tmux systemd strace stunnel4
	$(PYTEST) -m debian tests/operations
	$(PYTEST) tests/security/test_peers.py

test-image: build $(WHEEL_DONE) ## follow the steps of deploy/docker/Dockerfile in an environment, with the wheel
	$(PYTEST) -m 'not slow' tests/operations/test_container.py

test-tf: $(TF_WHEELS) ## test the wheel with several TensorFlow releases (TF='2.14 2.19' for others)
	$(PY) tools/wheel_tests.py $(TF:%=.venvs/tf-%) $(if $(TF_TESTS),--tests $(TF_TESTS))

test-pythons: $(PYTHON_WHEELS) ## test the wheel with several Pythons, without TensorFlow (PYTHONS='python3.12' for another)
	$(PY) tools/wheel_tests.py --without-tensorflow $(PYTHONS:%=.venvs/%)

test-ray: $(RAY_ENV)/.wheel-done ## test groups of servers on a Ray cluster of three nodes on this machine, two minutes
	$(PY) tools/wheel_tests.py $(RAY_ENV) --tests tests/with_ray

test-gymnasium: $(LEARNERS_ENV)/.wheel-done ## test the recorders for Gymnasium, four minutes
	$(PY) tools/wheel_tests.py $(LEARNERS_ENV) --tests tests/with_gymnasium

test-torch: $(LEARNERS_ENV)/.wheel-done ## test batches as tensors of PyTorch, two minutes (its packages take 5.5 GB)
	$(PY) tools/wheel_tests.py $(LEARNERS_ENV) --tests tests/with_torch

test-sb3: $(LEARNERS_ENV)/.wheel-done ## test the replay buffer for Stable-Baselines3
	$(PY) tools/wheel_tests.py $(LEARNERS_ENV) --tests tests/with_sb3

test-torchrl: $(LEARNERS_ENV)/.wheel-done ## test the replay buffer for TorchRL, with collectors in other processes
	$(PY) tools/wheel_tests.py $(LEARNERS_ENV) --tests tests/with_torchrl

test-transferqueue: $(LEARNERS_ENV)/.wheel-done ## test TransferQueue's names, ours and TransferQueue's own, with Ray
	$(PY) tools/wheel_tests.py $(LEARNERS_ENV) --tests tests/with_transfer_queue

test-jax: $(JAX_ENV)/.wheel-done ## test batches as arrays of JAX on eight devices of the CPU
	$(PY) tools/wheel_tests.py $(JAX_ENV) --tests tests/with_jax

test-datasets: $(DATASETS_ENV)/.wheel-done ## test imports and exports with Minari, Hugging Face, RLDS and LeRobot, a minute (its packages take 3 GB)
	$(PY) tools/wheel_tests.py $(DATASETS_ENV) --tests tests/with_datasets tests/importing

test-integrations: $(INTEGRATIONS:%=.venvs/%/.wheel-done) ## TF-Agents' and Acme's own tests over the wheel, and buffers for others (an hour; QUICK=1: minutes)
	$(PY) tools/integration_tests.py $(if $(QUICK),--quick) $(INTEGRATIONS:%=.venvs/%)

lint: setup ## the fast part of `make check`: formatting and ruff; .pre-commit-config.yaml runs it
	cargo fmt --all --check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

lines: ## count lines of Rust and Python by room, and name the long files; AT=REVISION counts another one
	@$(PYTHON) tools/count_lines.py $(if $(AT),--at $(AT))

check: lint build ## formatting, lints, types, stubs, generated code, links of the Rust docs, architecture
	cargo clippy --workspace --all-targets -- -D warnings
	$(MAKE) docs-rust
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -m mypy
	$(PY) -m mypy.stubtest $(STUBTEST_OPTIONS) reverb.core._native
	$(MAKE) proto
	git diff --exit-code -- $(GENERATED)
	$(PY) tools/generate_clients.py --check
	$(PYTEST) tests/package/test_architecture.py

fix: setup ## repair formatting and the lints that can repair themselves
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

proto: ## rewrite the generated code from reverb/core/wire/proto/*.proto
	cargo run --quiet --package regenerate-protos

clients: setup ## rewrite the methods that both clients have from reverb/_client/*calls.py
	$(PY) tools/generate_clients.py

figures: ## rewrite the tables of docs/performance.md from benchmarks/figures.json
	$(PYTHON) tools/performance_page.py

bench: $(BENCH_ENV)/.wheel-done $(PEER_DONE) ## measure the wheel beside dm-reverb 0.14 (two hours; BENCH='--quick')
	$(PY) benchmarks/bench.py --package-python ours=$(BENCH_ENV)/bin/python \
		--package-python peer=$(PEER)/bin/python $(BENCH)

# The environment is mostly downloads, so it is made while the compiler works.
demo: ## learn CartPole with TF-Agents; a picture in demo_output/
	$(MAKE) --jobs=2 $(TF_AGENTS_ENV)/.wheel-done
	$(TF_AGENTS_ENV)/bin/python examples/tf_agents_dqn.py $(DEMO)

demo-numpy: build ## learn CartPole with actors, a server and a learner, without TensorFlow
	$(PY) examples/cartpole_dqn.py $(DEMO)

demo-acme: $(ACME_ENV)/.wheel-done ## learn CartPole with Acme
	$(ACME_ENV)/bin/python examples/acme_dqn.py $(DEMO)

demo-ray: $(RAY_ENV)/.wheel-done ## learn CartPole on a Ray cluster with four shards, one of which is killed
	$(RAY_ENV)/bin/python examples/ray_dqn.py $(DEMO)

demo-torch: $(LEARNERS_ENV)/.wheel-done ## learn CartPole with PyTorch and Gymnasium
	$(LEARNERS_ENV)/bin/python examples/torch_dqn.py $(DEMO)

demo-grpo: $(LEARNERS_ENV)/.wheel-done ## a language model learns to add by GRPO (DEMO=--chaos: while processes are killed)
	$(LEARNERS_ENV)/bin/python examples/grpo_arithmetic.py $(DEMO)

demo-sb3: $(LEARNERS_ENV)/.wheel-done ## learn CartPole with prioritized DQN of Stable-Baselines3
	$(LEARNERS_ENV)/bin/python examples/sb3_prioritized_dqn.py $(DEMO)

demo-jax: $(JAX_ENV)/.wheel-done ## learn CartPole with JAX and Gymnasium
	$(JAX_ENV)/bin/python examples/jax_dqn.py $(DEMO)

# What is installed first is not installed by two of them at once.
demo-quick: build $(TF_AGENTS_ENV)/.wheel-done $(ACME_ENV)/.wheel-done $(RAY_ENV)/.wheel-done $(JAX_ENV)/.wheel-done ## all demos with a small budget, for CI
	$(MAKE) --jobs=2 demo demo-numpy demo-acme demo-ray demo-jax DEMO='--budget quick'

# Executed copies are what `make docs` shows; those with small settings are not worth showing.
RUN_NOTEBOOKS := $(if $(REVERB_NOTEBOOK_QUICK),,--executed notebooks/executed)
ALL_NOTEBOOKS := $(addprefix notebooks-in-,tensorflow tf-agents acme jax datasets $(if $(REVERB_NOTEBOOK_QUICK),,learners))
notebooks: $(ALL_NOTEBOOKS) ## run notebooks/, each in the environment that it names

notebooks-in-tensorflow: $(NOTEBOOK_DONE) $(NOTEBOOK_ENV)/.wheel-done
	$(NOTEBOOK_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment tensorflow $(NOTEBOOKS)

notebooks-in-tf-agents: $(TF_AGENTS_ENV)/.wheel-done
	$(TF_AGENTS_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment tf-agents $(NOTEBOOKS)

notebooks-in-acme: $(ACME_ENV)/.wheel-done
	$(ACME_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment acme $(NOTEBOOKS)

notebooks-in-jax: $(JAX_ENV)/.wheel-done
	$(JAX_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment jax $(NOTEBOOKS)

notebooks-in-datasets: $(DATASETS_ENV)/.wheel-done
	$(DATASETS_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment datasets $(NOTEBOOKS)

notebooks-in-learners: $(LEARNERS_ENV)/.wheel-done
	$(LEARNERS_ENV)/bin/python tools/run_notebooks.py $(RUN_NOTEBOOKS) --environment learners $(NOTEBOOKS)

notebooks-quick: $(NOTEBOOK_DONE) $(NOTEBOOK_ENV)/.wheel-done $(TF_AGENTS_ENV)/.wheel-done $(ACME_ENV)/.wheel-done $(JAX_ENV)/.wheel-done $(DATASETS_ENV)/.wheel-done ## run notebooks/ with small settings, for CI (not those for PyTorch, whose packages are large)
	REVERB_NOTEBOOK_QUICK=1 $(MAKE) --jobs=2 notebooks

docs: docs-pages docs-rust ## build the documentation into site/ (EXECUTED=1: run the notebooks first, for their output)
	cp -R target/doc site/rust
	$(PY) tools/check_site.py site

# Every warning is an error: a dead link, a public name without a page, a docstring that does not parse.
docs-pages: build $(DOCS_DONE) $(if $(EXECUTED),notebooks)
	rm -rf site
	PYTHONPATH=. $(DOCS_ENV)/bin/python -m sphinx --fail-on-warning --keep-going --nitpicky --fresh-env \
		--quiet --builder html --doctree-dir target/doctrees docs site
	rm -rf jupyter_execute

# A part of `check` too: a name that goes may leave a link to it in a comment.
docs-rust:
	RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' \
		cargo doc --workspace --no-deps --document-private-items

wheel: $(WHEEL_DONE) ## build the wheel into dist/ and check what it holds
	$(PYTEST) --noconftest -m 'not slow' tests/package/test_wheel.py

CONFORMANCE_PYTHONS := REVERB_PEER_PYTHON=$(CURDIR)/$(PEER)/bin/python \
	REVERB_OURS_TF_PYTHON=$(CURDIR)/.venvs/tf-$(PEER_TF)/bin/python
conformance: build $(PEER_DONE) .venvs/tf-$(PEER_TF)/.wheel-done ## compare with the released dm-reverb 0.14, both ways (STORE=1: with a store as in test-store)
	$(CONFORMANCE_PYTHONS) $(PYTEST) tests -m conformance $(if $(STORE),--forgetting-store)

PROGRAMS := 2000
differential: build $(PEER_DONE) .venvs/tf-$(PEER_TF)/.wheel-done ## run random programs on both (an hour; PROGRAMS=200 SEED=1)
	$(CONFORMANCE_PYTHONS) $(PY) tests/conformance/differential/differential.py \
		--programs $(PROGRAMS) $(if $(SEED),--seed $(SEED))

clean: ## remove everything that make made, environments included
	rm -rf target $(VENV) .venvs dist site notebooks/executed demo_output benchmarks/results \
		.pytest_cache .ruff_cache .mypy_cache .hypothesis
	find reverb tests benchmarks examples tools -name __pycache__ -prune -exec rm -rf {} +
	rm -f reverb/core/_native*.so $(SHIM) docs/tutorials/*.ipynb

# ---- What the targets above stand on --------------------------------------------------------------

# Downloads and unpacks what later steps of .ci/run need, while the compiler works.
environments: $(TF:%=.venvs/tf-%/.setup-done) $(INTEGRATIONS:%=.venvs/%/.setup-done) $(NOTEBOOK_DONE) \
	$(RAY_ENV)/.setup-done $(JAX_ENV)/.setup-done $(DATASETS_ENV)/.setup-done $(DOCS_DONE)

# Installs the wheel into the environments of these, so that steps beside each other install nothing.
installed-wheels: $(TF:%=.venvs/tf-%/.wheel-done) $(INTEGRATIONS:%=.venvs/%/.wheel-done) \
	$(RAY_ENV)/.wheel-done $(JAX_ENV)/.wheel-done $(DATASETS_ENV)/.wheel-done

# Compiles the Rust tests without running them; .ci/run does that beside the build.
rust-tests:
	$(PYTHON) tools/rust_tests.py --no-run

INSTALL := $(PY) tools/install.py

$(SETUP_DONE): pyproject.toml tools/install.py
	[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(VENV) --extras test,lint,demo
	touch $@

$(BUILD_DONE): $(SETUP_DONE) $(RUST_SOURCES)
	$(PY) -m maturin develop --release
	touch $@

$(SHIM): $(SHIM_SOURCES) | $(SETUP_DONE)
	$(PY) tools/build_backend.py

$(WHEEL_DONE): $(SETUP_DONE) $(SHIM) $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf dist
	$(PY) -m maturin build --release --out dist
	touch $@

$(TF_SETUPS): .venvs/tf-%/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(TF_PYTHON) --extras test '$(TF_PACKAGE)==$*.*'
	touch $@

# What the package depends on is there already; only the package itself is exchanged.
$(TF_WHEELS) $(PYTHON_WHEELS) $(INTEGRATION_WHEELS) $(RAY_ENV)/.wheel-done $(LEARNERS_ENV)/.wheel-done $(JAX_ENV)/.wheel-done $(DATASETS_ENV)/.wheel-done: %/.wheel-done: %/.setup-done $(WHEEL_DONE)
	$*/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
		dist/*.whl
	touch $@

$(NOTEBOOK_DONE): $(NOTEBOOK_ENV)/.setup-done
	$(INSTALL) $(NOTEBOOK_ENV) --extras notebooks
	touch $@

$(INTEGRATION_SETUPS): .venvs/%/.setup-done: tests/integrations/requirements/%.txt $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(TF_PYTHON) --pins $(<:.txt=)
	touch $@

$(RAY_ENV)/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras test,ray,demo
	touch $@

$(LEARNERS_ENV)/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras test,gymnasium,torch,sb3,torchrl,transferqueue,learners,notebooks
	touch $@

$(JAX_ENV)/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras test,gymnasium,jax,jax-demo,notebooks
	touch $@

$(DATASETS_ENV)/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras test,minari,hf,rlds,lerobot,notebooks \
		'$(TF_PACKAGE)>=2.18' 'minari[create]'
	touch $@

$(PYTHON_SETUPS): .venvs/%/.setup-done: $(SETUP_DONE)
	$(INSTALL) $(@D) --python $* --extras test
	touch $@

$(RELEASE_SETUP): $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras release
	touch $@

$(DOCS_DONE): $(SETUP_DONE)
	$(INSTALL) $(@D) --python $(PYTHON) --extras docs
	touch $@

$(PEER_DONE): benchmarks/peer/setup.sh benchmarks/peer/requirements.txt
	benchmarks/peer/setup.sh $(PEER)
	touch $@
