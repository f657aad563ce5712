"""``python -m framegate.control.kubernetes``: write the components of ``deploy/kustomize``; of a checkout only."""

import pathlib

from framegate.control.kubernetes.component import files

ROOT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "kustomize"

for name, text in files().items():
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
