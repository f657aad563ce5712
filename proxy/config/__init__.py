"""The configuration model: ``model`` holds one frozen dataclass for each concern. Loading and validating live in ``control.configuration``."""
