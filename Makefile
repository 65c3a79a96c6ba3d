# The daily commands. `make help` lists them.

BUILD := build

.PHONY: help demo build test test-asan test-light fuzz lint format clean bootstrap

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: build ## set everything up, tune the demo model on two ranks, write firkin-out/report.html
	$(BUILD)/firkin tune --ranks 2

build: bootstrap ## build/firkin and the tests
	@test -f $(BUILD)/build.ninja || cmake --preset release
	cmake --build $(BUILD)

test: build ## build and run all tests
	ctest --test-dir $(BUILD) --output-on-failure -j 2

test-asan: bootstrap ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan -j 2

test-light: ## only the rooms without LibTorch (builds in seconds)
	cmake --preset light
	cmake --build --preset light
	ctest --preset light -j 2

FUZZ_SECONDS := 600

fuzz: ## fuzz every reader of files for FUZZ_SECONDS (600) in all; needs Clang
	tools/fuzz $(FUZZ_SECONDS)

bootstrap: ## install what is missing
	@tools/bootstrap

lint: build ## clang-tidy on our own code
	tools/lint $(BUILD)

format: ## clang-format on our own code
	git ls-files '*.cpp' '*.h' | xargs clang-format -i

clean: ## remove build folders
	rm -rf build build-*
