# The README begins with `make demo` and `make test`; the rest is for those who change the code.
SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(HOME)/.cache/pve-cloud/target
CARGO ?= cargo
CLUSTER ?=
FUZZ_SECONDS ?= 60
PVE_CONFIG ?=
VM ?=
ARCH ?= amd64,arm64
IMAGES ?=

.PHONY: help demo test replay sweep check build lint references forgeries nodes fmt deny fuzz tools images try-images clean-cache

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: build ## A volume's whole life; CLUSTER=1: in a real Kubernetes; PVE_CONFIG=file VM=<vmid>: on a real Proxmox
ifneq ($(CLUSTER),)
	@[ "$$(id -u)" = 0 ] || { echo "CLUSTER=1 needs root for loop devices and mounts" >&2; exit 1; }
	@echo "Kubernetes and its sidecars are built the first time: this takes minutes"
	tests/tools/build cluster >/dev/null
endif
	$(CARGO) run --quiet -p harness --bin demo -- $(if $(CLUSTER),--cluster) $(if $(PVE_CONFIG),--pve-config $(PVE_CONFIG)) $(if $(VM),--vm $(VM))

test: lint build ## Everything that this machine can run, with a summary
	$(CARGO) run --quiet -p harness --bin all-tests

replay: build ## How many recorded answers of a real PVE the simulator gives
	$(CARGO) test --quiet -p suites --test replay

sweep: build ## Every controller RPC with every fault at each of its requests, and how many cases that is
	$(CARGO) test --quiet -p suites --test 'sweep_*' -- --nocapture

forgeries: build ## Every controller RPC with every forged text, and how many cases that is
	$(CARGO) test --quiet -p suites --test forgery -- --nocapture

nodes: build ## The cloud-controller-manager on a real API server: chain, faults, costs, forged Nodes, replicas
	PVE_CLOUD_PEERS=$$(tests/tools/build) $(CARGO) test --quiet -p suites --test ccm --test cluster_chain --test fault_ledger -- --nocapture

check: ## The fast inner loop: format, lints, unit tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	$(CARGO) test --workspace --lib --quiet

build: ## All programs
	$(CARGO) build --workspace --bins --quiet

lint: ## Format, clippy, dependency rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	tests/dependencies

references: build ## Write docs/reference/*.md anew: privileges, parameters, config, metrics, flags
	UPDATE_REFERENCE=1 $(CARGO) test --quiet -p pve-client --test privileges
	UPDATE_REFERENCE=1 $(CARGO) test --quiet -p suites --test references

fmt: ## Format everything
	$(CARGO) fmt --all

deny: ## Licences, bans and sources of dependencies (needs cargo-deny)
	$(CARGO) deny --all-features check bans licenses sources

fuzz: ## Every parser for FUZZ_SECONDS (60) each, from the corpora below fuzz/
	fuzz/run $(FUZZ_SECONDS)

tools: ## The Go-built peers: control plane, kubelet, sidecars, helm, csi-sanity
	tests/tools/build

images: ## All images as OCI archives, without a container engine, checked; ARCH=amd64,arm64, IMAGES="name name"
	$(CARGO) run --quiet --release -p images -- build --arch $(ARCH) $(addprefix --only ,$(IMAGES))

try-images: ## Run the programs of the archives that `make images` made, in roots of their own (needs root)
	$(CARGO) run --quiet --release -p images -- try --arch $(ARCH) $(addprefix --only ,$(IMAGES))

clean-cache: ## Remove what was built outside the repository
	rm -rf $(HOME)/.cache/pve-cloud
