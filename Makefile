# Aliases for what people run often. Each line works by hand, too.

GO ?= go
PYTHON ?= python3
ENVOY = .tools/envoy-1.40.0/envoy
CONSUL = .tools/consul-1.20.1/consul
CASES ?= ../shared/cases
LINT = $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(COMMIT)

.PHONY: build
build: ## the one binary, bin/fairlead
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/fairlead ./cmd/fairlead

.PHONY: tools
tools: ## the Envoys, the Consul, the OpenTelemetry Collector, the Prometheus, and the nft, dnsmasq, systemd-resolved, Redis and editors that tests run
	$(PYTHON) tools/envoy/install.py
	GO=$(GO) $(PYTHON) tools/consul/install.py
	GO=$(GO) $(PYTHON) tools/otelcol/install.py
	GO=$(GO) $(PYTHON) tools/prometheus/install.py
	$(PYTHON) tools/nftables/install.py
	$(PYTHON) tools/dnsmasq/install.py
	$(PYTHON) tools/resolved/install.py
	$(PYTHON) tools/redis/install.py
	$(PYTHON) tools/editors/install.py

.PHONY: demo
demo: build ## a mesh of four hosts on this machine, until Ctrl-C
	$(PYTHON) tools/envoy/install.py 1.40.0
	CGO_ENABLED=0 $(GO) build -o bin/quickstart-app ./examples/quickstart/app
	@$(PYTHON) examples/quickstart/demo.py --envoy $(ENVOY)

.PHONY: demo-consul
demo-consul: build ## a Consul fleet of five hosts on this machine and its mesh, until Ctrl-C
	$(PYTHON) tools/envoy/install.py 1.40.0
	GO=$(GO) $(PYTHON) tools/consul/install.py
	CGO_ENABLED=0 $(GO) build -o bin/quickstart-app ./examples/quickstart/app
	@$(PYTHON) examples/consul-fleet/demo.py --envoy $(ENVOY) --consul $(CONSUL)

.PHONY: test
test: tools ## every test, those with real Envoys included, and all the others again with the race detector
	FAIRLEAD_E2E=1 GO=$(GO) tools/test.sh -timeout 20m
	FAIRLEAD_E2E=1 GO=$(GO) MODULE=bench/fleet tools/test.sh -timeout 5m
	GO=$(GO) tools/test.sh -short -race -timeout 15m
	GO=$(GO) MODULE=bench/fleet tools/test.sh -short -race -timeout 5m

.PHONY: soak
soak: tools ## the tests that a change touches, RUNS (20) times with the race detector beside a load; BASE=COMMIT to compare with, ONLY=DIR for some packages, LIST=1 to see which
	$(GO) run ./internal/soak $(if $(BASE),-base '$(BASE)') $(if $(RUNS),-runs '$(RUNS)') $(if $(LOAD),-load '$(LOAD)') $(if $(ONLY),-only '$(ONLY)') $(if $(LIST),-list)

.PHONY: fleet
fleet: build ## the programs that measure, bin/fleet and bin/peers
	$(GO) build -C bench/fleet -o $(CURDIR)/bin/fleet .
	$(GO) build -C bench/peers -o $(CURDIR)/bin/peers .

.PHONY: bench
bench: fleet ## measure bench/SCALE.md anew and compare with the baseline, under a quarter of an hour
	$(PYTHON) tools/envoy/install.py 1.40.0
	FAIRLEAD_E2E=1 BENCH_ONLY=idle BENCH_FIGURES=$(CURDIR)/bin/figures.json $(GO) test -run '^$$' -bench Figures -benchtime 1x ./bench
	bin/fleet table -quickstart bin/figures.json $(BENCH)

.PHONY: bench-quickstart
bench-quickstart: tools ## measure bench/RESULTS.md anew, with real Envoys and a real Consul, six minutes
	FAIRLEAD_E2E=1 BENCH_RESULTS=$(CURDIR)/bench/RESULTS.md $(GO) test -run '^$$' -bench Figures -benchtime 1x -timeout 10m ./bench

.PHONY: bench-counting
bench-counting: tools ## measure what metrics, access logs and traces cost, with real Envoys, ten minutes
	FAIRLEAD_E2E=1 BENCH_COUNTING=$(CURDIR)/bench/COUNTING.md $(GO) test -run '^$$' -bench Counting -benchtime 1x -timeout 20m ./bench

.PHONY: bench-capture
bench-capture: tools ## measure what a request costs, direct, by a listener and captured (bench/CAPTURE.md), as root, ten minutes
	FAIRLEAD_E2E=1 BENCH_CAPTURE=$(CURDIR)/bench/CAPTURE.md $(GO) test -run '^$$' -bench Capture -benchtime 1x -timeout 30m ./bench

.PHONY: bench-dns
bench-dns: ## measure what DNS on a host costs (bench/DNS.md), two minutes
	BENCH_DNS=$(CURDIR)/bench/DNS.md $(GO) test -run '^$$' -bench Cost -benchtime 1x ./agent/dns

.PHONY: bench-envoy
bench-envoy: tools ## measure what manifests cost an Envoy (bench/ENVOY.md), with real Envoys, three minutes
	FAIRLEAD_E2E=1 BENCH_ENVOY=$(CURDIR)/bench/ENVOY.md $(GO) test -run '^$$' -bench Manifests -benchtime 1x ./xds/envoy

.PHONY: test-jaeger
test-jaeger: tools ## traces in a real Jaeger, which takes three minutes to build; not a part of `make test`
	GO=$(GO) $(PYTHON) tools/jaeger/install.py
	$(GO) vet -tags jaeger ./internal/e2e/traffic
	FAIRLEAD_E2E=1 $(GO) test -tags jaeger -run TestTracesInJaeger -count 1 ./internal/e2e/traffic

.PHONY: bench-worst
bench-worst: fleet ## measure the long worst cases of bench/WORST.md anew, a quarter of an hour
	bin/fleet table -long $(BENCH)

.PHONY: bench-consul
bench-consul: fleet tools ## measure bench/CONSUL.md anew: a real Consul with 100,000 instances, five minutes
	bin/fleet table -catalog -consul $(CONSUL) $(BENCH)

.PHONY: compat
compat: build tools ## compare with the answers of real Istio; CASES is a folder of them, ONLY=validation,reports some parts
	@test -d "$(CASES)" || { echo "make compat CASES=DIR: the folder with validation/ and routes/"; exit 2; }
	$(PYTHON) tools/compat.py --cases "$(CASES)" --fairlead bin/fairlead --envoy $(ENVOY) $(if $(ONLY),--only '$(ONLY)')

.PHONY: outdated
outdated: ## fail if a newer minor release of Istio's API has been there for 30 days; needs the network
	$(GO) test -tags outdated -count 1 -run TestAPIIsNewest ./registry/manifest/schema

.PHONY: istiod-record
istiod-record: ## record anew what real istiod makes of the golden meshes; needs the network, minutes the first time
	cd internal/istiod/record && $(GO) run . ../testdata

.PHONY: mutants
mutants: ## mutation test of cache keys, and of the steps that find what a change affects; FILE=REGEXP for some of them, an hour for all
	$(GO) run ./internal/mutants $(if $(FILE),-file '$(FILE)')

.PHONY: lint
lint: ## style, vet, tidiness
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(LINT) run ./...
	cd bench/fleet && $(GO) mod tidy -diff && $(GO) vet ./... && $(LINT) run ./...

.PHONY: format
format: ## rewrite the sources as the linter wants them
	$(LINT) fmt ./...

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -e 's/:.*## /\t/' | sort
