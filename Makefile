# framegate's tasks. Each one sets up what it needs by itself: deploy/environment.py says how. `make help` lists them.
SHELL := bash
PYTHON ?= python3
ARGS ?=
setup := $(PYTHON) deploy/environment.py

.DEFAULT_GOAL := help
.PHONY: help install run run-kafka test test-all test-pure mutants peers cluster-test lint format bench bench-quick bench-pipeline spark-wheel image dashboards locks proto pages proto-released clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16
	@echo 'Arguments go through: make run ARGS="--seconds 20", make test ARGS="tests/proxy/network -k limit"'

install:  ## the wheel, compiled, with everything a user wants, in .venv
	@$(setup) run --wish compiler
	@echo 'try: .venv/bin/framegate --help    (or ". .venv/bin/activate" first, then: framegate --help)'

run:  ## framegate demo: a TLS client, the proxy, the tap, Spark tables; on this machine
	@$(setup) run --with java --wish compiler -- framegate demo $(ARGS)

run-kafka:  ## the same in front of three real Apache Kafka brokers
	@$(setup) run --with java,maven --wish compiler -- python tests/demo kafka $(ARGS)

# Two at a time, the tests of a file together: the suite is long because much of it waits for real processes. One at a time: ARGS="-n 0 …".
PYTEST := python -m pytest -n 2 --dist loadfile

test:  ## the tests but the long ones, over the built wheel (compiled) in its own environment; a file named in ARGS runs whole
	@FRAMEGATE_TESTS=short $(setup) test --with java --wish compiler,maven,mariadb,openssl -- $(PYTEST) $(ARGS)

test-all:  ## all of them
	@$(setup) test --with java --wish compiler,maven,mariadb,openssl -- $(PYTEST) $(ARGS)

test-pure:  ## the same tests, over the source, interpreted
	@$(setup) pure --with java --wish maven,mariadb,openssl -- $(PYTEST) $(ARGS)

mutants:  ## one small fault after another in a copy of the code: the tests must notice; ARGS="-k tls" for some of them
	@$(setup) pure -- python tests/mutants $(ARGS)

peers:  ## other people's Kafka clients through framegate to real brokers, by every way in and through; six minutes, and tables
	@$(setup) test --with java --wish compiler,maven,clients -- $(PYTEST) tests/peers $(ARGS)

cluster-test:  ## the sidecar on a real node: API server, kubelet, containerd, Kafka and Spark in pods; says "not run" where it cannot
	@$(setup) pure --wish java,maven -- python tests/cluster $(ARGS)

lint:  ## ruff, mypy strict, import contracts, the API's rules and its compatibility
	@$(setup) pure -- ruff check .
	@$(setup) pure -- ruff format --check .
	@$(setup) pure -- mypy
	@MYPYPATH=deploy $(setup) pure -- mypy deploy/environment.py deploy/hatch_build.py deploy/image.py deploy/image_root.py deploy/kafka_tables.py deploy/locks.py deploy/programs.py deploy/spark_wheel.py deploy/telemetry.py
	@MYPYPATH=deploy $(setup) pure -- mypy deploy/dashboards
	@MYPYPATH=tests/benchmarks $(setup) pure -- mypy tests/benchmarks
	@$(setup) pure -- mypy -m tests.demo.__main__
	@$(setup) pure -- lint-imports
	@$(setup) pure -- buf lint proto
	@$(setup) pure -- buf breaking proto --against proto/released.binpb

format:  ## put the source into ruff's form
	@$(setup) pure -- ruff check --fix .
	@$(setup) pure -- ruff format .

bench:  ## what a frame, a connection and a change cost, beside HAProxy, NGINX, Envoy and a relay in C (tests/benchmarks/README.md)
	@FRAMEGATE_REQUIRE_COMPILED=1 $(setup) run --wish compiler,openssl,peers -- python tests/benchmarks $(ARGS)

bench-quick:  ## the cost per frame only, in two minutes, ARGS="--before HEAD~1": beside the build of another commit
	@$(MAKE) -s bench ARGS="--quick $(ARGS)"

bench-pipeline:  ## the pipeline: rows/s beside Spark's Parquet reader, delays, decoding, DuckDB; six minutes; ARGS="--quick"
	@FRAMEGATE_REQUIRE_COMPILED=1 $(setup) test --with java --wish compiler -- python tests/benchmarks/pipeline.py $(ARGS)

spark-wheel:  ## pyspark-framegate, the wheel of what a Spark job needs, into dist
	@$(setup) pure -- python deploy/spark_wheel.py $(ARGS)

image:  ## the container image, checked and tried in a container; ARGS="--target all --twice --archive DIR"
	@PYTHONSAFEPATH= $(PYTHON) deploy/image.py $(ARGS)

dashboards:  ## twenty troubles, and when dashboards and alerts say so; pictures in .cache/dashboards; gets a collector and Prometheus where it can
	@$(PYTHON) deploy/telemetry.py
	@$(setup) run --wish compiler,browser -- python tests/demo dashboards --pictures .cache/dashboards $(ARGS)

locks:  ## deploy/locks anew: what the images install, with versions and hashes
	@PYTHONSAFEPATH= $(PYTHON) deploy/locks.py

proto:  ## generate control/v1 from proto/
	@$(setup) pure -- python deploy/api_stubs.py

pages:  ## write the files of deploy/ that are generated from the code
	@$(setup) pure -- env PYTHONSAFEPATH= python deploy/pages.py

proto-released:  ## say that proto/ is what is released: buf breaking compares with it from then on
	@$(setup) pure -- buf build proto --exclude-source-info -o proto/released.binpb

clean:  ## forget every environment and everything built
	rm -rf .venv .venv-* .cache build dist
