"""The dashboards and the alerts: one description in Python, from which ``python deploy/dashboards`` writes the JSON and YAML that are committed.

promql      queries as they are written here, filled in for a dashboard or for a rule
problems    what may be wrong, in words: the first dashboard's first panel and the alerts are made from it; ``trouble`` has the list
panels      a panel and a dashboard as they are described here, made with Grafana's Foundation SDK
healthy, traffic, hurts, identity, tap, control   the six dashboards
rules       the rule file of Prometheus and the same as a PrometheusRule
write       which files there are, and what is in them
queries     the panels of a written dashboard, and their queries with values in place of variables; needs the standard library only
"""
