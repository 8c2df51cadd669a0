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

.PHONY: test test-all
test: .venv/.ready  ## run the unit and integration tests, WORKERS files at a time, with a daily sample of the sweeps
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 .venv/bin/pytest tests --ignore tests/e2e --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: export ESPALIER_SWEEPS := all
test-all: test  ## the same with every case of the sweeps

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
	PYTHONPATH=hack .venv/bin/python -m espalier_generate.pages commands docs/reference/cli.md
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

.PHONY: e2e-local
e2e-local: .venv/.ready  ## run what a person types on a laptop: jobs, the book's commands, benchmarks
	OMP_NUM_THREADS=1 .venv/bin/pytest tests/e2e/local -m "not quiet" --numprocesses $(WORKERS) --dist load --maxschedchunk 1
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

.PHONY: bench bench-growth bench-advice bench-plan bench-policies bench-agent bench-digits
bench: bench-growth bench-advice bench-plan bench-policies bench-agent bench-digits  ## run the short benchmarks and the agent's

bench-growth: .venv/.ready  ## time and exactness of a growth, compared with naive insertion and published Net2WiderNet
	.venv/bin/python benchmarks/growth.py
	.venv/bin/python benchmarks/widening.py

bench-advice: .venv/.ready  ## latency of the agent's advice
	.venv/bin/python benchmarks/advice.py

bench-plan: .venv/.ready  ## time of one plan(), and of a tick of the operator around it
	.venv/bin/python benchmarks/plan.py
	.venv/bin/python benchmarks/tick.py

bench-policies: .venv/.ready  ## simulated completion times compared with published ones, by both drivers, and their speed (3 minutes)
	.venv/bin/python benchmarks/policies.py $(ARGS)

bench-agent: .venv/.ready  ## the agent's learners: speed, fit, generalization, controls (20 minutes); ARGS=--quick
	.venv/bin/python benchmarks/agent.py $(ARGS)

bench-digits: .venv/.ready  ## does growing pay off on the example? ten seeds, two controls (6 minutes on two cores)
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/pays.py examples/digits.yaml --picture $(RUNS)/digits.png

.PHONY: bench-spare-gpus
bench-spare-gpus: .venv/.ready  ## who should grow? what lent GPUs gain under `growth`, compared with rules that know less (20 minutes); ARGS=--quick
	.venv/bin/python benchmarks/spare_gpus.py $(ARGS)

.PHONY: bench-placement
bench-placement: .venv/.ready  ## where should workers run? a performance model learnt over clusters, compared with rules and with networks (20 minutes of a core; ARGS='--keep FOLDER' resumes); ARGS=--quick
	.venv/bin/python benchmarks/placement.py $(ARGS)

.PHONY: bench-optimised-jobs
bench-optimised-jobs: .venv/.ready  ## what do rewrites in jobs cost, and what do they bring? 30 jobs, budgets of 60 CPU seconds (15 minutes)
	.venv/bin/python benchmarks/optimised_jobs.py --time-budget 60 $(ARGS)

.PHONY: saturation
saturation: .venv/.ready  ## install egglog, with which `make bench-rewrites` compares its searches (213 MB)
	$(SYNC) --inexact --group saturation

.PHONY: bench-rewrites
bench-rewrites: saturation  ## what do rewrites of the computation gain? nine nets, searches compared, measured (7 minutes of a core, on a busy machine an hour); ARGS=--quick
	.venv/bin/python benchmarks/rewrites.py $(ARGS)

.PHONY: bench-rewrites-captured
bench-rewrites-captured: .venv/.ready  ## which models can be rewritten, and where do which rules hold? 29 models, nothing is trained (2 minutes of a core)
	.venv/bin/python benchmarks/rewrites_captured.py $(ARGS)

.PHONY: bench-rewrites-learned bench-rewrites-dreamt bench-rewrites-residual
bench-rewrites-learned: .venv/.ready  ## can rewriting be learnt? PPO compared with searches, also on unseen families (5 minutes of a core); ARGS=--quick
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/rewrites_learned.py --unseen --runs $(RUNS)/rewrites-learned.jsonl \
		--table $(RUNS)/rewrites-table $(ARGS)

bench-rewrites-dreamt: .venv/.ready  ## can rewriting be learnt in a dream? a world model's controllers compared with PPO with as many steps (15 minutes of a core); ARGS=--quick
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/rewrites_dreamt.py --table $(RUNS)/rewrites-table $(ARGS)

bench-rewrites-residual: .venv/.ready  ## does a learnt residual of the table of costs save measurements? (a minute of a core); ARGS=--quick
	.venv/bin/python benchmarks/rewrites_residual.py $(ARGS)

.PHONY: bench-learned
bench-learned: .venv/.ready  ## how should GPUs be shared among jobs? learnt allocation in DL2's cluster, compared with rules (30 minutes); ARGS=--quick
	.venv/bin/python benchmarks/learned.py $(ARGS)

.PHONY: bench-learned-workers
bench-learned-workers: .venv/.ready  ## the same with all-reduce, on Pollux' workloads that were not learnt from (10 minutes of a core); ARGS=--quick
	.venv/bin/python benchmarks/learned_workers.py $(ARGS)

.PHONY: bench-answers
bench-answers: .venv/.ready  ## how long does a policy file take to decide about 200 to 2,000 jobs that wait? (1 minute)
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/answers.py $(ARGS)

.PHONY: bench-joint
bench-joint: .venv/.ready  ## does it pay to place jobs together that come together? the same jobs one by one and together (1 minute of a core); ARGS=--quick
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/joint.py $(ARGS)

.PHONY: bench-wishes
bench-wishes: .venv/.ready  ## does it pay to place workers where a policy file wishes? compared with the rules of placement, at three loads (10 minutes of a core); ARGS=--quick
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/wishes.py $(ARGS)

.PHONY: bench-together
bench-together: .venv/.ready  ## does it pay to decide numbers of workers and their nodes together, if both are free? (30 minutes of a core); ARGS=--quick
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/together.py $(ARGS)

.PHONY: bench-advice-unseen
bench-advice-unseen: .venv/.ready  ## does the shipped policy know where to grow? 35 families that it has not met (1 hour); ARGS=--quick
	.venv/bin/python benchmarks/advice_unseen.py --work-dir $(RUNS)/unseen $(ARGS)

.PHONY: bench-advice-left-out
bench-advice-left-out: .venv/.ready  ## do trees know families of the carried corpora that they have not learned from? (2 minutes); ARGS=--graph
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/advice_left_out.py $(ARGS)

.PHONY: bench-insertions
bench-insertions: .venv/.ready  ## in which way should whole blocks be inserted? From the carried corpora, in seconds; ARGS='FILE ...' for others
	.venv/bin/python benchmarks/insertions.py $(ARGS)

.PHONY: bench-trial-evidence
bench-trial-evidence: .venv/.ready  ## what do the losses of a trial say of the gain in the end? From the carried corpus, in seconds
	.venv/bin/python benchmarks/trial_evidence.py $(ARGS)

.PHONY: bench-growth-zoo
bench-growth-zoo: .venv/.ready  ## where 150 models of timm, Hugging Face and torch can grow, and how exactly; writes docs/reports/zoo.md (20 minutes of a core)
	.venv/bin/python benchmarks/growth_zoo.py --page docs/reports/zoo.md $(ARGS)

.PHONY: bench-reports
bench-reports: .venv/.ready  ## draw the figures of docs/reports that no other benchmark draws, from its tables; in seconds
	.venv/bin/python benchmarks/reports.py $(ARGS)

.PHONY: bench-batch
bench-batch: .venv/.ready  ## does a batch size that follows goodput pay? six seeds, one worker and two (15 minutes)
	.venv/bin/python benchmarks/batch.py --time-budget 3 --processes 1 $(ARGS)

.PHONY: bench-measuring
bench-measuring: .venv/.ready  ## the cost of measuring a job as a share of its steps, with and without (2 minutes)
	.venv/bin/python benchmarks/measuring.py $(ARGS)

.PHONY: bench-study
bench-study: .venv/.ready  ## train the agents of the paper again and compare, in runs/paper (10 minutes)
	.venv/bin/python benchmarks/study.py --output $(RUNS)/paper $(ARGS)

.PHONY: bench-cifar8
bench-cifar8: .venv/.ready  ## the same on CIFAR-10 at 8×8 pixels, five seeds (8 minutes); DATA=folder or archive
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/pays.py examples/cifar8.yaml --arrive 20% --seeds 5 --picture $(RUNS)/cifar8.png \
		$(if $(DATA),--data $(DATA))

.PHONY: bench-gpt
bench-gpt: .venv/.ready  ## does a language model that grows beat every fixed depth? (about 4 hours of a core, resumes); ARGS=--quick
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/gpt.py $(if $(ARGS),$(ARGS),--runs $(RUNS)/gpt.jsonl --picture $(RUNS)/gpt.png)

.PHONY: bench-gpt-large
bench-gpt-large: .venv/.ready  ## the same with nets of 13 to 51 million parameters (about 10 minutes of a GPU, resumes); DATA=folder of Python
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/gpt_large.py --data $(DATA) \
		$(if $(ARGS),$(ARGS),--runs $(RUNS)/gpt-large.jsonl --picture $(RUNS)/gpt-large.png)

.PHONY: bench-cifar
bench-cifar: .venv/.ready  ## the same for a ResNet on CIFAR-10 at 32×32 (an hour of a core, resumes); DATA=folder or archive
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/cifar.py $(if $(DATA),--data $(DATA)) \
		$(if $(ARGS),$(ARGS),--runs $(RUNS)/cifar.jsonl --picture $(RUNS)/cifar.png)

.PHONY: bench-pays
bench-pays: .venv/.ready  ## ways to use a GPU that comes and goes (2 hours); DATA=folder or archive
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/elastic_pays.py examples/digits.yaml --runs $(RUNS)/pays-digits.jsonl \
		--picture $(RUNS)/pays-digits.png --markdown $(RUNS)/pays-digits.md $(ARGS)
	.venv/bin/python benchmarks/elastic_pays.py examples/cifar8.yaml --runs $(RUNS)/pays-cifar8.jsonl \
		--picture $(RUNS)/pays-cifar8.png --markdown $(RUNS)/pays-cifar8.md $(if $(DATA),--data $(DATA)) $(ARGS)

.PHONY: bench-shrinking
bench-shrinking: .venv/.ready  ## GPUs taken back: keep the grown model, return, or distil? six seeds; WORKLOAD=digits, ARGS=...
	@mkdir -p $(RUNS)
	.venv/bin/python benchmarks/shrinking.py $(or $(WORKLOAD),digits) --dearer 1,8 --picture $(RUNS)/shrinking.png \
		--json $(RUNS)/shrinking.json $(ARGS)

.PHONY: bench-elastic
bench-elastic: .venv/.ready  ## workers that join and leave: pauses and throughput, compared with DDP and torchrun (1 hour); ARGS=--quick
	.venv/bin/python benchmarks/elastic.py $(ARGS)

.PHONY: bench-operator bench-operator-latency
bench-operator-latency: .venv/.ready  ## the operator on one core, the load on the others: 5,000 and 10,000 nodes, 20,000 more pods of others; ARGS=...
	.venv/bin/python benchmarks/operator_load.py --nodes 5000,10000 --idle-pods 20000 --apart $(ARGS)

bench-operator: .venv/.ready  ## the operator with 100, 5,000 and 10,000 nodes (kwok) and 1,000 jobs; ARGS=--quick takes a minute
	.venv/bin/python benchmarks/operator_load.py $(ARGS)

.PHONY: clean
clean:  ## remove everything that the targets created, including environments
	rm -rf .venv .tools $(RUNS) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
