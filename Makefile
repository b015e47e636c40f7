# Everything that is fetched or built is cached by version outside the clone, in $BERTH_CACHE.
BERTH_CACHE ?= $(HOME)/.cache/berth
CARGO_TARGET_DIR ?= $(BERTH_CACHE)/target
export BERTH_CACHE CARGO_TARGET_DIR

.DEFAULT_GOAL := help
.PHONY: help build pod opencode opencode-old run test soak kind-up e2e-kind kind-down check gen bench fmt clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build all programs, unoptimised
	cargo build --workspace

pod: ## build the programs that run in pods, small and static; prints their paths and sizes
	@cargo xtask pod-binaries

opencode: ## fetch the pinned opencode into the cache; prints its path
	@deploy/opencode/install.sh

opencode-old: ## fetch the oldest opencode that the tests run against; prints its path
	@deploy/opencode/install-old.sh

run: build opencode ## try it: one prompt through a real opencode with a scripted model, no key needed
	@scripts/demo.sh "$(CARGO_TARGET_DIR)/debug/berth"

test: opencode opencode-old ## run all tests, quick sizes; ends with "N passed, N failed"
	@cargo xtask test

soak: opencode opencode-old ## run all tests at full size, and write a report to docs/soak/
	@cargo xtask test --soak

kind-up: ## make a cluster of kind, in Docker, with Berth's images in it; BERTH_KUBERNETES picks the version
	@scripts/kind.sh up

e2e-kind: opencode ## run the end-to-end tests on that cluster
	@scripts/kind.sh test

kind-down: ## delete that cluster
	@scripts/kind.sh down

check: ## formatting, lints, generated files, licences, scripts, workflows, the tree
	@cargo xtask check

gen: ## write the generated files (CLI reference, OpenAPI document)
	@cargo xtask gen

bench: ## run the benchmarks, optimised
	@cargo xtask bench

fmt: ## format the code
	cargo fmt --all

clean: ## delete what was built; what was fetched stays in the cache
	cargo clean
