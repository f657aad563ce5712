"""framegate in pods: one sidecar, added to manifests by ``framegate inject``, to new pods by ``framegate webhook``, or merged by Kustomize.

sidecar.yaml      the additions to a pod: the one source
sidecar           the additions for one configuration and its options
pod_requirements  what a configuration needs from its pod
manifest          a manifest's text as a tree with positions, and its objects that have pods
edit              text edits that keep the rest as it is
checks            conflicts with what a pod has
objects           ConfigMap, Certificate, NetworkPolicy and others beside it
inject            all of it together: ``Injector`` and ``remove``
admission         answers to admission reviews of pods
cluster           calls of the API server from a pod
webhook           the HTTPS server for reviews, and its certificate
"""
