"""What runs in a processor.

``link``: the two sockets between control and a processor: codec, hand-over of connections.
``messages``: what is said over the link; ``rows``: the rows in it; ``protocol``: which version of that, what answers what, and how it is judged when
it arrives (``shape``).
``closed``: the closed row on its way.
``settings``: what the ``start`` message becomes: TLS contexts, limits, shares.
``commands``: what control may ask for while traffic flows; ``jobs``: what is done in slices of it.
``pair_rows``: pairs and endpoints as rows.
``control_link``: a processor's end of the link: its sockets, what is told, the connections taken over.
``heap``: memory that the allocator keeps, given back when it is not needed.
``loop``: the one thread of a processor. ``python -P -m proxy.server`` runs it.

Nothing is re-exported: ``control`` uses ``link``, ``messages``, ``rows``, ``protocol`` and ``closed`` alone, and must not pay for the rest. What only
TLS needs is loaded when a listener or an upstream speaks it: OpenSSL is a quarter of what a processor without it takes.
"""
