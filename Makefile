# Two commands matter: `make demo` and `make test`. Each sets up what it needs by itself,
# with nothing on the machine but Python 3.11+ and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests run side by side, more of them than there are cores: half of their time they wait.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup

.PHONY: demo test check bench crash faults chaos partition simulate jepsen dledger spark spark-versions long rebuild soak attack attacks access-decisions fuzz sanitize pure closed peers peers-4x lock clean install

install: $(STAMP)

# The lock file pins every package with its hashes; the project itself is installed in place, its core compiled if
# there is a compiler.
$(STAMP): pyproject.toml setup.py $(wildcard src/kerolox/core/*.[ch]) requirements/dev.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kerolox needs Python 3.11 or newer, found " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# Everything once: a broker that is killed meanwhile, clients, streaming queries on Spark. What they leave is in
# build/demo; build/demo/demo.html shows it.
demo: $(STAMP)
	rm -rf build/demo
	$(BIN)/kerolox demo --data build/demo

# The stories with Java processes run one by one beside all other tests: they share their processes.
test: $(STAMP)
	$(BIN)/python -m tests.side_by_side \
	    suite='$(PYTEST) -m "not long" --ignore=tests/peers $(ARGS)' \
	    peers='$(BIN)/python -m pytest -m "not long and not full" tests/peers $(ARGS)'

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

# Every test by examples with examples the gate does not try, then every decoder against arbitrary bytes, a minute
# each; the result is kept.
fuzz: $(STAMP)
	KEROLOX_EXAMPLES=random $(PYTEST) -q -m "hypothesis and not long" --ignore=tests/peers $(ARGS)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/fuzz.lock
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS_EACH),60) --result docs/results/fuzz.json

# The compiled core under the address and undefined-behaviour sanitizers: a copy of the package with such a core,
# the tests of what calls it, and the fuzz targets' inputs. Python's own allocator is off, so that every object counts.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: $(STAMP)
	rm -rf build/sanitize
	CFLAGS="$(SANITIZERS) -fno-omit-frame-pointer -g -O1" LDFLAGS="$(SANITIZERS)" \
	    $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/sanitize .
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    PYTHONMALLOC=malloc KEROLOX_REQUIRE_CORE=1 PYTHONPATH=build/sanitize \
	    $(PYTEST) -q -m "not long" tests/test_compiled.py tests/protocol tests/store tests/fuzz \
	        tests/spark/test_records.py tests/spark/test_record_columns.py tests/spark/test_store_faults.py $(ARGS)

# The whole suite without the compiled core: its twins in Python serve.
pure: $(STAMP)
	KEROLOX_PURE=1 $(PYTEST) -q -m "not long" --ignore=tests/peers $(ARGS)

# The tests of servers and clients; sockets and files that they leave open fail the run.
closed: $(STAMP)
	KEROLOX_REQUIRE_CLOSED=1 $(PYTEST) -q -m "not long" tests/client tests/net tests/front tests/proxy tests/broker \
	    tests/nameserver tests/controller tests/replication $(ARGS)

# All tests with Apache's programs, every story told to our servers and to Apache's; and against the 4.9 line.
peers: $(STAMP)
	KEROLOX_REQUIRE_PEERS=1 $(BIN)/python -m pytest tests/peers -m "not long" $(ARGS)

peers-4x: $(STAMP)
	KEROLOX_PEERS_VERSION=4x KEROLOX_REQUIRE_PEERS=1 $(BIN)/python -m pytest tests/peers -m "not long" $(ARGS)

# Users, rules and requests by the thousand, decided by our guard and by Apache's classes: where they differ, and why.
access-decisions: $(STAMP)
	$(BIN)/python -m tests.peers.access_decisions --cases $(or $(CASES),20000) \
	    --out docs/results/access-decisions.json $(ARGS)

# Prints the machine and the figures; keeps them in docs/results, and makes docs/PERFORMANCE.md of them. The broker part, in full,
# takes 25 minutes, access 14, replication 10, failover 20; `make bench ARGS="codec store nameserver"` leaves them out.
bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

# Hundreds of kills and power losses of the store, then thousands of flipped and zeroed bytes in every file it has,
# then kills of a broker under the load of Apache's clients; what they came to is written down. `make crash KILLS=5
# PLACES=600` kills the broker less often and damages fewer places.
crash: $(STAMP)
	$(BIN)/python -m tests.crash --kills 500 --power-seeds 100 --out docs/results/crash-store.json $(ARGS)
	$(BIN)/python -m tests.crash.damage_run --places $(or $(PLACES),6000) --out docs/results/crash-damage.json
	KEROLOX_REQUIRE_PEERS=1 KEROLOX_KILLS=$(or $(KILLS),50) KEROLOX_CRASH_RESULT=docs/results/crash-broker.json \
	    $(BIN)/python -m pytest -q -m long -k "nothing_acknowledged and ours" tests/peers/scenarios/test_crashes.py

# Every kind of file, operation and error number: a leader with its follower and clients of every kind while the
# operation fails, and while the broker stops and starts. Then a sample of it against a broker process whose system
# calls fail, one with few descriptors and one with a full disk. `make faults ARGS="--only log-write-EIO"`: one place.
faults: $(STAMP)
	$(BIN)/python -m tests.faults --out docs/results/faults.json $(ARGS)

# A streaming query with its executors, driver, broker and name server killed at random, at each guarantee; then
# pipelines with bad rows and an archive, over topics that are deleted and made anew between runs; then archives to S3 and to Iceberg, with the command, its JVM and its workers killed while a producer sends.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),30) --out docs/results/chaos-spark.json $(ARGS)
	$(BIN)/python -m tests.chaos.flows --kills $(or $(KILLS),30) --out docs/results/chaos-flows.json
	$(BIN)/python -m tests.chaos.archives --kills $(or $(KILLS),30) --out docs/results/chaos-archive.json

# A leader and its follower in networks of their own, whose wires, processes and disks fail while our client and
# Apache's send; a checker decides. Needs root and iproute2.
partition: $(STAMP)
	$(BIN)/python -m tests.partition --faults $(or $(FAULTS),300) --mixed $(or $(MIXED),26) \
	    --out docs/results/partition.json $(ARGS)

# Three brokers under three controllers with three members of etcd, in networks of their own, under faults of every kind:
# partitions, one-way cuts, clocks, pauses, kills, lost, full and torn disks. A checker decides. Needs root, iproute2
# and etcd-server.
jepsen: $(STAMP)
	$(BIN)/python -m tests.jepsen --faults $(or $(FAULTS),500) --java $(or $(JAVA),60) \
	    --out docs/results/jepsen.json $(ARGS)

# DLedger groups of Apache's brokers and ours, whose members are killed while messages are sent.
dledger: $(STAMP)
	$(BIN)/python -m tests.peers.dledger_kills --kills $(or $(KILLS),100) --out docs/results/dledger-kills.json $(ARGS)
	$(BIN)/python -m pytest -q -m long tests/replication/dledger $(ARGS)

# Controllers and whole brokers in one process, whose time, network, disks and threads are made up: schedules of faults
# by the thousand, each from a number. One that fails is played again by it: `python -m tests.simulate --replay 1027`.
# Takes 20 minutes on two cores that have nothing else to do.
simulate: $(STAMP)
	$(BIN)/python -m tests.simulate --schedules $(or $(SCHEDULES),10000) --mutants --workers 2 \
	    --out docs/results/simulate.json $(ARGS)

# The slow tests on Spark: kills at every step, a cluster's audit and replay, the Java of PyPI.
spark: $(STAMP)
	$(BIN)/python -m pytest -m long tests/spark tests/pipeline tests/cli/test_demo.py $(ARGS)

# The long tests that no other target runs.
long: $(STAMP)
	KEROLOX_REQUIRE_PEERS=1 $(BIN)/python -m pytest -m long tests/chaos tests/docs tests/simulate tests/store \
	    tests/peers $(ARGS)

# A store of Apache's broker rebuilt on Spark, compared byte by byte and opened by both; ARGS="--gib 0.3" is quick.
rebuild: $(STAMP)
	$(BIN)/python -m bench.rebuild $(ARGS)

# The tests of Spark with each version of it that is supported, Spark Connect and a cluster among them.
spark-versions: $(STAMP)
	$(BIN)/python -m tests.spark.versions --out docs/results/spark-versions.json $(ARGS)

# Mixed load for minutes: whether memory, descriptors and delays stay bounded. `make soak MINUTES=60`.
soak: $(STAMP)
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10) $(ARGS)

# Every request code on every port, asked for in every way that must not work: unsigned, as somebody else, replayed, with
# rights to other things, from elsewhere.
attack: $(STAMP)
	$(BIN)/python -m tests.attack --out docs/results/attack.json $(ARGS)

# What an honest client feels while somebody sends what no honest one does, and the memory that takes.
attacks: $(STAMP)
	$(BIN)/python -m bench.attacks $(ARGS)

# Regenerates the lock file from pyproject.toml, for every platform and Python we support.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	    --extra dev --extra spark --extra delta --extra iceberg --extra s3 --extra schemas --extra etcd --extra grpc --output-file requirements/dev.lock pyproject.toml requirements/build.in
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	    --output-file requirements/fuzz.lock requirements/fuzz.in

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis
