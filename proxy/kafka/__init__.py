"""Kafka's messages, as far as the data path has to read and change them in place.

- ``tables``: the messages of all APIs that brokers offer to clients, generated from Kafka's schemas; ``schema``: reads them, and knows the APIs.
- ``program``: compiles the schema of a message into operations; ``walker``: executes them over a message and finds positions.
- ``addresses``: replaces addresses of brokers; ``endpoint_eraser``: erases them from answers that pass in pieces.
- ``api_versions``: narrows ApiVersions answers to what the tables have.
- ``subjects``: what a request names, which parts of it may be refused, and lists in answers.
- ``error_answers``: the answers by which a broker refuses a request; ``message``: whole messages as objects, for what is rare.
- ``produce_acks``: the acks of a Produce request, which every request on the way is asked for; ``values``: varints and strings.
- ``contents``: what requests and answers say, as columns, for the tables of the pipeline.
- ``trace_parents``: the trace contexts in the headers of a Produce request's records, for the requests that have a span.

What answers say of brokers, and what becomes of it:

=========================================  =========================================================================================================
API                                        decision
=========================================  =========================================================================================================
Metadata, FindCoordinator,                 addresses are replaced; in answers that pass in pieces they must be in the first part
DescribeCluster
Produce from version 10, Fetch from 16,    endpoints of new leaders are replaced; in answers that pass in pieces they are erased: clients then ask for
ShareFetch, ShareAcknowledge               metadata
DescribeQuorum from version 2              addresses of controllers, for which there is no listener: version 1, which has none, is offered instead
DescribeConfigs                            passes: ``listeners`` and ``advertised.listeners`` of a broker are settings that an administrator asks for;
                                           no client connects to them
AddRaftVoter                               passes: an administrator's request, with the endpoints of a controller
DescribeAcls, CreateAcls, DeleteAcls,      pass: the hosts in them are of clients
DescribeGroups, ConsumerGroupDescribe,
ShareGroupDescribe, StreamsGroupHeartbeat,
StreamsGroupDescribe
all                                        texts of errors pass
=========================================  =========================================================================================================

A tagged field that the tables do not know passes: Kafka adds addresses only with a new version, and new versions are not offered.
Nothing here imports more than the standard library, mypyc's runtime, and ``framegate.proxy.errors``.
"""
