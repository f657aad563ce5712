"""Responses to auth requests (``framegate.proxy.auth.auth_requests``): hashes passwords, reads files, verifies signatures.

auth_worker_pool  the threads, and their queues
auth_responder    the response to each kind of request, and the responder of a listener, from its files
passwords         stored credentials, and their check; ``password_checks``: results that are known without a hash
users_file        the file of users; ``users``: its contents
jwks              a file of public keys
tokens            verifies tokens
secrets           framegate's own passwords and tokens, for upstreams
"""
