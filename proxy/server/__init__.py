"""What runs in a processor.

``link``: the two sockets between control and a processor, and their codec.
``messages``, ``rows``: the messages of the link and the rows in them; ``schema``: compares values with these declarations; ``protocol``: the version,
the replies to each command, the check of each message.
``settings``: the settings of a processor, and changes; ``endpoints``: endpoints and brokers in them; ``stores``: its certificate stores;
``upstream_logins``: its logins.
``commands``: the commands of control; ``jobs``: those that are done in slices.
``credentials``: auth requests on their way to control and back.
``pair_rows``: pairs and endpoints as rows.
``control_link``: a processor's end of the link; ``loop``: its one thread; ``heap``: returns freed memory to the system.

Nothing is re-exported: ``control`` imports only ``link``, ``messages``, ``rows``, ``schema``, ``protocol`` and ``credentials``. Modules that only TLS
needs are loaded only with TLS: OpenSSL takes a quarter of the memory of a processor.
"""
