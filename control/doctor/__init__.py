"""``framegate doctor``: all that ``framegate check`` finds, and probes of framegate's surroundings, each with what was found and what to do.

The doctor changes nothing. It runs beside a framegate that serves, without a shell, on a read-only root, as any user.
"""
