# The habits of this project. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
UV_VERSION := 0.13.9
# uv of the person where there is one, else one fetched by pip into .tools.
UV := $(or $(shell command -v uv),.tools/uv/bin/uv)
export UV_PYTHON_DOWNLOADS ?= never

BUDGET ?= 20
SEED ?= 0
RUNS ?= runs
# Tests at a time. Each of them may be training a model or have an API server beside it: more than cores are no faster.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN) && echo $$((cores < 4 ? cores : 4)))
# Tests start hundreds of processes; without bytecode each of them compiles torch anew, which doubles the time.
unexport PYTHONDONTWRITEBYTECODE

MEMBERS := api kube operator trainer-image agent-image cli

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.tools/uv/bin/uv:
	$(PYTHON) -m venv .tools/uv || { echo "hint: python3's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	.tools/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: uv.lock pyproject.toml $(MEMBERS:%=%/pyproject.toml) | $(filter .tools/%,$(UV))
	$(UV) sync --locked --python $(PYTHON)
	@touch $@

.PHONY: setup
setup: .venv/.ready  ## leave the command at .venv/bin/espalier

.PHONY: run
run: .venv/.ready  ## run the example job, then the same job without growth, and compare
	@.venv/bin/espalier run examples/digits.yaml --gpus 1 --arrive 30%:1 \
		--time-budget $(BUDGET) --seed $(SEED) --output $(RUNS)/grown --restart
	@.venv/bin/espalier run examples/digits.yaml --gpus 1 --arrive 30%:1 --adaptation Off \
		--time-budget $(BUDGET) --seed $(SEED) --output $(RUNS)/not-grown --restart
	@.venv/bin/espalier compare $(RUNS)/not-grown $(RUNS)/grown

.PHONY: test test-all
test: .venv/.ready  ## run the tests that need no cluster, WORKERS at a time, with the day's sample of the sweeps
	OMP_NUM_THREADS=1 .venv/bin/pytest tests --ignore tests/e2e/cluster --numprocesses $(WORKERS) --dist worksteal

test-all: export ESPALIER_SWEEPS := all
test-all: test  ## the same with every case of the sweeps

.PHONY: test-integration
test-integration: .venv/.ready  ## the tests that need a real API server; gets one where there is none
	KUBEBUILDER_ASSETS=$$(hack/envtest) && export KUBEBUILDER_ASSETS && .venv/bin/pytest tests/integration

.PHONY: test-chart
test-chart: .venv/.ready  ## the chart by a real helm and on a real API server; gets them where there are none
	HELM=$$(hack/helm) && KUBEBUILDER_ASSETS=$$(hack/envtest) && MONITORING_CRDS=$$(hack/monitoring-crds) && \
		export HELM KUBEBUILDER_ASSETS MONITORING_CRDS && \
		.venv/bin/pytest tests/unit/chart tests/integration/test_chart_*.py

.PHONY: crd
crd: .venv/.ready  ## write the CRD anew from the models
	.venv/bin/python -m espalier_api.crd crds
	.venv/bin/python hack/chart

.PHONY: dashboards
dashboards: .venv/.ready  ## write the dashboards, the alert rules and docs/metrics.md anew
	PYTHONPATH=monitoring .venv/bin/python -m espalier_monitoring write .

.PHONY: docs
docs: .venv/.ready  ## write the generated pages anew, and build the book into site/; a link that leads nowhere fails
	.venv/bin/python -m espalier_api.job_reference docs/job.md
	.venv/bin/python -m espalier_cli.cluster.reasons_page docs/reasons.md
	.venv/bin/python -m espalier_cli.reference docs/cli.md
	.venv/bin/mkdocs build --quiet --strict
	@echo site/index.html

.PHONY: lint
lint: .venv/.ready  ## ruff, strict mypy, import-linter
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

.PHONY: images cluster cluster-down e2e
images:  ## build the images localhost/espalier-{operator,trainer,agent}:dev
	hack/cluster images

cluster:  ## a Kubernetes cluster with fake GPUs on this machine, Espalier in it; again: what changed
	hack/cluster up

cluster-down:  ## delete that cluster
	hack/cluster down

# Most of these tests wait for a cluster most of the time.
E2E_WORKERS ?= 4
e2e: .venv/.ready  ## the tests that need a cluster, on that of `make cluster`, E2E_WORKERS at a time
	environment=$$(hack/cluster env) && eval "$$environment" && \
		.venv/bin/pytest tests/e2e/cluster --numprocesses $(E2E_WORKERS) --dist load --maxschedchunk 1 --durations 0 --durations-min 1

.PHONY: format
format: .venv/.ready  ## let ruff format and mend what it can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: bench bench-growth bench-advice bench-plan bench-agent bench-digits
bench: bench-growth bench-advice bench-plan bench-agent bench-digits  ## the short benchmarks, and the agent's

bench-growth: .venv/.ready  ## ms a growth and its exactness, beside the naive insertion and Net2WiderNet as published
	.venv/bin/python benchmarks/growth.py
	.venv/bin/python benchmarks/widening.py

bench-advice: .venv/.ready  ## latency of the agent's advice
	.venv/bin/python benchmarks/advice.py

bench-plan: .venv/.ready  ## milliseconds of one plan()
	.venv/bin/python benchmarks/plan.py

bench-agent: .venv/.ready  ## the agent's learners: speed, fit, generalisation, controls (twenty minutes); ARGS=--quick
	.venv/bin/python benchmarks/agent.py $(ARGS)

bench-digits: .venv/.ready  ## does growing pay on the example? ten seeds beside two controls (6 minutes on two cores)
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/pays.py examples/digits.yaml --picture $(RUNS)/digits.png

.PHONY: bench-study
bench-study: .venv/.ready  ## the paper's agents learnt again, its figures and tables beside ours, in runs/paper (10 minutes)
	.venv/bin/python benchmarks/study.py --output $(RUNS)/paper $(ARGS)

.PHONY: bench-cifar8
bench-cifar8: .venv/.ready  ## the same on CIFAR-10 at 8×8 pixels: five seeds (8 minutes); DATA=folder or archive
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/pays.py examples/cifar8.yaml --arrive 20% --seeds 5 --picture $(RUNS)/cifar8.png \
		$(if $(DATA),--data $(DATA))

.PHONY: bench-pays
bench-pays: .venv/.ready  ## a GPU comes and goes: train with it, grow as well, be deep from the start? (2 hours); DATA=folder or archive
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/elastic_pays.py examples/digits.yaml --runs $(RUNS)/pays-digits.jsonl \
		--picture $(RUNS)/pays-digits.png --markdown $(RUNS)/pays-digits.md $(ARGS)
	.venv/bin/python benchmarks/elastic_pays.py examples/cifar8.yaml --runs $(RUNS)/pays-cifar8.jsonl \
		--picture $(RUNS)/pays-cifar8.png --markdown $(RUNS)/pays-cifar8.md $(if $(DATA),--data $(DATA)) $(ARGS)

.PHONY: bench-shrinking
bench-shrinking: .venv/.ready  ## GPUs taken back: keep the grown model, go back, or distil? six seeds; WORKLOAD=digits, ARGS=...
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/shrinking.py $(or $(WORKLOAD),digits) --dearer 1,8 --picture $(RUNS)/shrinking.png \
		--json $(RUNS)/shrinking.json $(ARGS)

.PHONY: bench-elastic
bench-elastic: .venv/.ready  ## workers that join and leave: pauses, throughput, beside DDP and torchrun (an hour); ARGS=--quick
	.venv/bin/python benchmarks/elastic.py $(ARGS)

.PHONY: bench-operator
bench-operator: .venv/.ready  ## the operator at 100, 5,000 and 10,000 nodes (kwok), 1,000 jobs; ARGS=--quick: in a minute
	.venv/bin/python benchmarks/operator_load.py $(ARGS)

.PHONY: clean
clean:  ## remove what the targets made, environments included
	rm -rf .venv .tools $(RUNS) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
