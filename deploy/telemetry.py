"""Get the programs that show telemetry, once, into the cache: a collector, Prometheus with promtool, and the page that draws dashboards.

``python3 deploy/telemetry.py [collector] [prometheus] [page]``; all of them, when none is named

=============  ==================================================================================  ==================
part           how                                                                                 the first time
=============  ==================================================================================  ==================
collector      OpenTelemetry's builder, by Go, with the components of ``deploy/collector``         4 minutes
prometheus     Debian's package, downloaded and unpacked, not installed: no root is needed         5 s
page           Grafana's panel components by npm, bundled by esbuild                               1 minute
=============  ==================================================================================  ==================

They are in ``~/.cache/framegate/telemetry-<versions>``: programs in ``bin``, the page in ``page``. Parts that exist there, or on PATH, are not made
again. For a part that this machine cannot make, one line says what it needs, and the exit code is still 0. 1: a step failed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from typing import TYPE_CHECKING

import environment
import programs

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECTOR = "0.159.0"
PROVIDERS = "1.65.0"
GRAFANA = "13.2"
PICTURES = environment.ROOT / "deploy" / "dashboards" / "pictures"
_CORE, _CONTRIB = "go.opentelemetry.io/collector", "github.com/open-telemetry/opentelemetry-collector-contrib"
# All have the same version: a builder of another version would mix versions of the core.
_COMPONENTS = {
    "receivers": [f"{_CORE}/receiver/otlpreceiver"],
    "processors": [f"{_CORE}/processor/batchprocessor", f"{_CORE}/processor/memorylimiterprocessor"],
    "exporters": [
        f"{_CORE}/exporter/debugexporter",
        f"{_CORE}/exporter/otlpexporter",
        f"{_CONTRIB}/exporter/fileexporter",
        f"{_CONTRIB}/exporter/prometheusexporter",
    ],
    "extensions": [f"{_CONTRIB}/extension/healthcheckextension"],
}
_BUNDLE = ["--bundle", "--jsx=automatic", "--format=iife", "--minify", "--log-level=warning", '--define:process.env.NODE_ENV="production"']
_EMBEDDED = ["svg", "woff2", "ttf"]


class MissingError(Exception):
    """A part cannot be made on this machine; the message says what it needs."""


def workshop() -> programs.Workshop:
    """The folder of the cache for all parts."""
    return programs.Workshop(programs.cache_directory(f"telemetry-{COLLECTOR}-{GRAFANA}"))


def collector(shop: programs.Workshop) -> None:
    """Make the collector, ``otelcol``."""
    if not shop.unmade(["otelcol"]) or shutil.which("otelcol"):
        return
    if programs.go() is None:
        raise MissingError("Go {}.{} or newer, or otelcol on PATH".format(*programs.OLDEST_GO))
    shop.go(["install", f"{_CORE}/cmd/builder@v{COLLECTOR}"], "building the collector's builder")
    folder = shop.folder / "collector"
    manifest: dict[str, object] = {kind: [{"gomod": f"{module} v{COLLECTOR}"} for module in modules] for kind, modules in _COMPONENTS.items()}
    manifest["providers"] = [{"gomod": f"{_CORE}/confmap/provider/{name}provider v{PROVIDERS}"} for name in ("env", "file", "yaml")]
    manifest["dist"] = {
        "name": "otelcol",
        "description": "the components of framegate's configuration",
        "output_path": str(folder),
        "version": COLLECTOR,
    }
    folder.mkdir(exist_ok=True)
    (folder / "manifest.yaml").write_text(json.dumps(manifest))  # JSON is YAML
    shop.go_tool([str(shop.bin / "builder"), "--config", str(folder / "manifest.yaml")], "building the collector (three minutes or more)")
    shutil.move(folder / "otelcol", shop.bin / "otelcol")
    (shop.bin / "builder").unlink()
    shop.forget("collector", "go", "gocache")


def prometheus(shop: programs.Workshop) -> None:
    """Get Prometheus and promtool."""
    if not shop.unmade(["prometheus", "promtool"]) or (shutil.which("prometheus") and shutil.which("promtool")):
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise MissingError("Debian's apt-get, or prometheus and promtool on PATH")
    folder = shop.folder / "debian"
    folder.mkdir(exist_ok=True)
    shop.run(["apt-get", "download", "-q", "prometheus"], "downloading Prometheus", folder)
    package = max(folder.glob("prometheus_*.deb"))
    shop.run(["dpkg", "-x", str(package), str(folder)], "unpacking Prometheus")
    for name in ("prometheus", "promtool"):
        shutil.move(folder / "usr" / "bin" / name, shop.bin / name)
    shop.forget("debian")


def page(shop: programs.Workshop) -> None:
    """Make the page, ``page/page.js`` and ``page/page.css``, if its source has changed."""
    sources = [PICTURES / "package.json", PICTURES / "main.jsx"]
    made_of = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    target, stamp = shop.folder / "page", shop.folder / "page" / "made-of"
    if stamp.exists() and stamp.read_text() == made_of:
        return
    if not shutil.which("npm"):
        raise MissingError("Node.js with npm")
    folder = shop.folder / "npm"
    folder.mkdir(exist_ok=True)
    target.mkdir(exist_ok=True)
    for source in sources:
        shutil.copy(source, folder)
    shop.run(["npm", "install", "--no-fund", "--no-audit", "--legacy-peer-deps"], "installing Grafana's panel components", folder)
    loaders = [f"--loader:.{name}=dataurl" for name in _EMBEDDED]
    command = [str(folder / "node_modules" / ".bin" / "esbuild"), "main.jsx", *_BUNDLE, *loaders, f"--outfile={target / 'page.js'}"]
    shop.run(command, "bundling the page", folder)
    stamp.write_text(made_of)
    shop.forget("npm")


PARTS: dict[str, Callable[[programs.Workshop], None]] = {"collector": collector, "prometheus": prometheus, "page": page}


def main(arguments: list[str]) -> int:
    """Get the named parts, or all."""
    if not set(arguments) <= set(PARTS):
        environment.stop(__doc__ or "")
    shop = workshop()
    failed = False
    with shop.alone():
        for name in arguments or PARTS:
            try:
                PARTS[name](shop)
            except MissingError as error:
                environment.say(f"{name}: not here: needs {error}")
            except programs.ProgramError as error:
                environment.say(f"{name}: {error} (all of it: {shop.folder / 'build.log'})")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(environment.guarded(sys.argv[1:], main))
