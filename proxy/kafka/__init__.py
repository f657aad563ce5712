"""Kafka's messages, as far as the data path has to read and change them in place.

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
