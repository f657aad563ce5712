"""Admission reviews of pods: framegate is added as ``inject`` adds it, and the answer is a JSON patch.

The pod has its configuration in an annotation. So it needs no ConfigMap of its namespace, and a container that restarts finds the configuration
that was checked. A pod with framegate is not changed again, however it got it.
"""

import base64
import dataclasses
import functools
import json
import logging
from typing import Any, Final

from framegate.control.configuration.document import ConfigurationError
from framegate.control.kubernetes.checks import unmet
from framegate.control.kubernetes.cluster import Cluster, ClusterError
from framegate.control.kubernetes.inject import RECORD, Injector
from framegate.control.kubernetes.manifest import SWITCH, ManifestError
from framegate.control.kubernetes.objects import Wanted
from framegate.control.kubernetes.pod_requirements import PodRequirements, PodRequirementsError, fitted_requirements
from framegate.control.kubernetes.sidecar import CONTAINER, FILE_NAME, Options

CONFIG: Final = "framegate.io/config"  # an annotation of the pod: the ConfigMap of its namespace with framegate.yaml
TLS_SECRET: Final = "framegate.io/tls-secret"  # an annotation of the pod: the Secret with its certificate
ENV_SECRET: Final = "framegate.io/env-secret"  # an annotation of the pod: the Secret with variables of framegate's environment; empty: none
TLS_VOLUME: Final = "framegate.io/tls-volume"  # an annotation of the pod: its volume with its certificate, instead of a Secret
_UNCHANGED: Final = {RECORD, "kubernetes.io/config.mirror"}  # annotations of pods that have framegate, or that the kubelet only shows: static ones
_MOST_BYTES: Final = 200_000  # of a configuration: all annotations of an object may have 256 KiB
_MOST_WARNING: Final = 250  # Characters; the API server shortens longer warnings

_log = logging.getLogger(__name__)
_requirements = functools.lru_cache(maxsize=64)(fitted_requirements)


class _RefusedError(Exception):
    """framegate cannot be added; each argument is a reason."""


class Admission:
    """Answers reviews. ``default``: the text of framegate.yaml of pods that name no ConfigMap; None: each must name one. ``admit``: a pod to which
    framegate cannot be added is created without it; otherwise it is refused.
    """

    def __init__(self, cluster: Cluster, options: Options, default: str | None, *, admit: bool) -> None:
        self._cluster = cluster
        self._options = dataclasses.replace(options, config_map=None, admitted=True)
        self._default = default
        self._admit = admit

    def faults_of_default(self) -> list[str]:
        """Why framegate cannot be added to any pod that names no ConfigMap; empty: it can, or each pod must name one."""
        if self._default is None:
            return []
        try:
            return unmet(self._options, self._needs(None, "", self._options)[0], Wanted())
        except _RefusedError as error:
            return list(error.args)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The response to an AdmissionRequest (admission.k8s.io/v1)."""
        answer: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        pod = request["object"]
        if request["operation"] != "CREATE" or request["kind"] != {"group": "", "version": "v1", "kind": "Pod"} or not _is_wanted(pod):
            return answer
        namespace = request["namespace"]
        try:
            after, notes = self._injected(pod, namespace)
        except _RefusedError as error:
            reasons = list(error.args)
            words = "the pod is created without framegate" if self._admit else "the pod is refused"
            message = f"framegate cannot be added, {words}: {'; '.join(reasons)}"
            _log.warning("%s %s: %s", namespace, _name(pod), message)
            if not request.get("dryRun"):
                self._record(pod, namespace, message)
            if self._admit:
                return {**answer, "warnings": [f"framegate cannot be added: {reason}"[:_MOST_WARNING] for reason in reasons]}
            return {**answer, "allowed": False, "status": {"code": 422, "reason": "Invalid", "message": message}}
        _log.info("%s %s: added", namespace, _name(pod))
        patch = base64.b64encode(json.dumps(patch_of(pod, after)).encode()).decode()
        return {**answer, "patchType": "JSONPatch", "patch": patch, "warnings": [note[:_MOST_WARNING] for note in notes]}

    def _injected(self, pod: dict[str, Any], namespace: str) -> tuple[dict[str, Any], list[str]]:
        """The pod with framegate, and what the user should know."""
        annotations = pod["metadata"].get("annotations") or {}
        secret, volume = annotations.get(TLS_SECRET) or self._options.tls_secret, annotations.get(TLS_VOLUME) or None
        variables = annotations.get(ENV_SECRET, self._options.env_secret) or None
        options = dataclasses.replace(self._options, tls_secret=secret, tls_volume=volume, env_secret=variables)
        needs, notes = self._needs(annotations.get(CONFIG) or None, namespace, options)
        if reasons := unmet(options, needs, Wanted()):
            raise _RefusedError(*reasons)
        injector = Injector(options, needs, Wanted())
        try:
            after = injector.inject(json.dumps(pod))
        except ManifestError as error:
            raise _RefusedError(*(fault.what for fault in error.faults)) from error
        return json.loads(after), notes + injector.notes

    def _needs(self, name: str | None, namespace: str, options: Options) -> tuple[PodRequirements, list[str]]:
        try:
            text = self._default if name is None else self._cluster.config_map(namespace, name, FILE_NAME)
            if text is None:
                raise _RefusedError(f"the pod's annotation {CONFIG} must name a ConfigMap with {FILE_NAME}, because the webhook has no configuration")
            if len(text.encode()) > _MOST_BYTES:
                raise _RefusedError(f"the configuration has more than {_MOST_BYTES} bytes")
            needs, warnings = _requirements(text, options.cpu_m, options.memory)
        except ClusterError as error:
            raise _RefusedError(str(error)) from error
        except ConfigurationError as error:
            raise _RefusedError(*(fault.in_file(name or FILE_NAME) for fault in error.faults)) from error
        except PodRequirementsError as error:
            raise _RefusedError(*error.reasons) from error
        return needs, list(warnings)

    def _record(self, pod: dict[str, Any], namespace: str, message: str) -> None:
        """An event of the pod's owner, the one that controls it if there are several, because the pod does not exist yet."""
        owners = sorted(pod["metadata"].get("ownerReferences") or (), key=lambda owner: not owner.get("controller"))
        owner = owners[0] if owners else {"apiVersion": "v1", "kind": "Pod", "name": _name(pod)}
        about = {key: owner[key] for key in ("apiVersion", "kind", "name", "uid") if key in owner}
        try:
            self._cluster.event(namespace, about, "NotInjected", message)
        except ClusterError as error:
            _log.warning("no event was recorded: %s", error)


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("name") or pod["metadata"].get("generateName"))


def _is_wanted(pod: dict[str, Any]) -> bool:
    """Whether framegate is not switched off, not there yet, and can be added at all."""
    metadata, spec = pod["metadata"], pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    there = not _UNCHANGED.isdisjoint(metadata.get("annotations") or ()) or any(item["name"] == CONTAINER for item in containers)
    return not there and (metadata.get("labels") or {}).get(SWITCH) != "false"


def patch_of(before: Any, after: Any, path: str = "") -> list[dict[str, Any]]:
    """The JSON patch (RFC 6902) from one value to another that has everything of the first: keys and items are added, values replaced."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key, value in after.items():
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            found += patch_of(before[key], value, place) if key in before else [{"op": "add", "path": place, "value": value}]
        return found
    if isinstance(before, list) and isinstance(after, list):
        new = len(after) - len(before)
        if after[: len(before)] == before:
            return [{"op": "add", "path": f"{path}/-", "value": item} for item in after[len(before) :]]
        if new == 0:
            return [operation for index, item in enumerate(after) for operation in patch_of(before[index], item, f"{path}/{index}")]
        if after[new:] == before:
            return [{"op": "add", "path": f"{path}/0", "value": item} for item in reversed(after[:new])]
    return [{"op": "replace", "path": path, "value": after}]
