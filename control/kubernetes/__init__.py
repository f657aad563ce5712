"""framegate in pods: one sidecar, added to manifests by ``framegate inject``, to new pods by ``framegate webhook``, or merged by Kustomize.

The one source of the additions to a pod is ``sidecar.yaml``.
"""
