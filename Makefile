# The tasks that people type; CMakeLists.txt is the build. `make help` lists them.
BUILD ?= build
PREFIX ?= /usr/local
ARGS ?=
PEERS ?= torch,onnxruntime

all: ## build the library and the command: build/libattn.so, build/libattn.a, build/attn
	@scripts/build.sh $(BUILD)

setup: ## install what is missing on this machine (Debian packages, a Python environment under build/)
	@scripts/setup.sh build check

demo: ## set up, build, run attention on real input and verify it
	@scripts/setup.sh build
	@scripts/build.sh $(BUILD)
	@scripts/demo.sh $(BUILD)

check: ## set up, build, run every check; ARGS="-R NAME" for some, ARGS="-L LABEL" for one kind
	@scripts/setup.sh build check
	@scripts/check.sh $(BUILD) $(ARGS)

check-cuda: all ## check the CUDA device, on a machine with a GPU; ARGS="device problems" for some of the steps
	@scripts/setup.sh build check
	@scripts/build.sh $(BUILD) -DATTN_BUILD_CHECKS=ON -DATTN_WITH_CUDA=ON
	@scripts/check_cuda.sh $(BUILD) $(ARGS)

bench: all ## verify and time every case beside PyTorch and ONNX Runtime; ARGS="--case D2 --type bf16" for some, PEERS=none for ours alone
	@scripts/bench.sh $(BUILD) "$(PEERS)" $(ARGS)

bench-python: all ## what Python adds to a call, and libattn.torch beside PyTorch; ARGS="--case D2 --type bf16" for some
	@scripts/bench_python.sh $(BUILD) $(ARGS)

format: ## lay out every C file by .clang-format
	@scripts/setup.sh check
	@scripts/format.sh

install: all ## install below PREFIX (/usr/local), or DESTDIR in front of it
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove everything that was built
	rm -rf build $(BUILD)

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: all setup demo check check-cuda bench bench-python format install clean help
