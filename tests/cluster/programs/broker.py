"""A Kafka broker in a pod: its settings are written, its data folder is filled the first time, and then this process becomes Java.

ADVERTISED is the address that clients are told, the sidecar's; DATA is the folder of the data.
"""

import os
import shutil
import sys

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9193
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listeners=CONTROLLER://127.0.0.1:9193,INTERNAL://127.0.0.1:9094,CLIENTS://127.0.0.1:9092
advertised.listeners=INTERNAL://127.0.0.1:9094,CLIENTS://{advertised}
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
    if not os.path.exists(f"{data}/log"):
        shutil.copytree("/kafka/formatted", f"{data}/log")
    with open(f"{data}/server.properties", "w") as file:
        file.write(SETTINGS.format(advertised=os.environ["ADVERTISED"], data=data))
    java = shutil.which("java") or sys.exit("there is no Java in this image")
    options = [option.format(data=data) for option in JAVA]
    log = "-Dlog4j2.configurationFile=/kafka/log4j2.properties"
    os.chdir(data)
    os.execv(java, [java, *options, log, "-cp", "/kafka/jars/*", "kafka.Kafka", f"{data}/server.properties"])


if __name__ == "__main__":
    main()
