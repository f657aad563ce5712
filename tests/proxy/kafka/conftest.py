"""Hypothesis without a stopwatch and without dice, as in ``tests/proxy/network``."""

from hypothesis import settings

settings.register_profile("kafka", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("kafka")
