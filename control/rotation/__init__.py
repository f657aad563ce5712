"""Files that are replaced while framegate runs: certificates, keys, authorities, and whatever else makes itself a source.

    rotation    looks at the files, has what is new taken, tells what became of it
    source      what is watched, and who takes it: the interfaces
    tls_stores  certificates, keys and authorities: judged, then in force in every processor or in none
    identity_files  users and keys of tokens: in force for who authenticates afterwards
    judge       is what is new good enough? A process of its own
    trial       a handshake with it, in memory

Files are looked at every second or so (``rotation.poll``): ``stat`` tells every way of replacing one, on every file system, where notices of the
kernel end with a link that is turned elsewhere, and do not come at all from some network file systems.
"""
