"""Processors and handler processes: start, watch, restart, change and stop.

``framegate.control.steering`` decides what runs. Nothing is re-exported.
"""
