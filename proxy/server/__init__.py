"""What runs in a processor.

Nothing is re-exported: ``control`` imports only ``link``, ``messages``, ``rows``, ``schema``, ``protocol`` and ``credentials``. Modules that only TLS
needs are loaded only with TLS: OpenSSL takes a quarter of the memory of a processor.
"""
