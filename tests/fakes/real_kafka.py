"""Marks of tests that need a real Kafka broker."""

import os

import pytest

from tests.demo import broker

_missing = broker.missing_tools()
HAS_BROKER = pytest.mark.skipif(bool(_missing) and not os.environ.get("CI"), reason=f"needs {' and '.join(_missing)}")
REAL_KAFKA = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240), HAS_BROKER]
