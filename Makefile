# pollux: a NAT gateway over AF_XDP. `make help` lists the targets.

GO       ?= go
SHELL    := /bin/bash
BIN      := bin/pollux
SUDO     := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
FUZZTIME ?= 30s
FUZZ     ?= .
BENCH    ?= .
BASE     ?= HEAD
PKG      ?= ./...
COUNT    ?= 6
SOAKTIME ?= 10m
SOAKPACKETS ?= 12000000
TESTTIME ?= 15m

# What the tests and the generator use beyond Go itself: the command or file to look for, and its Debian package.
NEEDS := ip:iproute2 nft:nftables iptables:iptables iperf3:iperf3 curl:curl ping:iputils-ping traceroute:traceroute promtool:prometheus nfcapd:nfdump systemd-analyze:systemd man:man-db \
         tmux:tmux clang:clang llvm-strip:llvm shellcheck:shellcheck /usr/include/bpf/bpf_helpers.h:libbpf-dev

.DEFAULT_GOAL := build
.PHONY: build help deps lint test unit checked integration bench bench-compare fuzz soak generate demo deb clean

build: ## build bin/pollux
	$(GO) build -trimpath -o $(BIN) ./cmd/pollux

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "Variables: FUZZTIME=$(FUZZTIME) FUZZ=$(FUZZ) BENCH=$(BENCH) BASE=$(BASE) PKG=$(PKG) COUNT=$(COUNT) SOAKTIME=$(SOAKTIME) SOAKPACKETS=$(SOAKPACKETS) TESTTIME=$(TESTTIME)"

deps: ## install the Debian packages that tests and `make generate` need (only those that are missing)
	@missing=; for n in $(NEEDS); do \
	  case $$n in /*) [ -e "$${n%%:*}" ];; *) PATH=$$PATH:/usr/sbin:/sbin command -v "$${n%%:*}" >/dev/null;; esac \
	  || missing="$$missing $${n##*:}"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing:$$missing"; \
	  $(SUDO) apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

lint: ## gofmt, go vet and staticcheck (pinned in tools/go.mod)
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt -w these:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

test: ## unit, property and integration tests (integration needs root and AF_XDP; skipped, saying why, without)
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory deps; fi
	@$(MAKE) --no-print-directory unit checked integration

unit: ## tests of the packages alone
	$(GO) test -count=1 -timeout $(TESTTIME) $$($(GO) list ./... | grep -v '^pollux/test$$')

checked: ## short tests of a build that stops whoever touches another worker's shard, or a frame twice
	$(GO) test -count=1 -timeout $(TESTTIME) -tags framecheck ./rings/ ./nat/ -run 'Thread|Twice|Pool|Frame|UMEM'
	$(GO) test -count=1 -timeout $(TESTTIME) -tags framecheck ./pmd/ -run 'Spray|InParallel|WrongQueue|ManyQueues'

# What crosses the lab and does not count on one queue: the same must be seen with four workers.
MANY := Traceroute|PassiveFTP|HairpinErrors|ShortConnections|BulkTCP|SecondConnection|PublishedPort|LargePackets|ThousandQueries|TwoHosts|PoolRunsDry|STUN|KernelListener|AliasFollows|NoPrivateSource

integration: ## tests of the built binary over AF_XDP in network namespaces, those of the NAT with 4 workers as well
	$(GO) test -count=1 -timeout $(TESTTIME) ./test/
	POLLUX_WORKERS=4 $(GO) test -count=1 -timeout $(TESTTIME) ./test/ -run '$(MANY)'

bench: ## benchmarks, as benchstat reads them (BENCH=regexp COUNT=n)
	$(GO) test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT) ./...

bench-compare: ## benchmarks of the working tree against a commit, run in turn (BASE=revision BENCH=regexp PKG=packages COUNT=n)
	@BENCH='$(BENCH)' PKG='$(PKG)' COUNT='$(COUNT)' GO='$(GO)' tools/bench-compare '$(BASE)'

fuzz: ## every fuzz target for FUZZTIME (FUZZ=regexp selects)
	@set -e -o pipefail; \
	{ grep -oHE '^func Fuzz[A-Za-z0-9_]*' $$(git ls-files '*_test.go') || true; } | sed 's/:func / /' | while read -r file name; do \
	  [[ $$name =~ $(FUZZ) ]] || continue; \
	  echo "fuzz $$name in $$(dirname $$file) for $(FUZZTIME)"; \
	  $(GO) test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=20x ./$$(dirname $$file) </dev/null; \
	done

soak: ## simulated networks for SOAKPACKETS; one-way load over 4 workers, a hostile spray over 2 to 8, mixed traffic with restarts, for SOAKTIME each
	$(GO) test -count=1 -v -timeout 0 -run '^TestSimulation$$' ./nat/ -nat.packets $(SOAKPACKETS)
	$(SUDO) env "PATH=$$PATH" POLLUX_ONEWAY=$(SOAKTIME) $(GO) test -count=1 -v -timeout 0 -run '^TestOneWayLoad$$' ./pmd/
	$(SUDO) env "PATH=$$PATH" POLLUX_SPRAY=$(SOAKTIME) $(GO) test -count=1 -v -timeout 0 -tags framecheck -run '^TestHostileSprayOverQueues$$' ./pmd/
	$(SUDO) env "PATH=$$PATH" POLLUX_SOAK=$(SOAKTIME) $(GO) test -count=1 -v -timeout 0 -run '^TestSoak$$' ./test/

generate: deps ## rebuild the XDP program and whatever else is generated and committed
	$(GO) generate ./...

demo: build ## see a NAT at work: three network namespaces, real traffic, AF_XDP (needs root)
	$(SUDO) $(BIN) demo

# Of the last tag, or 0.0 and the commit's date, with the commit: 0.0+20261130.1a2b3c4
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//; s/-/+/; s/-/./g' | grep . || git log -1 --date=format:%Y%m%d --format=0.0+%cd.%h)
MAINTAINER ?= pollux <root@localhost>

deb: ## build the Debian package bin/pollux_VERSION_ARCH.deb (VERSION=x.y MAINTAINER="name <address>")
	rm -rf bin/deb && mkdir -p bin/deb
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags=-s -o bin/deb/pollux ./cmd/pollux
	bin/deb/pollux man | gzip -9n > bin/deb/pollux.8.gz
	for shell in bash zsh fish; do bin/deb/pollux completion $$shell > bin/deb/completion.$$shell || exit 1; done
	printf 'pollux (%s) unstable; urgency=medium\n\n  * Built from %s.\n\n -- %s  %s\n' \
	   '$(VERSION)' "$$(git log -1 --format=%h)" '$(MAINTAINER)' "$$(git log -1 --format=%cD)" | gzip -9n > bin/deb/changelog.gz
	VERSION='$(VERSION)' MAINTAINER='$(MAINTAINER)' ARCH=$$($(GO) env GOARCH) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(GO) tool -modfile=tools/go.mod nfpm package --config deploy/nfpm.yaml --packager deb --target bin/

clean: ## remove what was built
	rm -rf bin
