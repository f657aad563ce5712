"""The dashboards and the alerts, described in Python; ``python deploy/dashboards`` writes the JSON and YAML files that are committed.

promql      builds queries; fills them in for a dashboard or for a rule
problems    the problems of ``control.steering.alerts`` as queries of the first panel, and as alerts
panels      descriptions of panels and dashboards, and their conversion with Grafana's Foundation SDK
healthy, traffic, hurts, identity, tap, control   the six dashboards
write       the files: dashboards, and rules of alerts
queries     the panels of a written dashboard, and their queries with values in place of variables; needs the standard library only
"""
