"""One client joined to one upstream.

``pairing``: which answer belongs to which request, for ``protocol: kafka``.
"""
