"""framegate.proxy.network.options: what is shared, and what comes by default."""

from framegate.proxy.network.authenticator import CertificateAuthenticators
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.stats import SideStats


def test_channels_share_the_very_objects() -> None:
    limit, stats = ReceiveLimit(5), SideStats()
    options = ChannelOptions(side="upstream", limit=limit, stats=stats, idle_ns=7)
    assert options.limit is limit
    assert options.stats is stats
    assert (options.side, options.idle_ns, options.tls) == ("upstream", 7, None)
    assert isinstance(options.authenticators, CertificateAuthenticators)
