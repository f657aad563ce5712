"""A Kafka broker in a pod: its settings are written, its data folder is filled the first time, and then this process becomes Java.

ADVERTISED is the address that clients are told, the sidecar's; DATA is the folder of the data. BROKERS is the number of pods of the StatefulSet; more
than one are a cluster, in which all are controllers.
"""

import base64
import os
import shutil
import sys

SETTINGS = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listeners=CONTROLLER://{inner}:9193,INTERNAL://{inner}:9094,CLIENTS://127.0.0.1:9092
advertised.listeners=CONTROLLER://{host}:9193,INTERNAL://{host}:9094,CLIENTS://{advertised}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,CLIENTS:PLAINTEXT
log.dirs={data}/log
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=300
"""
JAVA = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx256m", "-Djava.io.tmpdir={data}/tmp"]


def main() -> None:
    data = os.environ["DATA"]
    os.makedirs(f"{data}/tmp", exist_ok=True)
    brokers, (name, _, ordinal) = int(os.environ.get("BROKERS", "1")), os.environ["POD_NAME"].rpartition("-")
    node, hosts = 1, ["127.0.0.1"]
    if brokers > 1:
        node, hosts = int(ordinal) + 1, [f"{name}-{number}.{name}" for number in range(brokers)]
    if not os.path.exists(f"{data}/log"):
        shutil.copytree("/kafka/formatted", f"{data}/log")
        with open(f"{data}/log/meta.properties") as file:
            lines = [line for line in file if not line.startswith(("node.id", "directory.id"))]
        folder = base64.urlsafe_b64encode(b"\1" + os.urandom(15)).decode().rstrip("=")
        with open(f"{data}/log/meta.properties", "w") as file:
            file.writelines([*lines, f"node.id={node}\n", f"directory.id={folder}\n"])
    voters = ",".join(f"{number}@{host}:9193" for number, host in enumerate(hosts, 1))
    places = {"node": node, "voters": voters, "host": hosts[node - 1], "inner": "0.0.0.0" if brokers > 1 else "127.0.0.1"}
    with open(f"{data}/server.properties", "w") as file:
        file.write(SETTINGS.format(advertised=os.environ["ADVERTISED"], data=data, **places))
    java = shutil.which("java") or sys.exit("there is no Java in this image")
    options = [option.format(data=data) for option in JAVA]
    log = "-Dlog4j2.configurationFile=/kafka/log4j2.properties"
    os.chdir(data)
    os.execv(java, [java, *options, log, "-cp", "/kafka/jars/*", "kafka.Kafka", f"{data}/server.properties"])


if __name__ == "__main__":
    main()
