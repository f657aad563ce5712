"""The components of deploy/kustomize are generated from one source."""

import tomllib
from pathlib import Path

from framegate.control.kubernetes.manifest import KINDS
from tests.fakes.deploying import module

ROOT = Path(__file__).resolve().parents[2]
FILES = module("kustomize_components").files()


def test_the_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"image: localhost/framegate:{version}\n" in FILES["framegate/sidecar.yaml"]


def test_comments_and_all_of_it_are_the_same_for_every_shape() -> None:
    bodies = {
        "".join(
            line.strip() + "\n" for line in text.splitlines() if line.strip() not in ("template:", "jobTemplate:", "spec:", "metadata:", "name: any")
        )
        for text in (FILES["framegate/sidecar.yaml"], FILES["framegate/sidecar-cronjob.yaml"], FILES["framegate/sidecar-pod.yaml"])
    }
    heads = {body.partition("kind: ")[2].partition("\n")[2] for body in bodies}
    assert len(heads) == 1
    assert FILES["framegate/kustomization.yaml"].count("- path: ") == len(KINDS)
