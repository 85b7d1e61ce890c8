# `make` lists the verbs. Each one names the packages that it needs: needs-course, needs-instructor, needs-developer or
# needs-bench, each more than the one before. setup_env.py installs them into .venv, if they aren't there.
#   make PYTHON=python3.12 lab      a different Python for a new .venv
#   make PYTHON=/opt/conda/bin/python SYSTEM_SITE=1 lab      use the torch that this Python has
#   make UV= lab                    install with pip alone, without uv
#   make LAB_ARGS="--port 9000" lab      make TEST_ARGS="-k spawn" test      make BENCH_ARGS="--quick launchers" bench
PYTHON ?= python3
UV     ?= uv
VENV   := .venv
COURSE :=

run = "$(VENV)/bin/python"
unexport PYTHONHOME VIRTUAL_ENV $(if $(SYSTEM_SITE),,PYTHONPATH)      # may belong to another environment

.DEFAULT_GOAL := help
.PHONY: help system env jax lab test quick thorough graded try build grade release dist kernel script lock versions lint format \
  bench accuracy gpu book clean distclean

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

system: ## install bubblewrap (for grading) and Chromium (for the tests) with apt; needs root
	@MAKE="$(MAKE)" sh grader/system.sh "$(VENV)"

needs-%:
	@$(PYTHON) setup_env.py $* --venv "$(VENV)" --uv "$(UV)" $(if $(SYSTEM_SITE),--system-site)

env: needs-$(or $(GROUP),course) ## only install: what students need, or more: make GROUP=developer env

jax: needs-course ## add JAX, which four cells of lesson 13 can use
	@$(run) -m pip install --quiet --constraint requirements.txt "$(jax)"

jax = $(shell sed -n 's/^jax = \["\(.*\)"\].*/\1/p' pyproject.toml)

lab: needs-$(if $(COURSE),instructor,course) ## open the lessons in JupyterLab, or a course's folder with its formgrader: make COURSE=../spring lab
	@$(if $(COURSE),,$(run) -m utils.checks --page notebooks/start.md $(sort $(wildcard notebooks/*/*.ipynb)))
	@bin="$$(cd "$(VENV)/bin" && pwd)" && cd "$(or $(COURSE),.)" && \
	  $(if $(COURSE),,JUPYTER_CONFIG_PATH=grader/bundle/jupyter) PATH="$$bin:$$PATH" "$$bin/python" -m jupyterlab \
	  --LabApp.default_url=$(if $(COURSE),/formgrader,/lab/tree/notebooks/start.md) \
	  --Application.log_level=$(log_level) $(root_flag) $(browser_flag) $(print_flag) $(LAB_ARGS)

# Jupyter prints its address if it made up the token itself; with your own token or options, it only logs it.
log_level    = $(if $(JUPYTER_TOKEN)$(LAB_ARGS),INFO,WARN)
root_flag    = $(if $(filter 0,$(shell id -u)),--allow-root)
browser_flag = $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser)
# Bytes per second: at the default 1e6, Jupyter drops most of what ranks print in a loop.
print_flag   = --ZMQChannelsWebsocketConnection.iopub_data_rate_limit=1e9

test: needs-developer ## run all tests: units, lessons, notebooks
	@$(run) -m pytest $(all_cores) $(TEST_ARGS)

# Two workers per core, since tests wait a lot; tests of a file stay together (conftest.py). One by one: -n 0
workers   = $(shell $(run) -c 'import os; print(2 * min(os.cpu_count() or 1, 8))')
all_cores = -n $(workers) --dist loadfile --no-loadscope-reorder

quick: needs-developer ## check one lesson in a minute or two, its files, answers and notebooks: make quick LESSON=05
	@$(run) -m ruff check --quiet $(lesson_files)
	@$(run) -m ruff format --check --quiet --force-exclude $(lesson_files)
	@$(run) -m mypy --no-error-summary $(filter solutions/$(lesson)/checks_%,$(lesson_files))
	@$(run) -m pytest -n $(workers) tests/lessons/test_lessons.py tests/figures/test_legible.py \
	  -k "$(lesson) or each_figure_of_the_lessons" $(TEST_ARGS)
	@$(run) -m grader build --check $(lesson)

lesson_files = $(or $(wildcard solutions/$(lesson)/*.py),$(error There is no lesson solutions/$(lesson)))

thorough: needs-developer ## run the tests that take too long for every change: all cheats, every solution graded, 50 kills
	@$(run) -m pytest $(all_cores) -m thorough $(TEST_ARGS)

graded: needs-developer ## grade the solutions that have changed, and note it: make test then needn't do so each time
	@$(run) -m tests.graded_solutions

try: needs-instructor ## judge all answers to a lesson or an exercise, show what students read: make try LESSON=05 EXERCISE=ring
	@$(run) -m grader try "$(lesson)" $(EXERCISE) $(TRY_ARGS)

build: needs-instructor ## build what is made from the lessons: notebooks, frozen cases, stored messages, README's table
	@$(run) -m grader build

book: needs-instructor ## build the site of all lessons, build/book/index.html (options: make book BOOK_ARGS=--help)
	@$(run) -m grader book $(BOOK_ARGS)

grade: needs-instructor ## grade the sample class, or yours: make COURSE=. grade (options: make grade GRADE_ARGS=--help)
	@$(if $(COURSE),,$(run) -m tests.sample_class)
	@$(run) -m grader grade --course "$(or $(COURSE),build/sample-class)" $(GRADE_ARGS)

release: needs-instructor ## pack the students' bundle into dist/; with SOLUTIONS=1, the one for self-study, answers folded in it
	@$(run) -m grader release $(if $(SOLUTIONS),--solutions)

dist: needs-developer release book ## pack what a release has into dist/: bundle, book, the library, the source
	@$(run) -m uv build --quiet --no-build-isolation --python $(run) --out-dir dist .
	@$(run) -m zipfile -c dist/book-$(version).zip build/book
	@$(run) -m grader release --solutions
	@mv dist/distributed-training-self-study.zip dist/distributed-training-self-study-$(version).zip
	@mv dist/distributed-training.zip dist/distributed-training-$(version).zip
	@git archive --format tar.gz --prefix course-$(version)/ --output dist/course-$(version).tar.gz HEAD
	@rm -f dist/.gitignore && ls -sh dist

version = $(shell sed -n 's/^version = "\(.*\)".*/\1/p' pyproject.toml)

kernel: needs-course ## add this environment to a Jupyter that already exists, such as a JupyterHub
	@$(run) -m ipykernel install $(or $(KERNEL_ARGS),--user) --name distributed-training --display-name "Distributed training"

script: needs-course ## turn a lesson into a script for torchrun and SLURM: make script LESSON=01_collectives
	@$(run) -m utils.worlds.jobs.notebook_script "solutions/$(lesson)/$(lesson).ipynb"

# LESSON=01 will do for LESSON=01_collectives.
lesson = $(or $(if $(LESSON),$(notdir $(patsubst %/,%,$(wildcard solutions/$(LESSON)_*/)))),$(LESSON),$(error \
  Which lesson? For example: LESSON=01_collectives))

lock: needs-developer ## choose versions for pyproject.toml's packages, keeping today's: uv.lock, and requirements.txt from it
	@$(run) -m uv lock $(LOCK_ARGS)
	@$(run) -m grader.authoring.requirements --write

versions: needs-developer ## run a part of the tests with other versions of torch: make versions TORCH=2.12.0
	@for torch in $(TORCH); do sh tests/with_torch.sh "$(VENV)/bin/uv" $$torch || exit; done

TORCH = 2.12.1

lint: needs-developer ## check the code's style and types
	@$(run) -m ruff check
	@$(run) -m ruff format --check
	@$(run) -m mypy

format: needs-developer ## sort imports, fix what ruff can fix, and format the code
	@$(run) -m ruff check --fix-only
	@$(run) -m ruff format

bench: needs-bench ## compare spawn with other launchers, and grading with nbgrader, on this machine
	@$(run) -m tests.bench $(BENCH_ARGS)

accuracy: needs-developer ## compare the virtual cluster with published training steps and all-reduces
	@$(run) -m tests.accuracy

# Needs no .venv: on a machine that is there for minutes only, any Python with torch, numpy and pytest will do.
gpu: ## try everything that needs a GPU, in nine minutes (docs/gpu.md); without one: make gpu DRY=1
	@"$(or $(wildcard $(VENV)/bin/python),$(PYTHON))" -m tests.gpu $(if $(DRY),--dry) $(GPU_ARGS)

clean: ## remove build products and caches; keep submissions, grades and .venv
	rm -rf build dist notebooks/start.md .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -print0 | xargs -0 rm -rf

distclean: clean ## also remove .venv
	rm -rf .venv
