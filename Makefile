# A thin front over Meson and scripts/: what a user types. `make help` lists it.
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
MODEL  ?=
KEEP   ?=

export BUILD MODEL KEEP JOBS

.DEFAULT_GOAL := build
.PHONY: build deps model demo test bench format install clean help

build: deps $(BUILD)/build.ninja ## install what is missing, then build build/sluice (the default)
	@ninja -C $(BUILD) -j $(JOBS) sluice

deps: ## install the packages the build needs (apt; sudo when not root)
	@scripts/deps build

$(BUILD)/build.ninja: | deps
	@meson setup $(BUILD) --prefix $(PREFIX) >$(BUILD)-setup.log 2>&1 && rm -f $(BUILD)-setup.log \
	    || { cat $(BUILD)-setup.log; rm -f $(BUILD)-setup.log; exit 1; }

model: ## fetch the demo model (SmolLM2-135M-Instruct, 98 MB) into the cache, checked by hash
	@scripts/deps model
	@scripts/model

demo: build ## ask a question through prefill, KV transfer, decode and proxy (KEEP=1, MODEL=path)
	@$(if $(MODEL),,scripts/deps model)
	@scripts/demo

test: ## build and run all tests: unit, sanitizers, layers, format, end to end
	@scripts/deps test
	@scripts/test

bench: build ## measure kernels, engine and KV transfer; each prints a bound from the same run
	@scripts/deps bench
	@grep -q HAVE_DNNL $(BUILD)/build.ninja || \
	    { meson configure --clearcache $(BUILD) && meson setup --reconfigure $(BUILD); } >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) bench/bench_coll bench/bench_compute bench/bench_experts bench/bench_gemm bench/bench_kv bench/bench_load bench/bench_tp
	@$(if $(MODEL),,scripts/deps model)
	@scripts/bench

format: ## lay out the C files as .clang-format says
	@scripts/format

install: build ## install sluice under PREFIX (default /usr/local)
	@meson setup --reconfigure $(BUILD) --prefix $(abspath $(PREFIX)) >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) sluice
	@meson install -C $(BUILD) --no-rebuild --tags runtime

clean: ## remove the build folders (the model stays in its cache)
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-clang

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  %-14s %s\n", $$1, $$2 }'
