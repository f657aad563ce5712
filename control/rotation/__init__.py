"""Files that are replaced while framegate runs: certificates, keys, authorities, users.

    rotation           polls the files, calls the reloader, reports the result
    source             what is watched, and the interface of reloaders
    tls_stores         certificates, keys and authorities: validated, then in force in every processor or in none
    identity_files     users and token keys: in force for later authentications
    validator          checks new certificates; ``validator_process``: the process that it runs in
    trial              a TLS handshake in memory

Files are polled (``rotation.poll``, 1 s): ``stat`` notices every way of replacing a file on every file system. inotify misses replaced symbolic links
and does not work on some network file systems.
"""
