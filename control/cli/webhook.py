"""``framegate webhook``: adds framegate to pods when they are created."""

import asyncio
import functools
import logging
import pathlib
import sys
from typing import Any

import click

from framegate.control.cli.inject import sidecar_options
from framegate.control.cli.options import example
from framegate.control.cli.output import print_note

_FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)
_LATER = click.Path(dir_okay=False, path_type=pathlib.Path)


@click.command(
    short_help="Add framegate to pods when they are created.",
    epilog=example(
        "framegate webhook --config /etc/framegate/framegate.yaml --name framegate-webhook",
        "framegate webhook --certificate /tls/tls.crt --key /tls/tls.key --on-fault admit",
    ),
)
@click.option("--listen", default="0.0.0.0:8443", show_default=True, help="The address to listen on.")
@click.option("--config", type=_FILE, help="framegate.yaml of pods that name no ConfigMap.  [default: each pod must name one]")
@click.option(
    "--on-fault", type=click.Choice(["refuse", "admit"]), default="refuse", show_default=True, help="Pods that framegate cannot be added to."
)
@click.option("--certificate", type=_LATER, help="The certificate, for example cert-manager's.  [default: made and renewed here; needs --name]")
@click.option("--key", type=_LATER, help="Its key.")
@click.option("--name", help="Name of the Secret, Service and MutatingWebhookConfiguration, whose caBundle is kept up to date.")
@sidecar_options
def webhook(
    listen: str, config: pathlib.Path | None, on_fault: str, certificate: pathlib.Path | None, key: pathlib.Path | None, name: str | None, **told: Any
) -> None:
    """Add framegate to pods when they are created, as `framegate inject` does: a mutating admission webhook. The Helm chart in deploy/helm runs it.

    Annotations of a pod name what it uses: framegate.io/config the ConfigMap with its framegate.yaml, framegate.io/tls-secret the Secret with its
    certificate, framegate.io/env-secret the Secret with framegate's environment. A pod that has framegate is not changed. Why a pod could not be
    changed is a warning for its creator and an event.

    Exit codes: 0 after SIGTERM; 1 the address cannot be used, or this is no pod; 2 wrong usage, or --config has faults (all are listed).
    """
    from framegate.control.kubernetes.admission import Admission
    from framegate.control.kubernetes.cluster import Cluster, ClusterError
    from framegate.control.kubernetes.sidecar import Options
    from framegate.control.kubernetes.webhook import OwnCertificate, files, serve

    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key belong together")
    if (certificate is None) == (name is None):
        raise click.UsageError("either --certificate or --name is needed")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        cluster = Cluster()
        default = None if config is None else config.read_text(encoding="utf-8")
        admission = Admission(cluster, Options(**told), default, admit=on_fault == "admit")
        if reasons := admission.faults_of_default():
            for reason in reasons:
                print_note(reason)
            sys.exit(2)
        pair = functools.partial(files, certificate, key) if certificate is not None and key is not None else OwnCertificate(cluster, str(name))
        asyncio.run(serve(listen, admission, pair))
    except (ClusterError, OSError, UnicodeDecodeError) as error:
        print_note(str(error))
        sys.exit(1)
