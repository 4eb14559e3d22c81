# `make run` and `make test` set up everything they need in .venv; second calls reuse it.
PYTHON ?= python3
VENV   ?= .venv
# Another build of torch: make run TORCH="torch==2.13.0 --index-url URL", or a wheel's path.
TORCH  ?= torch
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# keys for the run: make run ARGS="gamma=3 sampling.temperature=1"
ARGS   ?=

.PHONY: docs docs-numbers bench-gpu run mini beyond real real-drafts validate tables figures report keep test test-all test-arm test-kernels test-laws test-slow test-engines check format coverage clean

run: $(READY)
	$(BIN)/specbench run $(ARGS)

# The paper's tables and figures on the models that ship; finished runs are not repeated.
mini: $(READY)
	$(BIN)/specbench sweep experiment=table2-mini $(ARGS)
	$(BIN)/specbench sweep experiment=table3-mini $(ARGS)
	$(BIN)/specbench sweep experiment=table5-mini $(ARGS)
	$(BIN)/specbench sweep experiment=figure2-mini $(ARGS)
	$(BIN)/specbench sweep experiment=gamma-mini $(ARGS)

# Every draft and every rule on the models that ship: the table and the figure `beyond`, and the figure `online`.
BEYOND := beyond-mini beyond-mini-exit beyond-mini-skip beyond-mini-lookahead beyond-mini-horizontal beyond-mini-rules beyond-mini-lenient beyond-mini-top-beta beyond-mini-gamma beyond-mini-confidence beyond-mini-sum beyond-mini-gpt beyond-mini-quantised online-mini
beyond: $(READY)
	$(foreach sweep,$(BEYOND),$(BIN)/specbench sweep experiment=$(sweep) $(ARGS) &&) true

# Real weights: drafts of a chat model in the folder TARGET are trained on its own completions of prompts of our own (study/, MINUTES
# each, some 4 hours in all), and compared with drafts that need no training (some 150 minutes). TEXTS: files of texts, to summarise among the
# prompts. A stopped `make` resumes. For another TARGET, TEXTS or number of PROMPTS, remove study/ first.
TARGET  ?=
TEXTS   ?= specbench/shipped/data/sum-mini-train.jsonl.gz
PROMPTS ?= 1600
MINUTES ?= 15
LEARNED := distill.target=$(TARGET) 'data.path=[study/prompts.jsonl]' data.hold_out=40 distill.greedy=0.5 distill.sampled=1 \
  distill.max_new_tokens=96 distill.outputs=study/outputs distill.states=study/states optim.batch_size=8 optim.max_minutes=$(MINUTES) log_steps=20 save_steps=50
OF_distill   := model.family=own model.decoder_layers=2 optim.lr=0.001 optim.lr_scale=flat
OF_eagle     := optim.lr=0.05
OF_eagle3    := optim.lr=0.05 eagle.vocabulary=8192
OF_mtp       := optim.lr=0.05
OF_peagle    := optim.lr=0.05
OF_pard      := model.start_from=study/distill
OF_medusa    := heads.number=2 heads.rank=1
OF_hydra     := heads.number=2 heads.narrow=32 heads.rank=1
OF_blockwise := blockwise.hidden=192
LEARNING := eagle3 distill eagle medusa hydra mtp dflash dspark peagle blockwise pard
REAL := copy lookahead quantised exit skip window ngrams distilled router cascade heads rules trees
study/prompts.jsonl: $(READY)
	mkdir -p study
	$(BIN)/python tools/study_prompts.py $@ --rows $(PROMPTS) --texts $(TEXTS)

real-drafts: $(READY) study/prompts.jsonl
	$(if $(TARGET),,$(error give the folder of a chat model, make real TARGET=FOLDER))
	$(foreach kind,$(LEARNING),$(BIN)/specbench train recipe=$(kind) $(LEARNED) $(OF_$(kind)) output=study/$(kind) &&) true
	$(BIN)/python tools/study_prompts.py study/texts.jsonl --completions study/outputs --target $(TARGET)

real: real-drafts
	failed=0; $(foreach part,$(REAL),$(BIN)/specbench sweep experiment=real-$(part) target=$(TARGET) $(ARGS) || failed=1;) exit $$failed

# Calibrated against measured on the models that ship: results/validate/. On a quiet machine, some 3 minutes.
validate: $(READY)
	$(BIN)/specbench recommend --validate draft=t5-nano,bigram,unigram gammas=1,2,3,5,7,10 limit=60 rounds=24 $(ARGS)
	$(BIN)/specbench recommend --validate target=gpt-mini task=lm-mini draft=mtp,dflash,dspark,pard,peagle,suffix,quantised gammas=3,5 limit=40 rounds=48 $(ARGS)

# Both draw from the records on disk, in results/runs and results/kept; no model is loaded.
tables: $(READY)
	$(BIN)/specbench tables --format markdown,csv,latex --output results/tables
	$(BIN)/specbench tables --score --format markdown,csv --output results/tables

figures: $(READY)
	$(BIN)/specbench figures --format svg,png --output results/figures

report: $(READY)
	$(BIN)/specbench report

# Copies of this machine's records, small enough to commit with what is drawn from them.
keep: $(READY)
	$(BIN)/specbench report --keep

# Two processes of one thread each; a file's tests run together, since they share expensive fixtures.
# The quick suite: laws, identity, planted faults, errors, and a path through every command and draft.
# A worker that dies ends the run: its successor would wait for ever (pytest-xdist 3.8 with loadfile), and the name of the
# test in which it died would not be printed. Files begin in the order of tests/support/longest.py.
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: $(READY)
	$(TESTS)

# The full product of options, which includes all of `make test`.
test-all: $(READY)
	$(TESTS) -m 'not slow'

# The laws alone: formulas, acceptance rules and exactness; under a minute.
LAWS := theory algorithm/acceptance/test_rules.py algorithm/test_exactness.py algorithm/acceptance/test_tree_rules.py \
  test_sampling.py algorithm/acceptance/test_verify.py analysis/acceptance/test_ranks.py
test-laws: $(READY)
	$(TESTS) $(LAWS:%=tests/%)

# What uses the C kernels, as this machine compiles them.
test-kernels: $(READY)
	$(BIN)/python -m pytest -m 'not slow' tests/kernels tests/engine/native

# The C kernels for 64-bit ARM, cross-compiled by GCC and clang and emulated; make test-arm ARGS=--install installs these tools, and
# ARGS=--require fails where they are missing even so.
test-arm: $(READY)
	$(BIN)/python tools/kernels_on_arm.py $(ARGS)

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Real engines, started here: those that are installed, named by SPECBENCH_VLLM, SPECBENCH_LLAMA_SERVER (their commands),
# SPECBENCH_OPENVINO, SPECBENCH_TRANSFORMERS and SPECBENCH_LLAMA_CPP_PYTHON (the Pythons that have them), or found on the
# PATH. docs/serving.md says how to install them.
test-engines: $(READY)
	SPECBENCH_TEST_ENGINES=1 $(BIN)/python -m pytest tests/engines -v -rsxX $(ARGS)

# All that is to be measured on a GPU, in parts of at most eight minutes that are kept as they are done:
#   make bench-gpu PARTS="tests pair"           # some of them; experiments/bench_gpu.py --list names all
#   make bench-gpu PYTHON=python3 VENV=none WHEELS=FOLDER   # this interpreter, missing packages from a folder of wheels
#   python experiments/bench_gpu.py --fetch FOLDER --python 3.12   # fills it, on a machine with a network
#   make bench-gpu SMALL=--small                # small shapes on the CPU, to try it
PARTS  ?=
WHEELS ?=
SMALL  ?=
bench-gpu: $(if $(filter none,$(VENV)),,$(READY))
	$(if $(filter none,$(VENV)),$(PYTHON),$(BIN)/python) experiments/bench_gpu.py $(SMALL) $(if $(WHEELS),--wheels $(WHEELS)) $(PARTS)

# Writes the numbers of README and docs from the records; make check fails where a page differs.
docs-numbers: $(READY)
	$(BIN)/python tools/docs_numbers.py

# The site, in site/; make docs ARGS=serve shows it while you write.
docs: $(READY)
	test -x $(BIN)/mkdocs || $(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build)

coverage: $(READY)
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/docs_numbers.py --check
	$(BIN)/python tools/drawn.py --check
	$(BIN)/python tools/tics.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes first and alone, so that a build named by TORCH is not replaced by the constraint's.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	if [ "$(TORCH)" = torch ]; then \
	  $(BIN)/python -m pip install --quiet -c constraints.txt torch; \
	else $(BIN)/python -m pip install --quiet $(TORCH); fi
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info
