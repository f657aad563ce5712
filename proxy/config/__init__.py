"""The configuration model: ``model`` holds one frozen dataclass for each concern, ``selection`` says what the words of a tap rule mean.

Loading and validating live in ``control.configuration``.
"""
