"""The configuration model: ``model`` holds one frozen dataclass for each concern, whose fields are the keys; ``key`` is what is said of a field,
and how a model comes over the link; ``selection`` says what the words of a tap rule mean.

Loading and validating live in ``framegate.control.configuration``.
"""
