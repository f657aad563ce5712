"""Contexts go when nobody uses them any more."""

import dataclasses
import gc
import hashlib
import ssl
import weakref
from pathlib import Path

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from framegate.proxy.errors import ConfigError
from framegate.proxy.server.rows import Store, StoresRow, pack_stores
from framegate.proxy.server.stores import Stores
from tests.fakes.network import net_bench, tcp_pair
from tests.fakes.tls import TlsWorld

CONFIG = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="a", address="0.0.0.0:0", upstream="u", tls=ListenerTls(certificate="c", key="k")),),
    upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
)


def row(tls_world: TlsWorld, number: int) -> StoresRow:
    certificate, key = (Path(path).read_text() for path in tls_world.server)
    return pack_stores({"listener/a": Store(number, f"f{number}", {"c": certificate, "k": key})})


def test_without_a_row_files_are_read_here(tls_world: TlsWorld) -> None:
    listener = dataclasses.replace(CONFIG.listeners[0], tls=ListenerTls(certificate=tls_world.server[0], key=tls_world.server[1]))
    upstream = dataclasses.replace(CONFIG.upstreams[0], tls=UpstreamTls(ca=tls_world.authority))
    stores = Stores(dataclasses.replace(CONFIG, listeners=(listener,), upstreams=(upstream,)), None)
    made = stores.upstream("u", "host")
    assert made is not None
    assert (made.server_name, made.number, made.server_side) == ("host", 0, False)
    assert stores.listener("a") is not None


def test_a_row_without_a_files_content_is_refused_and_an_upstream_without_tls_has_no_settings(tls_world: TlsWorld) -> None:
    stores = Stores(CONFIG, row(tls_world, 1))
    assert (stores.listener("b"), stores.upstream("u", "host")) == (None, None)
    broken = row(tls_world, 2)
    broken["contents"].clear()
    with pytest.raises(ConfigError, match="was not sent along"):
        Stores(CONFIG, broken, stores)


def test_over_fifty_stores_the_old_contexts_go_with_their_last_connection(tls_world: TlsWorld) -> None:
    stores = Stores(CONFIG, row(tls_world, 1))
    contexts = []
    with net_bench() as net:
        options = net.options(tls=stores.listener("a"))
        ours, peer = tcp_pair()
        channels = [net.register(ours, 1, options), net.register(peer, 2, net.options(side="upstream", tls=tls_world.client_settings()))]
        net.poll_until(lambda: all(channel.is_open for channel in channels))
        for number in range(2, 52):
            assert options.tls is not None
            contexts.append(weakref.ref(options.tls.context))
            stores = Stores(CONFIG, row(tls_world, number), stores)
            options.tls = stores.listener("a")
        gc.collect()
        assert [reference for reference in contexts if reference() is not None] == contexts[:1], "the one that a connection runs on, and no other"
        identity = channels[0].identity
        assert identity is not None
        assert (identity.number, identity.shown) == (1, "f1")
        for channel in channels:
            channel.close(Cause.ADMIN, "")
        net.poll()
        net.listener.told.clear()
        channels.clear()
        del channel
        gc.collect()
        assert contexts[0]() is None


def test_who_asks_for_a_host_that_has_its_own_was_shown_that_one(tls_world: TlsWorld) -> None:
    named = NamedCertificate(names=("*.Example.org",), certificate="c2", key="k2")
    listener = dataclasses.replace(CONFIG.listeners[0], tls=ListenerTls(certificate="c", key="k", certificates=(named,)))
    texts = {name: Path(path).read_text() for name, path in zip(("c", "k", "c2", "k2"), (*tls_world.server, *tls_world.client), strict=True)}
    stores = Stores(dataclasses.replace(CONFIG, listeners=(listener,)), pack_stores({"listener/a": Store(1, "default", texts)}))
    made = stores.listener("a")
    assert made is not None
    assert made.store is not None
    own = hashlib.sha256(ssl.PEM_cert_to_DER_cert(texts["c2"])).hexdigest()[:16]
    assert made.shown_of(made.store.context("b.example.org")) == own
    assert made.shown_of(made.store.context("elsewhere")) == made.shown_of(made.context) == "default"
