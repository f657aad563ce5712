"""What runs in a processor.

``link``: the two sockets between control and a processor: codec, descriptors of connections, lines of rows.
``messages``: what is sent over the link; ``rows``: the rows in it; ``schema``: how a value is compared with such a declaration; ``protocol``: the
version, which reply belongs to which command, and how a message is checked when it arrives. ``question_codec``: requests of authenticators.
``settings``: what the ``start`` message becomes: TLS contexts, limits, shares.
``commands``: what control may ask for while traffic flows; ``jobs``: what is done in slices of it.
``pair_rows``: pairs and endpoints as rows, written by hand where they are frequent.
``control_link``: a processor's end of the link: its sockets, what is told, the connections taken over.
``heap``: memory that the allocator keeps, given back when it is not needed.
``loop``: the one thread of a processor. ``python -P -m framegate.proxy.server`` runs it.

Nothing is re-exported: ``control`` uses ``link``, ``messages``, ``rows``, ``schema``, ``protocol`` and ``question_codec`` alone, and must not pay for
the rest. What only TLS needs is loaded when a listener or an upstream speaks it: OpenSSL is a quarter of what a processor without it takes.
"""
