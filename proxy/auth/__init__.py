"""Authenticators: implementations of ``framegate.proxy.network.authenticator``.

This code runs in a processor: it uses the standard library only, and neither hashes passwords nor reads files; ``framegate.control.identity`` does.
"""
