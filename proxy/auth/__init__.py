"""Authenticators: implementations of ``framegate.proxy.network.authenticator``.

    factories           authenticators from the settings of a listener or an upstream
    mapping_rules       Kafka's ``ssl.principal.mapping.rules``
    certificates        principals from certificates, and the public keys that an upstream's certificate may have
    allowed_principals  which principals may connect
    wire, messages      Kafka's protocol, as far as authentication needs it
    auth_requests       requests to the control process, and the responses
    mechanism           the interface of SASL mechanisms: ``plain``, ``scram`` (``scram_messages``), ``oauthbearer``
    secret_redaction    removes secrets from a server's error text
    server              the exchange with a client; ``server_state``: its table
    client              the exchange with an upstream

This code runs in a processor: it uses the standard library only, and neither hashes passwords nor reads files; ``framegate.control.identity`` does.
"""
