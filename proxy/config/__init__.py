"""The configuration model: ``model`` and the modules that it imports hold one frozen dataclass for each section, whose fields are the keys; ``key``
adds units and ranges, and decodes a model from the link; ``selection`` decodes the words of a tap rule.

Loading and validating live in ``framegate.control.configuration``.
"""
