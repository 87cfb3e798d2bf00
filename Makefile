.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## .venv with tfdeploy in it
	@.ci/setup
