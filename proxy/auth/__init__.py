"""Who is there: what implements ``proxy.network.authenticator``.

    factories           which of all this a listener's or an upstream's settings ask for
    mapping_rules       Kafka's ``ssl.principal.mapping.rules``
    certificate_names   the names beside its subject that a certificate has
    certificates        the factory of principals from certificates
    certificate_pins    the keys that an upstream's certificate may have
    admission           which principals may come in
    wire, messages      Kafka's protocol, as far as authentication needs it
    questions           what has to be asked of the control process, and the answers
    mechanism           what a SASL mechanism is: ``plain``, ``scram`` (its messages: ``scram_messages``), ``oauthbearer``
    withheld            what a server says, without what is a secret of ours
    server              the exchange with a client; ``server_state`` is its table
    client              the exchange with an upstream

It runs in a processor: the standard library only, no hashing of passwords, no files. Those are ``control.identity``'s.
"""
