"""Handlers: the user's Python on whole frames.

``wire``: the records between a processor and a handler process.
"""
