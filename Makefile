# Every chore has a name here; .ci/run calls the same targets as a person does.
PYTHON := .venv/bin/python
# The lower end of what pyproject.toml allows.
REDIS_PY := 7.0.0
SPARK := 4.0.5

# Tests start hundreds of processes: without bytecode on disk, each compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the engines (Debian packages), the venv and the pinned packages
	@bash scripts/setup.sh

panels: ## draw panels of the dashboard from a real run, for the docs
	$(PYTHON) -m scripts.panels

check: ## format, lint, types, import contracts, shape, Lua, workflows
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTHON) -m scripts.shape
	$(PYTHON) -m scripts.code_map --check
	$(PYTHON) -m scripts.sync_half --check
	luacheck --quiet src/braidstream/lua
	node scripts/workflows/lua.mjs
	node scripts/workflows/lint.mjs

format: ## rewrite the code to the format and fix what lint can fix
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	node scripts/workflows/lua.mjs --write

test: ## every test on the engines that it needs; BRAID_ENGINE=all for all of them, as every night
	$(PYTHON) -m pytest -n 3 --dist loadgroup

compile-tests: ## write the bytecode of all tests, so that the processes of make test find it; and of Spark's workers
	$(PYTHON) -c "import braidstream.spark, pyspark.sql.streaming.python_streaming_source_runner"
	$(PYTHON) -m pytest -q --collect-only tests

test-fast: ## unit, plans, engine, client, gateway and regions without the long ones, on one engine; under three minutes
	BRAID_ENGINE=$(or $(BRAID_ENGINE),redis-8.10) $(PYTHON) -m pytest -q -n 3 -m "not long" --hypothesis-profile quick \
		tests/unit tests/plans tests/oracle tests/engine tests/client tests/gateway tests/regions

# Before .venv's own in the path: no second environment is needed.
OLDEST := .oldest-redis-py

coverage: ## which lines of src the tests run, with the processes that they start; cheap if .venv has Python 3.12 or newer
	rm -rf .coverage .coverage.*
	COVERAGE_CORE=sysmon $(PYTHON) -m coverage run -m pytest -n 3 --dist loadgroup $(TESTS); passed=$$?; \
		$(PYTHON) -m coverage combine --quiet; $(PYTHON) -m coverage report; exit $$passed

oldest-redis-py: ## the clients' tests with the oldest supported redis-py (the others run with the newest)
	@grep -qs '^$(REDIS_PY)$$' $(OLDEST)/version || { rm -rf $(OLDEST) && $(PYTHON) -m pip install --quiet \
		--disable-pip-version-check --root-user-action=ignore --no-deps --target $(OLDEST) redis==$(REDIS_PY) \
		&& echo $(REDIS_PY) > $(OLDEST)/version; }
	PYTHONPATH=$(CURDIR)/$(OLDEST) BRAID_ENGINE=redis-8.10 $(PYTHON) -m pytest -q \
		tests/unit/test_redis_py.py tests/unit/test_exports.py tests/client/test_raised.py tests/client/test_watches.py \
		tests/client/test_arrived_replies.py tests/client/test_redis_py_range.py tests/client/test_snippets.py tests/docs/test_examples.py

# Spark's workers take it from there too. Its Python packages are those of .venv.
OLD_SPARK := .spark-$(SPARK)

oldest-spark: ## queries, reads and errors under the oldest supported Spark; SPARK=4.1.4 for another one
	@test -d $(OLD_SPARK)/pyspark || bash scripts/packages.sh $(PYTHON) --no-deps --target $(OLD_SPARK) \
		pyspark==$(SPARK) py4j==0.10.9.9
	PYTHONPATH=$(CURDIR)/$(OLD_SPARK) BRAID_ENGINE=redis-8.10 $(PYTHON) -m pytest -q -n 0 \
		tests/spark/test_query.py tests/spark/test_read.py tests/spark/test_ergonomics.py

newest-python: ## tests of plans, links and tasks with the newest Python here; NEWEST="tests/client tests/regions": others
	@BRAID_SEEDS=3 bash scripts/newest_python.sh $(or $(NEWEST),tests/plans tests/regions/test_links.py \
		tests/regions/test_bundles.py tests/client/test_cluster_tasks.py tests/client/test_watches.py)

bench: ## all ratios against the bare engine and bare redis-py; writes bench/results/latest.json
	$(PYTHON) -m bench

bench-quick: ## the same ratios with short runs, under three minutes
	$(PYTHON) -m bench --quick

bench-watch: ## CPU of clients and engine against an older tree, alternating; fails on 10 % more. WATCH="--base TAG --only XADD"
	$(PYTHON) -m bench.watch $(WATCH)

bench-replication: ## catch-up, lag and cost of replication with real daemons; some minutes
	$(PYTHON) -m bench.replication

bench-many: ## 100,000 small streams in three regions: memory, catch-up, restart, idle CPU and lag; MANY="--streams 10000"
	$(PYTHON) -m bench.many $(MANY)

bench-scale: ## the constants of docs/design/scale.md; writes bench/results/scale.json; some minutes
	$(PYTHON) -m bench.scale

bench-compression: ## bytes and CPU for an entry between daemons, with zstd and without; some minutes
	$(PYTHON) -m bench.compression

bench-console: ## CPU of the console with five regions under load, without viewers and with five
	$(PYTHON) -m bench.console

bench-cluster: ## XADD through our cluster client against redis-py's own
	$(PYTHON) -m bench.cluster

bench-topics: ## how fast consumers of a topic share it, and what it costs; TOPICS="--members 1000 --partitions 10000 --session 10"
	$(PYTHON) -m bench.topics $(TOPICS)

bench-later: ## 100,000 entries due at 1,000 a second, and 1,000,000 that wait; some minutes; LATER="--engine valkey-9.1"
	$(PYTHON) -m bench.later $(LATER)

bench-policies: ## what retention and entries for later cost over 10,000 streams, a minute each; POLICIES="--streams 1000"
	$(PYTHON) -m bench.policies $(POLICIES)

bench-retention: ## twenty minutes of a stream that grows under --max-bytes --acked, and its picture; RETENTION="--minutes 4"
	$(PYTHON) -m bench.retention $(RETENTION)

bench-spark: ## what Spark's source and sink reach, against the engine's own figures
	$(PYTHON) -m bench.spark

bench-spark-many: ## the Spark source over 10,000 small streams: the look, the tasks, a micro-batch; MANY="--regions 5"
	$(PYTHON) -m bench.spark_many $(MANY)

lake-scale: ## 10,000,000 entries archived, viewed, replayed, audited, compacted; three sizes; LAKE="--sizes 100000,200000"
	$(PYTHON) -m bench.lake $(LAKE)

freshness: ## seconds from XADD to readable in DuckDB, at 5,000 entries a second for a minute; FRESH="--rate 1000 --seconds 10"
	$(PYTHON) -m bench.freshness $(FRESH)

kill-spark: ## 144 SIGKILLs of Spark's workers, JVM and driver: every cell of the crash matrix, in random order
	BRAID_KILLS=144 $(PYTHON) -m pytest -q -s tests/spark/test_kill.py -k matrix --timeout 0 -n 0

kill-lake: ## 100 SIGKILLs of archives, compaction and vacuum on one lake, and of their JVMs and workers; half of them on S3
	BRAID_KILLS=$(or $(BRAID_KILLS),100) $(PYTHON) -m pytest -q -s tests/spark/test_lake_kills.py -k many_kills --timeout 0 -n 0

kill-regions: ## 100 random moments at which the preferred region of MultiRegion clients dies under load; BRAID_SEED=17 tells one
	BRAID_MOMENTS=$(or $(MOMENTS),100) $(PYTHON) -m pytest -q -s tests/long/test_multi_region.py --timeout 0 -n 0

kill-later: ## 100 rounds of SIGKILLs of daemons and engines during promotions, cancellations, retention; BRAID_SEED=17 tells one
	BRAID_NIGHTLY=1 BRAID_ROUNDS=$(or $(ROUNDS),100) $(PYTHON) -m pytest -q -s tests/long/test_later_kills.py --timeout 0 -n 0

kill-consumers: ## 100,000 entries, 8 consumer processes that raise, hang and kill themselves, and engine restarts
	BRAID_ENTRIES=$(or $(ENTRIES),100000) $(PYTHON) -m pytest -q -s tests/long/test_consumers.py --timeout 0 -n 0

kill-topics: ## a minute of kills, freezes and slot moves under consumers of a topic, on a server and on a cluster; SECONDS=600
	BRAID_SECONDS=$(or $(SECONDS),60) $(PYTHON) -m pytest -q -s tests/long/test_topics.py --timeout 0 -n 0

cluster-differential: ## 300,000 random commands, a cluster through our client against one bare engine
	BRAID_COMMANDS=300000 $(PYTHON) -m pytest -q -s tests/long/test_cluster_differential.py --timeout 0 -n 2

cluster-moves: ## slots move 500 times while clients write, read and delete
	BRAID_MOVES=500 $(PYTHON) -m pytest -q tests/long/test_cluster_moves.py --timeout 0 -n 2

differential: ## a million random commands, braidstream against the bare engine
	BRAID_COMMANDS=1000000 $(PYTHON) -m pytest -q -s tests/long/test_differential.py --timeout 0 -n 2

search: ## property tests with 20,000 fresh examples each
	$(PYTHON) -m pytest -q tests/unit tests/long/test_weaving.py tests/long/test_groups.py tests/long/test_long_pages.py \
		tests/regions/test_once_promise.py tests/client/test_log_model.py --hypothesis-profile nightly --timeout 0 -n 2

lost-replies: ## 100,000 idempotent messages through a proxy that loses requests and replies at random
	BRAID_MESSAGES=100000 $(PYTHON) -m pytest -q tests/client/test_idempotent_clients.py -k under_load --timeout 0

example-pipeline: ## orders of two regions through Spark to sums, alerts, a Delta table and a picture
	PATH=$(CURDIR)/.venv/bin:$$PATH sh examples/orders-pipeline/run.sh $(ORDERS)

soak: ## ten minutes of faults on each engine: kills, pauses, cut links, full memory; SOAK="--seed 7 --seconds 60"
	$(PYTHON) -m tests.long.soak $(SOAK)

cluster-soak: ## half an hour on each engine: two clusters and a server, slots move and primaries die; SOAK="--seconds 120"
	$(PYTHON) -m tests.long.cluster_soak $(SOAK)

adopt-live: ## adopt a stream of 1,000,000 entries under load, and print the longest pause of a client
	BRAID_ADOPT_ENTRIES=1000000 BRAID_ADOPT_PENDING=50000 BRAID_ADOPT_SECONDS=10 BRAID_ENGINE=redis-8.10 \
	  $(PYTHON) -m pytest -q -n 0 -p no:cacheprovider tests/long/test_adopt_live.py

simulate: ## ten thousand seeds of two hundred operations in 2 to 5 regions; BRAID_SEED=17 tells one of them
	$(PYTHON) -m tests.long.simulation

losses: ## 1,000 engines that restart without a part of their data, in 3 regions; BRAID_SEED=17 tells one of them
	$(PYTHON) -m tests.long.losses

demo: ## watch the tables and sessions of the requirements typed into redis-cli at gateways
	BRAID_SHOW=1 $(PYTHON) -m pytest -q -s -n 0 tests/gateway/test_typed.py tests/gateway/test_typed_examples.py \
		tests/regions/test_typed_daemons.py

redis-suite: ## Redis's own stream tests against a gateway; SUITE=/path/to/redis/source ENGINE=redis-8.10 UNITS="unit/type/stream ..."
	$(PYTHON) -m scripts.redis_suite --suite "$(SUITE)" --engine "$(or $(ENGINE),redis)" $(UNITS)

fuzz: ## atheris on the gateway's parser, then a million hostile cases at a running gateway
	$(PYTHON) -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	$(PYTHON) -m tests.long.fuzz_resp -runs=1000000
	BRAID_CASES=1000000 $(PYTHON) -m pytest -q -s tests/gateway/test_gateway_hostile.py --timeout 0 -n 2

fuzz-functions: ## 100,000 hostile calls of the engine functions: none keeps an engine busy, here or in a peer region
	BRAID_CALLS=$(or $(BRAID_CALLS),100000) $(PYTHON) -m pytest -q -s tests/long/test_fuzz_functions.py --timeout 0 -n 0

fuzz-pages: ## a million hostile and damaged pages of entries: no wrong byte is sent to a peer
	BRAID_PAGES=1000000 $(PYTHON) -m pytest -q -s tests/long/test_splice_fuzz.py --timeout 0 -n 0

crowd: ## 10,000 idle and 500 busy clients at one gateway
	BRAID_IDLE=10000 BRAID_BUSY=500 $(PYTHON) -m pytest -q -s tests/gateway/test_gateway_crowd.py --timeout 0

docs: ## build the documentation site into site/, with every link checked
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict  # not --quiet: that hides warnings from --strict

release-rehearsal: ## a release of HEAD without the last push, into dist/, and a new user who installs it; STEPS="build user"
	$(PYTHON) -m scripts.rehearsal

docs-version: ## the site as one version on the branch gh-pages of this clone; VERSION=0.1 ALIAS=latest
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/mike deploy --update-aliases $(VERSION) $(ALIAS)
	.venv/bin/mike set-default --allow-empty $(or $(ALIAS),$(VERSION))

docs-serve: ## the site at http://127.0.0.1:8000, built again when a page changes
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve

drawings: ## docs/drawings/*.pikchr become the SVG files beside them
	cd scripts/drawings && npm install --silent --no-audit --no-fund --no-package-lock && node draw.mjs

docs-reference: ## write the generated pages of docs/reference
	$(PYTHON) -m scripts.reference

hashes: ## write constraints.hashes from constraints.txt and what the index says
	$(PYTHON) -m scripts.hashes

docs-map: ## write the tree of files in docs/design/map.md from the modules themselves
	$(PYTHON) -m scripts.code_map

sync-half: ## write the blocking half of the clients from their asyncio half
	$(PYTHON) -m scripts.sync_half

docs-scale: ## write the tables of docs/design/scale.md from bench/results/scale.json
	$(PYTHON) -m scripts.scale

clean: ## remove caches and build leftovers; keeps .venv and bench results
	rm -rf build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +
