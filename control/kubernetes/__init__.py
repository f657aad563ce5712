"""Framegate in pods: one sidecar, added to manifests by ``framegate inject`` or merged by Kustomize.

sidecar.yaml  what a pod gains: the one source
sidecar       that, fitted to a configuration and to what was asked for
needs         what a configuration asks of its pod
manifest      a manifest's text as a tree that knows where everything stands
workload      what in it has pods
edit          text put in and cut out between what is there
checks        what keeps framegate out of a pod
objects       ConfigMap, Certificate, NetworkPolicy and others beside it
inject        all of it together: ``Injector`` and ``remove``
component     the Kustomize components of ``deploy/kustomize``; ``python -m control.kubernetes`` writes them
"""
