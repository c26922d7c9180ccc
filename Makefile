# Entry points of the house. `make help` lists them.
.PHONY: help check test
help: ## Lists the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

check: ## Formatting, lints, house rules and all tests.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(MAKE) test

test: ## All tests.
	cargo test --workspace
