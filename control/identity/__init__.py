"""Responses to auth requests (``framegate.proxy.auth.auth_requests``): hashes passwords, reads files, verifies signatures."""
