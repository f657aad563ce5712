// Kafka's own client as a program: `java -cp JARS Everything.java SETTINGS BOOTSTRAP TOPIC COUNT PAUSE_S`; the settings are Kafka's properties, and what it
// does and prints is described in tests/peers/clients.py.

import java.io.FileInputStream;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.config.ConfigResource;

public class Everything {
    static final long GIVE_UP_MS = 20_000;
    static final long MORE_MS = 200;
    static final int PART = 100;

    public static void main(String[] words) throws Exception {
        Properties entry = new Properties();
        entry.load(new FileInputStream(words[0]));
        entry.put("bootstrap.servers", words[1]);
        String kind = "org.apache.kafka.common.serialization.String";
        for (String role : List.of("key", "value")) {
            entry.put(role + ".serializer", kind + "Serializer");
            entry.put(role + ".deserializer", kind + "Deserializer");
        }
        String topic = words[2];
        int count = Integer.parseInt(words[3]);
        try (Admin admin = Admin.create(entry)) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 3))).all().get();
            for (Node node : admin.describeCluster().nodes().get()) System.out.println("broker " + node.host() + ":" + node.port());
            ConfigResource asked = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(asked, List.of(change))).all().get();
            produce(entry, topic, count, (long) (1000 * Double.parseDouble(words[4])));
            consume(entry, topic, count);
            System.out.println("retention " + admin.describeConfigs(Set.of(asked)).all().get().get(asked).get("retention.ms").value());
            admin.deleteTopics(Set.of(topic)).all().get();
            System.out.println("deleted " + topic);
        }
    }

    static void produce(Properties entry, String topic, int count, long pauseMs) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(entry)) {
            send(producer, topic, 0, count, pauseMs);
        }
        Properties within = new Properties();
        within.putAll(entry);
        within.put("transactional.id", topic);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(within)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, count, 2 * count, 0);
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "aborted")).get();
            producer.abortTransaction();
        }
    }

    static void send(KafkaProducer<String, String> producer, String topic, int first, int end, long pauseMs) throws Exception {
        var waiting = new java.util.ArrayList<java.util.concurrent.Future<?>>();
        for (int number = first; number < end; number++) {
            waiting.add(producer.send(new ProducerRecord<>(topic, Integer.toString(number))));
            if (number % PART == 0) Thread.sleep(pauseMs);
        }
        for (var future : waiting) future.get();
    }

    static void consume(Properties entry, String topic, int count) {
        entry.put("group.id", topic);
        entry.put("auto.offset.reset", "earliest");
        entry.put("isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(entry)) {
            consumer.subscribe(Collections.singleton(topic));
            int got = 0;
            long last = System.currentTimeMillis();
            while (System.currentTimeMillis() - last < (got < 2 * count ? GIVE_UP_MS : MORE_MS)) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(MORE_MS))) {
                    System.out.println("value " + record.value());
                    got++;
                    last = System.currentTimeMillis();
                }
            }
            consumer.commitSync();
        }
    }
}
