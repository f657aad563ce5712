"""The control process: everything that is not the data path. ``pyproject.toml`` says which package may import which."""
