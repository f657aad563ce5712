"""``framegate demo``: load, proxy, tap and Spark on one machine, and a report that compares what each of them counted.

The demo in front of a real Kafka broker, and the dashboards in six scenarios, are parts of a checkout: ``tests/demo``.
"""
