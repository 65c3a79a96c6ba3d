# The commands for daily work. `make help` lists them.

BUILD := build

.PHONY: help demo program python package build test test-all test-asan test-light docs docs-links docs-test fuzz lint format clean bootstrap

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: program ## set everything up, tune the demo model on two ranks over a modelled 1 Gbit/s link
	$(BUILD)/firkin tune --ranks 2 --link 1gbit --blocks 6 --compare --cap 4MiB,16MiB --time 1m

program: bootstrap ## build/firkin, and the library that is installed
	@test -f $(BUILD)/build.ninja || cmake --preset release -DFIRKIN_BUILD_TESTS=OFF
	cmake --build $(BUILD) --target firkin firkin_library

build: ## build/firkin and the tests
	@tools/bootstrap test
	@grep -qs '^FIRKIN_BUILD_TESTS:BOOL=ON' $(BUILD)/CMakeCache.txt || cmake --preset release -DFIRKIN_BUILD_TESTS=ON
	cmake --build $(BUILD)

test: build ## build, and test every behaviour once
	tools/test $(BUILD) $(TEST_FLAGS)

test-all: test ## and full products, long runs, packaging
	@tools/bootstrap test-all
	tools/test $(BUILD) --full

test-asan: ## both tiers but Python's and packaging, under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/bootstrap test-all
	cmake --preset asan
	cmake --build --preset asan
	tools/test build-asan
	tools/test build-asan --full

test-light: ## only the modules without LibTorch, and their tests
	@tools/bootstrap test
	cmake --preset light
	cmake --build --preset light
	ctest --preset light -j 4

python: ## the Python package with its engine for the torch in .venv (or in $FIRKIN_PYTHON's environment), installed there
	@tools/bootstrap python
	FIRKIN_PYTHON_ENGINE=1 $(or $(FIRKIN_PYTHON),.venv/bin/python) -m pip install --disable-pip-version-check --no-build-isolation .

package: program ## source distribution, wheels, and a tarball of program, headers and libraries, in build-package
	@tools/bootstrap python
	FIRKIN_BUILD=$(BUILD) tools/package

SITE := build-docs

docs: ## the documentation site, in build-docs/html (Python's reference and the commands' help only after make build); warnings are errors
	@tools/bootstrap docs
	@mkdir -p $(SITE)
	FIRKIN_DOCS_BUILD=$(SITE) doxygen docs/site/Doxyfile
	PYTHONPATH=$(BUILD)/python FIRKIN=$(CURDIR)/$(BUILD)/firkin FIRKIN_DOCS_BUILD=$(CURDIR)/$(SITE) .venv/bin/sphinx-build -W --keep-going -q -c docs/site -d $(SITE)/doctrees . $(SITE)/html
	@echo "open $(SITE)/html/index.html"

docs-links: docs ## and where its links to other sites lead; needs a network
	FIRKIN_DOCS_BUILD=$(CURDIR)/$(SITE) .venv/bin/sphinx-build -b linkcheck -q -c docs/site -d $(SITE)/doctrees . $(SITE)/links

docs-test: docs ## and its pages in a browser, wide and narrow; its search, its prose
	FIRKIN_SITE=$(SITE)/html .venv/bin/python -m pytest tests/docs/site_test.py tests/docs/prose_test.py

FUZZ_SECONDS := 600

fuzz: ## fuzz every reader of files for FUZZ_SECONDS (600) in all; needs Clang 16 or later
	tools/fuzz $(FUZZ_SECONDS)

bootstrap: ## install what the program needs
	@tools/bootstrap

lint: build ## findings of Ruff, mypy, clang-format and clang-tidy on our own code, as CI looks for them
	@tools/bootstrap dev
	tools/lint --python $(BUILD)
	tools/lint $(BUILD)

format: ## clang-format on our own code
	git ls-files '*.cpp' '*.h' | xargs clang-format -i

clean: ## remove build folders
	rm -rf build build-*
