"""The gRPC stubs of ``proto/``, generated and committed, so that an installation needs no toolchain.

``python -m control.gen`` writes them anew (``make proto``); a test does the same into a temporary folder and compares. Only this file and
``__main__`` are edited by hand.
"""
