"""Files that are replaced while framegate runs: certificates, keys, authorities, users.

Files are polled (``rotation.poll``, 1 s): ``stat`` notices every way of replacing a file on every file system. inotify misses replaced symbolic links
and does not work on some network file systems.
"""
