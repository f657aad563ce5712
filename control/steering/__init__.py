"""The parts that show and change a running framegate, over ``control.fleet`` and ``control.accept``.

Nothing is re-exported.
"""
