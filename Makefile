# The commands of this project. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
UV_VERSION := 0.13.9
# The installed uv if there is one, otherwise one that pip installs into .tools.
UV := $(or $(shell command -v uv),.tools/uv/bin/uv)
export UV_PYTHON_DOWNLOADS ?= never

BUDGET ?= 20
SEED ?= 0
RUNS ?= runs
# Number of files of tests at a time: one more than the cores, since some only wait for a moment, and five at most.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN) && echo $$((cores < 4 ? cores + 1 : 5)))
# Tests start hundreds of processes. Without bytecode, each of them compiles torch again, which doubles the time.
unexport PYTHONDONTWRITEBYTECODE

MEMBERS := core operator trainer-image agent-image cli lab

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.tools/uv/bin/uv:
	$(PYTHON) -m venv .tools/uv || { echo "hint: python3's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	.tools/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Which build of torch: that of the package index (CUDA on Linux) or, with TORCH=cpu, the one for CPUs alone, which is 4 GB
# smaller. Later targets remember the choice.
TORCH ?= $(shell cat .venv/.torch 2>/dev/null)
locked = $(1)==$(shell sed -n '/^name = "$(1)"$$/{n;s/version = "\(.*\)"/\1/p}' uv.lock)
ifeq ($(TORCH),cpu)
WITHOUT := torch torchvision triton $(shell sed -nE 's/^name = "((cuda|nvidia)-.*)"/\1/p' uv.lock)
endif
SYNC = $(UV) sync --locked $(addprefix --no-install-package ,$(WITHOUT))

.venv/.ready: uv.lock pyproject.toml $(MEMBERS:%=%/pyproject.toml) | $(filter .tools/%,$(UV))
	$(SYNC) --python $(PYTHON)
	$(if $(WITHOUT),$(UV) pip install --python .venv --torch-backend cpu $(call locked,torch) $(call locked,torchvision))
	@echo $(TORCH) >.venv/.torch
	@touch $@

.PHONY: setup
setup: .venv/.ready  ## install everything; the command is .venv/bin/espalier; TORCH=cpu: without CUDA

.PHONY: run
run: .venv/.ready  ## run the example job with and without growth, and compare
	@.venv/bin/espalier run examples/digits.yaml --simulate --gpus 1 --arrive 30%:1 \
		--time-budget $(BUDGET) --seed $(SEED) --output $(RUNS)/grown --restart
	@.venv/bin/espalier run examples/digits.yaml --simulate --gpus 1 --arrive 30%:1 --adaptation Off \
		--time-budget $(BUDGET) --seed $(SEED) --output $(RUNS)/not-grown --restart
	@.venv/bin/espalier compare $(RUNS)/not-grown $(RUNS)/grown

PYTEST = CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 .venv/bin/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
.PHONY: test test-lab test-all
test: .venv/.ready  ## run the unit and integration tests, WORKERS files at a time, with a daily sample of the sweeps
	$(PYTEST) tests/unit tests/integration

test-lab: .venv/.ready  ## run the tests of the laboratory and the benchmarks
	$(PYTEST) tests/lab

test-all: export ESPALIER_SWEEPS := all
test-all: test test-lab  ## both with every case of the sweeps

.PHONY: histories
histories: .venv/.ready  ## play adversarial histories of a shared cluster (over an hour of a core); ARGS='--seed N --histories 1 --steps 500'
	PYTHONPATH=tests/helpers PYTHONHASHSEED=0 .venv/bin/python -m operator_world.history $(ARGS)

.PHONY: test-integration
test-integration: .venv/.ready  ## run the tests that need a real API server; download one if there is none
	KUBEBUILDER_ASSETS=$$(hack/envtest) && export KUBEBUILDER_ASSETS && .venv/bin/pytest tests/integration

.PHONY: test-chart
test-chart: .venv/.ready  ## test the chart with a real helm and a real API server; download them if there are none
	HELM=$$(hack/helm) && KUBEBUILDER_ASSETS=$$(hack/envtest) && MONITORING_CRDS=$$(hack/monitoring-crds) && \
		export HELM KUBEBUILDER_ASSETS MONITORING_CRDS && \
		.venv/bin/pytest tests/unit/chart tests/integration/test_chart_*.py

.PHONY: test-cuda
test-cuda: .venv/.ready  ## test jobs and worker processes on a GPU, which the workers share (NCCL 2.30 or later)
	NCCL_MULTI_RANK_GPU_ENABLE=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/unit/net2net/test_cuda_growth.py \
		$(addprefix tests/unit/trainer/test_,$(addsuffix .py,cuda_jobs elastic_processes process trials)) \
		--numprocesses 4 --dist load

.PHONY: crd
crd: .venv/.ready  ## generate the CRD from the models
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.crd crds
	.venv/bin/python hack/chart

.PHONY: dashboards
dashboards: .venv/.ready  ## generate the dashboards, the alert rules and docs/reference/metrics.md
	PYTHONPATH=monitoring .venv/bin/python -m espalier_monitoring write .

.PHONY: docs
docs: .venv/.ready  ## generate pages and build the documentation into site/; dead links are errors
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.pages job docs/reference/job.md
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.pages reasons docs/reference/reasons.md
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.pages client docs/reference/client.md
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.pages commands docs/reference/cli.md
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.environments docs/reference/environments.md
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict
	@echo site/index.html

.PHONY: lint sizes
lint: .venv/.ready  ## run ruff, strict mypy, import-linter, shellcheck and deptry; compare the sizes of the project with hack/sizes.toml
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/shellcheck --severity warning --external-sources --source-path SCRIPTDIR $$(git grep -lE '^#!.*\b(ba)?sh$$')
	.venv/bin/python hack/sizes
	@for member in $(MEMBERS); do echo "deptry $$member" && (cd $$member && ../.venv/bin/deptry --no-ansi src) || exit 1; done

sizes: .venv/.ready  ## lower the numbers in hack/sizes.toml to the sizes
	.venv/bin/python hack/sizes --lower

.PHONY: e2e-local e2e-quiet
e2e-local: .venv/.ready  ## run what a person types on a laptop: jobs, the book's commands, benchmarks
	OMP_NUM_THREADS=1 .venv/bin/pytest tests/e2e/local -m "not quiet" --numprocesses $(WORKERS) --dist load --maxschedchunk 1

e2e-quiet: .venv/.ready  ## run those of them that need a machine which does nothing else
	OMP_NUM_THREADS=1 .venv/bin/pytest tests/e2e/local -m quiet --numprocesses 0

.PHONY: test-release
test-release: .venv/.ready  ## build the wheels, install them into an empty environment, and do there what the quickstart does
	OMP_NUM_THREADS=1 .venv/bin/pytest tests/e2e/local/test_release.py

.PHONY: images cluster cluster-down e2e e2e-shared e2e-alone
images:  ## build the images localhost/espalier-{operator,trainer,agent}:dev
	hack/cluster images

cluster:  ## create or update a local Kubernetes cluster with fake GPUs and Espalier
	hack/cluster up

cluster-down:  ## delete that cluster
	hack/cluster down

# These tests mostly wait for the cluster.
E2E_WORKERS ?= 4
E2E = environment=$$(hack/cluster env) && eval "$$environment" && \
	.venv/bin/pytest tests/e2e/cluster --dist load --maxschedchunk 1 --durations 0 --durations-min 1
e2e: e2e-shared e2e-alone  ## run the tests that need a cluster, on the one of `make cluster`

e2e-shared: .venv/.ready  ## those that leave the operator to others, E2E_WORKERS at a time
	$(E2E) --numprocesses $(E2E_WORKERS) -m "not disturbs(operator=True)"

e2e-alone: .venv/.ready  ## those that end, replace or configure the operator, one after the other
	$(E2E) --numprocesses 0 -m "disturbs(operator=True)"

.PHONY: format
format: .venv/.ready  ## format with ruff, and apply its fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: bench benchmarks
bench: bench-growth bench-advice bench-plan bench-policies bench-agent bench-digits  ## run the short benchmarks and the agent's

BENCH = PYTHONPATH=benchmarks .venv/bin/python -m bench
benchmarks: .venv/.ready  ## list the benchmarks; make bench-NAME runs one, with ARGS, as ARGS=--quick or ARGS=--help, and DATA
	@$(BENCH)

# Not phony: an implicit rule makes no phony target.
bench-%: .venv/.ready
	$(BENCH) $* $(if $(DATA),--data $(DATA)) $(ARGS)

.PHONY: saturation
saturation: .venv/.ready  ## install egglog, with which `make bench-rewrites` compares its searches (213 MB)
	$(SYNC) --inexact --group saturation

bench-rewrites: saturation

.PHONY: clean
clean:  ## remove everything that the targets created, including environments
	rm -rf .venv .tools $(RUNS) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
