# Everything that people do with this tree. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help build package demo test soak mutations torture upgrade fuzz bench bench-repair bench-where bench-instructions bench-cores bench-deaths bench-files bench-peers posix fmt clippy

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary, target/release/weft
	@scripts/setup.sh --for build
	@scripts/build.sh

package: ## Build, and make a .deb and a .tar.gz in target/package; WEFT_MAINTAINER says whose
	@scripts/setup.sh --for build
	@scripts/build.sh
	@scripts/package.sh

demo: ## Watch real data live through the death of a node
	@scripts/demo.sh

test: ## Format check, lints, every test
	@scripts/test.sh

soak: ## Simulate fabrics with fresh seeds on all cores for MINUTES=10; LEDGER=target/soak/CODE.json counts them
	@scripts/setup.sh --for build
	@scripts/with-cargo.sh run --profile simulation-long --locked -p weft-sim -- soak --minutes $(or $(MINUTES),10) \
	  $(if $(LEDGER),--ledger $(LEDGER))

mutations: ## Break every rule of the protocol and of the drives in turn, and show who notices
	@scripts/setup.sh --for build
	@scripts/with-cargo.sh run --profile simulation --locked -p weft-sim -- mutations

torture: ## Real processes under faults for MINUTES=5, and a verdict on every acknowledged write
	@scripts/torture.sh $(or $(MINUTES),5)

upgrade: ## A fabric of the release before becomes one of this release under a checked load; OLD=BINARY is the weft of before
	@scripts/upgrade.sh $(OLD)

bench: ## Measure the data path beside the machine's own limit; writes bench.json
	@scripts/bench.sh

bench-repair: ## Measure resync, rebuild, scrubs and write amplification; writes repair.json and repair.html
	@scripts/bench-repair.sh

bench-where: ## Show where the processor time of requests goes, by layer; WHERE='--only 4K' is passed on; writes where.json
	@scripts/bench-where.sh $(WHERE)

bench-instructions: ## Count the instructions of a request, by layer; COUNT='--only 4K-d1' is passed on; writes instructions.json
	@scripts/bench-instructions.sh $(COUNT)

bench-cores: ## Measure what threads, parts and lanes cost and are worth; CORES='--only cost' is passed on; writes cores.json
	@scripts/bench-cores.sh $(CORES)

bench-deaths: ## Measure how long clients wait when a node dies; DEATHS='--only names --rounds 10' is passed on; writes deaths.json
	@scripts/bench-deaths.sh $(DEATHS)

bench-files: ## Measure names, data and small files of a file system; FILES='--only data' is passed on; writes files.json
	@scripts/bench-files.sh $(FILES)

bench-peers: ## Measure Weft beside other storage systems; PEERS='--as files --install --peer NAME' is passed on; writes peers.json
	@scripts/bench-peers.sh $(PEERS)

posix: ## Run suites and real programs on a mounted file system; POSIX='--only git' is passed on; writes docs/posix.md
	@scripts/posix.sh $(or $(POSIX),--markdown docs/posix.md)

fuzz: ## Try every decoder by coverage with bytes that nobody meant, for MINUTES=10 in all; TARGETS= names some
	@scripts/fuzz.sh --minutes $(or $(MINUTES),10) $(TARGETS)

fmt: ## Format the code
	@scripts/with-cargo.sh fmt --all

clippy: ## Lint the code, warnings denied
	@scripts/with-cargo.sh clippy --workspace --all-targets --locked -- -D warnings
