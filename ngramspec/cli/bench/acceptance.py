"""The former name of ``ngramspec alpha``: the same options, the same measurement."""

from __future__ import annotations

from ngramspec.cli.alpha import add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "the former name of 'ngramspec alpha'"
