"""The data path: Kafka's network layer, the relay of one client to one upstream, the tap, and the processor that runs them."""
