.DEFAULT_GOAL := help
SHELL := /bin/sh
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup demo test test-fast lint molecule bench clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup:  ## .venv with tfdeploy and its development tools
	@.ci/setup

demo: setup  ## from a bare machine to a lab of three hosts, and the product at work on it
	@examples/demo

test: setup lint  ## everything: lint, types, unit, package, lab and molecule tests
	@.ci/engine
	@pytest

test-fast: setup lint  ## what needs no lab: lint, types, unit and package tests
	@pytest -m 'not lab'

lint: setup  ## formatting, lint and types
	@ruff format --check --quiet .
	@ruff check --quiet .
	@mypy
	@ansible-lint -q --offline --profile production playbooks roles tests/molecule

molecule: setup  ## the roles' own tests, on lab hosts
	@.ci/engine
	@pytest tests/molecule

bench: setup  ## measurements, as ratios taken side by side
	@.ci/engine
	@for each in bench/*.py; do echo "== $$each"; python $$each || exit 1; done

clean:  ## remove .venv and caches; labs and Docker stay
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible dist
