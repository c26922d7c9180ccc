# Entry points of the house. `make help` lists them.
SHELL := /bin/bash
HOST := $(shell rustc -vV | sed -n 's/^host: //p')
STATIC := --profile static --target $(HOST) -p ambit-cni -p ambit-pause -p ambit-demo-app
# Folder from which the programs of a build run.
PROGRAMS := target/programs
PROGRAMS_DEBUG := target/programs-debug

.PHONY: help demo programs programs-debug packages check fmt lint tidy test test-clients bench deny

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: packages programs ## Start a cluster, check every promise of the mesh on it, clean up. KEEP=1 leaves it running; PROXY=PATH runs another node proxy.
	$(PROGRAMS)/ambit-demo --programs $(PROGRAMS) $(if $(KEEP),--keep) $(if $(PROXY),--proxy $(PROXY))

programs: ## Build the release programs into target/programs.
	cargo build --release -p ambit -p ambit-cluster-tests --bins
	RUSTFLAGS='-C target-feature=+crt-static' cargo build $(STATIC)
	@mkdir -p $(PROGRAMS)
	install target/release/ambit target/release/ambit-demo $(PROGRAMS)/
	install $(addprefix target/$(HOST)/static/,ambit-cni ambit-pause ambit-demo-app) $(PROGRAMS)/

programs-debug: ## Build the programs that the cluster test runs into target/programs-debug.
	cargo build --workspace --bins
	RUSTFLAGS='-C target-feature=+crt-static' cargo build $(STATIC)
	@mkdir -p $(PROGRAMS_DEBUG)
	install target/debug/ambit target/debug/ambit-demo $(PROGRAMS_DEBUG)/
	install $(addprefix target/$(HOST)/static/,ambit-cni ambit-pause ambit-demo-app) $(PROGRAMS_DEBUG)/

packages: ## Install the Debian packages that the cluster and its tests need.
	scripts/install-packages

check: fmt lint tidy test ## Formatting, lints, house rules and all tests: all that CI checks.

fmt: ## Formatting.
	cargo fmt --all --check

lint: ## Lints.
	cargo clippy --workspace --all-targets -- -D warnings

tidy: ## House rules: floors, file lengths, dead files, pure floors.
	cargo xtask tidy

test: packages programs-debug ## All tests, the whole demo among them (root).
	cargo test --workspace

test-clients: ## Other languages' clients against the API server: client-go (needs Go), Python. Fetches them first.
	cargo build -p ambit
	scripts/test-clients

bench: programs ## Benchmarks, as a table; `cargo run --release -p ambit-bench -- -o json` for machines.
	cargo run --release -p ambit-bench

deny: ## Licences and advisories of dependencies (needs cargo-deny).
	cargo deny check
