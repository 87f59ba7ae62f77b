# Targets of oncehouse. make without one shows them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

LINT_VERSION := v2.15.0
LINT := $(CURDIR)/.build/bin/golangci-lint-$(LINT_VERSION)
LOCAL := .build/oncehouse-local
# In node_modules, so that it goes with it.
SETUP := node_modules/.oncehouse-setup
# Packages with tests that need Apache Kafka (build tag integration).
INTEGRATION = $(shell grep -rl '^//go:build integration' --include='*_test.go' infra functions shared events | xargs -n1 dirname | sort -u | sed 's|^|./|')
# The rest of the tools are checked by the set-up, which is written in Go.
NEED_GO = command -v go >/dev/null || { echo "go is not installed: install Go 1.26 or later" >&2; exit 1; }
# Said before go is silent for so long.
COMPILING = echo "compiling ./infra/local: minutes the first time, then seconds"
FUZZTIME := 10s
SIZE := standard
SEEDS := 100000
RACE :=
ARGS :=

.PHONY: help
help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## Check the tools and install the npm packages (KAFKA=apache: Apache Kafka too)
	@$(NEED_GO)
	@$(COMPILING)
	go run ./infra/local setup
	@touch $(SETUP)

$(SETUP): package.json package-lock.json
	@$(NEED_GO)
	@$(COMPILING)
	go run ./infra/local setup
	@touch $@

.PHONY: build
build: ## Build every function as it is deployed, for arm64 and amd64: the same bytes from the same sources (VERSION=v1.2.3)
	@$(NEED_GO)
	@go run ./infra/build $(if $(VERSION),--version $(VERSION))

.PHONY: $(LOCAL)
$(LOCAL):
	@$(NEED_GO)
	@[ -x $@ ] || $(COMPILING)
	@go build -o $@ ./infra/local

.PHONY: demo
demo: $(SETUP) $(LOCAL) ## Prove the guarantees on a million records, under kills (ARGS="--records 100000")
	@exec $(LOCAL) demo $(ARGS)

.PHONY: model
model: ## Try every schedule of small worlds on the real machine (SIZE=large; ARGS="-world outbox -faults 2")
	go run ./shared/delivery/model -size $(SIZE) $(ARGS)

.PHONY: sim
sim: ## Try SEEDS random schedules per kind of table (100000); a failing one is shrunk, and its seed kept
	go test ./shared/delivery -run '^TestSimulation$$' -count=1 -timeout=0 -v -sim.seeds=$(SEEDS) $(ARGS)

.PHONY: mutants
mutants: $(SETUP) ## Switch each guard off: a named test must turn red (ARGS="-run window", ARGS=-list)
	go run ./infra/mutants $(ARGS)

.PHONY: torture
torture: $(SETUP) $(LOCAL) ## Kill everything by a schedule and count what is lost and doubled (ARGS="--kills 60 --controls 16"; KAFKA=apache)
	@exec $(LOCAL) torture $(ARGS)

.PHONY: local
local: $(SETUP) $(LOCAL) ## Run the whole stack until Ctrl-C (ARGS="--topic clicks"; KAFKA=apache or host:port)
	@exec $(LOCAL) up $(ARGS)

.PHONY: invoke
invoke: $(SETUP) $(LOCAL) ## Hand sample events to the real function (ARGS="events/poison.json")
	@exec $(LOCAL) invoke $(or $(ARGS),events/msk.json)

.PHONY: test
test: $(SETUP) ## Run the tests that need Go, Node.js and make only (RACE=1: with the race detector)
	go test $(if $(RACE),-race) -timeout 30m ./...

.PHONY: test-integration
test-integration: $(SETUP) ## Run the tests that need Apache Kafka too (Java 17, and Maven once), and strace
	go test -tags integration $(if $(RACE),-race) -timeout 30m $(INTEGRATION)
	go test -tags strace -run '^TestTokenHole$$' ./functions/sink/e2e

.PHONY: lint
lint: $(LINT) ## Run the linters
	$(LINT) run --allow-parallel-runners ./...
	cd infra/aws && $(LINT) run --allow-parallel-runners --config ../../.golangci.yml ./...

$(LINT):
	GOBIN=$(CURDIR)/.build/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv .build/bin/golangci-lint $@

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME (10s)
	grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' infra functions shared events | while IFS=: read -r file _ target; do \
		go test -run '^$$' -fuzz "^$${target#func }$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")"; \
	done

.PHONY: bench
bench: $(SETUP) ## Measure the sink against other ways (writes bench.json)
	go run ./infra/local/bench $(ARGS)

.PHONY: clean
clean: ## Remove what was built and the data of the local stack (not the downloads)
	rm -rf .build .cache/local .cache/demo .cache/torture .cache/invoke .cache/servers .cache/deploy-local bench.json

.PHONY: synth
synth: $(SETUP) ## Synthesise the CloudFormation templates of every example (cdk.out/<example>)
	for example in infra/aws/examples/*.yaml; do \
		npx cdk synth --quiet --context config=$$example --output cdk.out/$$(basename $$example .yaml); \
	done

.PHONY: deploy-local
deploy-local: $(SETUP) ## Deploy the CDK app to an AWS on loopback (moto), update it and destroy it (ARGS="-example …")
	cd infra/aws && go run ./deploylocal $(ARGS)

.PHONY: sam-servers
sam-servers: $(SETUP) $(LOCAL) ## Run ClickHouse, DynamoDB and SQS for sam local (ARGS="--listen 172.17.0.1" for Docker on Linux)
	@exec $(LOCAL) servers $(ARGS)

.PHONY: sam-check
sam-check: ## Ask SAM itself what it makes of the templates of make synth (needs aws-sam-cli, not Docker)
	python3 infra/aws/sam/check.py cdk.out/*/*.template.json

.PHONY: test-aws
test-aws: ## Run the tests of the CDK app (its first build takes minutes)
	cd infra/aws && go test -timeout 30m ./...
