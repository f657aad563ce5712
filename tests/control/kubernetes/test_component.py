"""The components of deploy/kustomize are generated from one source."""

import tomllib
from pathlib import Path

from framegate.control.kubernetes.component import files
from framegate.control.kubernetes.manifest import KINDS

ROOT = Path(__file__).resolve().parents[3]


def test_the_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"image: localhost/framegate:{version}\n" in files()["framegate/sidecar.yaml"]


def test_comments_and_all_of_it_are_the_same_for_every_shape() -> None:
    bodies = {
        "".join(
            line.strip() + "\n" for line in text.splitlines() if line.strip() not in ("template:", "jobTemplate:", "spec:", "metadata:", "name: any")
        )
        for text in (files()["framegate/sidecar.yaml"], files()["framegate/sidecar-cronjob.yaml"], files()["framegate/sidecar-pod.yaml"])
    }
    heads = {body.partition("kind: ")[2].partition("\n")[2] for body in bodies}
    assert len(heads) == 1
    assert files()["framegate/kustomization.yaml"].count("- path: ") == len(KINDS)
