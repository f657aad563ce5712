"""What runs in a processor.

``link``: the two sockets between control and a processor: codec, hand-over of connections, names of the messages.
``settings``: what the ``start`` message becomes: TLS contexts, limits, shares.
``commands``: what control may ask for while traffic flows, in slices.
``control_link``: a processor's end of the link: its sockets, what is told, the connections taken over.
``heap``: memory that the allocator keeps, given back when it is not needed.
``loop``: the one thread of a processor. ``python -P -m proxy.server`` runs it.

Nothing is re-exported: ``control`` uses ``link`` alone, and must not pay for the rest. What only TLS needs is loaded when a listener or an
upstream speaks it: OpenSSL is a quarter of what a processor without it takes.
"""
