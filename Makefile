# `make` alone lists what there is. `make demo` and `make test` work on a fresh machine: they make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := build/venv-bench
BROWSER := build/venv-browser
RAY := build/venv-ray
SB3 := build/venv-sb3
D3RLPY := build/venv-d3rlpy
WANDB := build/venv-wandb
NOTEBOOK := build/venv-notebook
PIP_INSTALL := -m pip install -q --disable-pip-version-check
# SBX and Stable-Baselines3 need PyTorch. Pinned, so that pip takes a CPU build where one is at hand and not the newest
# with its CUDA packages.
TORCH := torch==2.13.0
# Its theme announces a successor in every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
FIGURES := performance summary cut-points step-reward feedback proxy-reward heatmap credit

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo venv test check docs format browser-test ray-test wandb-test sb3-test sb3-peers bench peers \
	synthetic fuzz soak soak-long cartpole watch-repair turns notebook data-test data-bench figures campaign figures-small constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv ## train InvertedPendulum-v5 from one number per episode and show the curve (a few minutes)
	$(BIN)/diaster demo

test: check ## the same as check; this is what .ci/run calls

check: venv ## every check, the quick ones first: format, lint, types, docs, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MKDOCS) build
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

venv: $(VENV)/.installed ## make .venv and install the package in it, ready to edit

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

docs: venv ## build the site with warnings as errors and links checked; it is in build/site
	$(MKDOCS) build
	@echo "open build/site/index.html, or with a search: $(BIN)/mkdocs serve"

format: venv ## format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

browser-test: $(BROWSER)/.installed ## the report's page in a real browser; needs Chromium, CHROMIUM=... names another one
	$(BROWSER)/bin/python -m pytest tests/analysis/test_report_in_a_browser.py -rs

$(BROWSER)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BROWSER)
	$(BROWSER)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[browser]'
	@touch $@

bench: $(BENCH)/.installed ## measure steps per second, compared with SBX's SAC (in an environment of its own)
	$(BENCH)/bin/python benchmarks/throughput.py

$(BENCH)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python $(PIP_INSTALL) -c constraints.txt '$(TORCH)'
	$(BENCH)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[bench]'
	@touch $@

ray-test: $(RAY)/.installed ## a sweep on a Ray cluster of two nodes, one of which is killed midway (an environment of its own)
	$(RAY)/bin/python -m pytest -W ignore tests/sweep/test_launch_ray.py

$(RAY)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[dev,ray]'
	@touch $@

wandb-test: $(WANDB)/.installed ## a run logged with Weights & Biases, offline (an environment of its own)
	$(WANDB)/bin/python -m pytest -W ignore tests/training/test_wandb_log.py

$(WANDB)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(WANDB)
	$(WANDB)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[dev,wandb]'
	@touch $@

sb3-test: $(SB3)/.installed ## the replay buffer with Stable-Baselines3 and SBX themselves (an environment of its own)
	$(SB3)/bin/python -m pytest tests/sb3

sb3-peers: $(SB3)/.installed ## SBX's SAC with our replay buffer compared with our own SAC, three seeds (an hour or two)
	$(SB3)/bin/python benchmarks/sb3_peers.py

$(SB3)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SB3)
	$(SB3)/bin/python $(PIP_INSTALL) -c constraints.txt '$(TORCH)'
	$(SB3)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[dev,sb3,bench]'
	@touch $@

peers: $(BENCH)/.installed ## our agents compared with SBX's on dense rewards, three seeds (an hour; all cores)
	$(BENCH)/bin/python benchmarks/peers.py

synthetic: venv ## recover known step rewards from totals alone, default and paper (two minutes)
	$(BIN)/python benchmarks/synthetic.py

fuzz: venv ## 5,000 damaged runs, checkpoints, recordings and sweeps: each is read or refused in a sentence (ten minutes)
	$(BIN)/python benchmarks/fuzz.py
	DIASTER_FUZZ=5000 $(BIN)/python -m pytest tests/rundir/test_fuzzing.py

soak: venv ## kill runs at random moments, resume them and compare all bytes (at most ten minutes)
	$(BIN)/python benchmarks/soak.py

soak-long: venv ## the same with workers and environments killed too, faults, a full disk, and memory (an hour; root)
	$(BIN)/python benchmarks/soak_long.py

cartpole: venv ## episodic CartPole-v1 with Diaster and DQN, five seeds (under five minutes)
	$(BIN)/diaster train CartPole-v1 --agent dqn --steps 60000 --seeds 5 --method.updates 50 \
		--agent.annealing-updates 28000 --agent.exploration-steps 4000 --evaluation.every 3000

watch-repair: venv ## Diaster, RUDDER and TD on the watch-repair problem, ten seeds (a few minutes)
	mkdir -p build
	$(BIN)/python examples/watch_repair.py --out build/watch-repair.png

turns: venv ## credit for the turns of a synthetic agent, compared with uniform and discounted credit (under two minutes)
	mkdir -p build
	$(BIN)/python examples/turns.py --out build/turns.png

notebook: $(NOTEBOOK)/.installed ## run examples/first_steps.ipynb from top to bottom (in an environment of its own; under five minutes)
	$(NOTEBOOK)/bin/jupyter execute examples/first_steps.ipynb --output ../build/first_steps.ipynb --timeout 900
	@echo "wrote build/first_steps.ipynb, with what its cells show"

$(NOTEBOOK)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NOTEBOOK)
	$(NOTEBOOK)/bin/python $(PIP_INSTALL) -c constraints.txt -e '.[notebook]'
	@touch $@

data-bench: venv ## fit and relabel a data set of 10 million steps: memory and steps per second (ten minutes, 2 GB of disk)
	$(BIN)/python benchmarks/datasets.py

data-test: venv $(D3RLPY)/.installed ## a relabelled Minari data set trains in d3rlpy (in an environment of its own)
	mkdir -p build/minari
	MINARI_DATASETS_PATH=$(CURDIR)/build/minari $(BIN)/python benchmarks/in_d3rlpy.py make
	MINARI_DATASETS_PATH=$(CURDIR)/build/minari $(D3RLPY)/bin/python benchmarks/in_d3rlpy.py train

$(D3RLPY)/.installed:
	$(PYTHON) -m venv $(D3RLPY)
	$(D3RLPY)/bin/python $(PIP_INSTALL) '$(TORCH)'
	$(D3RLPY)/bin/python $(PIP_INSTALL) 'd3rlpy==2.8.1' 'minari[hdf5]==0.5.4' pillow
	@touch $@

figures: venv ## draw the pictures of README and docs again, from the runs kept in results/ (under two minutes)
	$(BIN)/python benchmarks/figures.py

campaign: venv ## train the comparisons of the paper into results/; finished cells are skipped (days; for GPUs)
	@set -e; for name in xqc sac paper; do \
		$(BIN)/diaster sweep experiments/campaign-$$name.toml --out results/campaign-$$name --gpus 0.125; \
	done

figures-small: venv ## train the small twins in experiments/ and draw their figures (a few minutes each on 2 cores)
	@set -e; for name in $(FIGURES); do \
		$(BIN)/diaster sweep experiments/$$name-small.toml --out build/figures/$$name-small; \
		$(BIN)/diaster figure $$name build/figures/$$name-small -o build/figures/$$name.png; \
	done

constraints: ## renew constraints.txt with the newest versions that pyproject.toml allows
	rm -rf build/venv-constraints
	$(PYTHON) -m venv build/venv-constraints
	build/venv-constraints/bin/python $(PIP_INSTALL) -e '.[dev]'
	{ grep '^#' constraints.txt; build/venv-constraints/bin/python -m pip list --disable-pip-version-check \
		--format=freeze --exclude-editable --exclude pip --exclude setuptools; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/venv-constraints

clean: ## remove what make has made; runs stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
